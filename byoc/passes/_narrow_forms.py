"""The forms of nodes on int64 in int32, and on float64 in float32, which most accelerators have instead.

Exporters write indices, lengths and positions as int64. Where all numbers of a node provably fit, it
computes the same in int32. Values come from byoc's ranges: those of constants and shapes, and of what is
used as an index, which lies within its table in every run that has a result.

float64 becomes float32 without permission where this loses no digit: on numbers that float32 holds, as
those are that were cast from it, nodes that move or compare numbers do the same; so do those that
compute once, if what they make is cast to float32 anyway. All else is for the user, or the rule file, to
allow.
"""

from collections.abc import Collection, Iterator, Sequence, Set
from copy import deepcopy
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    DTYPE_NUMBERS,
    RANDOM_OPERATORS,
    GraphIndex,
    build_node,
    find_constant_value,
    get_stated_attributes,
    set_attribute,
)
from byoc.model.ranges import Interval, limit_of_dtype
from byoc.model.schemas import FormalParameter, OperatorSchema, has_kernel, list_onnx_domains
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinForm, TwinnedTensors, is_among

_INT64, _INT32 = "int64", "int32"
# The least number is left out: processors trap where it is divided by -1 for the rest.
_LIMITS = Interval(limit_of_dtype(_INT32).low + 1, limit_of_dtype(_INT32).high)
# What is saturated has one number more on either side.
_SATURATED_LIMITS = Interval(_LIMITS.low + 1, _LIMITS.high - 1)
_CLIP_OPSET = 12  # ONNX opset from which Clip takes integers
# Their results depend on the dtype itself, or on sums that byoc's ranges do not bound.
_LEFT = RANDOM_OPERATORS | frozenset(
    [
        *("BitShift", "Gemm", "Mean", "Optional", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceMean"),
    ]
)


@dataclass(frozen=True)
class NarrowForm(TwinForm):
    """Compute on numbers of a `wide` dtype in one of half its size, where rules take the one alone."""

    wide: ClassVar[str]
    narrow: ClassVar[str]

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the nodes of a graph that compute in the narrow dtype."""
        wide = {name for name, kind in index.types.items() if name and kind.dtype == self.wide}
        if not wide:
            return
        for number, kind in enumerate(index.node_kinds):
            if not is_among(kind.operator, operators):
                continue
            is_narrow = wide.isdisjoint(index.node_inputs[number]) and wide.isdisjoint(
                index.node_outputs[number]
            )
            if not is_narrow and self.describe(index, number) is not None:
                yield number

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the tensors of the type variables that stand for the wide dtype and may be narrow."""
        schema = index.get_schema(index.nodes[number])
        if schema is None or number in index.constant_nodes or number in index.bodies:
            return None
        if schema.domain not in list_onnx_domains() or _states_dtype(schema):
            return None
        tensors = NodeTensors.of_node(index, number, schema)
        if any(index.get_dtype(name) is None for name in tensors.list_names()):
            return None  # a sequence, or nothing is known
        narrowed = [name for name in schema.variables if self.may_narrow(tensors, name)]
        dtypes = tensors.read_dtypes() | dict.fromkeys(narrowed, self.narrow)
        if not narrowed or not self.may_change(index, number) or not has_kernel(schema, dtypes):
            return None
        inputs, outputs = (
            frozenset(i for i, each in enumerate(formals) if each.type_str in narrowed)
            for formals in (tensors.read_formals, tensors.made_formals)
        )
        return TwinnedTensors(inputs, outputs)

    def may_change(self, index: GraphIndex, number: int) -> bool:
        """Return whether a node makes the same in the narrow dtype, as far as types do not say it."""
        raise NotImplementedError

    def may_narrow(self, tensors: "NodeTensors", variable: str) -> bool:
        """Return whether a type variable stands for the wide dtype, and may stand for the narrow one."""
        return tensors.stands_for(variable, self.wide, self.narrow)

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on narrow numbers."""
        node = deepcopy(edits.index.nodes[number])
        changed = list(node.output) != list(outputs)
        node.input[:], node.output[:] = inputs, outputs
        if node.op_type == "Cast" and changed:
            set_attribute(node, helper.make_attribute("to", DTYPE_NUMBERS[self.narrow]))
        return [node]

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type with narrow elements."""
        made = TypeProto()
        made.CopyFrom(kind)
        made.tensor_type.elem_type = DTYPE_NUMBERS[self.narrow]
        return made

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a constant stored in narrow numbers; None where its value is not known."""
        value = find_constant_value(edits.index, name, edits.folder)
        return None if value is None else numpy_helper.from_array(cast_array(value, self.narrow))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return a Cast."""
        cast = edits.names.new_node(twin)
        return [build_node("Cast", [name], [twin], cast, to=DTYPE_NUMBERS[self.narrow])]

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return a Cast."""
        cast = edits.names.new_node(f"{name}_cast")
        return [build_node("Cast", [twin], [name], cast, to=DTYPE_NUMBERS[self.wide])]


@dataclass(frozen=True)
class NarrowIntegers(NarrowForm):
    """Compute on int64 whose values provably fit in int32, where rules take the one and not the other.

    What enters is saturated where its values are known only of runs that have a result: so an index that
    is beyond its table stays so, and the run fails as it did.
    """

    name: ClassVar[str] = "narrow-integers"
    suffix: ClassVar[str] = "int32"
    dtype: ClassVar[str | None] = _INT32
    wide: ClassVar[str] = _INT64
    narrow: ClassVar[str] = _INT32

    def may_change(self, index: GraphIndex, number: int) -> bool:
        """Return whether an operator's results depend on values alone."""
        return index.node_kinds[number].op_type not in _LEFT

    def may_narrow(self, tensors: "NodeTensors", variable: str) -> bool:
        """Return whether a type variable stands for int64, and int32 would hold all its tensors."""
        if not super().may_narrow(tensors, variable):
            return False
        index, (given, made) = tensors.index, tensors.list_of(variable)
        if not all(_fits(index, name) for name in (*given, *made)):
            return False
        summed = index.value_ranges.describe_node(tensors.number, ()).summed if made else 0
        return _LIMITS.holds(Interval.around(summed))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return a Cast, behind a Clip where the values fit only in runs that have a result.

        The Clip leaves room for one number on either side, which is as wrong an index as any beyond.
        """
        index, names = edits.index, edits.names
        (cast,) = super().enter(edits, name, twin)
        if _LIMITS.holds(index.plain_ranges.find_interval(name)):
            return [cast]
        known = index.value_ranges.find_interval(name)
        ends = int(known.low) - 1, int(known.high) + 1
        bounds = [edits.store(np.array(end, np.int64), f"{name}_bound") for end in ends]
        limited = names.new_tensor(f"{name}_limited")
        edits.types[limited] = index.type_protos[name]
        cast.input[0] = limited
        return [build_node("Clip", [name, *bounds], [limited], names.new_node(limited)), cast]


def cast_array(value: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return numbers in another dtype; a float that is too large is infinite, as Cast has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(dtype)


@dataclass(frozen=True, eq=False)
class NodeTensors:
    """The inputs and outputs of a node with their formal parameters."""

    index: GraphIndex
    number: int
    read_formals: Sequence[FormalParameter]
    made_formals: Sequence[FormalParameter]

    @classmethod
    def of_node(cls, index: GraphIndex, number: int, schema: OperatorSchema) -> "NodeTensors":
        """Return the tensors of a node."""
        return cls(
            index,
            number,
            schema.list_input_formals(len(index.node_inputs[number])),
            schema.list_output_formals(len(index.node_outputs[number])),
        )

    def list_names(self) -> list[str]:
        """Return all tensors that there are."""
        index = self.index
        return [n for n in (*index.node_inputs[self.number], *index.node_outputs[self.number]) if n]

    def read_dtypes(self) -> dict[str, str]:
        """Return the dtype that each type variable stands for."""
        index = self.index
        pairs = (
            *zip(self.read_formals, index.node_inputs[self.number], strict=True),
            *zip(self.made_formals, index.node_outputs[self.number], strict=True),
        )
        return {formal.type_str: index.get_dtype(name) or "" for formal, name in pairs if name}

    def list_of(self, variable: str) -> tuple[list[str], list[str]]:
        """Return the tensors of a type variable, those that the node reads and those that it makes."""
        reads, makes = self.index.node_inputs[self.number], self.index.node_outputs[self.number]
        given, made = (
            [
                name
                for formal, name in zip(formals, names, strict=True)
                if name and formal.type_str == variable
            ]
            for formals, names in ((self.read_formals, reads), (self.made_formals, makes))
        )
        return given, made

    def stands_for(self, variable: str, wide: str, narrow: str) -> bool:
        """Return whether a type variable stands for one dtype, and may stand for another."""
        index, (given, made) = self.index, self.list_of(variable)
        formals = {each.type_str: each for each in (*self.read_formals, *self.made_formals)}
        formal = formals.get(variable)
        if formal is None or narrow not in formal.dtypes or variable.startswith("tensor("):
            return False
        if not formal.homogeneous or any(index.get_dtype(name) != wide for name in (*given, *made)):
            return False
        # Or else nothing is of the variable, or an attribute says what it is.
        return bool(given) or (bool(made) and index.node_kinds[self.number].op_type == "Cast")


def _states_dtype(schema: OperatorSchema) -> bool:
    """Return whether an attribute of an operator says what dtype something has; Cast's is known."""
    stated = {"to", "dtype", "output_dtype"} & schema.attributes.keys()
    return bool(stated) and schema.op_type != "Cast"


def _fits(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor's values fit in int32: in any run, or in those that have a result.

    In the latter case it may have to be saturated, which Clip does to integers from some version on.
    """
    if _LIMITS.holds(index.plain_ranges.find_interval(name)):
        return True
    known = index.value_ranges.find_interval(name)
    return index.opsets.get("", 1) >= _CLIP_OPSET and _SATURATED_LIMITS.holds(known)


# The form of nodes on float64 in float32, which most accelerators have instead.
#
# Where this loses no digit it needs no permission: on numbers that float32 holds, as those are that
# were cast from it, nodes that move or compare numbers do the same; so do those that compute once,
# if what they make is cast to float32 anyway. All else is for the user, or the rule file, to allow.

_DOUBLE, _FLOAT = "float64", "float32"
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
class NarrowDoubles(NarrowForm):
    """Compute on float64 in float32, where rules take the one and not the other.

    Unless `lossy`, only what provably makes the same numbers is.
    """

    name: ClassVar[str] = "narrow-doubles"
    suffix: ClassVar[str] = "float32"
    dtype: ClassVar[str | None] = _FLOAT
    wide: ClassVar[str] = _DOUBLE
    narrow: ClassVar[str] = _FLOAT

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
        for number in super().find_candidates(index, operators):
            if index.node_kinds[number].op_type != "Cast":
                yield number

    def find_companions(self, index: GraphIndex, chosen: Set[int]) -> Iterator[int]:
        """Yield the Casts beside chosen nodes."""
        near = {name for n in chosen for name in (*index.node_inputs[n], *index.node_outputs[n]) if name}
        for number, kind in enumerate(index.node_kinds):
            if kind.op_type != "Cast" or number in chosen or not kind.is_onnx:
                continue
            names = near & {*index.node_inputs[number], *index.node_outputs[number]}
            beside = any(index.get_dtype(name) == _DOUBLE for name in names)
            if beside and self.describe(index, number) is not None:
                yield number

    def may_change(self, index: GraphIndex, number: int) -> bool:
        """Return whether a node draws no numbers, and loses no digit where that is not allowed."""
        if _is_random(index.nodes[number]):
            return False
        return self.lossy or _Exactness.of_graph(index).holds(number)


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
        made = [name for name in makes if name and index.get_dtype(name) == _DOUBLE]
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
            and index.get_dtype(index.node_outputs[reader][0]) == _FLOAT
            for reader in readers
        )

    def _follow(self, number: int) -> None:
        """Note what is known of the tensors that a node makes."""
        index, kind = self.index, self.index.node_kinds[number]
        reads = [name for name in index.node_inputs[number] if name]
        made = [name for name in index.node_outputs[number] if name and index.get_dtype(name) == _DOUBLE]
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
            wide = [name for name in reads if index.get_dtype(name) == _DOUBLE]
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
        if self.index.get_dtype(name) != _DOUBLE or name in self.held:
            return True
        value = find_constant_value(self.index, name) if self.index.is_constant(name) else None
        if value is None:
            return False
        return bool(np.array_equal(cast_array(value, _FLOAT).astype(np.float64), value, equal_nan=True))

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
