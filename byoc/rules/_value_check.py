"""Nodes whose whole numbers may leave what the arithmetic contract of their target promises.

Ranges of values decide (`byoc.model.ranges`): they are asked for only where a clause limits an operator
on a data type that the node has.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Any, Literal

from byoc.errors import CauseKind
from byoc.model import GraphIndex, get_node_name
from byoc.model.ranges import Interval, NodeRange, ValueRanges, limit_of_dtype
from byoc.rules._arithmetic import Arithmetic, ArithmeticContract
from byoc.rules._objections import Objection
from byoc.rules._rule_loading import Target

# Inputs that say where and how many. They are no larger than the tensors that they are about, and ends
# beyond those are cut off: what computes them is held to the contract.
_PARAMETERS = {
    **dict.fromkeys(("Expand", "Reshape", "Tile", "CumSum", "CenterCropPad", "Trilu"), (1,)),
    **dict.fromkeys(("Split", "Squeeze", "Unsqueeze", "TopK", "OneHot"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"), (1,)),
    **dict.fromkeys(("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), (1,)),
    "ConstantOfShape": (0,),
    "Pad": (1, 3),
    "Resize": (3,),
    "Slice": (1, 2, 3, 4),
}


@dataclass(frozen=True)
class ValueCondition:
    """A condition on a node's values under which its target computes it right.

    `objection` says that it is not known to hold, `text` what has to hold.
    """

    objection: Objection
    text: str


@dataclass(frozen=True)
class _Excess:
    """A whole number that may leave a promise, with its limit; `what` says how, `subject` names it.

    `name` is the tensor or node in both.
    """

    promise: Literal["exact_below", "overflow"]
    op: str
    dtype: str
    limit: Any
    subject: str
    what: str
    name: str


@dataclass(frozen=True, eq=False)
class _RangeCheck:
    """The whole numbers of a graph, held to what a contract promises of them."""

    contract: ArithmeticContract
    index: GraphIndex
    ranges: ValueRanges
    _limits: dict[str, Mapping[str, Arithmetic]] = field(default_factory=dict)
    """the limits on whole numbers by operator and dtype"""

    def find_excess(self, number: int) -> _Excess | None:
        """Return the first thing of a node that is not shown to stay inside; None where all is."""
        kind = self.index.node_kinds[number]
        limits = self._find_limits(kind.operator)
        if not limits:
            return None
        whole, makes = self._whole_numbers, self.index.node_outputs[number]
        reads = self.index.node_inputs[number]
        if parameters := _PARAMETERS.get(kind.operator):
            reads = tuple(name for i, name in enumerate(reads) if i not in parameters)
        if whole.isdisjoint(reads) and whole.isdisjoint(makes):
            return None
        ranges = self.ranges.describe_node(number, reads)
        return next(self._find_all(number, kind.operator, ranges, limits), None)

    @cached_property
    def _whole_numbers(self) -> frozenset[str]:
        """The tensors of whole numbers."""
        return frozenset(name for name, kind in self.index.types.items() if "int" in kind.dtype)

    @cached_property
    def _whole_dtypes(self) -> frozenset[str]:
        """The dtypes of the graph that are of whole numbers."""
        dtypes = {kind.dtype for kind in self.index.types.values()}
        return frozenset(dtype for dtype in dtypes if "int" in dtype)

    def _find_limits(self, op: str) -> Mapping[str, Arithmetic]:
        if op not in self._limits:
            found = {dtype: self.contract.resolve(op, dtype) for dtype in self._whole_dtypes}
            self._limits[op] = {
                dtype: each
                for dtype, each in found.items()
                if each.exact_below is not None or each.overflow != "wraps"
            }
        return self._limits[op]

    def _find_all(
        self, number: int, op: str, ranges: NodeRange, limits: Mapping[str, Arithmetic]
    ) -> Iterator[_Excess]:
        node = get_node_name(self.index.nodes[number])
        for name, dtype, found in (*ranges.reads, *ranges.makes):
            most = limits[dtype].exact_below if dtype in limits else None
            whole = found if found.is_finite else limit_of_dtype(dtype)
            if most is not None and whole.magnitude > most:
                what = f"'{name}' {_describe_range(whole, dtype, most)}"
                yield _Excess("exact_below", op, dtype, most, f"'{name}'", what, name)
        least, dtype = _find_least(limits, ranges) if ranges.summed else (inf, "")
        if ranges.summed > least:
            reach = f"{int(ranges.summed):,}" if isfinite(ranges.summed) else "any number"
            what = f"what it adds up may reach {reach}"
            yield _Excess("exact_below", op, dtype, int(least), f"what '{node}' adds up", what, node)
        for name, dtype, found in ranges.makes:
            promised = limits[dtype].overflow if dtype in limits else "wraps"
            if promised != "wraps" and not limit_of_dtype(dtype).holds(found):
                what = f"'{name}' may leave {dtype}"
                yield _Excess("overflow", op, dtype, promised, f"'{name}'", what, name)


@dataclass(frozen=True, eq=False)
class ValueChecker:
    """The arithmetic contract of a target, held to the ranges of a graph's values."""

    target: Target
    index: GraphIndex

    def find_condition(self, number: int) -> ValueCondition | None:
        """Return the first condition that is not shown to hold of a node; None where all are."""
        found = self._check.find_excess(number)
        if found is None:
            return None
        if found.promise == "exact_below":
            text = f"{self.target.name} computes whole numbers exactly up to {found.limit:,} alone"
            holds = f"{found.subject} stays from {-found.limit:,} to {found.limit:,}"
        else:
            becomes = "saturates" if found.limit == "saturates" else "may become anything"
            text = f"on {self.target.name} it {becomes} instead of wrapping"
            holds = f"{found.subject} stays within {found.dtype}"
        objection = self._object(found, f"{found.what}, and {text}")
        return ValueCondition(objection, holds)

    @cached_property
    def _check(self) -> _RangeCheck:
        return _RangeCheck(self.target.arithmetic, self.index, self.index.value_ranges)

    def _object(self, found: _Excess, text: str) -> Objection:
        position = self.target.arithmetic.find_clause(found.op, found.dtype, found.promise)
        return Objection(
            self.target.locate(f"arithmetic[{position}].{found.promise}"),
            text,
            allowed=str(found.limit),
            flags=("--values assumed",),
            names=(found.name,),
            cause=CauseKind.VALUES,
        )


