"""Scratchpad residency: which buffers stay in a scratchpad, and what is loaded, stored and streamed.

`plan_levels(schedule, size)` decides what stays in a scratchpad of the given size beside system memory
so that the fewest bytes move, with a lower bound for every plan in that order, and returns all actions
with their addresses. Only numbers, no ONNX.
"""

from byoc.memory.levels.levels import Action, ScratchpadPlan, LoadAction, Residency, RunAction, StoreAction
from byoc.memory.levels.planner import plan_scratchpad
from byoc.memory.levels.schedule import Access, AccessSchedule, ScheduledStep

__all__ = [
    "Access",
    "Action",
    "ScratchpadPlan",
    "LoadAction",
    "Residency",
    "RunAction",
    "AccessSchedule",
    "StoreAction",
    "ScheduledStep",
    "plan_scratchpad",
]
