"""Proofs that tensors are finite in every run that has a result, whatever numbers the inputs are.

The ranges of `ValueRanges` say nothing of NaN: they hold for numbers. Here a tensor has a largest
magnitude only if it is never NaN and never infinite. So nothing is known of a float input, and of what
is made of it. Token ids and weights are where proofs begin, and a normalization bounds what comes out of
a layer.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import ceil, inf, isnan, prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.model._constants import find_constant_value, get_constant_value
from byoc.model._graph_index import GraphIndex
from byoc.model._tensor_data import FLOAT_DTYPES
from byoc.model.ranges._intervals import Interval, RangedNode, absolute, widen_floats

if TYPE_CHECKING:
    from byoc.model.ranges._value_ranges import ValueRanges

_ROOM = 1.001
"""Factor on largest magnitudes: room for the rounding of functions of floats."""
_MOVERS = (
    *("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile", "Slice"),
    *("Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Split", "Trilu"),
)
_SHRINKING = ("Relu", "Swish", "HardSwish", "Mish", "Neg", "Abs", "com.microsoft.QuickGelu")
"""Operators whose numbers are no larger than those of the first input, also on the way."""
_ROUNDING = ("Floor", "Ceil", "Round")
_UNIT = ("Sigmoid", "HardSigmoid", "Tanh", "Erf", "Sin", "Cos", "Softsign", "Sign")


@dataclass(eq=False)
class FiniteValues:
    """The largest magnitudes of a main graph's tensors that are finite; `folder` has external data."""

    index: GraphIndex
    folder: Path | None = None
    _known: dict[str, float] = field(default_factory=dict)

    def is_finite(self, name: str) -> bool:
        """Return whether no element of a tensor is ever infinite or NaN."""
        return self.find(name) < inf

    def find(self, name: str) -> float:
        """Return the largest magnitude of a tensor, infinity where nothing is proven."""
        pending = [name]
        while pending:
            top = pending[-1]
            if top in self._known:
                pending.pop()
                continue
            missing = [each for each in self._list_needed(top) if each not in self._known]
            if missing:
                pending.extend(missing)
            else:
                self._known[top] = self._compute(top)
        return self._known[name]

    @cached_property
    def _ranges(self) -> "ValueRanges":
        return self.index.value_ranges

    def _list_needed(self, name: str) -> list[str]:
        number = self.index.producers.get(name)
        if number is None or self.index.is_constant(name) or not self._is_float(name):
            return []
        kind = self.index.node_kinds[number]
        return (
            [each for each in self.index.node_inputs[number] if each] if kind.operator in _RULES else []
        )

    def _is_float(self, name: str) -> bool:
        return (self.index.get_dtype(name) or "float") in (*FLOAT_DTYPES, "float")

    def _compute(self, name: str) -> float:
        if not self._is_float(name):
            return self._ranges.find_interval(name).magnitude  # integers and booleans are never NaN
        number = self.index.producers.get(name)
        rule = None if number is None else _RULES.get(self.index.node_kinds[number].operator)
        if self.index.is_constant(name):
            found = self._read(name)
        elif number is None or rule is None:
            return inf
        else:
            found = rule(FiniteNode(self, RangedNode(self._ranges, number)))
        widened = widen_floats(Interval.around(found * _ROOM), self.index.get_dtype(name) or "")
        return inf if isnan(found) else widened.magnitude

    def _read(self, name: str) -> float:
        value = find_constant_value(self.index, name, self.folder)
        if value is None or value.dtype.kind not in "biuf":
            return inf
        if not value.size:
            return 0.0
        largest = float(np.abs(value.astype(np.float64)).max())
        return largest if largest < inf else inf  # NaN is not less

    # A Softmax of a mask with minus infinity.

    def shows_each_row(self, node: RangedNode) -> bool:
        """Return whether each row that a Softmax goes over has a finite number, and no NaN."""
        rank = self.index.get_rank(node.inputs[0])
        if rank is None or node.attributes.get("axis") not in (-1, rank - 1):
            return False
        number = self.index.producers.get(node.inputs[0])
        if number is None or self.index.node_kinds[number].operator != "Add":
            return self._is_mask(node.inputs[0])
        one, other = self.index.node_inputs[number]
        pairs = ((one, other), (other, one))
        return any(
            self.is_finite(a) and self._is_mask(b) and self._keeps_rows(b, node.inputs[0])
            for a, b in pairs
        )

    def _is_mask(self, name: str) -> bool:
        """Return whether a tensor has a finite number in each row, and numbers or minus infinity."""
        number = self.index.producers.get(name)
        if number is None:
            return False
        operator, inputs = self.index.node_kinds[number].operator, self.index.node_inputs[number]
        if operator in ("Unsqueeze", "Expand", "Identity") and self._keeps_rows(name, inputs[0]):
            return self._is_mask(inputs[0])
        if operator != "Where" or not self.is_finite(inputs[1]):
            return False
        if not self._is_low(inputs[2]):
            return False
        return self._keeps_rows(name, inputs[0]) and self._has_true_in_rows(inputs[0])

    def _is_low(self, name: str) -> bool:
        """Return whether a constant is no NaN and not infinity, but perhaps minus infinity."""
        value = get_constant_value(self.index, name)
        return value is not None and bool(np.all(value < inf))

    def _keeps_rows(self, made: str, given: str) -> bool:
        """Return whether a tensor has rows of another, along the last axis."""
        after, before = self.index.get_shape(made), self.index.get_shape(given)
        if not after or not before:
            return False
        return after[-1] is not None and after[-1] == before[-1]

    def _has_true_in_rows(self, name: str) -> bool:
        """Return whether each row of a tensor has a true: a causal mask shows the first position."""
        number = self.index.producers.get(name)
        if number is None:
            return False
        operator, inputs = self.index.node_kinds[number].operator, self.index.node_inputs[number]
        if operator in ("Unsqueeze", "Expand", "Identity") and self._keeps_rows(name, inputs[0]):
            return self._has_true_in_rows(inputs[0])
        compared = self._order(number)
        start = None if compared is None else self._find_start(compared[0])
        if compared is None or start is None or not self._keeps_rows(name, compared[0]):
            return False
        return start <= self._ranges.find_interval(compared[1]).low

    def is_true(self, name: str) -> bool:
        """Return whether a tensor is true everywhere, as a comparison of ranges that do not meet is."""
        number = self.index.producers.get(name)
        if number is None:
            return False
        operator, inputs = self.index.node_kinds[number].operator, self.index.node_inputs[number]
        if operator in ("Unsqueeze", "Expand", "Identity"):
            return self.is_true(inputs[0])
        compared = self._order(number)
        if compared is None:
            return False
        small, large = map(self._ranges.find_interval, compared)
        return small.high <= large.low

    def _order(self, number: int) -> tuple[str, str] | None:
        """Return the integers of which a node says that the first are at most the second."""
        operator, inputs = self.index.node_kinds[number].operator, self.index.node_inputs[number]
        if operator not in ("LessOrEqual", "GreaterOrEqual"):
            return None
        if any("int" not in (self.index.get_dtype(each) or "") for each in inputs):
            return None
        return (inputs[0], inputs[1]) if operator == "LessOrEqual" else (inputs[1], inputs[0])

    def _find_start(self, name: str) -> float | None:
        """Return the first number of a Range along the last axis of a tensor, which each row has."""
        number = self.index.producers.get(name)
        if number is None:
            return None
        operator, inputs = self.index.node_kinds[number].operator, self.index.node_inputs[number]
        if operator in ("Unsqueeze", "Expand", "Identity") and self._keeps_rows(name, inputs[0]):
            return self._find_start(inputs[0])
        start = get_constant_value(self.index, inputs[0]) if operator == "Range" else None
        return None if start is None else float(start.ravel()[0])


