"""A pattern matched at one node."""

from collections.abc import Container

from byoc.model import GraphIndex
from byoc.patterns import Match, Pattern
from byoc.patterns._matcher import find_matches_at
from byoc.patterns._pattern_search import PatternSearch
from byoc.patterns._pattern_syntax import NodeTable


def match_at(pattern: Pattern, node: int, index: GraphIndex, free: Container[int]) -> Match | None:
    """Return the first match whose last line is the given node, larger forms first; None without one."""
    table = NodeTable.from_index(index)
    for form in sorted(pattern.forms, key=lambda form: -len(form.nodes)):
        for match in find_matches_at(pattern, PatternSearch(form, table, free), node):
            return match
    return None
