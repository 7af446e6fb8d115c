"""Every place where a composite could be, overlapping ones included."""

from collections.abc import Container, Iterable, Iterator, Sequence

from byoc.graph.index import GraphIndex
from byoc.patterns.form import Form
from byoc.patterns.match import Match, matches_at
from byoc.patterns.pattern import Pattern
from byoc.patterns.qdq import border_objection, is_border
from byoc.patterns.search import MOST_ATTEMPTS, Attempts, Search
from byoc.patterns.syntax import ANY
from byoc.patterns.table import Table
from byoc.verdict import Mark

# For one pattern in one graph: a sum that grows with the graph, so that no pattern's cost grows faster.
_ATTEMPTS_PER_NODE = 20
_LEAST_ATTEMPTS = 100_000
_MOST_AT_A_NODE = 8


def free_nodes(index: GraphIndex, marks: Sequence[Mark]) -> frozenset[int]:
    """Return the nodes that a composite may be made of: accepted by the rules, and no constants.

    Where rules speak of quantized operators, DequantizeLinear and QuantizeLinear nodes may be in one
    without being accepted; whether they are rightly there `border_objection` says.
    """
    free = {number for number, mark in enumerate(marks) if mark.verdict}
    if any(mark.quantized for mark in marks):
        free.update(number for number, node in enumerate(index.nodes) if is_border(node))
    return frozenset(free - index.constant_nodes)


def candidates(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Match]:
    """Return every match of accepted nodes that can become one node, overlapping ones included.

    Larger ones first, then in the order of the patterns, of their variants, and of the nodes: the same
    for the same graph. Of several ways to match the same nodes by one pattern, the first counts. At one
    node a form has at most 8; what takes too many attempts to find counts as not there.
    """
    free = free_nodes(index, marks)
    return allowed(index, possible(index, patterns, free), marks)


def possible(index: GraphIndex, patterns: Sequence[Pattern], free: Container[int]) -> list[Match]:
    """Return every match of some nodes, in the order of `candidates`."""
    table = Table.of(index)
    found = [match for pattern in patterns for match in _of_pattern(pattern, table, free)]
    return sorted(found, key=lambda match: -len(match.nodes))


def allowed(index: GraphIndex, found: Iterable[Match], marks: Sequence[Mark]) -> list[Match]:
    """Return those of some matches that marks allow, in their order."""
    free = free_nodes(index, marks)
    return [
        match
        for match in found
        if free.issuperset(match.nodes.values())
        and not border_objection(index, match.nodes.values(), marks)
    ]


def _of_pattern(pattern: Pattern, table: Table, free: Container[int]) -> Iterator[Match]:
    left = max(_LEAST_ATTEMPTS, _ATTEMPTS_PER_NODE * len(table.ops))
    seen: set[frozenset[int]] = set()
    for form in pattern.forms:
        attempts = Attempts(0)
        search = Search(form, table, free, attempts)
        for number in _roots(form, table):
            if left <= 0:
                return
            if number not in free or not search.may_start(number):
                continue
            attempts.left = before = min(MOST_ATTEMPTS, left)
            here = 0
            for match in matches_at(pattern, search, number):
                nodes = frozenset(match.nodes.values())
                if nodes not in seen:
                    seen.add(nodes)
                    here += 1
                    yield match
                if here == _MOST_AT_A_NODE:
                    break
            left -= before - max(attempts.left, 0)


def _roots(form: Form, table: Table) -> Sequence[int]:
    for line in form.required:
        if not line.any and not any(op in table.by_op for op in line.ops):
            return ()
    ops = {op for line, _ in form.starts for op in line.ops}
    if ANY in ops:
        return table.by_op[ANY]
    return sorted(number for op in ops for number in table.by_op.get(op, ()))
