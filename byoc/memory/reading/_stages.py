"""The steps of a model in order: sizes of tensors, views, operators that overwrite."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from onnx import FunctionProto, NodeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model import (
    RANDOM_OPERATORS,
    GraphIndex,
    TensorType,
    count_bits,
    describe_node,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
    is_qdq_node,
    is_quantize,
    list_bodies,
    list_dim_names,
    list_node_captures,
    list_open_dims,
    may_be_float,
)
from byoc.numerics import find_cycle, sort_topologically

_BYTE = 8  # bits

# Operators that are views, and operators that can overwrite an operand.

VIEWS = {
    "Reshape": "the elements stay in their order, whatever the shape",
    "Flatten": "a Reshape to two axes",
    "Squeeze": "a Reshape without some axes of extent 1",
    "Unsqueeze": "a Reshape with more axes of extent 1",
    "Identity": "the same tensor under another name",
    "Dropout": "the same tensor where it does not train",
}
"""Operators whose first output is the bytes of their first input, and why."""

_POINTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish
    Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
# These do so with some of their inputs; what they read of the others is at other places.
_POINTWISE_IN = {
    "BatchNormalization": (0,),
    "DequantizeLinear": (0,),
    "QuantizeLinear": (0,),
    "ScatterElements": (0,),
    "ScatterND": (0,),
    "TensorScatter": (0,),
}
# From this operator-set version on Dropout has an input that says whether it trains, and before the
# other one an attribute did; in between it never does.
_TRAINING_MODE, _IS_TEST = 12, 7


def is_view(index: GraphIndex, node: NodeProto) -> bool:
    """Tell whether a node's first output is the bytes of its first input."""
    if not is_onnx(node) or node.op_type not in VIEWS:
        return False
    return node.op_type != "Dropout" or not _trains(index, node)


def written_outputs(index: GraphIndex, node: NodeProto) -> list[str]:
    """Return the outputs that a node writes, without optional ones that nothing reads."""
    schema = index.get_schema(node)
    optional = {
        name
        for name, formal in zip(node.output, schema.outputs if schema else (), strict=False)
        if formal.optional
    }
    return [name for name in node.output if name and (name not in optional or index.is_used(name))]


def pointwise_inputs(node: NodeProto) -> tuple[int, ...]:
    """Return the inputs, by position, whose element i is read only for element i of the output.

    This holds for inputs with as many elements as the first output; others are broadcast.
    """
    if not is_onnx(node):
        return ()
    if node.op_type in _PLAIN or (node.op_type in VIEWS and node.op_type != "Dropout"):
        return tuple(range(len(node.input)))
    return _POINTWISE_IN.get(node.op_type, ())


_PLAIN = frozenset(_POINTWISE.split())


def _trains(index: GraphIndex, node: NodeProto) -> bool:
    opset = index.get_opset(node)
    if opset < _IS_TEST:
        return not get_stated_attributes(node).get("is_test", 0)
    if opset < _TRAINING_MODE or len(node.input) < 3 or not node.input[2]:
        return False
    value = get_constant_value(index, node.input[2])
    return value is None or bool(value.any())


FunctionTable = Mapping[tuple[str, str, str], FunctionProto]


@dataclass(frozen=True)
class TensorOrigin:
    """The origin of a tensor: outer tensors read element by element (`same`), and the other ones.

    An operator never makes fewer elements than an operand it reads element by element, so a tensor with
    as many elements as the result has the same order all along the way.
    """

    same: frozenset[str] = field(default_factory=frozenset)
    other: frozenset[str] = field(default_factory=frozenset)


def find_origins(nodes: Sequence[NodeProto], functions: FunctionTable) -> dict[str, TensorOrigin]:
    """Return the origin of each tensor that some sorted nodes make.

    A function call is treated as the nodes of the function.
    """
    found: dict[str, TensorOrigin] = {}
    for node in nodes:
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            inner = find_origins(list(function.node), functions)
            for name, formal in zip(node.output, function.output, strict=False):
                found[name] = _origin_of_call(node, function, inner.get(formal, TensorOrigin()), found)
            continue
        pointwise = pointwise_inputs(node)
        given = [name if position in pointwise else "" for position, name in enumerate(node.input)]
        others = [
            *(n for p, n in enumerate(node.input) if p not in pointwise),
            *list_node_captures(node),
        ]
        first, rest = _join_origins(given, others, found), _join_origins((), (*given, *others), found)
        for position, name in enumerate(node.output):
            found[name] = rest if position else first
    return found


