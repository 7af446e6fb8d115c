"""The values of small tensors of a scope, found when they are asked for, and nodes that have them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc.model._inference._elementwise_shapes import Types
from byoc.model._inference._extents import add_dims
from byoc.model._inference._moved_values import MAX_ELEMENTS, Array, KnownNode
from byoc.model._inference._scopes import TensorScope
from byoc.model._inference._value_rules import collapse_array, compute_values, is_followed, is_of_types
from byoc.model._node_kinds import get_stated_attributes
from byoc.model._tensor_data import DTYPES, Dim, TensorType, read_type, write_type
from byoc.model._walk import get_input, is_onnx
from byoc.model.schemas import OperatorSchema, get_schema

# ONNX's own inference and reference implementation, asked for single nodes.

_EVALUATED = frozenset(
    [
        "CastLike",
        "Clip",
        "Compress",
        "Cos",
        "CumSum",
        "DequantizeLinear",
        "Exp",
        "Flatten",
        "GatherElements",
        "GatherND",
        "Log",
        "Mean",
        "NonZero",
        "OneHot",
        "Pad",
        "Pow",
        "QuantizeLinear",
        "Reciprocal",
        "ReduceMean",
        "Relu",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Sign",
        "Sin",
        "Sum",
        "TopK",
        "Trilu",
        "Unique",
        "Xor",
    ]
)
# Their outputs have an entry for each element and axis of their input at most.
_BOUNDED_BY_INPUT = frozenset({"Compress", "NonZero", "Unique"})


def is_evaluated(operator: str) -> bool:
    """Return whether ONNX's reference implementation is asked for an operator of its main domain."""
    return operator in _EVALUATED


def evaluate_node(
    node: KnownNode,
    kinds: Sequence[TensorType | None],
    opsets: Mapping[str, int],
    ir_version: int,
) -> Sequence[Array | None]:
    """Compute a node whose inputs are all known, by ONNX's reference implementation.

    `kinds` are the types of its outputs: what is not known to be small is not computed, since a few
    bytes in a file can stand for a tensor that does not fit into memory. Nothing is returned in that
    case.
    """
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    proto = node.proto
    feeds = {name: node.get_value(i) for i, name in enumerate(proto.input) if name}
    if not feeds or any(value is None or value.dtype == object for value in feeds.values()):
        return []
    small = all(kind is not None and kind.elements is not None for kind in kinds)
    if not small and proto.op_type not in _BOUNDED_BY_INPUT:
        return []
    outputs = [name for name in proto.output if name]
    graph = helper.make_graph(
        [proto],
        "node",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    imports = _make_opset_imports(opsets)
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        with np.errstate(all="ignore"):  # a division by zero here is one when it runs
            made = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # an operator that the reference implementation lacks, or wrong attributes
        return []
    found = dict(zip(outputs, map(np.asarray, made), strict=True))
    return [found.get(name) for name in proto.output]


def infer_by_onnx(
    node: KnownNode, schema: onnx.defs.OpSchema, opsets: Mapping[str, int], ir_version: int
) -> Types:
    """Return the types of a node's outputs that ONNX infers from the types and values of its inputs.

    Nothing is returned if the type of an input is not known.
    """
    proto = node.proto
    names = [(i, name) for i, name in enumerate(proto.input) if name]
    types = {name: kind for i, name in names if (kind := node.get_type(i)) is not None}
    if len(types) < len({name for _, name in names}):
        return []
    values = {name: value for i, name in names if (value := node.get_value(i)) is not None}
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: write_type(kind) for name, kind in types.items()},
            {n: numpy_helper.from_array(v, n) for n, v in values.items() if v.dtype != object},
            opset_imports=_make_opset_imports(opsets),
            ir_version=ir_version,
        )
    except (
        onnx.checker.ValidationError,  # an input that must not be left out is
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ):
        return []
    return [read_type(inferred[name]) if name in inferred else None for name in proto.output]


def _make_opset_imports(opsets: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]


