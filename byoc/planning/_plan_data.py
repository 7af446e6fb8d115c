"""The plan of a model, all graphs together: what was decided, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

import onnx

from byoc._dataclasses import dataclass, field
from byoc.model import ONLY_VARIANT
from byoc.placement import Regret

if TYPE_CHECKING:
    from byoc.boundary.convert import ConvertedModel
    from byoc.costs import GraphProblem
    from byoc.errors import Verdict
    from byoc.model import Model, Variant
    from byoc.passes import PassEffect
    from byoc.patterns import JointUnit
    from byoc.placement import Cost, Placement
    from byoc.planning._graph_plan import GraphPlan, PlannedRegion
    from byoc.rules import Target
    from byoc.support import Note


class ActionKind(StrEnum):
    """The kinds of what a user can do."""

    FLAG = "flag"
    """give flags on the command line"""
    ADD = "add"
    """add a rule for an operator to the rule file"""
    RELAX = "relax"
    """leave out a constraint of the rule file"""
    LIMIT = "limit"
    """set a hard limit of the rule file to a value"""
    QUANTIZED = "quantized"
    """write `quantized: true` in each rule of the rule file"""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One thing that a user can do: `flags` to give, or an edit of the rule file of a `target`.

    `operator` is the one to add a rule for, in which `value` stands where there is one; `constraint` is
    the key to leave out, or to set to `value`.
    `FOLDER` in a flag stands for a folder of samples, or `random`.
    """

    kind: ActionKind
    target: str = ""
    operator: str = ""
    constraint: str = ""
    value: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Units that a device refuses and would take after some actions, and the gain of these.

    `reason` is that of the units with most work, `nodes` how many nodes they have. `actions` are all to
    be done; there are none where nothing is known that a user can do. `gain` is in the units of the
    objective, for one run of the model; `offloaded` how many more nodes would then be on accelerators,
    these included. `tried` says that both are those of a plan with the actions done, else they are those
    of the units as they are.
    """

    target: str
    operator: str
    reason: str
    nodes: int
    gain: float
    offloaded: int
    actions: tuple[Action, ...] = ()
    tried: bool = False


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
class RegionNeighbour:
    """A tensor that enters or leaves a region, and a unit on the other side with why it is not inside.

    `neighbour` and `operator` are empty where the tensor is an input or an output of the graph.
    """

    tensor: str
    enters: bool
    neighbour: str
    operator: str
    device: str
    reason: str


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


WIDE = "int16"
"""The type of units that have more than 8 bits beside others that have 8."""


@dataclass(frozen=True, slots=True)
class PreciseUnit:
    """A unit in floating point or in 16 bits, its device, and the accuracy with it alone quantized.

    `alone` is in the measure of the accuracy budget: dB, or a share of equal classes.
    """

    unit: str
    device: str
    alone: float


@dataclass(frozen=True)
class QuantizedWeight:
    """Weights in blocks: their name in the model, shape, operator that has them, error, and bits.

    `decibels` is the ratio of the sum of the squared weights to that of their squared errors; where they
    were rounded on data, of the squared outputs on it to the squared errors of these.
    """

    name: str
    shape: tuple[int, ...]
    operator: str
    decibels: float
    bits: int


@dataclass(frozen=True, slots=True)
class TradePoint:
    """A plan with some units in floating point, others in 16 bits: what it keeps, and what it costs.

    `reached` is the accuracy in the measure of the budget, `cost` in the unit of the objective, and
    `seconds` are predicted ones. `in_float` and `wide` are the units.
    """

    reached: float
    cost: float
    seconds: float
    in_float: tuple[str, ...]
    wide: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LoweredPrecision:
    """A lowered precision: regions compute in another dtype than the given model, `original`.

    `dtype` is that of activations, None for what each target's file says. `source` names the data or the
    file that the scales are from, measured by `method` on so many `samples`, empty and 0 where nothing
    was measured. `units` are how many were quantized.

    With an accuracy `budget`, `reached` is what is kept and `all_quantized` what would be if no unit had
    been left `in_float` or were `wide`, in 16 bits; empty and not a number without one. That was
    measured on so many samples (`measured`) of the data named `measured_on`. `trade` are the plan that
    is taken and those that keep more than every cheaper one that was tried, by cost; by expected noise
    each is within a share `trade_gap` of the least cost.

    `weights` are those that have few bits, where `dtype` is `int4-weights`: regions compute as before.
    `seen` has, of tensors of the given model whose values were measured, the least and the greatest
    value, and the share of the values that the method left outside of the range that it chose.
    """

    original: Model
    dtype: str | None
    units: int
    source: str = ""
    method: str = ""
    samples: int = 0
    random: bool = False
    budget: str = ""
    reached: float = nan
    all_quantized: float = nan
    in_float: tuple[PreciseUnit, ...] = ()
    measured: int = 0
    measured_on: str = ""
    trade: tuple[TradePoint, ...] = ()
    trade_gap: float = 0.0
    wide: tuple[PreciseUnit, ...] = ()
    weights: tuple[QuantizedWeight, ...] = ()
    seen: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RefusedRegion:
    """A region of an earlier plan that its codegen refused, or at which it failed, and why.

    `codegen` says it as users are told. `nodes` are those that this target does not get any more, by
    name or first output; none where the region is in smaller ones of at most `split` nodes instead.
    `failed` says that it is a defect of the codegen, `tried` what parts of the region showed,
    `detail` the traceback of which the reason is a line. With `options` it is compiled with these
    instead, and nothing is refused.
    """

    target: str
    region: str
    codegen: str
    reason: str
    nodes: tuple[str, ...] = ()
    split: int = 0
    failed: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    tried: str = ""
    detail: str = ""

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
    took more, `untried` how many reasons for refusing units were left out there, and `futile` the
    actions of which a plan was made that costs no less; `break_evens` what would have to change where
    the host is cheaper; `lowered` what was done to the numbers before, None where regions compute as the
    model says; `notes` what is to be told of that.
    `refusals` are those that were known as it was made; `predicted_at` are predictions at the ends of
    ranges of open dimensions; `passes` are the effects of those that rewrote the model, and the regions
    once these are written. `variant` is the variant of a bundle that it is the plan of. `state` maps
    inputs to the outputs whose values they take in the next call, where that was declared. `own_cpu`
    has, by target, the nodes of the main graph, by first output, that compilers leave to a CPU of the
    device's own, as far as they were asked.
    """

    asked: Mapping[str, Any]
    model: Model
    targets: tuple[Target, ...]
    root: GraphPlan
    partitioned: PartitionedModel
    what_ifs: tuple[WhatIf, ...] = ()
    untried: int = 0
    futile: tuple[tuple[Action, ...], ...] = ()
    break_evens: tuple[BreakEven, ...] = ()
    lowered: LoweredPrecision | None = None
    notes: tuple[Note, ...] = ()
    refusals: tuple[RefusedRegion, ...] = ()
    predicted_at: tuple[PredictionAtSizes, ...] = ()
    passes: tuple[PassEffect, ...] = ()
    variant: Variant = ONLY_VARIANT
    state: Mapping[str, str] = field(default_factory=dict)
    own_cpu: Mapping[str, frozenset[str]] = field(default_factory=dict)

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
