"""Traits of a graph that decide which special values it is asked for, and which results are judged.

ONNX leaves open what a cast of NaN to an integer gives, which of several keys is the largest when one is
NaN, what becomes of an integer that is divided by zero. Where it leaves a result open, none is judged.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf

import numpy as np

from byoc._dataclasses import dataclass
from byoc.costs import build_tasks
from byoc.model import GraphIndex, get_constant_value


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SOURCES = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK", "Unique"})
"""Whose results are valid indices and sizes whatever the values are that they read."""

_ELEMENTWISE = _split_names(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
    "Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Div Elu Equal Erf Exp Floor Gelu Greater "
    "GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean "
    "Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Sigmoid Sign Sin "
    "Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
_MOVING = _split_names(
    "ArgMax ArgMin Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "GlobalMaxPool MaxPool NonZero Pad ReduceMax ReduceMin Reshape ReverseSequence Scatter "
    "ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu "
    "Unsqueeze"
)
"""Operators that put elements elsewhere, or choose among them: nothing is added up."""

_WHOLE_SUMS = _split_names(
    "CumSum Einsum Gemm MatMul MatMulInteger ConvInteger ReduceProd ReduceSum ReduceSumSquare"
)

# The inputs of operators that hold values, not indices, sizes, axes or amounts; elsewhere all do.
_VALUE_POSITIONS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        _split_names(
            "Reshape Squeeze Unsqueeze Expand Slice Tile Split Gather GatherElements GatherND TopK "
            "CumSum ReduceMax ReduceMin ReduceSum ReduceProd ReduceSumSquare ReduceL1 ReduceL2 "
            "ReduceMean ReduceLogSum ReduceLogSumExp Compress Trilu ReverseSequence "
            "DequantizeLinear QuantizeLinear "
            "Resize Upsample OneHot"
        ),
        (0,),
    ),
    **dict.fromkeys(("Pad", "ScatterND", "Scatter", "ScatterElements"), (0, 2)),
    **dict.fromkeys(("Div", "Mod", "Pow", "BitShift"), (0,)),
    **dict.fromkeys(("MatMulInteger", "ConvInteger", "CastLike"), (0, 1)),
    "QLinearConv": (0,),
    "QLinearMatMul": (0, 3),
}
_ANY_VALUES = _ELEMENTWISE | _MOVING | _WHOLE_SUMS | frozenset(_VALUE_POSITIONS)

_UNDEFINED_AT_NAN = _split_names(
    "ArgMax ArgMin Cast DynamicQuantizeLinear GlobalMaxPool MaxPool Mod NonMaxSuppression "
    "QuantizeLinear ReduceMax ReduceMin TopK Unique"
)
"""Operators of which ONNX does not say what they make of NaN, or whose kernels differ."""

_REDUCED_POWERS: Mapping[str, int] = {
    **dict.fromkeys(_split_names("ReduceL1 ReduceMean ReduceSum"), 1),
    **dict.fromkeys(_split_names("ReduceL2 ReduceSumSquare"), 2),
}
"""Operators that add up elements, and the power that they add up. ReduceProd multiplies them."""

_UNDEFINED_OF_INTEGERS = _split_names("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean")
_EXACT = _MOVING | _split_names(
    "Abs Ceil Clip Floor Identity Max Min Neg Not Relu Round Sign Where And Or Xor Equal Greater Less "
    "GreaterOrEqual LessOrEqual IsNaN IsInf"
)
"""Operators whose results are not rounded."""
_KEYED = frozenset({"ArgMax", "ArgMin", "TopK"})
_NARROW = ("int8", "uint8", "int16", "uint16")
_MOST_OF_DOUBLES = 2.0**53


@dataclass(frozen=True, eq=False)
class SpecialTraits:
    """The traits of a graph with functions inlined."""

    index: GraphIndex

    @cached_property
    def operations(self) -> float:
        """The arithmetic operations of one run; extents that are not known count as 1."""
        return float(build_tasks(self.index).operations.sum())

    @property
    def is_flat(self) -> bool:
        """Whether no floats are added up: each element of a float comes of few others, step by step."""
        return not self.index.bodies and all(
            self._get_op(number) in _ELEMENTWISE | _MOVING
            or (self._get_op(number) in _WHOLE_SUMS and self._is_whole(number))
            for number in self._computed
        )

    @cached_property
    def promised_for(self) -> tuple[tuple[str, str], ...]:
        """The operators with each dtype that they read or make."""
        return tuple(
            dict.fromkeys(
                (self._get_op(number), self.index.get_dtype(name) or "")
                for number in self._computed
                for name in (*self.index.node_inputs[number], *self.index.node_outputs[number])
                if name
            )
        )

    @cached_property
    def divisors(self) -> frozenset[str]:
        """The inputs of the graph that nothing reads but integer divisions, to divide by them."""
        found = set()
        for name in self.index.inputs:
            readers = self.index.consumers.get(name, ())
            if readers and all(
                self._get_op(number) in ("Div", "Mod") and self._find_positions(number, {name}) == [1]
                for number in readers
            ):
                found.add(name)
        return frozenset(found)

    @cached_property
    def shifts(self) -> frozenset[str]:
        """The inputs of the graph that nothing reads but shifts, as the number of bits."""
        return frozenset(
            name
            for name in self.index.inputs
            if (readers := self.index.consumers.get(name, ()))
            and all(
                self._get_op(number) == "BitShift" and self._find_positions(number, {name}) == [1]
                for number in readers
            )
        )

    def is_free(self, name: str) -> bool:
        """Return whether the values of an input decide on no index, size, axis, trip or divisor."""
        if self.index.bodies:
            return False
        return all(
            set(self._find_positions(number, reached)) <= self._get_value_positions(number)
            for number, reached in self._follow(name)
        )

    def is_cast_to_whole(self, name: str) -> bool:
        """Return whether floats that depend on an input are cast to whole numbers."""
        return any(
            self._get_op(number) in ("Cast", "CastLike")
            and "float" in (self.index.get_dtype(self.index.node_inputs[number][0]) or "")
            and "int" in (self.index.get_dtype(self.index.node_outputs[number][0]) or "")
            for number, _ in self._follow(name)
        )

    def find_power(self, name: str) -> float:
        """Return the largest exponent of a power of what depends on an input; 1 without one."""
        found = 1.0
        for number, _ in self._follow(name):
            if self._get_op(number) == "Pow":
                exponent = get_constant_value(self.index, self.index.node_inputs[number][1])
                known = exponent is not None and exponent.size
                found *= float(np.max(np.abs(np.asarray(exponent)))) if known else 4.0
        return max(found, 1.0)

    def find_most_reduced(self, name: str) -> float:
        """Return the magnitude up to which whole numbers of an input are reduced exactly.

        ONNX does not say what a sum beyond its type is, and onnxruntime, which adds in doubles, rounds
        from 2^53 on: both are left out. Extents that are not known limit nothing.
        """
        types, found = self.index.types, inf
        for number, read in self._follow(name):
            operator, inputs = self._get_op(number), self.index.node_inputs[number]
            reduces = operator in _REDUCED_POWERS or operator == "ReduceProd"
            if not reduces or inputs[0] not in read or not self._is_whole(number):
                continue
            before, after = types.get(inputs[0]), types.get(self.index.node_outputs[number][0])
            if before is None or after is None or not before.elements or not after.elements:
                continue
            count = before.elements / after.elements
            most = min(float(np.iinfo(before.dtype).max), _MOST_OF_DOUBLES)
            power = _REDUCED_POWERS.get(operator)
            found = min(found, (most / count) ** (1 / power) if power else most ** (1 / count))
        return found

    @property
    def divides_by_minus_one(self) -> bool:
        """Whether the least integer may be divided by -1, which overflows and stops the process."""
        for number in self._computed:
            if self._get_op(number) in ("Div", "Mod"):
                divisor = get_constant_value(self.index, self.index.node_inputs[number][1])
                if divisor is None or np.any(np.asarray(divisor) == -1):
                    return True
        return False

    def list_defined(self, kind: str) -> frozenset[str]:
        """Return the outputs that ONNX defines for samples of a kind.

        What is selected by keys that are rounded is none of them: they may tie in one right execution,
        and not in another.
        """
        rounded = self._find_reached(n for n in self._computed if self._rounds(n))
        return frozenset(self.index.outputs) - self._find_behind(
            number
            for number in self._computed
            if self._is_undefined(number, kind)
            or (self._get_op(number) in _KEYED and not rounded.isdisjoint(self.index.reads[number]))
        )

    @cached_property
    def keyed(self) -> frozenset[str]:
        """The outputs that depend on which of equal keys is selected: on positions, not on the keys."""
        reached: set[str] = set()
        for number in range(len(self.index.nodes)):
            outputs = self.index.node_outputs[number]
            if self._get_op(number) in _KEYED:
                reached.update(outputs[-1:] if self._get_op(number) == "TopK" else outputs)
            elif reached.intersection(self.index.reads[number]):
                reached.update(filter(None, outputs))
        return frozenset(reached.intersection(self.index.outputs))

    @cached_property
    def dequantizes(self) -> bool:
        """Whether a step of an integer may show in floats: a DequantizeLinear is computed."""
        return any(self._get_op(number) == "DequantizeLinear" for number in self._computed)

    @cached_property
    def is_all_floats(self) -> bool:
        """Whether all that is computed is made of floats alone: there are no comparisons."""
        index = self.index
        names = {n for i in self._computed for n in (*index.node_inputs[i], *index.node_outputs[i]) if n}
        return all("float" in (index.get_dtype(name) or "") for name in names)

    @property
    def _computed(self) -> Iterator[int]:
        constant = self.index.constant_nodes
        return (number for number in range(len(self.index.nodes)) if number not in constant)

    def _get_op(self, number: int) -> str:
        return self.index.node_kinds[number].operator

    def _is_whole(self, number: int) -> bool:
        names = (*self.index.node_inputs[number], *self.index.node_outputs[number])
        return all("int" in (self.index.get_dtype(name) or "") for name in names if name)

    def _rounds(self, number: int) -> bool:
        """Return whether a node makes floats that are rounded."""
        names = self.index.node_outputs[number]
        makes = "float" in (self.index.get_dtype(names[0]) or "") if names else False
        return makes and self._get_op(number) not in _EXACT

    def _is_undefined(self, number: int, kind: str) -> bool:
        operator, index = self._get_op(number), self.index
        reads = [index.get_dtype(name) or "" for name in index.node_inputs[number] if name]
        whole = bool(reads) and "int" in reads[0]
        makes = index.get_dtype(index.node_outputs[number][0]) or ""
        if kind == "ends":
            narrows = operator in ("Cast", "CastLike") and not whole and makes in _NARROW
            return narrows or (whole and operator in _UNDEFINED_OF_INTEGERS)
        if operator in ("Cast", "CastLike"):
            return not whole and "float" not in makes
        return operator in _UNDEFINED_AT_NAN and not whole

    def _get_value_positions(self, number: int) -> set[int]:
        operator, count = self._get_op(number), len(self.index.node_inputs[number])
        reads = self.index.node_inputs[number]
        floats = "float" in (self.index.get_dtype(reads[0]) or "") if reads else False
        if operator in ("Div", "Mod", "Pow") and floats:
            return set(range(count))
        if operator in _VALUE_POSITIONS:
            return set(_VALUE_POSITIONS[operator])
        return set(range(count)) if operator in _ANY_VALUES or floats else set()

    def _find_positions(self, number: int, names: set[str]) -> list[int]:
        return [i for i, name in enumerate(self.index.node_inputs[number]) if name in names]

    def _follow(self, name: str) -> list[tuple[int, set[str]]]:
        """Return the nodes that read what depends on an input's values, with what each reads of it."""
        if name not in self._followed:
            reached, found = {name}, []
            for number in range(len(self.index.nodes)):
                read = reached.intersection(self.index.node_inputs[number])
                if read:
                    found.append((number, read))
                    if self._get_op(number) not in _SOURCES:
                        reached.update(filter(None, self.index.node_outputs[number]))
            self._followed[name] = found
        return self._followed[name]

    @cached_property
    def _followed(self) -> dict[str, list[tuple[int, set[str]]]]:
        return {}

    def _find_behind(self, numbers: Iterator[int]) -> frozenset[str]:
        """Return the outputs of the graph that depend on what some nodes make."""
        return frozenset(self._find_reached(numbers).intersection(self.index.outputs))

    def _find_reached(self, numbers: Iterator[int]) -> set[str]:
        """Return the tensors that depend on what some nodes make."""
        begun = set(numbers)
        reached: set[str] = set()
        for number in range(len(self.index.nodes)):
            if number in begun or reached.intersection(self.index.reads[number]):
                reached.update(filter(None, self.index.node_outputs[number]))
        return reached
