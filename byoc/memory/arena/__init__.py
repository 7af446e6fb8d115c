"""Arenas: an order of steps and an offset for each buffer, with a lower bound. Numbers only, no ONNX."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.arena._arena_planner import METHODS, plan_buffers, plan_by_methods
    from byoc.memory.arena._arena_problem import ArenaPlan, ArenaProblem, ArenaStep, Buffer
    from byoc.memory.arena._compounds import Compound, CompoundPart
    from byoc.memory.arena._greedy_packing import DistancePacking, GreedyPacking, find_lowest_gap
    from byoc.memory.arena._live_ranges import find_live_ranges
    from byoc.memory.arena._offset_search import pack_under, search_offsets
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
