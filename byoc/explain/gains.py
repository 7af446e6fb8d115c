"""What would change if a rule were relaxed: the nodes and the compute that one constraint keeps out.

Each constraint that alone stands against a node is dropped from the rules, and the nodes that it may
be about are annotated and grouped again: what is said to be gained is what would be.
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
    """A constraint that alone keeps nodes out: where it stands, of which operators, and how much.

    `nodes` counts those taken more less those taken no longer, `operations` is their compute;
    `operators` has those taken more; `place` is the constraint's path in the rule file.
    """

    place: str
    operators: Mapping[str, int]
    nodes: int
    operations: float


def gains(explanation: Explanation) -> list[Gain]:
    """Return what each constraint would gain if it alone were dropped, the most compute first.

    Where a data type is objected to it becomes `any`, and an operator that the file does not have gets
    a rule without constraints. Of the nodes only those asked about count. What would gain nothing but
    DequantizeLinear and QuantizeLinear is left out where rules speak of quantized operators: they go
    with what is between them.
    """
    target = explanation.target
    keys = [key for key in dict.fromkeys(_lone(explanation.refusals)) if relaxed(target, *key)]
    asked: dict[int, set[int]] = {id(graph): set() for graph in explanation.graphs}
    for graph, number in explanation.asked:
        asked[id(graph)].add(number)
    rows = {(place, op): Gain(place, {}, 0, 0.0) for place, op in keys}
    for graph in explanation.graphs:
        changes = {key: _changes(graph, target, key) for key in keys}
        again = _Again(graph, target, [each for each in changes.values() if each])
        for key, changed in changes.items():
            if changed:
                taken = again.taken(changed)
                rows[key] = _more(rows[key], graph, taken & asked[id(graph)], asked[id(graph)])
    found = [
        replace(gain, operators=_ordered(gain.operators, concerned(target, *key)))
        for key, gain in rows.items()
        if gain.nodes > 0 and not (target.quantized and _BORDERS.issuperset(gain.operators))
    ]
    return sorted(found, key=lambda gain: (-gain.operations, -gain.nodes, gain.place, *gain.operators))


def _ordered(counts: Mapping[str, int], first: Collection[str] | None) -> dict[str, int]:
    """Return how many there are of each operator, first of those that a constraint is about."""
    ahead = first or ()
    return dict(sorted(counts.items(), key=lambda item: (item[0] not in ahead, -item[1], item[0])))


def _lone(refusals: Iterable[Refusal]) -> Iterator[_Key]:
    """Yield each constraint that is the only one of its rule against a node.

    That is its place, and the operator where what is missing is a rule for it.
    """
    for refusal in refusals:
        for attempt in refusal.attempts:
            places = {objection.place for objection in attempt.objections}
            if len(places) == 1:
                place = places.pop()
                yield place, refusal.op if place == MISSING else ""


def _changes(graph: Explained, target: Target, key: _Key) -> _Changes:
    """Return the nodes of which relaxed rules say something else, and what they say."""
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
    """Return what counts in a mark for whether a node is taken."""
    return (True, mark.standalone, mark.plain, mark.quantized) if mark.verdict else (False,)


def _more(gain: Gain, graph: Explained, after: Set[int], asked: Set[int]) -> Gain:
    before = graph.taken & asked
    new, lost = sorted(after - before), sorted(before - after)
    ops = Counter(gain.operators)
    ops.update(name_of(graph.index.nodes[number]) for number in new)
    operations = sum(graph.operations[n] for n in new) - sum(graph.operations[n] for n in lost)
    nodes = gain.nodes + len(new) - len(lost)
    return Gain(gain.place, dict(ops), nodes, gain.operations + operations)


@dataclass(frozen=True, eq=False)
class _Again:
    """Groups a graph anew, once for each of some changes to its marks."""

    graph: Explained
    target: Target
    changes: Sequence[_Changes]

    @cached_property
    def _found(self) -> Sequence[Match]:
        """Every match that there is under any of the changes: looking for them is what takes long."""
        index = self.graph.index
        free: set[int] = set()
        for changed in self.changes:
            free |= free_nodes(index, self._marks(changed))
        return possible(index, self.target.patterns, free)

    def taken(self, changed: _Changes) -> Set[int]:
        """Return the nodes that are taken with a change."""
        index, marks = self.graph.index, self._marks(changed)
        units = grouped(index, allowed(index, self._found, marks), marks)
        return {number for unit in units if unit.verdict for number in unit.nodes}

    def _marks(self, changed: _Changes) -> list[Mark]:
        return [changed.get(number, mark) for number, mark in enumerate(self.graph.marks)]
