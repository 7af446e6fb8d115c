"""Placing so that regions fit into an accelerator's memory: constants and, once planned, activations.

Constants are there as long as the model is loaded, so they add up, and the strategies keep the sum. What
a region computes with lives in an arena while it runs, and regions run one after another: what counts is
the largest arena. Its size depends on the region as a whole, which no sum over units says; so arenas
are planned (byoc.memory) once regions are known, and where one is too large the graph is placed
again, with less room for constants or without the unit that runs where the arena is fullest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum, inf
from types import MappingProxyType

import numpy as np

from byoc.costs.problem import Device
from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.memory.live import live
from byoc.memory.model import CONVENTIONS, MemoryModel, read_memory
from byoc.memory.plan import plan
from byoc.patterns.joint import JointUnit
from byoc.placement import Placement, Problem

_ROUNDS = 64  # of placing again, then nothing is left on what is still too full
_LARGE = 2_000  # units: above, arenas are planned in the given order, which takes no search
_CONVENTION = CONVENTIONS["C"]


@dataclass(frozen=True)
class Room:
    """What the next placement is given: `kept` has for each accelerator units, by number, that may not
    run there, with the reason; `capacity` is for each the bytes that constants may have.
    """

    kept: tuple[Mapping[int, str], ...]
    capacity: tuple[float, ...]

    def without(self, device: int, rows: Mapping[int, str]) -> "Room":
        """Return this room with units that may not run on an accelerator, by its position."""
        kept = list(self.kept)
        kept[device] = {**rows, **kept[device]}
        return replace(self, kept=tuple(kept))

    def smaller(self, device: int, capacity: float) -> "Room":
        """Return this room with fewer bytes for constants on an accelerator."""
        each = list(self.capacity)
        each[device] = capacity
        return replace(self, capacity=tuple(each))


@dataclass(frozen=True)
class Arena:
    """The bytes of a region's activations at most, and the unit, by number, that runs at that time."""

    size: int
    row: int


@dataclass(eq=False)
class Arenas:
    """The arenas of parts of a graph whose units are given; sizes that are not known count as none."""

    index: GraphIndex
    units: Sequence[JointUnit]
    _known: dict[frozenset[int], Arena] = field(default_factory=dict)

    @cached_property
    def reason(self) -> str:
        """Why activations are not counted, empty where they are."""
        return "" if isinstance(self._model, MemoryModel) else str(self._model)

    def of(self, rows: Sequence[int]) -> Arena:
        """Return the arena of a region of some units, by number."""
        key = frozenset(rows)
        if key not in self._known:
            self._known[key] = self._planned(key)
        return self._known[key]

    def _planned(self, rows: frozenset[int]) -> Arena:
        model = self._model
        steps = sorted(step for row in rows for step in self._steps.get(row, ()))
        if not isinstance(model, MemoryModel) or not steps:
            return Arena(0, min(rows))
        part = model.problem.part(steps)
        found = plan(part, "exact" if len(steps) <= _LARGE else "by-size")
        at = live(part, found.order).bytes_at
        fullest = steps[found.order[max(range(len(at)), key=at.__getitem__)]]
        return Arena(found.size, next(row for row in rows if fullest in self._steps[row]))

    @cached_property
    def _model(self) -> MemoryModel | InputError:
        groups = [unit.nodes for unit in self.units if len(unit.nodes) > 1]
        try:
            return read_memory(self.index, _CONVENTION, groups=groups)
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


def within_memory(
    place: Callable[[Room], tuple[Placement, Problem]],
    arenas: Arenas,
    devices: Sequence[Device],
) -> tuple[Placement, Room, tuple[str, ...]]:
    """Return a placement whose regions fit into the memory of their accelerators, and its room.

    `place` solves for a room; its problem has the bytes of constants (units, accelerators). Two ways
    are gone, less room for constants first or fewer units first, and the cheaper of the two
    results is taken. Its bound is that of the first placement, which only constants held back. The
    notes say what was not counted. Raises InputError when a unit must be on an accelerator and there
    is no room for it.
    """
    nothing: tuple[Mapping[int, str], ...] = tuple(MappingProxyType({}) for _ in devices)
    room = Room(nothing, tuple(device.memory for device in devices))
    if all(device.memory == inf for device in devices):
        return place(room)[0], room, ()
    if arenas.reason:
        note = f"limits.memory holds for constants alone: {arenas.reason}"
        return place(room)[0], room, (note,)
    first, problem = place(room)
    alone = _alone(room, problem, arenas, devices)
    ways = [_fitted(place, alone, arenas, devices, less) for less in (True, False)]
    placement, room = min(ways, key=lambda way: way[0].cost.total)
    for row in np.flatnonzero(problem.must & (placement.labels == 0)).tolist():
        why = next(kept[row] for kept in room.kept if row in kept)
        raise InputError(
            f"unit '{arenas.units[row].name}' has to be on an accelerator (level: must): {why}"
        )
    return replace(placement, bound=first.bound), room, ()


def _alone(room: Room, problem: Problem, arenas: Arenas, devices: Sequence[Device]) -> Room:
    """Return a room without the units that do not fit even alone."""
    for number, device in enumerate(devices):
        if device.memory == inf:
            continue
        rows = np.flatnonzero(problem.allowed[:, 1 + number]).tolist()
        needs = {row: (problem.memory[row, number], arenas.of([row]).size) for row in rows}
        above = {
            row: f"limits.memory: it needs {_told(*need)}, and {device.name} has {_bytes(device.memory)}"
            for row, need in needs.items()
            if sum(need) > device.memory
        }
        room = room.without(number, above)
    return room


def _fitted(
    place: Callable[[Room], tuple[Placement, Problem]],
    room: Room,
    arenas: Arenas,
    devices: Sequence[Device],
    less_for_constants: bool,
) -> tuple[Placement, Room]:
    for rounds in range(_ROUNDS + len(devices)):
        placement, problem = place(room)
        found = _too_full(placement, problem, arenas, devices)
        if found is None:
            break
        number, constants, arena = found
        memory = devices[number].memory
        needs = _told(constants, arena.size)
        why = (
            f"limits.memory: {devices[number].name} would need {needs} at once, and has {_bytes(memory)}"
        )
        here = np.flatnonzero(placement.labels == 1 + number).tolist()
        if rounds >= _ROUNDS:
            room = room.without(number, dict.fromkeys(here, why))
        elif less_for_constants and constants and arena.size < memory:
            room = room.smaller(number, memory - arena.size)
        else:
            room = room.without(number, {arena.row: why})
    else:
        placement, _ = place(room)
    return placement, room


def _too_full(
    placement: Placement, problem: Problem, arenas: Arenas, devices: Sequence[Device]
) -> tuple[int, float, Arena] | None:
    """Return the first accelerator, by position, with too little memory: constants, largest arena."""
    for number, device in enumerate(devices):
        if device.memory == inf:
            continue
        here = placement.labels == 1 + number
        constants = fsum(problem.memory[here, number])
        regions = np.unique(placement.regions[here]).tolist()
        each = [arenas.of(np.flatnonzero(placement.regions == region).tolist()) for region in regions]
        if each:
            largest = max(each, key=lambda arena: arena.size)
            if constants + largest.size > device.memory:
                return number, constants, largest
    return None


def _told(constants: float, activations: float) -> str:
    return f"{_bytes(constants)} for constants and {_bytes(activations)} for activations"


def _bytes(number: float) -> str:
    return f"{number:.0f} bytes"
