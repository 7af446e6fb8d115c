"""The plan of one graph: its units, where each is placed, and its regions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from byoc.costs import GraphProblem
from byoc.errors import Cause, CauseKind, Verdict, join_targets, refuse
from byoc.model import BoundaryNames, GraphIndex, get_operator_name
from byoc.patterns import JointUnit, NodeGroup, Unit
from byoc.placement import (
    Cost,
    Perturbation,
    PerturbedDecision,
    Placement,
    Problem,
    Regret,
    Robust,
    perturb_costs,
)
from byoc.rules import Target

# The regret of a plan at perturbed costs, and the units that change their device there.


@dataclass(frozen=True, slots=True)
class CostDoubt:
    """The perturbation of costs, and the regret that a robust placement minimises, None without one."""

    perturbation: Perturbation
    robust: Robust | None = None


@dataclass(frozen=True, slots=True)
class DoubtfulUnit:
    """A unit that the best placement has on another device in a share of the samples.

    `device` is where the plan has it, `elsewhere` where it is most often then.
    """

    unit: str
    operators: tuple[str, ...]
    nodes: int
    device: str
    share: float
    elsewhere: str


@dataclass(frozen=True, slots=True)
class PerturbedPlan:
    """A plan at perturbed costs: how they were drawn, regrets, and the units whose device is in doubt.

    `nominal` is the regret of the placement that is best for the costs as they are, `chosen` that of the
    plan, which is another one where a robust placement was asked for. In `proven` samples the best
    placement that is known is the optimum; `candidates` placements were compared.
    """

    sigma: float
    samples: int
    seed: int
    proven: int
    candidates: int
    nominal: Regret
    robust: str | None
    chosen: Regret
    units: tuple[DoubtfulUnit, ...]


def perturb_graph(  # noqa: PLR0913, PLR0917 - a graph, its problem, and the answer
    index: GraphIndex,
    units: Sequence[NodeGroup],
    names: Sequence[str],
    problem: Problem,
    placement: Placement,
    doubt: CostDoubt,
) -> PerturbedDecision:
    """Perturb the costs of a graph's placement; the kind of a unit is that of its operators."""
    kinds = [" ".join(get_operator_name(index.nodes[node]) for node in unit.nodes) for unit in units]
    return perturb_costs(problem, placement, names, kinds, doubt.perturbation, doubt.robust)


