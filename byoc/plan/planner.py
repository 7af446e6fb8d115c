"""Planning a graph: annotate, group, pose, place; first what is inside its nodes, then the whole."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from byoc.costs.model import Price
from byoc.costs.pose import Alternative, BodyCost, Posed
from byoc.costs.trips import Trips, partitionable, trips
from byoc.costs.whole import whole_bodies
from byoc.graph.index import GraphIndex
from byoc.graph.interface import interface
from byoc.graph.places import body_place
from byoc.patterns.joint import JointUnit
from byoc.patterns.unit import Unit
from byoc.placement import Placement, evaluate
from byoc.plan.data import GraphPlan, PlannedRegion
from byoc.plan.extract import Units, units_of
from byoc.plan.limits import above_limits
from byoc.plan.placing import Graph
from byoc.plan.saved import Pins
from byoc.plan.settings import Settings


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans the graphs of one model; `pins` are what a given placement wants of them.

    `units` keeps the units of each graph by the id of its index: planners that differ in costs or
    strategy alone may share it. Without `bodies` no regions form in them.
    """

    settings: Settings
    pins: Pins | None = None
    units: dict[int, Units] = field(default_factory=dict)
    bodies: bool = True

    def whole(self, index: GraphIndex) -> GraphPlan:
        """Return the plan of a model, `index` being that of its main graph.

        Graphs are planned one by one, and limits are for all of them together: where that is too much,
        no regions form in bodies.
        """
        plan = self.plan(index)
        above = above_limits(plan, self.settings.devices)
        if not above:
            return plan
        note = f"no regions form in the bodies of If, Loop and Scan: with them {above}"
        alone = replace(self, bodies=False).plan(index)
        return replace(alone, notes=(*alone.notes, note))

    def plan(self, index: GraphIndex, expected: float = 1.0, place: str = "") -> GraphPlan:
        """Return the plan of a graph that is expected to run so often; the regions have no names yet.

        `place` says which body it is, empty for the main graph.

        Bodies go first, since what they cost on the host, regions and all, is what their node costs
        there. A node that then goes to an accelerator takes its bodies along as they were.
        """
        settings = self.settings
        inner, costs, notes = {}, {}, []
        for number in index.bodies:
            each = trips(index, number, settings.trips)
            notes += [each.note] if each.note else []
            if self.bodies and partitionable(index, number):
                inner[number] = tuple(
                    self.plan(
                        body.index,
                        expected * each.each,
                        body_place(index, number, body.attribute, place),
                    )
                    for body in index.bodies[number]
                )
            costs[number] = self._body_cost(index, number, each, inner.get(number, ()))
        extracted = self._units(index)
        units = extracted.units
        placed = Graph(settings, index, extracted, costs, place.rstrip("/"), self.pins).placed()
        found, pins, notes = placed.posed, placed.pins, [*notes, *placed.notes]
        placement = replace(placed.placement, bound=self._bound(index, placed.placement.bound, inner))
        cost = evaluate(found.latency, placement.labels, placement.regions, placement.fusions)
        joules = None
        if found.energy is not None:
            joules = evaluate(found.energy, placement.labels, placement.regions, placement.fusions).total
        on_host = {
            unit.nodes[0] for unit, label in zip(units, placement.labels, strict=True) if label == 0
        }
        saved = sum(
            costs[number].host.seconds - self._bodies(index, number)[0].seconds for number in inner
        )
        return GraphPlan(
            targets=settings.targets,
            index=index,
            place=place.rstrip("/"),
            trips=expected,
            units=tuple(units),
            posed=found,
            placement=placement,
            cost=cost,
            joules=joules,
            host_only=math.fsum(found.latency.seconds[:, 0]) - saved,
            regions=self._regions(index, units, found, placement, expected),
            bodies={number: plans for number, plans in inner.items() if number in on_host},
            notes=(*notes, *placement.notes),
            pinned={row: label for row, label in pins.items() if label == 0},
        )

    def _bound(
        self, index: GraphIndex, bound: float | None, inner: Mapping[int, Sequence[GraphPlan]]
    ) -> float | None:
        """Return the bound of a graph: that of its problem, less what its bodies may yet improve.

        In the problem a body costs what its placement does, and that may be more than it has to.
        """
        for number, plans in inner.items():
            each = trips(index, number, self.settings.trips).each
            for plan in plans:
                if bound is None or plan.placement.bound is None:
                    return None
                bound -= each * (plan.placement.cost.total - plan.placement.bound)
        return None if bound is None else max(0.0, bound)

    def _units(self, index: GraphIndex) -> Units:
        if id(index) in self.units:
            return self.units[id(index)]
        return self.units.setdefault(id(index), units_of(index, self.settings))

    def _bodies(self, index: GraphIndex, number: int) -> tuple[Price, float]:
        """Return what a node's bodies cost with everything on the host."""
        settings = self.settings
        return whole_bodies(index, number, settings.host, settings.trips, settings.unknown.on_host)

    def _body_cost(
        self, index: GraphIndex, number: int, each: Trips, plans: Sequence[GraphPlan]
    ) -> BodyCost:
        settings = self.settings
        host, operations = self._bodies(index, number)
        if plans:
            seconds = each.each * sum(plan.cost.total for plan in plans)
            known = [math.nan if plan.joules is None else plan.joules for plan in plans]
            host = Price(seconds, each.each * sum(known))
        devices = tuple(
            whole_bodies(index, number, costs, settings.trips, settings.unknown)[0]
            for costs in settings.costs
        )
        return BodyCost(host, devices, operations)

    def _regions(
        self,
        index: GraphIndex,
        units: Sequence[JointUnit],
        posed: Posed,
        placement: Placement,
        expected: float,
    ) -> tuple[PlannedRegion, ...]:
        regions = []
        fused = {
            row: posed.alternatives[chosen]
            for chosen in placement.fusions
            for row in posed.alternatives[chosen].rows
        }
        for number in range(int(placement.regions.max(initial=-1)) + 1):
            rows = np.flatnonzero(placement.regions == number).tolist()
            device = int(placement.labels[rows[0]])
            members = _members(units, rows, device, fused)
            latency = posed.latency
            seconds = latency.seconds[rows, device].sum() + latency.launch[device - 1]
            seconds -= sum(
                latency.fusions[chosen].saving
                for chosen in placement.fusions
                if latency.fusions[chosen].members[0] in rows
            )
            border = interface(index, sorted(node for unit in members for node in unit.nodes))
            target = self.settings.targets[device - 1]
            regions.append(PlannedRegion("", target, index, members, border, float(seconds), expected))
        return tuple(regions)


def _members(
    units: Sequence[JointUnit], rows: Sequence[int], device: int, fused: Mapping[int, Alternative]
) -> tuple[Unit, ...]:
    """Return what the units of a region are on its device, those that run as one as that composite."""
    members: list[Unit] = []
    for row in rows:
        if row not in fused:
            members += units[row].on[device - 1]
        elif row == fused[row].rows[0]:
            members.append(fused[row].unit)
    return tuple(members)
