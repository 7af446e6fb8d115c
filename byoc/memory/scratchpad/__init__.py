"""Scratchpad residency: which buffers stay in a scratchpad, and what is loaded, stored and streamed.

`plan_scratchpad(schedule, size)` decides what stays in a scratchpad of the given size beside system
memory so that the fewest bytes move, with a lower bound for every plan in that order, and returns all
actions with their addresses. Only numbers, no ONNX.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.scratchpad._scratchpad_plan import (
        Access,
        AccessSchedule,
        LoadAction,
        RunAction,
        ScheduledStep,
        ScratchpadPlan,
        StoreAction,
    )
    from byoc.memory.scratchpad._scratchpad_planner import plan_scratchpad
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