def describe_decision(
    index: GraphIndex,
    units: Sequence[NodeGroup],
    targets: Sequence[str],
    decision: PerturbedDecision,
    doubt: CostDoubt,
) -> PerturbedPlan:
    """Return a decision as data; units in doubt come by falling share."""
    devices, rows = ("host", *targets), np.argsort(-decision.moved, kind="stable")
    return PerturbedPlan(
        sigma=doubt.perturbation.sigma,
        samples=doubt.perturbation.samples,
        seed=doubt.perturbation.seed,
        proven=decision.proven,
        candidates=decision.candidates,
        nominal=decision.nominal,
        robust=None if doubt.robust is None else doubt.robust.value,
        chosen=decision.chosen,
        units=tuple(
            DoubtfulUnit(
                unit=units[row].name,
                operators=tuple(
                    dict.fromkeys(get_operator_name(index.nodes[node]) for node in units[row].nodes)
                ),
                nodes=len(units[row].nodes),
                device=devices[int(decision.placement.labels[row])],
                share=float(decision.moved[row]),
                elsewhere=devices[int(decision.elsewhere[row])],
            )
            for row in rows.tolist()
            if decision.moved[row]
        ),
    )


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """A region of a graph: its target, its units there, and the tensors at its boundary.

    `seconds` are the predicted ones of a single run, launch included; `trips` is how often it is
    expected to run for one run of the model.
    """

    name: str
    target: Target
    index: GraphIndex
    units: tuple[Unit, ...]
    interface: BoundaryNames
    seconds: float
    trips: float

    @property
    def nodes(self) -> list[int]:
        """The node numbers of the region, in topological order; constant nodes are not among them."""
        return sorted(node for unit in self.units for node in unit.nodes)


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """The plan of a graph: the main one, or a body of an If, Loop or Scan that stays on the host.

    `path` is its graph path (`Loop_0/body`), empty for the main graph. `trips` is how often the
    graph is expected to run for one run of the model. `placement` is in the units of the objective;
    `cost` is the same in seconds and `joules` in joules, None where these are not known. `host_only` are
    the seconds of one run of it with everything on the host, `bodies` the plans of what is inside its
    host nodes; `perturbed` says how the placement depends on the costs, where that was asked for.
    `limits` are the hard limits of rule files that keep supported units on the host, by their numbers.
    """

    targets: tuple[Target, ...]
    index: GraphIndex
    path: str
    trips: float
    units: tuple[JointUnit, ...]
    graph_problem: GraphProblem
    placement: Placement
    cost: Cost
    joules: float | None
    host_only: float
    regions: tuple[PlannedRegion, ...]
    bodies: Mapping[int, tuple["GraphPlan", ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    perturbed: PerturbedPlan | None = None
    limits: Mapping[int, tuple[Cause, ...]] = field(default_factory=dict)

    def walk(self) -> Iterator["GraphPlan"]:
        """Yield this plan and those of all bodies inside, in the order of the nodes."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.walk()

    @cached_property
    def row_of_node(self) -> Mapping[int, int]:
        """The number of the unit that each node is part of; constant nodes are in none."""
        return {node: row for row, unit in enumerate(self.units) for node in unit.nodes}

    @property
    def device_of_node(self) -> dict[int, str]:
        """The name of the device that each node is on, `host` or a target; constant nodes have none."""
        names = ("host", *(target.name for target in self.targets))
        labels = self.placement.labels.tolist()
        pairs = zip(self.units, labels, strict=True)
        return {node: names[label] for unit, label in pairs for node in unit.nodes}

    @cached_property
    def host_units(self) -> list[tuple[JointUnit, Verdict]]:
        """The units of this graph that stay on the host, each with the reason."""
        rows = (row for row, label in enumerate(self.placement.labels.tolist()) if label == 0)
        return [(self.units[row], self.host_reason(row)) for row in rows]

    @cached_property
    def _supported(self) -> tuple[Verdict, Verdict]:
        """Why supported units are on the host where the strategy chose it, and where it was given."""
        given = "supported, but the placement that was given has it on the host"
        chosen = Cause(CauseKind.COST, f"supported, but {self.placement.why_host}")
        return refuse(chosen), refuse(Cause(CauseKind.GIVEN, given))

    @cached_property
    def _has_kept(self) -> bool:
        return any(self.graph_problem.kept_on_host)

    def host_reason(self, row: int) -> Verdict:
        """Return the reason why a unit is on the host."""
        verdicts = self.units[row].verdicts
        if len(verdicts) == 1 and verdicts[0].reasons:  # as most have it
            return verdicts[0]
        if self._has_kept:
            verdicts = tuple(
                refuse(kept[row]) if row in kept else verdict
                for kept, verdict in zip(self.graph_problem.kept_on_host, verdicts, strict=True)
            )
        if any(not verdict.reasons for verdict in verdicts):
            if row in self.limits:
                return refuse(*self.limits[row])
            return self._supported[row in self.pins]
        if len(self.targets) == 1:
            return verdicts[0]
        each = zip(self.targets, verdicts, strict=True)
        return join_targets([(target.name, verdict) for target, verdict in each])

    @property
    def operations(self) -> tuple[float, float]:
        """The operations of one run on accelerators, and all of them; a body counts in its own plan."""
        done = total = 0.0
        rows = zip(self.units, self.placement.labels, self.graph_problem.operations, strict=True)
        for unit, label, count in rows:
            if label == 0 and unit.nodes[0] in self.bodies:
                continue
            total += count
            done += count if label else 0.0
        return done, total

    @property
    def offloaded_operations(self) -> tuple[float, float]:
        """The operations on accelerators, and all, of one run; those of bodies by their trips."""
        each = [(graph.trips, *graph.operations) for graph in self.walk()]
        return sum(t * done for t, done, _ in each), sum(t * total for t, _, total in each)

    @property
    def whole_cost(self) -> Cost:
        """The predicted seconds of one run, bodies by their trips."""
        graphs = list(self.walk())
        transfer = sum(graph.trips * graph.cost.transfer for graph in graphs)
        launch = sum(graph.trips * graph.cost.launch for graph in graphs)
        return Cost(self.cost.total - transfer - launch, transfer, launch)

    @property
    def host_seconds(self) -> tuple[float, float]:
        """The seconds of one run on the host: those that are estimates, and all.

        A body with a plan counts there.
        """
        counted = [unit.nodes[0] not in self.bodies for unit in self.units]
        return (
            float(self.graph_problem.estimated_seconds[counted].sum()),
            float(self.graph_problem.latency.seconds[counted, 0].sum()),
        )
