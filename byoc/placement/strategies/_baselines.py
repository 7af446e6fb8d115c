"""Baseline strategies: the host alone, all that is supported, each operator that is faster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from byoc._dataclasses import dataclass, field, fields
from byoc.errors import InputError
from byoc.placement._conditions import fix_reloads
from byoc.placement._form_regions import form_regions
from byoc.placement._hard_limits import find_broken_limit, make_feasible, measure_loads, repair_labels
from byoc.placement._placement_enumeration import (
    do_regions_matter,
    enumerate_labels,
    find_best_regions,
    sum_execution,
    sum_transfers,
)
from byoc.placement._problem import Floats, Ints, Problem
from byoc.placement._strategy import (
    ALL_REQUIREMENTS,
    CHEAPER_ON_HOST,
    CONDITIONS,
    FUSIONS,
    LAUNCH,
    MUST,
    Measure,
    NoPlacementError,
    Placement,
)
from byoc.placement._unit_groups import Neighbours

if TYPE_CHECKING:
    from byoc.placement._list_scheduling import InferenceSchedule

# Exhaustive search over labels and regions, a reference for small problems.

_MOST = 2**16


@dataclass(frozen=True)
class Exhaustive:
    """Try every placement of up to 16 units on one accelerator, or of fewer on several.

    The regions are the best that the limits allow, whether `form_regions` would form them or not.
    """

    name: ClassVar[str] = "exhaustive"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS

    def solve(self, problem: Problem) -> Placement:
        """Return the best placement.

        Raises InputError if there are too many, NoPlacementError if none keeps the limits.
        """
        count = (1 + problem.devices) ** problem.units
        if count > _MOST:
            raise InputError(
                f"strategy exhaustive tries at most {_MOST} placements (16 units with one "
                f"accelerator); {problem.units} units and {problem.devices} accelerators have "
                f"{1 + problem.devices}^{problem.units}: choose another strategy"
            )
        labels = enumerate_labels(problem)
        seconds = sum_execution(problem, labels).sum(axis=1) + sum_transfers(problem, labels).sum(axis=1)
        if not np.isfinite(seconds).any():
            raise NoPlacementError
        # Of equal costs, the placement with the most units on the host.
        best = int(np.lexsort((np.count_nonzero(labels, axis=1), seconds))[0])
        if not do_regions_matter(problem):
            return Placement.from_labels(
                problem, labels[best], float(seconds[best]), why_host=CHEAPER_ON_HOST
            )
        return _search_regions(problem, labels, seconds)


def _search_regions(problem: Problem, labels: Ints, seconds: Floats) -> Placement:
    """Return the best placement including launches, savings and limits on regions."""
    used = np.stack([(labels == 1 + d).any(axis=1) for d in range(problem.devices)], axis=1)
    at_least = seconds + used @ problem.launch
    for fusion in problem.fusions:
        at_least -= fusion.saving * (labels[:, fusion.members] == fusion.device).all(axis=1)
    best, total, regions = -1, np.inf, labels[0]
    for number in np.lexsort((np.count_nonzero(labels, axis=1), at_least)).tolist():
        if at_least[number] >= total:
            break
        found = find_best_regions(problem, labels[number])
        if found is not None and seconds[number] + found[0] < total:
            best, total, regions = number, float(seconds[number]) + found[0], found[1]
    if best < 0:
        raise NoPlacementError
    formed = form_regions(problem, labels[best])
    # Prefer the regions that `form_regions` gives if they are as good.
    standard = Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST)
    if standard.cost.total <= total * (1 + 2.0**-40) and not find_broken_limit(
        problem, labels[best], formed
    ):
        return standard
    return Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST, regions=regions)


# Placements with their makespan or their loads.


@dataclass(frozen=True, eq=False)
class ScheduledPlacement(Placement):
    """A placement and its schedule."""

    schedule: "InferenceSchedule | None" = None
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
    """float64 (1 + devices,): seconds for which one inference occupies each device; (engines,) where
    devices share engines."""

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
    problem = fix_reloads(problem, placement.labels)
    parts = {each.name: getattr(placement, each.name) for each in fields(Placement)}
    if placement.measure is not measure:
        parts["bound"] = None
    labels, regions = placement.labels, placement.regions
    if measure is Measure.load:
        return PipelinedPlacement(
            **parts, loads=measure_loads(problem, labels, regions, placement.fusions)
        )
    if measure is Measure.makespan:
        from byoc.placement._list_scheduling import ListScheduler  # noqa: PLC0415 - sums do without

        schedule, _ = ListScheduler(problem).schedule_few(labels.tolist(), regions.tolist())
        return ScheduledPlacement(**parts, schedule=schedule)
    return Placement(**parts)


@dataclass(frozen=True)
class HostOnly:
    """Run everything on the host."""

    name: ClassVar[str] = "host-only"
    # Without regions no limit on regions can be broken.
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {MUST}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement without regions."""
        return Placement.from_labels(problem, np.zeros(problem.units, np.int64))


@dataclass(frozen=True)
class AllSupported:
    """Place each unit on the accelerator where it is fastest, or on the host if none accepts it.

    Regions that break a limit are dissolved.
    """

    name: ClassVar[str] = "all-supported"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {LAUNCH, FUSIONS}
    repairable: ClassVar[bool] = True

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        # The host is the last resort: slower than every accelerator that accepts the unit.
        seconds = problem.costs.copy()
        seconds[:, 0] = np.finfo(np.float64).max
        labels = repair_labels(problem, seconds.argmin(axis=1).astype(np.int64))
        return Placement.from_labels(
            problem,
            labels,
            notes=("host time and transfers played no part in the choice",),
        )


