"""Placing the graphs of a model: bodies first, each graph within the memory of the accelerators."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import (
    AlternativeComposite,
    BodyCost,
    CostSettings,
    GraphProblem,
    Price,
    TripCount,
    build_problem,
    can_partition_bodies,
    count_trips,
    find_conditions,
    price_bodies,
    price_reload,
    sum_host_seconds,
)
from byoc.errors import Cause, InputError
from byoc.model import GraphIndex, StatePair, choose_state_pairs, find_boundary, make_body_path
from byoc.patterns import JointUnit, NodeGroup, Unit
from byoc.placement import (
    Conditions,
    Ints,
    PerturbedDecision,
    Placement,
    Problem,
    describe_reloads,
    evaluate,
    find_loaded_bytes,
    fix_reloads,
    solve_problem,
)
from byoc.planning._break_evens import explain_limits
from byoc.planning._cleaned_graphs import GraphUnits, PinnedNodes
from byoc.planning._graph_plan import (
    GraphPlan,
    PlannedRegion,
    cut_blocks,
    describe_decision,
    perturb_graph,
)
from byoc.planning._memory_fit import (
    Constraints,
    FittedPlacement,
    RegionArenas,
    describe_excess,
    fit_memory,
    measure_region,
)
from byoc.planning._node_parts import free_host_views, share_host_prices
from byoc.planning._plan_settings import PlanSettings, require_knowledge
from byoc.support import describe_failure

# Bodies are placed before the main graph, for the objective; a limit on the other cost does not
# change them.
_BODIES_AS_PLACED = " with bodies placed for the objective alone"

# The placement problems of one graph: costs of its units and bodies, constraints, given placements.


@dataclass(frozen=True, eq=False)
class GraphToPlace:
    """A graph to be placed: the main one, or a body of an If, Loop or Scan.

    `path` is its graph path (`Loop_0/body`), empty for the main graph. `runs` is how often it is
    expected to run for one run of the model. `bodies` has the plans of the graphs inside its nodes.
    """

    index: GraphIndex
    path: str
    runs: float
    units: GraphUnits
    bodies: Mapping[int, tuple[GraphPlan, ...]]


@dataclass(frozen=True, eq=False)
class PlacementProblems:
    """The placement problems of a graph, one for each set of constraints.

    `pins` are the nodes whose device is given.
    """

    graph: GraphToPlace
    settings: PlanSettings
    pins: PinnedNodes | None
    _built: dict[tuple[frozenset[int], ...], GraphProblem] = field(default_factory=dict)

    @cached_property
    def trips(self) -> dict[int, TripCount]:
        """The trip count of each node with bodies, for one run of the node."""
        index = self.graph.index
        return {node: count_trips(index, node, self.settings.trips) for node in index.bodies}

    def build(self, constraints: Constraints) -> GraphProblem:
        """Return the problem within some constraints; capacities count in `restrict` alone."""
        key = tuple(frozenset(rows) for rows in constraints.refused)
        if key not in self._built:
            self._built[key] = self._build(constraints)
        return self._built[key]

    def _build(self, constraints: Constraints) -> GraphProblem:
        graph, settings = self.graph, self.settings
        known = (
            settings.known_limits.refused_rows(graph.index, graph.path, graph.units.units, target.name)
            for target in settings.targets
        )
        refused = [{**own, **rows} for own, rows in zip(constraints.refused, known, strict=True)]
        costs = CostSettings(
            settings.host, settings.devices, settings.unknown_costs, settings.objective, self.state
        )
        units, alternatives = graph.units.units, graph.units.alternatives
        built = build_problem(graph.index, units, costs, self.body_costs, alternatives, refused)
        if settings.free_views:
            built = free_host_views(built, graph.index, units)
        if not settings.whole_prices:
            return built
        return share_host_prices(built, graph.index, units, settings.whole_prices)

    @cached_property
    def state(self) -> tuple[StatePair, ...]:
        """The state of the model that an accelerator may keep; none in a body.

        Raises InputError for pairs that the user names and the model has not.
        """
        if self.graph.path or not any(device.keeps_state for device in self.settings.devices):
            return ()
        return choose_state_pairs(self.graph.index.proto, self.settings.state)

    def find_pinned(self, graph_problem: GraphProblem) -> Mapping[int, int]:
        """Return the device of each unit, by number, that a given placement decides."""
        if self.pins is None:
            return {}
        return self.pins.find_devices(self.graph.index, self.graph.units.units, graph_problem.problem)

    def restrict(
        self, graph_problem: GraphProblem, constraints: Constraints
    ) -> tuple[Problem, list[int]]:
        """Return the problem to solve: pinned units where they have to be, less room for constants.

        With it come the numbers of the fusions that are left: those whose members can be together.
        """
        labels = self.find_pinned(graph_problem)
        problem, capacity = graph_problem.problem, np.array(constraints.capacity, np.float64)
        if not np.array_equal(problem.capacity, capacity):
            problem = replace(problem, capacity=capacity)
        left = list(range(len(problem.fusions)))
        if not labels:
            return self._add_conditions(graph_problem, problem, left), left
        seconds, must = problem.seconds.copy(), problem.must.copy()
        for row, label in labels.items():
            others = np.arange(1, 1 + problem.devices) != label
            seconds[row, 1:][others] = np.inf
            must[row] = label > 0
        left = [
            number
            for number, fusion in enumerate(problem.fusions)
            if np.isfinite(seconds[list(fusion.members), fusion.device]).all()
        ]
        fusions = tuple(problem.fusions[number] for number in left)
        problem = replace(problem, seconds=seconds, must=must, fusions=fusions)
        return self._add_conditions(graph_problem, problem, left), left

    def fix_reloads(
        self, graph_problem: GraphProblem, constraints: Constraints, labels: Ints
    ) -> GraphProblem:
        """Return the problem in which units load the weights anew that they do with these labels."""
        conditions = self._conditions
        if conditions is None or conditions.reload is None:
            return graph_problem
        capacity = np.array(constraints.capacity, np.float64)
        given = replace(graph_problem.problem, capacity=capacity, conditions=conditions)
        loaded = find_loaded_bytes(given, labels)
        costs, objective = self.settings.costs, self.settings.objective
        prices = [price_reload(costs[label - 1]) if label else None for label in labels.tolist()]
        return graph_problem.load_anew(labels, loaded, prices, objective)

    @cached_property
    def _conditions(self) -> Conditions | None:
        return find_conditions(self.settings.names, self.settings.costs, self.settings.objective)

    def _add_conditions(
        self, graph_problem: GraphProblem, problem: Problem, fusions: Sequence[int]
    ) -> Problem:
        """Return a problem with what its devices share, and the limit on the other cost.

        `fusions` are the numbers of those that are left. Raises InputError where joules are not known.
        """
        own = self._conditions
        within = None if self.graph.path else self.settings.within
        if own is None and within is None:
            return problem
        conditions = own or Conditions()
        if within is not None:
            other = graph_problem.latency if within.name == "latency" else graph_problem.energy
            if other is None:
                raise InputError(f"within {within.name}: not all cost models say joules")
            if conditions.reload is not None and np.isfinite(problem.capacity).any():
                raise InputError(
                    f"within {within.name}: weights that are loaded anew (reload in a cost file) are "
                    "not counted there: leave one of the two out"
                )
            conditions = replace(
                conditions,
                other=replace(other, fusions=tuple(other.fusions[number] for number in fusions)),
                most=within.most,
                other_name=within.name + (_BODIES_AS_PLACED if self.graph.index.bodies else ""),
                other_unit="s" if within.name == "latency" else "J",
            )
        return replace(problem, conditions=conditions)

    def cost_bodies_on_host(self, node: int) -> tuple[Price, float]:
        """Return the cost and the operations of a node's bodies with everything on the host."""
        settings = self.settings
        on_host = settings.unknown_costs.on_host
        return price_bodies(self.graph.index, node, settings.host, settings.trips, on_host)

    @cached_property
    def body_costs(self) -> dict[int, BodyCost]:
        """The costs of each node's bodies; on the host with the regions that formed in them."""
        return {node: self._cost_bodies(node) for node in self.graph.index.bodies}

    def _cost_bodies(self, node: int) -> BodyCost:
        settings = self.settings
        host, operations = self.cost_bodies_on_host(node)
        plans = self.graph.bodies.get(node)
        if plans:
            each = self.trips[node].count
            seconds = each * sum(plan.cost.total for plan in plans)
            joules = sum(math.nan if plan.joules is None else plan.joules for plan in plans)
            host = Price(seconds, each * joules)
        devices = tuple(
            price_bodies(self.graph.index, node, costs, settings.trips, settings.unknown_costs)[0]
            for costs in settings.costs
        )
        return BodyCost(host, devices, operations, 0.0 if plans else self._sum_estimates(node))

    def _sum_estimates(self, node: int) -> float:
        """Return the seconds of a node's bodies on the host that are estimates."""
        settings, bodies = self.settings, self.graph.index.bodies[node]
        each = self.trips[node].count
        inside = (sum_host_seconds(body.index, settings.host, settings.trips)[0] for body in bodies)
        return each * sum(inside)