def find_value(scope: TensorScope, name: str) -> Array | None:
    """Return the value of a small tensor, None if it is not known; elements may be symbolic."""
    if name in scope.values:
        return scope.values[name]
    if name not in scope.producers:
        scope.values[name] = _find_given_value(scope, name)
        return scope.values[name]
    needed: set[int] = set()
    pending = [name]
    while pending:
        wanted = pending.pop()
        number = scope.producers.get(wanted)
        if wanted in scope.values or number in needed:
            continue
        if number is None:
            scope.values[wanted] = _find_given_value(scope, wanted)
            continue
        node = scope.nodes[number]
        if not _has_followed_values(scope, node):
            scope.values.update(dict.fromkeys(node.output))
            continue
        needed.add(number)
        pending.extend(() if is_onnx(node) and is_of_types(node.op_type) else filter(None, node.input))
    for number in sorted(needed):
        _compute_values(scope, number)
    return scope.values.get(name)


def _find_given_value(scope: TensorScope, name: str) -> Array | None:
    """Return the value of a tensor that no node here makes."""
    stored = scope.stored.get(name)
    if stored is not None:
        return _read_stored(stored)
    if scope.outer is None or name in scope.types:  # an input of this graph
        return None
    return find_value(scope.outer, name)


def _has_followed_values(scope: TensorScope, node: NodeProto) -> bool:
    if not is_onnx(node) or not (is_followed(node.op_type) or is_evaluated(node.op_type)):
        return False
    kinds = [scope.types.get(name) for name in node.output if name]
    sizes = [kind.elements for kind in kinds if kind is not None]
    return not any(size is not None and size > MAX_ELEMENTS for size in sizes)


def _compute_values(scope: TensorScope, number: int) -> None:
    node = scope.nodes[number]
    positions = range(len(scope.inputs[number]))
    known = describe_node(scope, number, read_values(scope, number, positions))
    if is_followed(node.op_type):
        found: Sequence[Array | None] = compute_values(known)
    else:
        kinds = [scope.types.get(name) for name in node.output if name]
        found = evaluate_node(known, kinds, scope.opsets, scope.context.ir_version)
    for name, value in zip(node.output, found, strict=False):
        kind = scope.types.get(name)
        dtype = kind.dtype if kind is not None else None
        scope.values[name] = None if value is None else collapse_array(value, dtype)
    for name in node.output:
        scope.values.setdefault(name, None)


def describe_node(scope: TensorScope, number: int, values: tuple[Array | None, ...]) -> KnownNode:
    """Return a node with the types of its inputs, and with values of them (see `read_values`)."""
    node = scope.nodes[number]
    types = [scope.find_type(name) if name else None for name in scope.inputs[number]]
    return KnownNode(node, scope.get_opset(node), _find_attributes(scope, number), tuple(types), values)


def _find_attributes(scope: TensorScope, number: int) -> Mapping[str, Any]:
    """Return the attributes of a node: the stated ones, and the defaults of its schema."""
    node = scope.nodes[number]
    key = scope.kinds[number], scope.get_opset(node)
    found = scope.context.attributes.get(key)
    if found is None:
        schema = get_schema(node.op_type, node.domain, key[1])
        defaults = _read_defaults(schema) if schema is not None else {}
        found = {**defaults, **(get_stated_attributes(node) if node.attribute else {})}
        scope.context.attributes[key] = found
    return found


def read_values(scope: TensorScope, number: int, positions: Iterable[int]) -> tuple[Array | None, ...]:
    """Return the values of a node's inputs at some positions, None for those at others."""
    names = scope.inputs[number]
    values: list[Array | None] = [None] * len(names)
    for i in positions:
        if i < len(names) and names[i]:
            values[i] = find_value(scope, names[i])
    if any(value is not None and value.dtype.kind == "f" for value in values):
        node = scope.nodes[number]
        schema = get_schema(node.op_type, node.domain, scope.get_opset(node))
        if schema is not None and schema.inputs:
            values = _drop_wrong_floats(values, schema)
    return tuple(values)


