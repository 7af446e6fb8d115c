"""The gain of relaxing a rule: the nodes and the compute that one constraint keeps from the accelerator.

Each constraint that alone refuses a node is dropped from the rules, and the nodes that it may concern
are annotated and grouped again, so that the reported gain is exact.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from byoc.explain.data import Explained, Explanation, Refusal
from byoc.explain.relax import MISSING, concerned, relaxed
from byoc.patterns.candidates import allowed, free_nodes, possible
from byoc.patterns.group import grouped
from byoc.patterns.match import Match
from byoc.rules.annotate import Annotator
from byoc.rules.load import Target
from byoc.rules.operators import name_of
from byoc.verdict import Mark

_BORDERS = frozenset({"DequantizeLinear", "QuantizeLinear"})
_Key = tuple[str, str]
_Changes = Mapping[int, Mark]


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of dropping one constraint.

    `location` is the path of the constraint in the rule file. `nodes` counts the nodes supported in
    addition, minus those no longer supported; `operations` is their compute; `operators` counts the
    additional ones.
    """

    place: str
    operators: Mapping[str, int]
    nodes: int
    operations: float


def gains(explanation: Explanation) -> list[Gain]:
    """Compute the gain of dropping each constraint that alone refuses a node, the most compute first.

    A constraint on data types becomes `any`; a missing operator gets a rule without constraints. Only
    nodes asked about count. If there are rules for quantized operators, gains of DequantizeLinear and
    QuantizeLinear alone are left out, since these go with the operator between them.
    """
    target = explanation.target
    keys = [key for key in dict.fromkeys(_lone(explanation.refusals)) if relaxed(target, *key)]
    rows = {(place, op): Gain(place, {}, 0, 0.0) for place, op in keys}
    for graph in explanation.graphs:
        asked = {number for other, number in explanation.asked if other is graph}
        changes = {key: _changes(graph, target, key) for key in keys}
        again = _Again(graph, target, [changed for changed in changes.values() if changed])
        for key, changed in changes.items():
            if changed:
                rows[key] = _more(rows[key], graph, again.taken(changed) & asked, asked)
    found = [
        replace(gain, operators=_ordered(gain.operators, concerned(target, *key) or ()))
        for key, gain in rows.items()
        if gain.nodes > 0 and not (target.quantized and _BORDERS.issuperset(gain.operators))
    ]
    return sorted(found, key=lambda gain: (-gain.operations, -gain.nodes, gain.place, *gain.operators))


def _ordered(counts: Mapping[str, int], first: Collection[str]) -> dict[str, int]:
    """Sort operators: those that the constraint names, then by count."""
    return dict(sorted(counts.items(), key=lambda item: (item[0] not in first, -item[1], item[0])))


def _lone(refusals: Iterable[Refusal]) -> Iterator[_Key]:
    """Yield each constraint that alone makes a rule refuse a node.

    A key is the path of the constraint, and the operator if what is missing is a rule for it.
    """
    for refusal in refusals:
        for attempt in refusal.attempts:
            places = {objection.place for objection in attempt.objections}
            if len(places) == 1:
                place = places.pop()
                yield place, refusal.op if place == MISSING else ""


def _changes(graph: Explained, target: Target, key: _Key) -> _Changes:
    """Return the new marks of the nodes whose marks change if a constraint is dropped."""
    rules, ops = relaxed(target, *key), concerned(target, *key)
    if rules is None:
        return {}
    annotator = Annotator(rules, graph.index)
    found = {
        number: annotator.mark(number)
        for number in graph.operations
        if ops is None or name_of(graph.index.nodes[number]) in ops
    }
    return {number: mark for number, mark in found.items() if _said(mark) != _said(graph.marks[number])}


def _said(mark: Mark) -> tuple[bool, ...]:
    """Return the parts of a mark that decide whether a node is supported."""
    return (True, mark.standalone, mark.plain, mark.quantized) if mark.verdict else (False,)


def _more(gain: Gain, graph: Explained, after: Set[int], asked: Set[int]) -> Gain:
    """Add the gain in one graph, with the supported nodes `after` the change."""
    before = graph.taken & asked
    new, lost = sorted(after - before), sorted(before - after)
    ops = Counter(gain.operators)
    ops.update(name_of(graph.index.nodes[number]) for number in new)
    operations = sum(graph.operations[n] for n in new) - sum(graph.operations[n] for n in lost)
    nodes = gain.nodes + len(new) - len(lost)
    return Gain(gain.place, dict(ops), nodes, gain.operations + operations)


@dataclass(frozen=True, eq=False)
class _Again:
    """Groups a graph again for each of several changes to its marks."""

    graph: Explained
    target: Target
    changes: Sequence[_Changes]

    @cached_property
    def _found(self) -> Sequence[Match]:
        """Every match under any of the changes, found once since the search takes longest."""
        index = self.graph.index
        free: set[int] = set()
        for changed in self.changes:
            free |= free_nodes(index, self._marks(changed))
        return possible(index, self.target.patterns, free)

    def taken(self, changed: _Changes) -> Set[int]:
        """Return the supported nodes after a change."""
        index, marks = self.graph.index, self._marks(changed)
        units = grouped(index, allowed(index, self._found, marks), marks)
        return {number for unit in units if unit.verdict for number in unit.nodes}

    def _marks(self, changed: _Changes) -> list[Mark]:
        return [changed.get(number, mark) for number, mark in enumerate(self.graph.marks)]