# Placing the graphs of a model: bodies first, each graph within the memory of the accelerators.


def plan_graphs(
    index: GraphIndex,
    settings: PlanSettings,
    units: Mapping[int, GraphUnits],
    pins: PinnedNodes | None = None,
) -> GraphPlan:
    """Return the plan of a model's graphs, `index` being that of the main one; regions have no names.

    Bodies go first, since what they cost on the host, regions and all, is what their node costs there.
    A node that then goes to an accelerator takes its bodies along as they were. Limits hold for all
    graphs together: where the sum is too much, no regions form in bodies.

    `units` has those of each graph, by the id of its index; `pins` are the
    nodes whose device is given.
    Raises InputError as `place_graph` and `require_knowledge`.
    """
    excess = ""
    for cut_bodies in (True, False):
        plans: dict[int, GraphPlan] = {}
        for graph, path, runs in _bodies_first(index, settings.trips, cut_bodies):
            own = _describe_graph(graph, path, runs, units, plans)
            plans[id(graph)] = place_graph(own, settings, pins)
        plan = plans[id(index)]
        require_knowledge(plan, settings)
        if excess:
            note = f"no regions form in the bodies of If, Loop and Scan: with them {excess}"
            return replace(plan, notes=(*plan.notes, note))
        excess = describe_excess(plan, settings.devices)
        if not excess:
            break
    return plan