@dataclass(frozen=True)
class ProviderOrder:
    """Let each accelerator in turn take all units that it supports and no earlier one took.

    That is what runtimes with a list of providers do (onnxruntime's execution providers, each of which
    claims nodes by priority): `--rules` in the order of the providers. Regions that break a limit are
    dissolved.
    """

    name: ClassVar[str] = "provider-order"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {LAUNCH, FUSIONS}
    repairable: ClassVar[bool] = True

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        supported = problem.allowed[:, 1:]
        labels = np.zeros(problem.units, np.int64)
        if problem.devices:
            labels = np.where(supported.any(axis=1), 1 + supported.argmax(axis=1), 0).astype(np.int64)
        return Placement.from_labels(
            problem,
            repair_labels(problem, labels),
            notes=("costs played no part in the choice",),
            why_host="no accelerator takes it",
        )


@dataclass(frozen=True)
class FasterOps:
    """Place each unit where its execution alone is fastest; ties stay on the host.
    The rule of onnx-mlir's placement heuristic FasterOps (onnx/onnx-mlir,
    src/Accelerators/NNPA/Conversion/ONNXToZHigh/DevicePlacementHeuristic.cpp, PlaceBeneficialOpsOnNNPA):
    an operator that the accelerator supports goes there if the cost model says that it is faster there
    than on the CPU, whatever its neighbours do. With several accelerators the fastest one counts. Hard
    limits are kept by moving units afterwards (`byoc.placement._hard_limits`).
    """

    name: ClassVar[str] = "faster-ops"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {LAUNCH, FUSIONS}
    repairable: ClassVar[bool] = True

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        return Placement.from_labels(
            problem,
            make_feasible(problem, problem.costs.argmin(axis=1).astype(np.int64)),
            notes=("transfers played no part in the choice",),
            why_host="the operator alone is no faster on the accelerator",
        )


_UNDECIDED = -1


@dataclass(frozen=True)
class FasterOpsTransfer:
    """Decide unit by unit, counting transfers to and from neighbours that are already decided.
    The rule of onnx-mlir's placement heuristic FasterOpsWSU (onnx/onnx-mlir,
    src/Accelerators/NNPA/Conversion/ONNXToZHigh/DevicePlacementHeuristic.cpp,
    PlaceBeneficialOpsOnNNPAWithStickUnstick), whose three factors and five sweeps are the defaults here.
    The first sweep decides only units that are much faster on one side. Later sweeps offload units that
    are faster with transfers counted, and send to the host units that are much faster there; when
    nothing changes any more, the rest goes to the host unless it is faster on an accelerator. A decided
    unit stays so, and an undecided unit does not affect its neighbours.

    Differences: transfers are those of the problem, paid once per tensor and direction, and include
    graph inputs and outputs; units of equal depth in the graph are decided at once, so that the labels
    do not depend on the order of the units; with several accelerators the best one competes with the
    host. Hard limits are kept by moving units afterwards (`byoc.placement._hard_limits`).
    """

    name: ClassVar[str] = "faster-ops-transfer"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {LAUNCH, FUSIONS}
    repairable: ClassVar[bool] = True
    margin: float = 1.1
    """How many times faster than the host an accelerator must be, with transfers counted."""
    far_faster_on_host: float = 2.0
    """How many times faster, transfers not counted, sends a unit to the host early."""
    far_faster_on_device: float = 3.0
    """The same for an accelerator."""
    sweeps: int = 5

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        labels = _Sweeper(problem, self).run()
        return Placement.from_labels(
            problem,
            make_feasible(problem, np.array(labels, np.int64)),
            notes=("each unit was judged against its neighbours alone",),
            why_host=CHEAPER_ON_HOST,
        )


@dataclass(eq=False)
class _Sweeper:
    problem: Problem
    options: FasterOpsTransfer
    around: Neighbours = field(init=False)
    seconds: list[list[float]] = field(init=False)
    labels: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.around = Neighbours(self.problem)
        self.seconds = self.around.seconds
        on_host_only = np.isinf(self.problem.costs[:, 1:]).all(axis=1)
        self.labels = np.where(on_host_only, 0, _UNDECIDED).tolist()

    def run(self) -> list[int]:
        """Return the labels after the last sweep; no unit is undecided."""
        levels = self.around.group_by_depth()
        changed = True
        for number in range(self.options.sweeps - 1):
            if not changed:
                break
            changed = self._sweep(levels, first=number == 0, last=False) or number == 0
        self._sweep(levels, first=False, last=True)
        return self.labels

    def _sweep(self, levels: Sequence[Sequence[int]], *, first: bool, last: bool) -> bool:
        changed = False
        for level in levels:
            undecided = [unit for unit in level if self.labels[unit] == _UNDECIDED]
            decided = [(unit, self._decision(unit, first, last)) for unit in undecided]
            for unit, label in decided:
                self.labels[unit] = label
                changed |= label != _UNDECIDED
        return changed

    def _decision(self, unit: int, first: bool, last: bool) -> int:
        alone = self.seconds[unit]
        counted = self.around.seconds_with_transfers(unit, self.labels)
        best = min(range(1, len(counted)), key=counted.__getitem__)
        if self.options.margin * counted[best] < counted[0]:
            far = self.options.far_faster_on_device * alone[best] <= alone[0]
            return best if far or not first else _UNDECIDED
        far = self.options.far_faster_on_host * alone[0] <= alone[best]
        return 0 if far or last else _UNDECIDED
