"""Keeping regions within an accelerator's memory: constants, and the activations of the largest region.

Constants are there as long as the model is loaded, so they add up, and the strategies keep the sum. What
a region computes with lies in an arena while it runs, and regions run one after another: what counts is
the largest arena. Its size depends on the region as a whole, which no sum over units says; so arenas
are planned (byoc.memory) once regions are known, and where one is too large the graph is placed
again, with less room for constants or without the unit that runs where the arena is fullest.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import PlacementDevice, price_reload
from byoc.errors import Cause, CauseKind, InputError
from byoc.memory.arena import find_live_ranges, plan_buffers
from byoc.memory.reading import CONVENTIONS, MemoryModel, read_memory_model
from byoc.model import GraphIndex
from byoc.patterns import JointUnit
from byoc.placement import Placement, Problem
from byoc.planning._graph_plan import GraphPlan, PlannedRegion, RegionMemory

_ROUNDS = 64  # of placing again, then nothing is left on what is still too full
_LARGE = 2_000  # units: above, arenas are planned in the given order, which takes no search
_CONVENTION = CONVENTIONS["C"]


@dataclass(frozen=True)
class Constraints:
    """Constraints that the next placement must keep to.

    `refused` has for each accelerator units, by number, that may not run there, with the reason;
    `capacity` is for each the bytes that constants may have.
    """

    refused: tuple[Mapping[int, Cause], ...]
    capacity: tuple[float, ...]

    def without(self, device: int, rows: Mapping[int, Cause]) -> "Constraints":
        """Return these constraints with more units refused by an accelerator, by its position."""
        refused = list(self.refused)
        refused[device] = {**rows, **refused[device]}
        return replace(self, refused=tuple(refused))

    def with_capacity(self, device: int, capacity: float) -> "Constraints":
        """Return these constraints with another number of bytes for constants on an accelerator."""
        each = list(self.capacity)
        each[device] = capacity
        return replace(self, capacity=tuple(each))


@dataclass(frozen=True, eq=False)
class FittedPlacement:
    """A placement within memory, the constraints it was made in, and notes on what was not counted."""

    placement: Placement
    constraints: Constraints
    notes: tuple[str, ...] = ()


Solved = tuple[Placement, Problem]
"""A placement with the problem it solves; `memory` of that has the bytes of constants."""
MemorySearch = Generator[Constraints | FittedPlacement, Solved, None]


@dataclass(frozen=True)
class RegionArena:
    """The bytes of a region's activations at most, and the unit, by number, that runs at that time."""

    size: int
    fullest_row: int


@dataclass(frozen=True, eq=False)
class RegionArenas:
    """The arenas of parts of a graph with some units; tensors of unknown size count as 0 bytes."""

    index: GraphIndex
    units: Sequence[JointUnit]
    _planned: dict[frozenset[int], RegionArena] = field(default_factory=dict)

    @cached_property
    def reason(self) -> str:
        """Why activations are not counted, empty where they are."""
        return "" if isinstance(self._model, MemoryModel) else str(self._model)

    def plan_arena(self, rows: Sequence[int]) -> RegionArena:
        """Return the arena of a region of some units, by number."""
        key = frozenset(rows)
        if key not in self._planned:
            self._planned[key] = self._plan(key)
        return self._planned[key]

    def _plan(self, rows: frozenset[int]) -> RegionArena:
        model = self._model
        known = isinstance(model, MemoryModel)
        steps = sorted(step for row in rows for step in self._steps.get(row, ())) if known else []
        if not isinstance(model, MemoryModel) or not steps:
            return RegionArena(0, min(rows))
        part = model.problem.subproblem(steps)
        found = plan_buffers(part, "exact" if len(steps) <= _LARGE else "by-size")
        bytes_at = find_live_ranges(part, found.order).bytes_at
        fullest = steps[found.order[max(range(len(bytes_at)), key=bytes_at.__getitem__)]]
        return RegionArena(found.size, next(row for row in rows if fullest in self._steps[row]))

    @cached_property
    def _model(self) -> MemoryModel | InputError:
        groups = [unit.nodes for unit in self.units if len(unit.nodes) > 1]
        try:
            return read_memory_model(self.index, _CONVENTION, groups=groups)
        except InputError as error:
            return error

    @cached_property
    def _steps(self) -> Mapping[int, list[int]]:
        """The steps of each unit; one of constants or shapes alone has none."""
        assert isinstance(self._model, MemoryModel)
        row_of = {node: row for row, unit in enumerate(self.units) for node in unit.nodes}
        found: dict[int, list[int]] = {row: [] for row in range(len(self.units))}
        for step, nodes in enumerate(self._model.nodes):
            found[row_of[nodes[0]]].append(step)
        return found