def build_main_problem(
    index: GraphIndex, settings: PlanSettings, units: Mapping[int, GraphUnits]
) -> GraphProblem:
    """Return the placement problem of a model's main graph, which is not solved.

    Bodies of If, Loop and Scan are placed first, as in `plan_graphs`. Raises InputError as that does.
    """
    plans: dict[int, GraphPlan] = {}
    for graph, path, runs in _bodies_first(index, settings.trips, True):
        own = _describe_graph(graph, path, runs, units, plans)
        if graph is index:
            break
        plans[id(graph)] = place_graph(own, settings, None)
    nothing = tuple[Mapping[int, Cause], ...]({} for _ in settings.devices)
    capacity = tuple(device.memory for device in settings.devices)
    problems, constraints = PlacementProblems(own, settings, None), Constraints(nothing, capacity)
    built = problems.build(constraints)
    return replace(built, problem=problems.restrict(built, constraints)[0])


def _bodies_first(
    index: GraphIndex,
    given: Mapping[str, float],
    cut_bodies: bool,
    path: str = "",
    runs: float = 1.0,
) -> Iterator[tuple[GraphIndex, str, float]]:
    """Yield each graph after those inside it, with its graph path and its expected number of runs.

    `given` says how often some Loops and Scans run, by node name.
    """
    for node, bodies in index.bodies.items() if cut_bodies else ():
        if can_partition_bodies(index, node):
            inside = runs * count_trips(index, node, given).count
            for body in bodies:
                inner = make_body_path(index, node, body.attribute, path)
                yield from _bodies_first(body.index, given, cut_bodies, inner, inside)
    yield index, path.rstrip("/"), runs


