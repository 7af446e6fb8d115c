"""The state of a model: inputs that take what outputs gave in the last call, as a decoder's cache.

A model with state reads `past` and gives `present`. The pairs are found by operators whose schemas name
them so (GroupQueryAttention, Attention, TensorScatter, ...), by a Concat that appends to a cache, and
by the names that exporters use (`past_key_values.0.key` and `present.0.key`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.model._heavy_weights import replace_weights
from byoc.model._node_kinds import get_stated_attributes
from byoc.model._tensor_data import TensorType, read_type
from byoc.model._walk import get_input, is_onnx, walk_nodes
from byoc.model.schemas import get_schema

_PAST_NAMES = ("past_key_values", "past")
_PRESENT_NAMES = ("present", "present_key_values")
_OVERWRITING_OPERATORS = {("com.microsoft", "GroupQueryAttention")}
"""Operators that write to the buffer of the past itself where the present lies in the same one."""


@dataclass(frozen=True)
class StatePair:
    """An input and the output whose value it takes in the next call.

    `maker` is the operator that makes the output of the input, empty where names alone say so.
    `in_place` says that both may lie in one buffer: the operator then adds to what it holds, and
    nothing else reads the input.
    """

    past: str
    present: str
    maker: str = ""
    in_place: bool = False


def find_state_pairs(
    proto: ModelProto, types: Mapping[str, TensorType] = MappingProxyType({})
) -> tuple[StatePair, ...]:
    """Return the pairs of a model, in the order of its inputs; functions are looked into.

    Both tensors of a pair have one dtype, and all extents that both state are equal but for one, in
    which a cache may grow. Each input and output is in one pair at most. `types` are those of inputs
    where more is known than the model states, as what is open over several variants.
    """
    flat = replace_weights(proto)
    if flat.functions:
        flat = inline_local_functions(flat)
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = {v.name: read_type(v.type) for v in proto.graph.input if v.name not in stored}
    outputs = {value.name: read_type(value.type) for value in proto.graph.output}
    found: dict[str, StatePair] = {}
    inputs |= {name: kind for name, kind in types.items() if name in inputs}
    for pair in (*_pairs_by_operators(flat, inputs), *_pairs_by_names(inputs, outputs)):
        taken = {other.present for other in found.values()}
        if pair.past not in inputs or pair.past in found:
            continue
        if pair.present not in outputs or pair.present in taken:
            continue
        if _may_follow(inputs[pair.past], outputs[pair.present]):
            found[pair.past] = pair
    return tuple(found[name] for name in inputs if name in found)


def choose_state_pairs(
    proto: ModelProto,
    given: Mapping[str, str] | None = None,
    types: Mapping[str, TensorType] = MappingProxyType({}),
) -> tuple[StatePair, ...]:
    """Return the pairs that are given by names of inputs, those that are found where none are.

    Raises InputError for a pair that names no input or output, or two of other types, and for an output
    of two inputs.
    """
    found = find_state_pairs(proto, types)
    if given is None:
        return found
    known = {(pair.past, pair.present): pair for pair in found}
    inputs = {value.name: read_type(value.type) for value in proto.graph.input}
    inputs |= {name: kind for name, kind in types.items() if name in inputs}
    outputs = {value.name: read_type(value.type) for value in proto.graph.output}
    taken: set[str] = set()
    for past, present in given.items():
        if present in taken:
            raise InputError(f"output '{present}' is the state of two inputs")
        if past not in inputs:
            raise InputError(f"no input '{past}'{suggest_nearest(past, inputs)}")
        if present not in outputs:
            raise InputError(f"no output '{present}'{suggest_nearest(present, outputs)}")
        if not _may_follow(inputs[past], outputs[present]):
            raise InputError(
                f"input '{past}' ({inputs[past]}) cannot take what output '{present}' gave "
                f"({outputs[present]})"
            )
        taken.add(present)
    return tuple(known.get(names, StatePair(*names)) for names in given.items())


def match_state_patterns(patterns: Mapping[str, str], proto: ModelProto) -> dict[str, str]:
    """Return the outputs that inputs take their values from, by names of inputs, as patterns say.

    Each maps the name of an input to that of an output; a `*` in both stands for the same text, of any
    length. The first pattern that fits an input holds; inputs without such an output are left out.
    """
    outputs = {value.name for value in proto.graph.output}
    found: dict[str, str] = {}
    for past, present in patterns.items():
        before, star, behind = past.partition("*")
        for name in (value.name for value in proto.graph.input):
            longer = len(name) >= len(before) + len(behind)
            fits = longer and name.startswith(before) and name.endswith(behind) if star else name == past
            middle = name[len(before) : len(name) - len(behind)]
            made = present.replace("*", middle)
            if fits and made in outputs:
                found.setdefault(name, made)
    return found


def _pairs_by_operators(
    proto: ModelProto, types: Mapping[str, TensorType | None]
) -> Iterator[StatePair]:
    """Yield pairs that operators of the main graph make; not all of their names need be of the graph."""
    readers = Counter(name for node in walk_nodes(proto.graph.node) for name in node.input)
    readers.update(value.name for value in proto.graph.output)
    opsets = {entry.domain.removeprefix("ai.onnx"): entry.version for entry in proto.opset_import}
    for node in proto.graph.node:
        for past, present in _list_past_and_present(node, opsets, types):
            alone = readers[past] == 1 and (node.domain, node.op_type) in _OVERWRITING_OPERATORS
            yield StatePair(past, present, node.op_type, alone)


def _list_past_and_present(
    node: NodeProto, opsets: Mapping[str, int], types: Mapping[str, TensorType | None]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tensors that a node reads as its past and makes as its present."""
    if is_onnx(node) and node.op_type == "Concat":
        if _may_grow(types.get(node.input[0]), get_stated_attributes(node)["axis"]):
            yield node.input[0], node.output[0]
        return
    domain = "" if is_onnx(node) else node.domain
    schema = get_schema(node.op_type, domain, opsets.get(domain, 1))
    if schema is None:
        return
    formals = {formal.name: i for i, formal in enumerate(schema.outputs)}
    for i, formal in enumerate(schema.inputs):
        if not formal.name.startswith("past"):
            continue
        made = formals.get(formal.name.replace("past", "present", 1), len(node.output))
        if get_input(node, i) and made < len(node.output):
            yield node.input[i], node.output[made]


def _may_grow(kind: TensorType | None, axis: int) -> bool:
    """Return whether the extent of a tensor along an axis is open."""
    if kind is None or kind.shape is None or not -len(kind.shape) <= axis < len(kind.shape):
        return False
    return not isinstance(kind.shape[axis], int)


def _pairs_by_names(
    inputs: Mapping[str, TensorType | None], outputs: Mapping[str, TensorType | None]
) -> Iterator[StatePair]:
    """Yield pairs whose names differ in `past` and `present` alone."""
    for name in inputs:
        for past in _PAST_NAMES:
            made = [name.replace(past, present, 1) for present in _PRESENT_NAMES if past in name]
            yield from (StatePair(name, other) for other in made if other in outputs)


def _may_follow(past: TensorType | None, present: TensorType | None) -> bool:
    """Return whether a tensor may be the input that another one was made from."""
    if past is None or present is None or past.dtype != present.dtype:
        return False
    if past.shape is None or present.shape is None:
        return True
    if len(past.shape) != len(present.shape):
        return False
    extents = zip(past.shape, present.shape, strict=True)
    stated = [(one, other) for one, other in extents if isinstance(one, int) and isinstance(other, int)]
    return sum(one != other for one, other in stated) <= 1
