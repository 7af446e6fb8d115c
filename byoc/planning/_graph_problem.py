"""The placement problems of one graph: costs of its units and bodies, constraints, given placements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from byoc.costs import (
    BodyCost,
    CostSettings,
    GraphProblem,
    Price,
    TripCount,
    build_problem,
    count_trips,
    price_bodies,
    sum_host_seconds,
)
from byoc.model import GraphIndex, StatePair, choose_state_pairs
from byoc.placement import Problem
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._graph_units import GraphUnits
from byoc.planning._memory_fit import Constraints
from byoc.planning._pinned_nodes import PinnedNodes
from byoc.planning._plan_settings import PlanSettings


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
        return build_problem(graph.index, units, costs, self.body_costs, alternatives, refused)

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
            return problem, left
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
        return replace(problem, seconds=seconds, must=must, fusions=fusions), left

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