@dataclass(frozen=True, eq=False)
class FiniteNode:
    """A node with the largest magnitudes of what it reads."""

    values: FiniteValues
    node: RangedNode

    def get(self, position: int) -> float:
        """Return the largest magnitude of an input; 0 for one that is left out."""
        return self.values.find(self.node.inputs[position]) if self.node.has(position) else 0.0

    def get_all(self) -> list[float]:
        """Return the largest magnitudes of all inputs."""
        return [self.values.find(name) for name in self.node.inputs if name]

    def find_least(self, position: int) -> float:
        """Return the least magnitude of an input that is finite."""
        return absolute(self.node.ranges.find_interval(self.node.inputs[position])).low

    def is_positive(self, position: int) -> bool:
        """Return whether an input is never negative."""
        return self.node.ranges.find_interval(self.node.inputs[position]).low >= 0


def _product(*factors: float) -> float:
    """Return a product that is infinite where a factor is, also of 0: infinity times 0 is NaN."""
    return inf if inf in factors else prod(factors)


def _round_up(magnitude: float) -> float:
    """Return the next integer, which a number of this magnitude may be rounded to."""
    return magnitude if magnitude == inf else float(ceil(magnitude))


def _divide(node: FiniteNode) -> float:
    least = node.find_least(1)
    return node.get(0) / least if least > 0 and node.get(1) < inf else inf


