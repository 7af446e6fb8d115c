"""Every place in a graph where a composite could be, overlapping ones included."""

from collections.abc import Container, Iterable, Iterator, Sequence

from byoc.model import GraphIndex
from byoc.patterns._matcher import Match, find_matches_at
from byoc.patterns._node_table import NodeTable
from byoc.patterns._pattern import Pattern, PatternForm
from byoc.patterns._pattern_search import MAX_ATTEMPTS, AttemptBudget, PatternSearch
from byoc.patterns._pattern_syntax import ANY_OPERATOR
from byoc.patterns._qdq_groups import check_unaccepted_nodes
from byoc.patterns._unit import Mark

# The attempts for one pattern in one graph grow linearly with the graph, so that the time does, too.
_ATTEMPTS_PER_NODE = 20
_LEAST_ATTEMPTS = 100_000
_MAX_AT_A_NODE = 8


def free_nodes(index: GraphIndex, marks: Sequence[Mark]) -> frozenset[int]:
    """Return the nodes that a composite may contain: accepted by the rules, and not constant.

    If there are rules for quantized operators, DequantizeLinear and QuantizeLinear nodes are free
    without being accepted; `filter_allowed` decides about them.
    """
    free = {number for number, mark in enumerate(marks) if mark.verdict}
    if any(mark.accepts_quantized for mark in marks):
        free.update(number for number, kind in enumerate(index.node_kinds) if kind.is_qdq)
    return frozenset(free - index.constant_nodes)


def find_candidates(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> list[Match]:
    """Find every match of accepted nodes that can become one node, overlapping ones included.

    Larger matches come first, then the order is that of the patterns, their variants, and the nodes. Of
    several ways to match the same nodes by one pattern the first counts. A form has at most 8 matches at
    one node. Matches that take too many attempts are not found.
    """
    return filter_allowed(index, find_matches(index, patterns, free_nodes(index, marks)), marks)


def find_matches(index: GraphIndex, patterns: Sequence[Pattern], free: Container[int]) -> list[Match]:
    """Find every match of free nodes, in the order of `find_candidates`."""
    table = NodeTable.from_index(index)
    matches = [match for pattern in patterns for match in _matches_of_pattern(pattern, table, free)]
    return sorted(matches, key=lambda match: -len(match.nodes))


def filter_allowed(index: GraphIndex, found: Iterable[Match], marks: Sequence[Mark]) -> list[Match]:
    """Return the matches that the marks of their nodes allow, in their order."""
    free = free_nodes(index, marks)
    return [
        match
        for match in found
        if free.issuperset(match.nodes.values())
        and check_unaccepted_nodes(index, match.nodes.values(), marks)
    ]


def _matches_of_pattern(pattern: Pattern, table: NodeTable, free: Container[int]) -> Iterator[Match]:
    attempts_left = max(_LEAST_ATTEMPTS, _ATTEMPTS_PER_NODE * len(table.ops))
    seen: set[frozenset[int]] = set()
    for form in pattern.forms:
        attempts = AttemptBudget(0)
        search = PatternSearch(form, table, free, attempts)
        for number in _start_nodes(form, table):
            if attempts_left <= 0:
                return
            if number not in free or not search.may_start(number):
                continue
            attempts.left = before = min(MAX_ATTEMPTS, attempts_left)
            count = 0
            for match in find_matches_at(pattern, search, number):
                nodes = frozenset(match.nodes.values())
                if nodes not in seen:
                    seen.add(nodes)
                    count += 1
                    yield match
                if count == _MAX_AT_A_NODE:
                    break
            attempts_left -= before - max(attempts.left, 0)


def _start_nodes(form: PatternForm, table: NodeTable) -> Sequence[int]:
    """Return the nodes at which matching may begin; none if the graph lacks a required operator."""
    for line in form.required:
        if not line.matches_any_operator and not any(op in table.by_op for op in line.ops):
            return ()
    ops = {op for line, _ in form.starts for op in line.ops}
    if ANY_OPERATOR in ops:
        return table.by_op[ANY_OPERATOR]
    return sorted(number for op in ops for number in table.by_op.get(op, ()))
