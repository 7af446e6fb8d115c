"""Placing one graph: its problem posed for the room that there is, what is given pinned, and solved."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from byoc.costs.pose import BodyCost, Posed
from byoc.graph.index import GraphIndex
from byoc.placement import Placement, Problem
from byoc.plan.capacity import Arenas, Room, within_memory
from byoc.plan.extract import Units, pose_units
from byoc.plan.pinned import pinned
from byoc.plan.saved import Pins
from byoc.plan.settings import Settings
from byoc.plan.solve import keys, solve


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement of a graph's units, the problem as posed, and the units that were given their place.

    `notes` are on what limits could not count.
    """

    posed: Posed
    placement: Placement
    pins: Mapping[int, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph to be placed, its units, what its nodes' bodies cost; `place` says which body it is."""

    settings: Settings
    index: GraphIndex
    units: Units
    bodies: Mapping[int, BodyCost]
    place: str
    pins: Pins | None
    _posed: dict[tuple[frozenset[int], ...], Posed] = field(default_factory=dict)

    def placed(self) -> Placed:
        """Return where its units go. Raises InputError when the strategy fails or something must fit."""
        arenas = Arenas(self.index, self.units.units)
        placement, room, notes = within_memory(self._solved, arenas, self.settings.devices)
        posed = self._pose(room)
        return Placed(posed, placement, self._pins(posed), notes)

    def _solved(self, room: Room) -> tuple[Placement, Problem]:
        posed = self._pose(room)
        problem, left = pinned(posed.problem, self._pins(posed))
        problem = replace(problem, capacity=np.array(room.capacity, np.float64))
        solved = solve(self.settings.strategy, problem, keys(self.index, self.units.units))
        fusions = tuple(left[number] for number in solved.fusions)
        return replace(solved, fusions=fusions), posed.problem

    def _pose(self, room: Room) -> Posed:
        key = tuple(frozenset(rows) for rows in room.kept)
        if key not in self._posed:
            found = pose_units(self.index, self.units, self.settings, self.bodies, self.place, room.kept)
            self._posed[key] = found
        return self._posed[key]

    def _pins(self, posed: Posed) -> Mapping[int, int]:
        return self.pins.of(self.index, self.units.units, posed.problem) if self.pins else {}
