"""Placements with their makespan or their loads."""

from dataclasses import dataclass, field, fields

import numpy as np

from byoc.placement._device_loads import measure_loads
from byoc.placement._problem import Floats, Problem
from byoc.placement._strategy import Measure, Placement
from byoc.placement.solvers import InferenceSchedule, ListScheduler


@dataclass(frozen=True, eq=False)
class ScheduledPlacement(Placement):
    """A placement and its schedule."""

    schedule: InferenceSchedule | None = None
    """None if its regions wait for one another in a circle."""

    @property
    def measure(self) -> Measure:
        """The makespan, if there is a schedule."""
        return Measure.makespan if self.schedule else Measure.total

    @property
    def value(self) -> float:
        """Seconds of the schedule."""
        return self.schedule.makespan if self.schedule else self.cost.total


@dataclass(frozen=True, eq=False)
class PipelinedPlacement(Placement):
    """A placement for several inferences in flight, and the load of each device."""

    loads: Floats = field(default_factory=lambda: np.zeros(1))
    """float64 (1 + devices,): seconds for which one inference occupies each device."""

    @property
    def measure(self) -> Measure:
        """The load of the busiest device."""
        return Measure.load

    @property
    def value(self) -> float:
        """Seconds for which one inference occupies the busiest device."""
        return float(self.loads.max())


def measure_placement(problem: Problem, placement: Placement, measure: Measure) -> Placement:
    """Return a placement with its value by a measure, found anew; a bound on another is dropped."""
    parts = {each.name: getattr(placement, each.name) for each in fields(Placement)}
    if placement.measure is not measure:
        parts["bound"] = None
    labels, regions = placement.labels, placement.regions
    if measure is Measure.load:
        return PipelinedPlacement(
            **parts, loads=measure_loads(problem, labels, regions, placement.fusions)
        )
    if measure is Measure.makespan:
        schedule, _ = ListScheduler(problem).schedule_few(labels.tolist(), regions.tolist())
        return ScheduledPlacement(**parts, schedule=schedule)
    return Placement(**parts)
