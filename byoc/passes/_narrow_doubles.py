"""The form of nodes on float64 in float32, which most accelerators have instead.

Where this loses no digit it needs no permission: on numbers that float32 holds, as those are that were
cast from it, nodes that move or compare numbers do the same; so do those that compute once, if what they
make is cast to float32 anyway. All else is for the user, or the rule file, to allow.
"""

from collections.abc import Collection, Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from byoc.model import (
    DTYPE_NUMBERS,
    RANDOM_OPERATORS,
    GraphIndex,
    build_node,
    find_constant_value,
    get_stated_attributes,
    set_attribute,
)
from byoc.model.ranges import Interval
from byoc.model.schemas import has_kernel, list_onnx_domains
from byoc.passes._narrow_integers import NodeTensors, states_dtype
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinForm, TwinnedTensors, is_among

_WIDE, _NARROW = "float64", "float32"
_WHOLE = Interval(-(2.0**24), 2.0**24)  # the whole numbers that float32 holds, all of them (24 bits)
# What they make are numbers that they read, or 0 and 1, or these rounded to whole numbers, or negated.
_MOVING = frozenset(
    [
        *("Abs", "Ceil", "Clip", "Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten"),
        *(
            "Floor",
            "Gather",
            "GatherElements",
            "GatherND",
            "GlobalMaxPool",
            "Identity",
            "Max",
            "MaxPool",
        ),
        *("Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round"),
        *("ScatterElements", "ScatterND", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
    ]
)
# They make no floating-point numbers of those that they read.
_COMPARING = frozenset(
    [
        *("ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less"),
        *("LessOrEqual", "NonZero", "Shape", "Size"),
    ]
)
# Rounded to float64 and then to float32 they give what they give rounded to float32: 53 bits are more
# than twice 24 and one (S. A. Figueroa, When is double rounding innocuous?, 1995).
_ROUNDED_ONCE = frozenset({"Add", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"})
# Of whole numbers they make whole numbers.
_WHOLE_OPERATORS = frozenset({"Add", "Mul", "Sub"})
_WHOLE_DTYPES = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
)
_NARROW_DTYPES = frozenset({"float32", "float16", "bfloat16"})
_TO_WHOLE = frozenset({"Ceil", "Floor", "Round", "Sign"})


@dataclass(frozen=True)
class NarrowDoubles(TwinForm):
    """Compute on float64 in float32, where rules take the one and not the other.

    Unless `lossy`, only what provably makes the same numbers is.
    """

    name: ClassVar[str] = "narrow-doubles"
    suffix: ClassVar[str] = "float32"
    dtype: ClassVar[str | None] = _NARROW

    lossy: bool = field(
        default=False, metadata={"help": "Compute in float32 where digits are lost, too."}
    )

    def allow_loss(self) -> Self:
        """Return the form that may lose digits."""
        return replace(self, lossy=True)

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the nodes of a graph that compute in float32; a Cast is none for its own sake."""
        for number, kind in enumerate(index.node_kinds):
            if kind.op_type == "Cast" or not is_among(kind.operator, operators):
                continue
            if _is_wide(index, number) and self.describe(index, number) is not None:
                yield number

    def find_companions(self, index: GraphIndex, chosen: Set[int]) -> Iterator[int]:
        """Yield the Casts beside chosen nodes."""
        near = {name for n in chosen for name in (*index.node_inputs[n], *index.node_outputs[n]) if name}
        for number, kind in enumerate(index.node_kinds):
            if kind.op_type != "Cast" or number in chosen or not kind.is_onnx:
                continue
            names = near & {*index.node_inputs[number], *index.node_outputs[number]}
            beside = any(index.get_dtype(name) == _WIDE for name in names)
            if beside and self.describe(index, number) is not None:
                yield number

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the tensors of the type variables that stand for float64 and may stand for float32."""
        node = index.nodes[number]
        schema = index.get_schema(node)
        if schema is None or number in index.constant_nodes or number in index.bodies:
            return None
        if schema.domain not in list_onnx_domains() or states_dtype(schema) or _is_random(node):
            return None
        tensors = NodeTensors.of_node(index, number, schema)
        if any(index.get_dtype(name) is None for name in tensors.list_names()):
            return None  # a sequence, or nothing is known
        narrowed = [name for name in schema.variables if tensors.stands_for(name, _WIDE, _NARROW)]
        dtypes = tensors.read_dtypes() | dict.fromkeys(narrowed, _NARROW)
        may = self.lossy or (bool(narrowed) and _Exactness.of_graph(index).holds(number))
        if not narrowed or not may or not has_kernel(schema, dtypes):
            return None
        inputs, outputs = (
            frozenset(i for i, each in enumerate(formals) if each.type_str in narrowed)
            for formals in (tensors.read_formals, tensors.made_formals)
        )
        return TwinnedTensors(inputs, outputs)

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on float32."""
        node = deepcopy(edits.index.nodes[number])
        changed = list(node.output) != list(outputs)
        node.input[:], node.output[:] = inputs, outputs
        if node.op_type == "Cast" and changed:
            set_attribute(node, helper.make_attribute("to", DTYPE_NUMBERS[_NARROW]))
        return [node]

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type with float32 elements."""
        made = TypeProto()
        made.CopyFrom(kind)
        made.tensor_type.elem_type = DTYPE_NUMBERS[_NARROW]
        return made

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a constant stored as float32; None where its value is not known."""
        value = find_constant_value(edits.index, name, edits.folder)
        return None if value is None else numpy_helper.from_array(_round(value))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return a Cast."""
        number = DTYPE_NUMBERS[_NARROW]
        return [build_node("Cast", [name], [twin], edits.names.new_node(twin), to=number)]

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return a Cast."""
        cast = edits.names.new_node(f"{name}_cast")
        return [build_node("Cast", [twin], [name], cast, to=DTYPE_NUMBERS[_WIDE])]


def _is_wide(index: GraphIndex, number: int) -> bool:
    names = (*index.node_inputs[number], *index.node_outputs[number])
    return any(name and index.get_dtype(name) == _WIDE for name in names)


def _round(value: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return numbers as float32; what is too large is infinite, as Cast has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(np.float32)


@dataclass(eq=False)
class _Exactness:
    """The float64 tensors of a graph: all of them, and those of numbers that float32 holds.

    `whole` are those of whole numbers that it holds.
    """

    index: GraphIndex
    held: set[str]
    whole: set[str]

    @classmethod
    def of_graph(cls, index: GraphIndex) -> "_Exactness":
        """Return the facts of a graph, found once."""
        known = _KNOWN.get(index)
        if known is not None:
            return cls(index, *known)
        found = cls(index, set(), set())
        for number, _ in enumerate(index.nodes):
            found._follow(number)
        _KNOWN[index] = found.held, found.whole  # not the index itself, which would live for ever
        return found

    def holds(self, number: int) -> bool:
        """Return whether a node computes the same in float32, as far as it is read."""
        index, op = self.index, self.index.node_kinds[number].op_type
        reads, makes = index.node_inputs[number], index.node_outputs[number]
        if not all(self._is_held(name) for name in reads if name):
            return False
        made = [name for name in makes if name and index.get_dtype(name) == _WIDE]
        if all(name in self.held for name in made):
            return bool(made) or op == "Cast" or op in _COMPARING
        return op in _ROUNDED_ONCE and all(map(self._is_rounded, made))

    def _is_rounded(self, name: str) -> bool:
        """Return whether all that reads a tensor is a Cast to float32."""
        index = self.index
        readers = index.consumers.get(name, ())
        if name in index.outputs or not readers or any(reader in index.bodies for reader in readers):
            return False
        return all(
            index.node_kinds[reader].op_type == "Cast"
            and index.node_kinds[reader].is_onnx
            and index.get_dtype(index.node_outputs[reader][0]) == _NARROW
            for reader in readers
        )

    def _follow(self, number: int) -> None:
        """Note what is known of the tensors that a node makes."""
        index, kind = self.index, self.index.node_kinds[number]
        reads = [name for name in index.node_inputs[number] if name]
        made = [name for name in index.node_outputs[number] if name and index.get_dtype(name) == _WIDE]
        if not made or not kind.is_onnx or number in index.bodies or number in index.constant_nodes:
            return
        if kind.op_type == "Cast":
            dtype = index.get_dtype(reads[0]) or ""
            if dtype in _NARROW_DTYPES or (dtype in _WHOLE_DTYPES and self._is_small(reads[0])):
                self.held.update(made)
            if dtype in _WHOLE_DTYPES and self._is_small(reads[0]):
                self.whole.update(made)
            return
        if kind.op_type in _MOVING and not _adds_up(index.nodes[number]):
            wide = [name for name in reads if index.get_dtype(name) == _WIDE]
            if all(map(self._is_held, wide)):
                self.held.update(made)
                if kind.op_type in _TO_WHOLE or all(map(self._is_whole, wide)):
                    self.whole.update(made)
        elif kind.op_type in _WHOLE_OPERATORS and self._is_whole_sum(reads, made):
            self.held.update(made)
            self.whole.update(made)

    def _is_whole_sum(self, reads: Sequence[str], made: Sequence[str]) -> bool:
        """Return whether a node makes whole numbers of whole ones, and float32 holds them."""
        return all(map(self._is_whole, reads)) and all(map(self._is_small, made))

    def _is_small(self, name: str) -> bool:
        """Return whether numbers are within those of which float32 holds all whole ones, in any run."""
        return _WHOLE.holds(self.index.plain_ranges.find_interval(name))

    def _is_held(self, name: str) -> bool:
        """Return whether float32 holds all numbers of a tensor; one of another dtype does not matter."""
        if self.index.get_dtype(name) != _WIDE or name in self.held:
            return True
        value = find_constant_value(self.index, name) if self.index.is_constant(name) else None
        if value is None:
            return False
        return bool(np.array_equal(_round(value).astype(np.float64), value, equal_nan=True))

    def _is_whole(self, name: str) -> bool:
        if name in self.whole:
            return True
        value = find_constant_value(self.index, name) if self.index.is_constant(name) else None
        if value is None or value.dtype != np.float64:
            return False
        return bool(np.all((np.abs(value) <= _WHOLE.high) & (np.floor(value) == value)))


_KNOWN: "WeakKeyDictionary[GraphIndex, tuple[set[str], set[str]]]" = WeakKeyDictionary()


def _is_random(node: NodeProto) -> bool:
    """Return whether a node draws numbers: a Dropout does where it trains."""
    trains = len(node.input) > 2 and bool(node.input[2])
    return node.op_type in RANDOM_OPERATORS and (node.op_type != "Dropout" or trains)


def _adds_up(node: NodeProto) -> bool:
    """Return whether a node that moves numbers computes with them as well."""
    reduction = get_stated_attributes(node).get("reduction", "none")
    return node.op_type.startswith("Scatter") and reduction != "none"
