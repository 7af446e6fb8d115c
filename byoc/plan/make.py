"""Making a plan: annotate, group, pose, place, outline; first for what is inside, then for the whole."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from byoc.costs.load import load_device_costs, load_host_costs
from byoc.costs.model import CostModel
from byoc.costs.pose import BodyCost, Posed, alone, pose
from byoc.costs.trips import Trips, called, check_trips, partitionable, trips
from byoc.errors import ByocError, InputError
from byoc.graph.index import GraphIndex
from byoc.graph.interface import interface
from byoc.graph.load import Model
from byoc.graph.outline import Cut, GraphCuts, Group, outline
from byoc.graph.unshare import unshared
from byoc.patterns.group import Unit, group
from byoc.placement import Placement, Problem, Strategy, objection
from byoc.placement.strategies.host_only import HostOnly
from byoc.plan.data import GraphPlan, Plan, PlannedRegion
from byoc.rules.annotate import annotate
from byoc.rules.load import Target


def make_plan(  # noqa: PLR0913, PLR0917 - the pipeline's parts, all needed
    model: Model,
    target: Target,
    strategy: Strategy,
    cost_models: tuple[str, str],
    asked: Mapping[str, Any],
    progress: Callable[[str], None],
    loop_trips: Mapping[str, float] | None = None,
) -> Plan:
    """Return the plan for a model: annotate, group, place, outline.

    `cost_models` are those of the host and of the device; `loop_trips` says of some Loops and Scans, by
    node name, how often they run.
    """
    host = load_host_costs(cost_models[0])
    device = load_device_costs(cost_models[1])
    try:
        check_trips(model.index, loop_trips or {})
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None
    progress("place")
    planner = _Planner(target, strategy, host, device, loop_trips or {})
    index = (unshared(model) if target.quantized else model).index
    root = _named(planner.plan(index, 1.0, ""), target, count())
    progress("outline")
    try:
        proto = outline(_cuts(root, target))
    except InputError as error:
        raise InputError(f"{model.source}: {error}") from None
    return Plan(asked, model, target, root, proto)


@dataclass(frozen=True, eq=False)
class _Planner:
    """What stays the same from graph to graph."""

    target: Target
    strategy: Strategy
    host: CostModel
    device: CostModel
    loop_trips: Mapping[str, float]

    def plan(self, index: GraphIndex, expected: float, place: str) -> GraphPlan:
        """Return the plan of a graph that is expected to run so often; the regions have no names yet.

        `place` says which body it is, empty for the main graph.

        Bodies go first, since what they cost on the host, regions and all, is what their node costs
        there. A node that then goes to the accelerator takes its bodies along as they were.
        """
        inner, costs, notes = {}, {}, []
        for number in index.bodies:
            each = trips(index, number, self.loop_trips)
            notes += [each.note] if each.note else []
            if partitionable(index, number):
                inner[number] = tuple(
                    self.plan(
                        body.index,
                        expected * each.each,
                        f"{place}{called(index.nodes[number])}/{body.attribute}/",
                    )
                    for body in index.bodies[number]
                )
            costs[number] = self._body_cost(index, number, each, inner.get(number, ()))
        units = group(index, self.target.patterns, annotate(index, self.target))
        connected = self.target.rules.regions == "connected"
        posed = pose(index, units, self.host, self.device, connected, costs)
        placement = _solve(self.strategy, posed.problem)
        on_host = {
            unit.nodes[0] for unit, label in zip(units, placement.labels, strict=True) if label == 0
        }
        saved = sum(costs[number].host - self._alone(index, number, self.host)[0] for number in inner)
        return GraphPlan(
            index=index,
            place=place.rstrip("/"),
            trips=expected,
            units=tuple(units),
            posed=posed,
            placement=placement,
            host_only=HostOnly().solve(posed.problem).cost.total - saved,
            regions=_regions(index, units, posed, placement, expected),
            bodies={number: plans for number, plans in inner.items() if number in on_host},
            notes=(*notes, *placement.notes),
        )

    def _body_cost(
        self, index: GraphIndex, number: int, each: Trips, plans: Sequence[GraphPlan]
    ) -> BodyCost:
        device, operations = self._alone(index, number, self.device)
        if plans:
            host = each.each * sum(plan.placement.cost.total for plan in plans)
        else:
            host = self._alone(index, number, self.host)[0]
        return BodyCost(host, device, operations)

    def _alone(self, index: GraphIndex, number: int, device: CostModel) -> tuple[float, float]:
        """Return seconds and operations of a node's bodies on one device alone, trips counted."""
        each = trips(index, number, self.loop_trips).each
        seconds, operations = 0.0, 0.0
        for body in index.bodies[number]:
            parts = [alone(body.index, device)]
            parts += [self._alone(body.index, inside, device) for inside in body.index.bodies]
            seconds += each * sum(part[0] for part in parts)
            operations += each * sum(part[1] for part in parts)
        return seconds, operations


