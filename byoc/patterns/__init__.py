"""Composites: the pattern language, the matcher, and the grouper that divides a graph into units."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.patterns._contraction_order import ContractionOrder
    from byoc.patterns._grouper import (
        JointUnit,
        NearMiss,
        find_near_misses,
        group_matches,
        group_units,
        group_with_alternatives,
        join_units,
        make_single_unit,
        open_units,
        sort_units,
    )
    from byoc.patterns._matcher import Kind, Mark, Match, NodeGroup, Unit
    from byoc.patterns._pattern import Pattern, PatternForm, parse_pattern
    from byoc.patterns._pattern_syntax import ANY_OPERATOR, PatternLine
    from byoc.patterns._qdq_groups import filter_allowed, find_matches, free_nodes
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