def _find_least(limits: Mapping[str, Arithmetic], ranges: NodeRange) -> tuple[float, str]:
    """Return the least magnitude of exact numbers among a node's dtypes, and that dtype."""
    dtypes = dict.fromkeys(dtype for _, dtype, _ in (*ranges.makes, *ranges.reads))
    found = ((limits[dtype].exact_below, dtype) for dtype in dtypes if dtype in limits)
    return min(((most, dtype) for most, dtype in found if most is not None), default=(inf, ""))


def _describe_range(found: Interval, dtype: str, most: int) -> str:
    if found.holds(limit_of_dtype(dtype)):
        return f"may be any {dtype}"
    return f"may be {int(found.high if found.high > most else found.low):,}"


def find_exceeded(
    index: GraphIndex, contract: ArithmeticContract, given: Mapping[str, Interval]
) -> Literal["", "exact_below", "overflow"]:
    """Return the promise of whole numbers that a graph may leave on inputs in given ranges.

    It is that of the first node that is not shown to stay inside; empty where all are.
    """
    check = _RangeCheck(contract, index, ValueRanges(index, given=given))
    numbers = (n for n in range(len(index.nodes)) if n not in index.constant_nodes)
    found = next(filter(None, map(check.find_excess, numbers)), None)
    return "" if found is None else found.promise


def list_conditions(
    index: GraphIndex, target: Target, numbers: Iterable[int]
) -> Iterator[tuple[int, ValueCondition]]:
    """Yield the nodes of some that are right on a condition alone, each with the first one."""
    checker = ValueChecker(target, index)
    for number in numbers:
        found = checker.find_condition(number) if target.arithmetic.limits_values else None
        if found is not None:
            yield number, found
