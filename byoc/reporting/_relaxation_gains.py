"""The gain of relaxing a rule: the nodes and the compute that one constraint keeps off the accelerator.

Each constraint that alone refuses a node is dropped from the rules, and the nodes that it may concern
are annotated and grouped again, so that the reported gain is exact.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from byoc.model import get_operator_name
from byoc.patterns import (
    Mark,
    Match,
    filter_allowed,
    find_matches,
    free_nodes,
    group_matches,
)
from byoc.reporting._explain import Explanation, GraphExplanation, RefusedNode
from byoc.rules import MISSING_OPERATOR, Annotator, Target, drop_constraint, operators_concerned
from byoc.support import report_each

_QDQ_OPERATORS = frozenset({"DequantizeLinear", "QuantizeLinear"})
_ConstraintKey = tuple[str, str]
_ChangedMarks = Mapping[int, Mark]


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of dropping one constraint.

    `location` is the path of the constraint in the rule file. `nodes` counts the nodes supported in
    addition, minus those no longer supported; `operations` is their compute; `operators` counts the
    additional ones.
    """

    location: str
    operators: Mapping[str, int]
    nodes: int
    operations: float


def compute_gains(explanation: Explanation) -> list[Gain]:
    """Compute the gain of dropping each constraint that alone refuses a node, the most compute first.

    A constraint on data types becomes `any`; a missing operator gets a rule without constraints. Only
    nodes asked about count. If there are rules for quantized operators, gains of DequantizeLinear and
    QuantizeLinear alone are left out, since these go with the operator between them.
    """
    target = explanation.target
    keys = [
        key
        for key in dict.fromkeys(_sole_constraints(explanation.refusals))
        if drop_constraint(target, *key)
    ]
    rows = {(place, op): Gain(place, {}, 0, 0.0) for place, op in keys}
    for graph in explanation.graphs:
        asked = {number for other, number in explanation.asked if other is graph}
        steps = report_each(keys, lambda key: f"relax {' '.join(map(str, key))}")
        changes = {key: _changed_marks(graph, target, key) for key in steps}
        again = _Regrouping(graph, target, [changed for changed in changes.values() if changed])
        for key, changed in changes.items():
            if changed:
                rows[key] = _add_gain(rows[key], graph, again.supported_nodes(changed) & asked, asked)
    found = [
        replace(gain, operators=_sort_operators(gain.operators, operators_concerned(target, *key) or ()))
        for key, gain in rows.items()
        if gain.nodes > 0
        and not (target.has_quantized_rules and _QDQ_OPERATORS.issuperset(gain.operators))
    ]
    return sorted(
        found, key=lambda gain: (-gain.operations, -gain.nodes, gain.location, *gain.operators)
    )


def _sort_operators(counts: Mapping[str, int], first: Collection[str]) -> dict[str, int]:
    """Sort operators: those that the constraint names, then by count."""
    return dict(sorted(counts.items(), key=lambda item: (item[0] not in first, -item[1], item[0])))


def _sole_constraints(refusals: Iterable[RefusedNode]) -> Iterator[_ConstraintKey]:
    """Yield each constraint that alone makes a rule refuse a node.

    A key is the path of the constraint, and the operator if what is missing is a rule for it.
    """
    for refusal in refusals:
        for attempt in refusal.attempts:
            places = {objection.location for objection in attempt.objections}
            if len(places) == 1:
                place = places.pop()
                yield place, refusal.op if place == MISSING_OPERATOR else ""


def _changed_marks(graph: GraphExplanation, target: Target, key: _ConstraintKey) -> _ChangedMarks:
    """Return the new marks of the nodes whose marks change if a constraint is dropped."""
    rules, ops = drop_constraint(target, *key), operators_concerned(target, *key)
    if rules is None:
        return {}
    annotator = Annotator(rules, graph.index)
    found = {
        number: annotator.annotate_node(number)
        for number in graph.operations
        if ops is None or get_operator_name(graph.index.nodes[number]) in ops
    }
    return {
        number: mark
        for number, mark in found.items()
        if _support_key(mark) != _support_key(graph.marks[number])
    }


def _support_key(mark: Mark) -> tuple[bool, ...]:
    """Return the parts of a mark that decide whether a node is supported."""
    return (
        (True, mark.standalone, mark.accepts_plain, mark.accepts_quantized) if mark.verdict else (False,)
    )


def _add_gain(gain: Gain, graph: GraphExplanation, after: Set[int], asked: Set[int]) -> Gain:
    """Add the gain in one graph, with the supported nodes `after` the change."""
    before = graph.supported_nodes & asked
    new, lost = sorted(after - before), sorted(before - after)
    ops = Counter(gain.operators)
    ops.update(get_operator_name(graph.index.nodes[number]) for number in new)
    operations = sum(graph.operations[n] for n in new) - sum(graph.operations[n] for n in lost)
    nodes = gain.nodes + len(new) - len(lost)
    return Gain(gain.location, dict(ops), nodes, gain.operations + operations)


@dataclass(frozen=True, eq=False)
class _Regrouping:
    """Groups a graph again for each of several changes to its marks."""

    graph: GraphExplanation
    target: Target
    changes: Sequence[_ChangedMarks]

    @cached_property
    def _matches(self) -> Sequence[Match]:
        """Every match under any of the changes, found once since the search takes longest."""
        index = self.graph.index
        free: set[int] = set()
        for changed in self.changes:
            free |= free_nodes(index, self._marks_after(changed))
        return find_matches(index, self.target.patterns, free)

    def supported_nodes(self, changed: _ChangedMarks) -> Set[int]:
        """Return the supported nodes after a change."""
        index, marks = self.graph.index, self._marks_after(changed)
        units = group_matches(index, filter_allowed(index, self._matches, marks), marks)
        return {number for unit in units if unit.verdict for number in unit.nodes}

    def _marks_after(self, changed: _ChangedMarks) -> list[Mark]:
        return [changed.get(number, mark) for number, mark in enumerate(self.graph.marks)]