def record_made_inside(
    scope: TensorScope, number: int, inner: TensorScope, names: Iterable[str]
) -> None:
    """Record the values of a node's outputs, which `inner`, a body or a function, has by `names`."""
    for name, inside in zip(scope.outputs[number], names, strict=False):
        scope.values[name] = find_value(inner, inside) if inner.is_small(inside) else None
        scope.made_inside.add(name)


def type_by_values(scope: TensorScope, number: int, types: Types) -> Types:
    """Return types with the shapes of values that are known."""
    values = [find_value(scope, name) if name else None for name in scope.outputs[number]]
    pairs = zip(types, values, strict=False)
    return [
        TensorType(kind.dtype, value.shape) if kind is not None and value is not None else kind
        for kind, value in pairs
    ]


def _drop_wrong_floats(
    values: Sequence[NDArray[Any] | None], schema: OperatorSchema
) -> list[NDArray[Any] | None]:
    """Return the values of inputs without floats where the schema takes none, as in a wrong shape."""
    formals = schema.list_input_formals(len(values))
    return [
        None
        if value is not None and value.dtype.kind == "f" and value.dtype.name not in formal.dtypes
        else value
        for value, formal in zip(values, formals, strict=True)
    ]


@cache
def _read_defaults(schema: OperatorSchema) -> dict[str, Any]:
    defaults = [a.default for a in schema.attributes.values() if a.default is not None]
    return get_stated_attributes(NodeProto(attribute=defaults))


def _read_stored(tensor: TensorProto) -> Array | None:
    if prod(tensor.dims) > MAX_ELEMENTS or DTYPES.get(tensor.data_type) in (None, "string"):
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    return numpy_helper.to_array(tensor)


# Sequences as lists of types: what a node puts into one, and what another takes out.
#
# ONNX types a sequence by one element type. Exporters write lists of a known length
# (`out.append(...)`), of tensors whose shapes differ, so each element is followed. Where a position
# or a length is known only when the model runs, the list is not known.

Elements = tuple[TensorType | None, ...]

MOST_ELEMENTS = 1024
"""The longest list that is followed, as the values of small tensors are."""


def follow_sequence(scope: TensorScope, number: int) -> None:
    """Enter the elements of the sequence that a node makes, where they are known."""
    rule = _MAKERS.get(scope.kinds[number].operator)
    made = scope.outputs[number][0] if scope.outputs[number] else ""
    if rule is None or not made:
        return
    found = rule(scope, number)
    if found is not None and len(found) <= MOST_ELEMENTS:
        scope.sequences[made] = found


def infer_from_sequence(scope: TensorScope, number: int) -> Sequence[TensorType | None]:
    """Return the types of what a node takes out of a sequence; none where that is not known."""
    rule = _READERS.get(scope.kinds[number].operator)
    return [] if rule is None else rule(scope, number)


def _find_elements(scope: TensorScope, number: int) -> Elements | None:
    return scope.find_sequence(get_input(scope.nodes[number], 0))


def _find_position(scope: TensorScope, number: int, place: int, default: int | None) -> int | None:
    """Return the number that an input of a node has, `default` where it is left out."""
    name = get_input(scope.nodes[number], place)
    if not name:
        return default
    value = find_value(scope, name)
    if value is None or value.size != 1 or value.dtype == object:
        return None
    return int(value.reshape(-1)[0])


def _construct(scope: TensorScope, number: int) -> Elements | None:
    return tuple(scope.find_type(name) for name in scope.inputs[number])


def _insert(scope: TensorScope, number: int) -> Elements | None:
    elements = _find_elements(scope, number)
    if elements is None:
        return None
    position = _find_position(scope, number, 2, len(elements))
    added = scope.find_type(get_input(scope.nodes[number], 1))
    if position is None:  # one of equals may stand anywhere
        return (*elements, added) if all(each == added for each in elements) else None
    if not -len(elements) <= position <= len(elements):
        return None
    place = position + len(elements) if position < 0 else position
    return (*elements[:place], added, *elements[place:])


