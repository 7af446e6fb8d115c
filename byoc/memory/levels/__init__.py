"""Scratchpad residency: which buffers stay in a scratchpad, and what is loaded, stored and streamed.

`plan_levels(schedule, size)` decides what stays in a scratchpad of the given size beside system memory
so that the fewest bytes move, with a lower bound for every plan in that order, and returns all actions
with their addresses. Only numbers, no ONNX.
"""

from byoc.memory.levels.levels import Action, Levels, Load, Residency, Run, Store
from byoc.memory.levels.planner import plan_levels
from byoc.memory.levels.schedule import Access, Schedule, Turn

__all__ = [
    "Access",
    "Action",
    "Levels",
    "Load",
    "Residency",
    "Run",
    "Schedule",
    "Store",
    "Turn",
    "plan_levels",
]