def _join_origins(
    same: Iterable[str], other: Iterable[str], found: Mapping[str, TensorOrigin]
) -> TensorOrigin:
    one = [found.get(name, TensorOrigin(frozenset({name}))) for name in same if name]
    two = [found.get(name, TensorOrigin(frozenset({name}))) for name in other if name]
    alike = frozenset[str]().union(*(each.same for each in one))
    unlike = frozenset[str]().union(
        *(each.other for each in one), *(each.same | each.other for each in two)
    )
    return TensorOrigin(alike - unlike, unlike)


def _origin_of_call(
    call: NodeProto, function: FunctionProto, inner: TensorOrigin, found: Mapping[str, TensorOrigin]
) -> TensorOrigin:
    """Return the origin of an output of a call, in the names of the caller."""
    outer = dict(zip(function.input, call.input, strict=False))
    same = [outer.get(name, "") for name in inner.same]
    return _join_origins(same, [outer.get(name, "") for name in inner.other], found)


# Sizes of a model's tensors, and the tensors known before it runs.

# They read no element of what they are given: where every extent is known they depend on nothing.
_OF_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, eq=False)
class TensorSizes:
    """The tensors of a graph; `source` names the model in messages.

    Elements of less than a byte share one if they are `packed`.
    """

    index: GraphIndex
    source: str
    packed: bool = True

    @property
    def types(self) -> Mapping[str, TensorType]:
        """The known types."""
        return self.index.types

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose outputs are known before the model runs, given all extents."""
        index = self.index
        found, known = set(index.constant_nodes), set[str]()
        for number, node in enumerate(index.nodes):
            if number in found or not is_onnx(node) or node.op_type in RANDOM_OPERATORS:
                continue
            if list_bodies(node):
                continue
            reads = index.reads[number]
            if node.op_type not in _OF_SHAPES and (
                not known.intersection(reads)
                or not all(name in known or index.is_constant(name) for name in reads)
            ):
                continue
            found.add(number)
            known.update(node.output)
        return frozenset(found)

    def is_constant(self, name: str) -> bool:
        """Tell whether a tensor is stored, or computed from stored tensors alone."""
        return self.index.is_constant(name) or self.index.producers.get(name) in self.constant_nodes

    def count_elements(self, name: str) -> int:
        """Return the number of elements. Raises InputError as `count_bytes` does."""
        return self._known_type(name).elements or 0

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a tensor, not rounded.

        Raises InputError for an unknown extent, and for strings, sequences, maps and optionals.
        """
        kind = self._known_type(name)
        return (kind.bytes if self.packed or count_bits(kind.dtype) >= _BYTE else kind.elements) or 0

    def _known_type(self, name: str) -> TensorType:
        kind = self.types.get(name)
        if kind is None and name in self.index.type_protos:
            value = (self.index.type_protos[name].WhichOneof("value") or "value").removesuffix("_type")
            form = f"an {value}" if value == "optional" else f"a {value}"
            raise InputError(f"{self.source}: '{name}' is {form}, whose bytes only a run can tell")
        if kind is not None and kind.dtype == "string":
            raise InputError(f"{self.source}: '{name}' holds strings, whose bytes only a run can tell")
        if kind is None or kind.elements is None:
            said = "of an unknown type" if kind is None else str(kind)
            raise InputError(f"{self.source}: '{name}' is {said}: {self._suggest_dims(kind)}")
        return kind

    def _suggest_dims(self, kind: TensorType | None) -> str:
        shape = (kind.shape or ()) if kind else ()
        dims = [name for dim in shape for name in sorted(list_dim_names(dim))]
        named = list_open_dims(self.index.proto)
        wanted = [dim for dim in dict.fromkeys(dims) if dim in named] or named
        if not wanted:
            return "an extent is not known before the model runs, and no --dim NAME=SIZE settles it"
        asked = " ".join(f"--dim {dim}=SIZE" for dim in wanted)
        return f"an extent is not known, which {asked} may settle"


