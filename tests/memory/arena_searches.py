"""The searches and bounds that plan an arena; no other room uses them, and tests ask each alone."""

from byoc.memory.arena._best_order import (
    OrderResult,
    find_best_order,
    vary_order,
)
from byoc.memory.arena._packing import (
    CompoundPart,
    build_compounds,
    find_lowest_offsets,
    place_quickly,
)
from byoc.memory.arena._segments import (
    find_cut_bound,
    find_least_bytes_at,
    find_witness,
    split_segments,
)

__all__ = [
    "CompoundPart",
    "OrderResult",
    "build_compounds",
    "find_best_order",
    "find_cut_bound",
    "find_least_bytes_at",
    "find_lowest_offsets",
    "find_witness",
    "place_quickly",
    "split_segments",
    "vary_order",
]