def fit_memory(arenas: RegionArenas, devices: Sequence[PlacementDevice]) -> MemorySearch:
    """Yield constraints to place within, each answered (`send`) with the placement; then the result.

    The regions of the result fit into the memory of their accelerators. Where those of the first
    placement do not, two ways are tried, less room for constants first or fewer units first, and
    the cheaper of the two results is taken. Its lower bound is that of the first placement, which only
    constants held back. Raises InputError when a unit must be on an accelerator and there is no room
    for it.
    """
    nothing: tuple[Mapping[int, Cause], ...] = tuple(MappingProxyType({}) for _ in devices)
    constraints = Constraints(nothing, tuple(device.memory for device in devices))
    first, problem = yield constraints
    if all(device.memory == inf for device in devices):
        yield FittedPlacement(first, constraints)
        return
    if arenas.reason:
        note = f"limits.memory holds for constants alone: {arenas.reason}"
        yield FittedPlacement(first, constraints, (note,))
        return
    constraints = _refuse_too_large(constraints, problem, arenas, devices)
    fewer_constants = yield from _fit(constraints, arenas, devices, True)
    fewer_units = yield from _fit(constraints, arenas, devices, False)
    best = min((fewer_constants, fewer_units), key=lambda found: found.placement.cost.total)
    for row in np.flatnonzero(problem.must & (best.placement.labels == 0)).tolist():
        why = next(refused[row] for refused in best.constraints.refused if row in refused)
        raise InputError(
            f"unit '{arenas.units[row].name}' has to be on an accelerator (level: must): {why}"
        )
    yield replace(best, placement=replace(best.placement, bound=first.bound))


def _refuse_too_large(
    constraints: Constraints, problem: Problem, arenas: RegionArenas, devices: Sequence[PlacementDevice]
) -> Constraints:
    """Return constraints without the units that do not fit even by themselves."""
    for number, device in enumerate(devices):
        if device.memory == inf:
            continue
        rows = np.flatnonzero(problem.allowed[:, 1 + number]).tolist()
        held = problem.memory[:, number] * (price_reload(device.costs) is None)
        needs = {row: (held[row], arenas.plan_arena([row]).size) for row in rows}
        too_large = {
            row: _lack_memory(device, need, f"it needs {_describe_need(*need)}, and {device.name} has")
            for row, need in needs.items()
            if sum(need) > device.memory
        }
        constraints = constraints.without(number, too_large)
    return constraints


