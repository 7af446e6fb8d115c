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
    from byoc.memory.arena._best_order import METHODS, plan_buffers, plan_by_methods
    from byoc.memory.arena._packing import (
        Compound,
        DistancePacking,
        GreedyPacking,
        find_lowest_gap,
        pack_under,
        search_offsets,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
