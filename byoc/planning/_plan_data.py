"""Plans: the regions of a model with all that is known of them before anything is compiled."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any

import onnx

from byoc.boundary.convert import ConvertedModel
from byoc.costs import GraphProblem
from byoc.errors import Verdict, refuse
from byoc.model import ONLY_VARIANT, BoundaryNames, GraphIndex, Model, Variant
from byoc.passes import PassEffect
from byoc.patterns import JointUnit, Unit
from byoc.placement import Cost, Placement
from byoc.planning._perturbed_plan import PerturbedPlan
from byoc.rules import Target
from byoc.support import Note


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

    @cached_property
    def host_units(self) -> list[tuple[JointUnit, Verdict]]:
        """The units of this graph that stay on the host, each with the reason."""
        rows = (row for row, label in enumerate(self.placement.labels.tolist()) if label == 0)
        return [(self.units[row], self.host_reason(row)) for row in rows]

    @cached_property
    def _supported(self) -> tuple[Verdict, Verdict]:
        """Why supported units are on the host where the strategy chose it, and where it was given."""
        given = "the placement that was given has it on the host"
        return refuse(f"supported, but {self.placement.why_host}"), refuse(f"supported, but {given}")

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
            return self._supported[row in self.pins]
        if len(self.targets) == 1:
            return verdicts[0]
        each = zip(self.targets, verdicts, strict=True)
        return refuse(*(f"{target.name}: {verdict}" for target, verdict in each))

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


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Units that a device refuses for one reason, and the gain if it took them.

    `gain` is in the units of the objective, for one run of the model; `offloaded` how many more nodes
    would then be on accelerators, these included.
    """

    target: str
    operator: str
    reason: str
    nodes: int
    gain: float
    offloaded: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Connected units that a target supports and the host runs more cheaply, and what would change that.

    `unit` is the first of them, `loss` the seconds that moving all of them would cost in a run of the
    model. From a `link` of so many bytes per second on, or from the target being so many times as fast
    at them (`faster`), it would cost nothing; None where that is not enough. `groups` are so many of
    this kind.
    """

    target: str
    unit: str
    operators: tuple[str, ...]
    nodes: int
    loss: float
    link: float | None
    faster: float | None
    groups: int = 1


@dataclass(frozen=True, slots=True)
class FloatUnit:
    """A unit left in floating point, its device, and the accuracy with it alone quantized.

    `alone` is in the measure of the accuracy budget: dB, or a share of equal classes.
    """

    unit: str
    device: str
    alone: float


@dataclass(frozen=True, eq=False)
class LoweredPrecision:
    """A lowered precision: regions compute in another dtype than the given model, `original`.

    `dtype` is that of activations, None for what each target's file says. `source` names the data or the
    file that the scales are from, measured by `method` on so many `samples`, empty and 0 where nothing
    was measured. `units` are how many were quantized.

    With an accuracy `budget`, `reached` is what is kept and `all_quantized` what would be if no unit had
    been left `in_float`; empty and not a number without one. That was measured on so many samples
    (`measured`) of the data named `measured_on`.
    """

    original: Model
    dtype: str | None
    source: str = ""
    method: str = ""
    samples: int = 0
    random: bool = False
    units: int = 0
    budget: str = ""
    reached: float = nan
    all_quantized: float = nan
    in_float: tuple[FloatUnit, ...] = ()
    measured: int = 0
    measured_on: str = ""


@dataclass(frozen=True)
class RefusedRegion:
    """A region of an earlier plan that its codegen refused, or at which it failed, and why.

    `codegen` says it as users are told. `nodes` are those that this target does not get any more, by
    name or first output; none where the region is in smaller ones of at most `split` nodes instead.
    `failed` says that it is a defect of the codegen.
    """

    target: str
    region: str
    codegen: str
    reason: str
    nodes: tuple[str, ...] = ()
    split: int = 0
    failed: bool = False

    @property
    def why(self) -> str:
        """The reason for the report why its nodes are not on the target."""
        if not self.failed:
            return f"codegen {self.codegen} refused: {self.reason}"
        said = self.reason if self.reason.startswith("failed with ") else f"failed: {self.reason}"
        return f"codegen {self.codegen} {said}"


@dataclass(frozen=True)
class PredictionAtSizes:
    """The predicted seconds of a placement, and of the host alone, at some sizes of dimensions."""

    sizes: Mapping[str, int]
    seconds: float
    host_only: float


@dataclass(frozen=True, eq=False)
class PartitionedModel:
    """A model with its regions as functions, and boundaries converted: made once, when it is asked for.

    `outline` makes the outlined model, `convert` converts its boundaries in place. They raise InputError
    as `outline_regions` and `convert_boundaries`.
    """

    outline: Callable[[], onnx.ModelProto]
    convert: Callable[[onnx.ModelProto], ConvertedModel]

    @cached_property
    def outlined(self) -> onnx.ModelProto:
        """The outlined model, whose boundaries are converted once `converted` was asked for."""
        return self.outline()

    @cached_property
    def converted(self) -> ConvertedModel:
        """The partitioned model."""
        return self.convert(self.outlined)


@dataclass(frozen=True, eq=False)
class Plan:
    """A model cut between the host and some accelerators.

    `asked` is what the caller gave, by name; `root` the plan of the main graph, with those of bodies
    inside; `partitioned` makes the partitioned model; `what_ifs` what would be gained if an accelerator
    took more, and `untried` how many reasons for refusing units were left out there; `break_evens` what
    would have to change where the host is cheaper; `lowered` what was done to the numbers before, None
    where regions compute as the model says; `notes` what is to be told of that.
    `refusals` are those that were known as it was made; `predicted_at` are predictions at the ends of
    ranges of open dimensions; `passes` are the effects of those that rewrote the model, and the regions
    once these are written. `variant` is the variant of a bundle that it is the plan of.
    """

    asked: Mapping[str, Any]
    model: Model
    targets: tuple[Target, ...]
    root: GraphPlan
    partitioned: PartitionedModel
    what_ifs: tuple[WhatIf, ...] = ()
    untried: int = 0
    break_evens: tuple[BreakEven, ...] = ()
    lowered: LoweredPrecision | None = None
    notes: tuple[Note, ...] = ()
    refusals: tuple[RefusedRegion, ...] = ()
    predicted_at: tuple[PredictionAtSizes, ...] = ()
    passes: tuple[PassEffect, ...] = ()
    variant: Variant = ONLY_VARIANT

    def __repr__(self) -> str:
        """Return the model and the accelerators, without what was decided."""
        return f"Plan({self.model.source!r}, targets={tuple(each.name for each in self.targets)})"

    @property
    def proto(self) -> onnx.ModelProto:
        """The partitioned model. Raises InputError where the model's file has changed since."""
        return self.partitioned.converted.proto

    @property
    def values(self) -> Mapping[str, onnx.TypeProto]:
        """The types of the tensors that the boundary stage added to the partitioned model, by name."""
        return self.partitioned.converted.values

    @property
    def origins(self) -> Mapping[str, str]:
        """The tensors whose content these hold."""
        return self.partitioned.converted.origins

    @property
    def target(self) -> Target:
        """The first accelerator, which is the only one unless several were asked for."""
        return self.targets[0]

    @property
    def units(self) -> tuple[JointUnit, ...]:
        """The units of the main graph."""
        return self.root.units

    @property
    def graph_problem(self) -> GraphProblem:
        """The numbers that were solved for the main graph."""
        return self.root.graph_problem

    @property
    def placement(self) -> Placement:
        """The placement of the main graph; its cost holds that of all bodies."""
        return self.root.placement

    @cached_property
    def regions(self) -> tuple[PlannedRegion, ...]:
        """All regions: those of the main graph in order of execution, then those of bodies."""
        return tuple(region for graph in self.root.walk() for region in graph.regions)

    @cached_property
    def host_units(self) -> list[tuple[JointUnit, Verdict]]:
        """The units that stay on the host, bodies included, each with the reason."""
        return [item for graph in self.root.walk() for item in graph.host_units]

    @property
    def cost(self) -> Cost:
        """The predicted seconds of one run of the model, bodies by their trips."""
        return self.root.whole_cost

    @property
    def estimated_share(self) -> float:
        """The share of the host's predicted seconds, trips counted, that is an estimate.

        It is of nodes with a shape or an operator that is not known. Unknown extents count as 1, so the
        share is the least that it can be.
        """
        each = [(graph.trips, *graph.host_seconds) for graph in self.root.walk()]
        total = sum(trips * seconds for trips, _, seconds in each)
        return sum(trips * estimated for trips, estimated, _ in each) / total if total else 0.0

    @property
    def offloaded_operations(self) -> tuple[float, float]:
        """The operations that run on accelerators, and all operations, trips counted."""
        return self.root.offloaded_operations