def _fit(
    constraints: Constraints,
    arenas: RegionArenas,
    devices: Sequence[PlacementDevice],
    fewer_constants: bool,
) -> Generator[Constraints | FittedPlacement, Solved, FittedPlacement]:
    """Tighten constraints until regions fit: room for constants first, or units first."""
    for rounds in range(_ROUNDS + len(devices)):
        placement, problem = yield constraints
        found = _find_too_full(placement, problem, arenas, devices)
        if found is None:
            return FittedPlacement(placement, constraints)
        number, constants, arena = found
        device = devices[number]
        need = constants, arena.size
        why = _lack_memory(
            device, need, f"{device.name} would need {_describe_need(*need)} at once, and has"
        )
        if rounds >= _ROUNDS:
            here = np.flatnonzero(placement.labels == 1 + number).tolist()
            constraints = constraints.without(number, dict.fromkeys(here, why))
        elif fewer_constants and _can_shrink(problem, placement, number, device.memory - arena.size):
            constraints = constraints.with_capacity(number, device.memory - arena.size)
        else:
            constraints = constraints.without(number, {arena.fullest_row: why})
    placement, _ = yield constraints
    return FittedPlacement(placement, constraints)


def _can_shrink(problem: Problem, placement: Placement, number: int, room: float) -> bool:
    """Return whether an accelerator's constants can be in less room: those that must be there can."""
    here = placement.labels == 1 + number
    kept = math.fsum(problem.memory[here & problem.must, number])
    return kept <= room and room > 0 and bool(problem.memory[here, number].any())


def _find_too_full(
    placement: Placement, problem: Problem, arenas: RegionArenas, devices: Sequence[PlacementDevice]
) -> tuple[int, float, RegionArena] | None:
    """Return the first accelerator, by position, with too little memory: constants, largest arena."""
    for number, device in enumerate(devices):
        if device.memory == inf:
            continue
        here = placement.labels == 1 + number
        constants = math.fsum(problem.memory[here, number])
        regions = np.unique(placement.regions[here]).tolist()
        each = [
            arenas.plan_arena(np.flatnonzero(placement.regions == region).tolist()) for region in regions
        ]
        if each:
            largest = max(each, key=lambda arena: arena.size)
            if constants + largest.size > device.memory:
                return number, constants, largest
    return None


def measure_region(
    arenas: RegionArenas, problem: Problem, rows: Sequence[int], number: int
) -> RegionMemory:
    """Return the memory of a region of some units on an accelerator, by its position."""
    activations = None if arenas.reason else arenas.plan_arena(rows).size
    return RegionMemory(math.fsum(problem.memory[list(rows), number]), activations)


def measure_memory(regions: Iterable[PlannedRegion]) -> RegionMemory | None:
    """Return the memory of the regions of an accelerator: all constants, and the largest arena.

    Regions run one after another. It is None where the accelerator has no limit, or no region.
    """
    each = [region.memory for region in regions if region.memory is not None]
    arenas = [memory.activations for memory in each if memory.activations is not None]
    constants = math.fsum(memory.constants for memory in each)
    return RegionMemory(constants, max(arenas, default=None)) if each else None


def _lack_memory(device: PlacementDevice, need: tuple[float, float], sentence: str) -> Cause:
    """Return the cause that an accelerator has too little memory for so many bytes of both kinds."""
    return Cause(
        CauseKind.LIMIT,
        f"limits.memory: {sentence} {device.memory:.0f} bytes",
        constraint="limits.memory",
        value=f"{math.fsum(need):.0f}",
        allowed=f"{device.memory:.0f}",
    )


def _describe_need(constants: float, activations: float) -> str:
    return f"{constants:.0f} bytes for constants and {activations:.0f} bytes for activations"


def describe_excess(plan: GraphPlan, devices: Sequence[PlacementDevice]) -> str:
    """Return the limit that all graphs of a plan together exceed, as a sentence; empty for none."""
    graphs = list(plan.walk())
    for device in devices:
        own = [each for graph in graphs for each in graph.regions if each.target.name == device.name]
        if len(own) > device.max_regions:
            return f"{device.name} would have {len(own)} regions of at most {device.max_regions}"
        if device.memory == inf or len(graphs) == 1:
            continue  # a single graph was placed within its memory
        memory = measure_memory(own)
        if memory is not None and memory.total > device.memory:
            return f"{device.name} would hold {memory.total:.0f} bytes of at most {device.memory:.0f}"
    return ""
