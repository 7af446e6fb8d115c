"""Two levels: a scratchpad of a given size and system memory; what is loaded, stored and streamed when.

`plan_levels(schedule, size)` decides what stays in the scratchpad so that the fewest bytes move, with a
bound that no plan for that order falls below, and gives the actions with all addresses. `check` replays
them. Numbers alone.
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
