"""Arenas: an order of steps and an offset for each buffer, with a lower bound. Numbers only, no ONNX."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.arena._arena_problem import (
        ArenaPlan,
        ArenaProblem,
        ArenaStep,
        Buffer,
        find_live_ranges,
    )
    from byoc.memory.arena._best_order import (
        METHODS,
        OrderResult,
        find_best_order,
        plan_buffers,
        plan_by_methods,
        vary_order,
    )
    from byoc.memory.arena._packing import (
        Compound,
        CompoundPart,
        DistancePacking,
        GreedyPacking,
        build_compounds,
        find_lowest_gap,
        find_lowest_offsets,
        pack_under,
        place_quickly,
        search_offsets,
    )
    from byoc.memory.arena._segments import (
        find_cut_bound,
        find_least_bytes_at,
        find_witness,
        split_segments,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