def _invert(node: FiniteNode) -> float:
    least = node.find_least(0)
    return 1 / least if least > 0 and node.get(0) < inf else inf


def _take_root(node: FiniteNode) -> float:
    return sqrt(node.get(0)) if node.is_positive(0) else inf


def _take_power(node: FiniteNode) -> float:
    power, base = node.node.read(1), node.get(0)
    if power is None or len(power) != 1 or power[0] < 0 or base == inf:
        return inf
    if not float(power[0]).is_integer() and not node.is_positive(0):
        return inf  # a root of a negative number
    try:
        return float(max(base, 1.0) ** power[0])
    except OverflowError:
        return inf


def _multiply_matrices(node: FiniteNode) -> float:
    count = node.node.bound_axis(0, -1).high
    return _product(node.get(0), node.get(1), max(count, 1))


def _multiply_general(node: FiniteNode) -> float:
    attributes = node.node.attributes
    count = node.node.bound_axis(0, 0 if attributes.get("transA") else 1).high
    alpha, beta = (abs(float(attributes.get(name, 1.0))) for name in ("alpha", "beta"))
    added = _product(node.get(2), beta) if node.node.has(2) else 0.0
    return _product(node.get(0), node.get(1), max(count, 1), max(alpha, 1.0)) + added


def _convolve(node: FiniteNode) -> float:
    shape = node.node.get_shape(1)
    if shape is None:
        return inf
    count = node.node.bound_count(shape[1:]).high
    return _product(node.get(0), node.get(1), max(count, 1)) + node.get(2)


def _sum_up(node: FiniteNode) -> float:
    shape = node.node.get_shape(0)
    return inf if shape is None else _product(node.get(0), max(node.node.bound_count(shape).high, 1))


def _require_finite(node: FiniteNode, magnitude: float) -> float:
    """Return 0 where what is computed on the way is finite in the node's dtype, else infinity."""
    dtype = node.node.get_dtype(0)
    return 0.0 if widen_floats(Interval.around(magnitude * _ROOM), dtype).magnitude < inf else inf


def _reduce(node: FiniteNode) -> float:
    """Bound a mean, whose sum has to be finite, or an extreme: of no elements there is none."""
    shape, axes = node.node.get_shape(0), node.node.read_axes(1)
    if shape is None or (axes is None and node.node.has(1)):
        return inf
    counts = shape if axes is None else [shape[axis] for axis in axes]
    if not all(isinstance(dim, int) and dim > 0 for dim in counts):
        return inf
    if node.node.operator != "ReduceMean":
        return node.get(0)
    return node.get(0) + _require_finite(
        node, _product(node.get(0), *(dim for dim in counts if isinstance(dim, int)))
    )


def _average(node: FiniteNode) -> float:
    """Bound a Mean of tensors, whose sum has to be finite."""
    return _join(node) + _require_finite(node, sum(node.get_all()))