def _describe_graph(
    graph: GraphIndex,
    path: str,
    runs: float,
    units: Mapping[int, GraphUnits],
    plans: Mapping[int, GraphPlan],
) -> GraphToPlace:
    """Return a graph to be placed, with those plans of graphs that are of its nodes' bodies."""
    bodies = {
        node: tuple(plans[id(body.index)] for body in inner)
        for node, inner in graph.bodies.items()
        if all(id(body.index) in plans for body in inner)
    }
    return GraphToPlace(graph, path, runs, units[id(graph)], bodies)


def place_graph(graph: GraphToPlace, settings: PlanSettings, pins: PinnedNodes | None) -> GraphPlan:
    """Return the plan of a graph, whose regions have no names yet.

    It says which hard limits keep supported units on the host. Raises InputError when a cost that is
    needed is not known, the strategy fails, or a unit that has to be on an accelerator does not fit
    there.
    """
    plan = _place_graph(graph, settings, pins)
    if not settings.names_limits:
        return plan
    limits = explain_limits(plan, settings, lambda other: _place_graph(graph, other, pins))
    return replace(plan, limits=limits) if limits else plan


def _place_graph(graph: GraphToPlace, settings: PlanSettings, pins: PinnedNodes | None) -> GraphPlan:
    """Return the plan of a graph, without the limits that keep units on the host."""
    problems = PlacementProblems(graph, settings, pins)
    names = name_units(graph.index, graph.units.units)
    arenas = RegionArenas(graph.index, graph.units.units)
    search = fit_memory(arenas, settings.devices)
    found = next(search)
    decisions: dict[bytes, PerturbedDecision] = {}
    while isinstance(found, Constraints):
        graph_problem = problems.build(found)
        problem, fusions = problems.restrict(graph_problem, found)
        placement = solve_problem(problem, settings.strategy, names, describe_failure)
        if settings.doubt is not None and not graph.path:
            fixed = fix_reloads(problem, placement.labels)
            perturbed = perturb_graph(
                graph.index, graph.units.units, names, fixed, placement, settings.doubt
            )
            placement = perturbed.placement
            decisions[placement.labels.tobytes()] = perturbed
        placement = replace(placement, fusions=tuple(fusions[n] for n in placement.fusions))
        graph_problem = problems.fix_reloads(graph_problem, found, placement.labels)
        found = search.send((placement, graph_problem.problem))
    plan = _make_graph_plan(graph, problems, found, arenas)
    decision = decisions.get(plan.placement.labels.tobytes())
    if decision is None or settings.doubt is None:
        return plan
    targets = [target.name for target in settings.targets]
    described = describe_decision(graph.index, graph.units.units, targets, decision, settings.doubt)
    return replace(plan, perturbed=described)