def build_stages(
    index: GraphIndex, left_out: frozenset[int], groups: Iterable[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the nodes of each step: the given groups, and every other node on its own.

    The nodes in `left_out` are in no step. Steps are in the order of the nodes, except that a group
    waits for its operands. Raises ValueError for a node in two groups, and for a group that depends on
    itself.
    """
    stages: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group in groups:
        nodes = tuple(sorted(set(group) - left_out))
        if shared := taken.intersection(nodes):
            raise ValueError(f"{describe_node(index.nodes[min(shared)])} is in two groups")
        taken.update(nodes)
        if nodes:
            stages.append(nodes)
    stages += [(n,) for n in range(len(index.nodes)) if n not in taken and n not in left_out]
    return _sort_stages(index, stages)


def _sort_stages(index: GraphIndex, stages: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Sort steps topologically, by the position of their last node where there is a choice."""
    of = {node: number for number, nodes in enumerate(stages) for node in nodes}
    before = [
        {
            of[maker]
            for node in nodes
            for name in index.reads[node]
            if (maker := index.producers.get(name)) in of and of[maker] != number
        }
        for number, nodes in enumerate(stages)
    ]
    for number in find_cycle(before):
        if len(stages[number]) > 1:
            raise ValueError(
                f"the group of {describe_node(index.nodes[stages[number][0]])} waits for itself"
            )
    return [stages[number] for number in sort_topologically(before, [nodes[-1] for nodes in stages])]


def find_quantized_groups(index: GraphIndex) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each QDQ group of a graph, which an integer accelerator computes as one step.

    A group is an operator with the elementwise operators that alone read its results (an activation, the
    addition of a residual), the DequantizeLinear of each of its activations and the QuantizeLinear of
    its results. There is none if a floating-point tensor would enter or leave. A DequantizeLinear that
    several groups would need is in none; `byoc.model._node_facts` makes copies.
    """
    together: dict[int, list[int]] = {}
    for number, root in _find_roots(index).items():
        together.setdefault(root, []).append(number)
    found = (_complete_group(index, nodes) for _, nodes in sorted(together.items()))
    return tuple(group for group in found if group)


def _find_roots(index: GraphIndex) -> dict[int, int]:
    """Return for each computing node the last one computed together with it.

    Only the last one's results leave these nodes, so no path can leave them and come back.
    """
    roots: dict[int, int] = {}
    for number in reversed(range(len(index.nodes))):
        node = index.nodes[number]
        if number in index.constant_nodes or node.op_type in _OF_SHAPES:
            continue
        if is_qdq_node(node):
            continue
        behind = {roots.get(r) for name in node.output for r in index.consumers.get(name, ())}
        joins = len(behind) == 1 and all(_is_followed(index, n) for n in node.output if n)
        root = next(iter(behind)) if joins else None
        roots[number] = number if root is None else root
    return roots


def _is_followed(index: GraphIndex, name: str) -> bool:
    """Tell whether a tensor is read element by element only, and not by a caller."""
    if name in index.outputs or not may_be_float(index, name):
        return False
    for reader in index.consumers.get(name, ()):
        node = index.nodes[reader]
        places = [place for place, given in enumerate(node.input) if given == name]
        if not places or not set(places) <= set(pointwise_inputs(node)):
            return False
    return True


def _complete_group(index: GraphIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return some nodes with the quantization around them, empty if it is incomplete."""
    inside = set(nodes)
    made = {name for number in nodes for name in index.nodes[number].output if name}
    around: set[int] = set()
    for name in {name for number in nodes for name in index.reads[number]} - made:
        if index.is_constant(name) or not may_be_float(index, name):
            continue
        maker = index.producers.get(name)
        if maker is None or not is_dequantize(index.nodes[maker]) or name in index.outputs:
            return ()
        if not inside.issuperset(index.consumers[name]):
            return ()
        around.add(maker)
    for name in made:
        readers = set(index.consumers.get(name, ())) - inside
        if not may_be_float(index, name) or not (readers or name in index.outputs):
            continue
        if name in index.outputs or not all(is_quantize(index.nodes[r]) for r in readers):
            return ()
        around |= readers
    return tuple(sorted(inside | around)) if around else ()