def _shrink(node: FiniteNode) -> float:
    """Bound a Gelu: `x * (1 + erf(...)) / 2` may be computed as it is written, so 2 * x is finite."""
    return node.get(0) + _require_finite(node, 2 * node.get(0))


def _normalize(node: FiniteNode) -> float:
    """Bound a LayerNormalization: no element is more than the root of their number from the mean.

    Squares of what is normalized have to be finite, and a variance of 0 is met by epsilon.
    """
    shape, attributes = node.node.get_shape(0), node.node.attributes
    axis = int(attributes.get("axis", -1))
    if shape is None or not float(attributes.get("epsilon", 1e-5)) > 0:
        return inf
    count = max(node.node.bound_count(shape[axis if axis >= 0 else len(shape) + axis :]).high, 1)
    squares = _product(2 * node.get(0), 2 * node.get(0), count)
    if attributes.get("stash_type", 1) != 1:
        return inf
    return _product(sqrt(count), node.get(1)) + node.get(2) + _require_finite(node, squares)


def _join(node: FiniteNode) -> float:
    return max(node.get_all(), default=inf)


def _choose(node: FiniteNode) -> float:
    if node.values.is_true(node.node.inputs[0]):
        return node.get(1)
    return max(node.get(1), node.get(2))


def _clip(node: FiniteNode) -> float:
    """Bound a Clip by all of its numbers, the ends that early versions have as attributes included."""
    if node.get(0) == inf:
        return inf
    ends = [node.node.attributes.get(name) for name in ("min", "max")]
    low, high = (None if end is None else float(end) for end in ends)
    found = _join(node)
    found = found if low is None else max(found, low)  # a lower end makes nothing more negative
    return found if high is None else max(found, -high)


def _bound_unit(node: FiniteNode) -> float:
    return 1.0 if node.get(0) < inf else inf


def _leak(node: FiniteNode) -> float:
    alpha = abs(float(node.node.attributes.get("alpha", 1.0)))
    return (
        _product(node.get(0), max(alpha, 1.0))
        if node.node.operator == "LeakyRelu"
        else max(node.get(0), alpha)
    )


def _softmax(node: FiniteNode) -> float:
    """Bound a Softmax: where it is no NaN it is a share."""
    if node.get(0) < inf or node.values.shows_each_row(node.node):
        return 1.0
    return inf


def _exponentiate(node: FiniteNode) -> float:
    found = node.get(0)
    return float(np.exp(found)) if found < 700 else inf  # float64 ends at exp(709)


FiniteRule = Callable[[FiniteNode], float]

_RULES: Mapping[str, FiniteRule] = {
    **dict.fromkeys(_MOVERS, lambda node: node.get(0)),
    **dict.fromkeys(_SHRINKING, lambda node: node.get(0)),
    **dict.fromkeys(_ROUNDING, lambda node: _round_up(node.get(0))),
    **dict.fromkeys(_UNIT, _bound_unit),
    **dict.fromkeys(("Add", "Sub", "Sum"), lambda node: sum(node.get_all())),
    **dict.fromkeys(("Concat", "Max", "Min"), _join),
    **dict.fromkeys(("LeakyRelu", "Elu"), _leak),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceMean"), _reduce),
    "Cast": lambda node: node.get(0),
    "Clip": _clip,
    "Conv": _convolve,
    "Div": _divide,
    "Exp": _exponentiate,
    "Gelu": _shrink,
    "com.microsoft.Gelu": _shrink,
    "Gemm": _multiply_general,
    "LayerNormalization": _normalize,
    "MatMul": _multiply_matrices,
    "Mean": _average,
    "Mul": lambda node: _product(*node.get_all()),
    "Pow": _take_power,
    "Reciprocal": _invert,
    "ReduceSum": _sum_up,
    "Softmax": _softmax,
    "Sqrt": _take_root,
    "Where": _choose,
}
"""Operator, as rule files spell it, to the largest magnitude of its outputs."""