def _solve(strategy: Strategy, problem: Problem) -> Placement:
    """Return a strategy's placement, which may be somebody else's code, after holding it to its word."""
    name = str(getattr(strategy, "name", type(strategy).__name__))
    try:
        placement = strategy.solve(problem)
    except ByocError:
        raise
    except Exception as error:  # a plug-in can fail in any way; say whose fault it was
        described = f"{type(error).__name__}: {error}"
        raise InputError(f"strategy {name}: failed with {described}") from error
    wrong = objection(problem, placement)
    if wrong:
        raise InputError(f"strategy {name}: {wrong}")
    return placement


def _regions(
    index: GraphIndex,
    units: Sequence[Unit],
    posed: Posed,
    placement: Placement,
    expected: float,
) -> tuple[PlannedRegion, ...]:
    regions = []
    for number in range(int(placement.regions.max(initial=-1)) + 1):
        rows = (placement.regions == number).nonzero()[0]
        members = tuple(units[row] for row in rows)
        device = int(placement.labels[rows[0]])
        seconds = posed.problem.seconds[rows, device].sum() + posed.problem.launch[device - 1]
        nodes = sorted(node for unit in members for node in unit.nodes)
        border = interface(index, nodes)
        regions.append(PlannedRegion("", index, members, border, float(seconds), expected))
    return tuple(regions)


def _named(plan: GraphPlan, target: Target, numbers: Iterator[int]) -> GraphPlan:
    """Return a plan whose regions have names, the main graph's first."""
    regions = tuple(replace(r, name=f"{target.name}_{next(numbers)}") for r in plan.regions)
    bodies = {
        number: tuple(_named(body, target, numbers) for body in inner)
        for number, inner in plan.bodies.items()
    }
    return replace(plan, regions=regions, bodies=bodies)


def _cuts(plan: GraphPlan, target: Target) -> GraphCuts:
    """Return what a plan does to its graph."""
    stay = {
        node: {"byoc.device": "host", "byoc.reason": str(reason)}
        for unit, reason in plan.host_units
        for node in unit.nodes
    }
    return GraphCuts(
        index=plan.index,
        cuts=tuple(_cut(plan.index, target, region) for region in plan.regions),
        metadata=stay,
        bodies={
            number: [_cuts(body, target) for body in inner] for number, inner in plan.bodies.items()
        },
    )


def _cut(index: GraphIndex, target: Target, region: PlannedRegion) -> Cut:
    return Cut(
        name=region.name,
        domain=target.domain,
        groups=tuple(_group(index, unit) for unit in region.units),
        metadata={
            "byoc.target": target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _group(index: GraphIndex, unit: Unit) -> Group:
    """Return what becomes of a unit in its region; the nodes of a QDQ group bear its name."""
    metadata = {"byoc.rules": ", ".join(unit.rules)}
    if unit.kind == "qdq":
        metadata["byoc.qdq"] = unit.name
    if unit.match is None:
        return Group(unit.nodes, metadata=metadata)
    inside = [index.nodes[i] for i in sorted(unit.match.nodes.values())]
    metadata["byoc.nodes"] = ", ".join(node.name or node.output[0] for node in inside)
    return Group(unit.nodes, unit.match.as_composite(index), metadata)