def _erase(scope: TensorScope, number: int) -> Elements | None:
    elements = _find_elements(scope, number)
    if not elements:
        return None
    position = _find_position(scope, number, 1, -1)
    if position is None:
        return elements[1:] if len(set(elements)) == 1 else None
    if not -len(elements) <= position < len(elements):
        return None
    place = position % len(elements)
    return (*elements[:place], *elements[place + 1 :])


def _split(scope: TensorScope, number: int) -> Elements | None:
    """Return the parts of a tensor: of one position each, of so many, or of those in a list."""
    kind = scope.find_type(get_input(scope.nodes[number], 0))
    attributes = describe_node(scope, number, read_values(scope, number, ())).attributes
    axis = attributes.get("axis", 0)
    if kind is None or kind.shape is None or not -len(kind.shape) <= axis < len(kind.shape):
        return None
    axis %= len(kind.shape)
    extent, name = kind.shape[axis], get_input(scope.nodes[number], 1)
    sizes: list[Dim] | None = None
    if not name:
        sizes = [1] * extent if isinstance(extent, int) and extent <= MOST_ELEMENTS else None
    elif (value := find_value(scope, name)) is not None and value.dtype != object:
        if value.ndim:
            sizes = [int(each) for each in value.reshape(-1)]
        elif isinstance(extent, int) and value.item() > 0 and extent <= MOST_ELEMENTS * value.item():
            step = int(value.item())
            sizes = [min(step, extent - start) for start in range(0, extent, step)]
    if sizes is None:
        return None
    drops = not name and not attributes.get("keepdims", 1)
    behind = kind.shape[axis + 1 :]
    return tuple(
        TensorType(kind.dtype, (*kind.shape[:axis], *([] if drops else [size]), *behind))
        for size in sizes
    )


_MAKERS: Mapping[str, Callable[[TensorScope, int], Elements | None]] = {
    "Identity": _find_elements,
    "SequenceConstruct": _construct,
    "SequenceEmpty": lambda scope, number: (),
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SplitToSequence": _split,
}


def _take_at(scope: TensorScope, number: int) -> list[TensorType | None]:
    elements = _find_elements(scope, number)
    if not elements:
        return []
    position = _find_position(scope, number, 1, None)
    if position is None:
        return [elements[0]] if len(set(elements)) == 1 else []
    return [elements[position]] if -len(elements) <= position < len(elements) else []


def _count(scope: TensorScope, number: int) -> list[TensorType | None]:
    return [TensorType("int64", ())]


def _join(scope: TensorScope, number: int) -> list[TensorType | None]:
    """Return the type of ConcatFromSequence: elements along an axis that they have, or a new one."""
    elements = _find_elements(scope, number)
    shapes = [each.shape for each in elements or () if each is not None and each.shape is not None]
    if not elements or len(shapes) < len(elements) or len({len(shape) for shape in shapes}) > 1:
        return []
    attributes = describe_node(scope, number, read_values(scope, number, ())).attributes
    new, axis, first = bool(attributes.get("new_axis", 0)), attributes.get("axis", 0), shapes[0]
    rank = len(first) + new
    if not -rank <= axis < rank:
        return []
    axis %= rank
    extents: list[Dim] = [_agree([shape[i] for shape in shapes]) for i in range(len(first))]
    if new:
        extents.insert(axis, len(shapes))
    else:
        extents[axis] = add_dims(*(shape[axis] for shape in shapes))
    assert elements[0] is not None  # all have a shape
    return [TensorType(elements[0].dtype, tuple(extents))]


def _agree(extents: Sequence[Dim]) -> Dim:
    """Return the extent that all of an axis share: a number before a name, None if none is known."""
    known = [extent for extent in extents if extent is not None]
    return next((each for each in known if isinstance(each, int)), known[0] if known else None)


_READERS: Mapping[str, Callable[[TensorScope, int], list[TensorType | None]]] = {
    "ConcatFromSequence": _join,
    "SequenceAt": _take_at,
    "SequenceLength": _count,
}