def _make_graph_plan(
    graph: GraphToPlace, problems: PlacementProblems, fitted: FittedPlacement, arenas: RegionArenas
) -> GraphPlan:
    settings, graph_problem = problems.settings, problems.build(fitted.constraints)
    whole, labels = graph_problem.problem, fitted.placement.labels
    graph_problem = problems.fix_reloads(graph_problem, fitted.constraints, labels)
    sharing = [n for n, t in enumerate(settings.targets, 1) if t.name in settings.share_blocks]
    if sharing:
        units, placement = graph.units.units, fitted.placement
        placement = cut_blocks(graph.index, units, graph_problem.problem, placement, sharing)
        fitted = replace(fitted, placement=placement)
    placement = replace(fitted.placement, bound=_lower_bound(graph, problems, fitted.placement.bound))
    labels, regions, fusions = placement.labels, placement.regions, placement.fusions
    joules = None
    if graph_problem.energy is not None:
        joules = evaluate(graph_problem.energy, labels, regions, fusions).total
    units = graph.units.units
    on_host = {unit.nodes[0] for unit, label in zip(units, labels, strict=True) if label == 0}
    saved = sum(
        problems.body_costs[node].host.seconds - problems.cost_bodies_on_host(node)[0].seconds
        for node in graph.bodies
    )
    return GraphPlan(
        targets=settings.targets,
        index=graph.index,
        path=graph.path,
        trips=graph.runs,
        units=tuple(units),
        graph_problem=graph_problem,
        placement=placement,
        cost=evaluate(graph_problem.latency, labels, regions, fusions),
        joules=joules,
        host_only=math.fsum(graph_problem.latency.seconds[:, 0]) - saved,
        regions=tuple(_find_regions(graph, settings, graph_problem, placement, arenas)),
        bodies={node: plans for node, plans in graph.bodies.items() if node in on_host},
        notes=(
            *(each.note for each in problems.trips.values() if each.note),
            *fitted.notes,
            *placement.notes,
            *describe_reloads(whole, graph_problem.problem, labels, settings.names),
        ),
        pins={row: label for row, label in problems.find_pinned(graph_problem).items() if label == 0},
    )


def _lower_bound(graph: GraphToPlace, problems: PlacementProblems, bound: float | None) -> float | None:
    """Return the lower bound of a graph: that of its problem, less what its bodies may yet improve.

    In the problem a body costs what its placement does, and that may be more than it has to.
    """
    for node, plans in graph.bodies.items():
        for plan in plans:
            if bound is None or plan.placement.bound is None:
                return None
            bound -= problems.trips[node].count * (plan.placement.cost.total - plan.placement.bound)
    return None if bound is None else max(0.0, bound)


def _find_regions(
    graph: GraphToPlace,
    settings: PlanSettings,
    graph_problem: GraphProblem,
    placement: Placement,
    arenas: RegionArenas,
) -> Iterator[PlannedRegion]:
    """Yield the regions of a placement, without names, in launch order."""
    latency = graph_problem.latency
    fused = {
        row: graph_problem.alternatives[chosen]
        for chosen in placement.fusions
        for row in graph_problem.alternatives[chosen].rows
    }
    for number in range(int(placement.regions.max(initial=-1)) + 1):
        rows = np.flatnonzero(placement.regions == number).tolist()
        device = int(placement.labels[rows[0]])
        members = _region_units(graph.units.units, rows, device, fused)
        seconds = latency.seconds[rows, device].sum() + latency.launch[device - 1]
        seconds -= sum(
            latency.fusions[chosen].saving
            for chosen in placement.fusions
            if latency.fusions[chosen].members[0] in rows
        )
        limited = settings.devices[device - 1].memory < math.inf
        yield PlannedRegion(
            name="",
            target=settings.targets[device - 1],
            index=graph.index,
            units=members,
            interface=find_boundary(
                graph.index, sorted(node for unit in members for node in unit.nodes)
            ),
            seconds=float(seconds),
            trips=graph.runs,
            memory=measure_region(arenas, graph_problem.problem, rows, device - 1) if limited else None,
        )


def _region_units(
    units: Sequence[JointUnit],
    rows: Sequence[int],
    device: int,
    fused: Mapping[int, AlternativeComposite],
) -> tuple[Unit, ...]:
    """Return the units of a region as they are on its device; those that run as one as one composite."""
    members: list[Unit] = []
    for row in rows:
        if row not in fused:
            members += units[row].on_device[device - 1]
        elif row == fused[row].rows[0]:
            members.append(fused[row].unit)
    return tuple(members)


def name_units(index: GraphIndex, units: Sequence[NodeGroup]) -> list[str]:
    """Return a distinct name for each unit that does not depend on the order of the nodes."""
    names = []
    outputs = index.node_outputs
    for unit in units:
        last = outputs[unit.nodes[-1]]
        if last and last[0]:
            names.append(last[0])
            continue
        made = (name for node in reversed(unit.nodes) for name in outputs[node] if name)
        names.append(next(made, "") or f"\0{unit.nodes[0]}")  # no tensor is called so
    return names
