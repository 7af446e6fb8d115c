"""The report of a plan: what `byoc partition --format json` prints, and a manifest keeps.

Times are in seconds, energy in joules, sizes in bytes; a multiply-accumulate counts as two operations.
Numbers that are unknown or not finite are None.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.passes import PassEffect
from byoc.planning import Action, BreakEven, PerturbedPlan, RegionNeighbour, WhatIf
from byoc.support import Note, StrictModel, validate_content

# The part of a report that says how a bundle's outputs compare with those of the original.


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not isfinite(value) else value


Finite = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A number that JSON can represent; None for any other."""


class ReportModel(StrictModel):
    """Base of the parts of reports: made from keywords, or from an object with the same attributes."""

    model_config = ConfigDict(from_attributes=True)

    def to_json(self) -> dict[str, Any]:
        """Return the data that JSON can represent, in the order of the fields."""
        return self.model_dump(mode="json")


class TieBreakReport(ReportModel):
    """Rows that a selection puts in another order or replaces; the fields are those of `TieBreak`."""

    selection: str
    outputs: tuple[str, ...]
    rows: int
    moved: int
    replaced: int
    gap: float


class FidelityReport(ReportModel):
    """An output's signal-to-noise ratios against the float model; the fields are those of `Fidelity`."""

    signal_to_noise: Finite
    reference: Finite
    spread: Finite
    least: Finite


class TensorErrorReport(ReportModel):
    """The error of a tensor; the fields are those of `OutputError`."""

    name: str
    dtype: str
    absolute: Finite
    relative: Finite
    tolerance: float
    problem: str
    measure: str
    signal_to_noise: Finite
    cosine: Finite
    differing: float | None
    noise: Finite = None
    noise_source: str = ""
    tie_break: TieBreakReport | None = None
    fidelity: FidelityReport | None = None
    within: bool


class OutputAccuracy(ReportModel):
    """The accuracy of an output in lower precision; `exact` if it has no noise at all."""

    name: str
    signal_to_noise: Finite
    same_class: Finite
    exact: bool


class AccuracyReport(ReportModel):
    """The accuracy of all outputs in lower precision, compared with the model `original`."""

    original: str
    outputs: tuple[OutputAccuracy, ...]


class ReachReport(ReportModel):
    """The counts of regions by their samples; the fields are those of `Reach`."""

    regions: int
    not_reached: int
    others: int
    alone: int
    never: int
    too_large: int = 0


class VerificationReport(ReportModel):
    """The comparison of a bundle's outputs with those of `against`.

    `largest_relative_error` is None if one is not finite, `accuracy` if no precision was lowered,
    `judge` if onnxruntime computed what is expected, and `reach` if regions were not compared. The
    errors are the worst on some `samples`. `tie_breaks` are those of outputs and regions, of most rows
    first. `layers_not_compared` says which regions' quantized layers were not compared alone, and why.
    `cached` says that the verdict is that of an earlier run of the same command on the same files.
    """

    against: str
    passed: bool
    largest_relative_error: float | None
    outputs: tuple[TensorErrorReport, ...]
    accuracy: AccuracyReport | None
    samples: int = 1
    judge: str | None = None
    reach: ReachReport | None = None
    notes: tuple[str, ...] = ()
    tie_breaks: tuple[TieBreakReport, ...] = ()
    layers_not_compared: str = ""
    cached: bool = False


NoteText = Annotated[Note, PlainValidator(Note.parse, json_schema_input_type=str), PlainSerializer(str)]
"""A note; in JSON it is a text."""

# Here and not beside the code that shares weights: options name it, and that code takes long to import.
Sharing = Literal["copy", "link", "reference"]
"""What a bundle does with weights in the user's files: copy them, link the files, or refer to them."""


class NodeCounts(ReportModel):
    """The number of nodes of the user's model: in regions, on the host, both, and constant ones."""

    total: int
    offloaded: int
    host: int
    constant: int


class Compute(ReportModel):
    """The operations of one run, and the share of them on accelerators."""

    operations: float
    offloaded: float


class PredictedCosts(ReportModel):
    """The predicted costs of one run; `seconds` is the sum of execution, transfer and launch.

    `optimized` is the value of what the strategy minimized, `bound` a lower bound on it: for the
    `measure` total the sum of all costs, for makespan and load those of the main graph. `estimated` is
    the share of `host_only` that is an estimate: of nodes with a shape or an operator that is not known.
    """

    seconds: float
    execution: float
    transfer: float
    launch: float
    host_only: float
    estimated: float = 0.0
    bound: float | None
    objective: str
    measure: Literal["total", "makespan", "load"] = "total"
    optimized: float
    joules: float | None
    host_only_joules: float | None


class ReportedTensor(ReportModel):
    """A tensor at the boundary of a region, with as much of its type as is known.

    `bytes` are sent in a run of the region, at the planned sizes of open dimensions: those of the shape
    alone where the other side asks for nothing else; None where the size is not known.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    bytes: int | None


class OpenDimension(ReportModel):
    """An open dimension of the model's inputs, and the size that the plan counts with.

    `least` and `largest` are the ends of the range that the user gave, None where byoc chose the size.
    """

    name: str
    size: int
    least: int | None
    largest: int | None


class SizePrediction(ReportModel):
    """The predicted seconds of the placement, and of the host alone, at other sizes of dimensions."""

    sizes: dict[str, int]
    seconds: float
    host_only: float


class EstimateReport(ReportModel):
    """A compiler's estimate of a run: seconds, and `cycles` at `hertz` if it counts these."""

    seconds: float
    cycles: float | None = None
    hertz: float | None = None


class MemoryUse(ReportModel):
    """The bytes that are used of an accelerator's memory, and the most that may be, `limit`.

    Of what byoc planned `constants` and `activations` are the parts. None is what is not known.
    """

    used: int
    limit: int | None = None
    constants: int | None = None
    activations: int | None = None

    @model_serializer(mode="wrap")
    def _leave_out_unknown(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        return {name: value for name, value in data.items() if value is not None}


class RegionReport(ReportModel):
    """A region: its graph path, its user's nodes, how often it runs, and the seconds of one run.

    `seconds` are predicted before it is compiled, `estimate` is the compiler's own afterwards; both have
    the launch. `not_here` is why the machine that compiled it could not run it, and so not verify it.
    `own_cpu` is how many of its nodes a CPU of the device's own computes, as its compiler said before
    placing. `tried` has the options that it was compiled with after it computed wrong with the
    target's, in order: with the last it is right. `memory` is what `limits.memory` of the rule file
    counts, planned; `sram` the most that is used of the memory on the chip, as its compiler says.
    """

    name: str
    device: str
    graph: str
    nodes: int
    trips: float
    composites: dict[str, int]
    inputs: tuple[ReportedTensor, ...]
    outputs: tuple[ReportedTensor, ...]
    seconds: float
    borders: tuple[RegionNeighbour, ...]
    estimate: EstimateReport | None = None
    not_here: str = ""
    own_cpu: int = 0
    tried: tuple[dict[str, str], ...] = ()
    memory: MemoryUse | None = None
    sram: MemoryUse | None = None

    @model_serializer(mode="wrap")
    def _leave_out_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        for name in ("estimate", "not_here", "own_cpu", "tried", "memory", "sram"):
            if not data[name]:
                del data[name]
        return data


class RefusalReport(ReportModel):
    """A region of an earlier plan that its codegen refused, or at which it `failed`.

    `nodes` are the names or first outputs of the nodes that the target does not get, and `host` is how
    many nodes are on the host because of it; a node counts only for the first refusal. `split` is the
    most nodes that regions have since one was too large, and `options` are those that the region was
    compiled with instead. `tried` says what compiling parts of the region showed, and
    `detail` is the traceback of the tool chain of which the reason is a line.
    """

    target: str
    region: str
    codegen: str
    reason: str
    nodes: tuple[str, ...]
    host: int
    split: int | None
    failed: bool = False
    options: dict[str, str] = Field(default_factory=dict)
    tried: str = ""
    detail: str = ""

    @model_serializer(mode="wrap")
    def _leave_out_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        optional = ("options", "tried", "detail")
        return {name: value for name, value in data.items() if name not in optional or value}


class ReportedCause(ReportModel):
    """A cause why a node is on the host, as data; the fields are those of `Cause` of `byoc.errors`.

    `general` is the sentence without the names of nodes and tensors.
    """

    kind: str
    operator: str = ""
    constraint: str = ""
    value: str = ""
    allowed: str = ""
    flags: tuple[str, ...] = ()
    target: str = ""
    general: str = ""


class HostReason(ReportModel):
    """A reason for staying on the host, and the number of nodes that it concerns.

    `share` is their part of the seconds that the host alone would take, None in reports of versions
    that did not tell it. `largest` is the one that takes most of them, by name or first output, and
    `operators` are those of the nodes, the one with most seconds first. `causes` are what the sentence
    is made of, `remedy` is what a user can do, and `actions` are the same as data; empty where nothing
    is known.
    """

    reason: str
    nodes: int
    share: float | None = None
    largest: str = ""
    operators: tuple[str, ...] = ()
    remedy: str = ""
    causes: tuple[ReportedCause, ...] = ()
    actions: tuple[Action, ...] = ()


class PlacedNodes(ReportModel):
    """Nodes of one operator in one place: in a region, or on the host for one reason.

    `nodes` are their names behind the path of their graph, `outputs` their first outputs, empty where
    these are the same. `causes` are the kinds of what keeps them on the host (`CauseKind`), `rule` is
    the location of the rule that accepted them.
    """

    device: str
    region: str = ""
    operator: str
    reason: str = ""
    causes: tuple[str, ...] = ()
    rule: str = ""
    nodes: tuple[str, ...]
    outputs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_outputs(self) -> Self:
        """Raise ValueError where the outputs are not as many as the nodes."""
        if self.outputs and len(self.outputs) != len(self.nodes):
            raise ValueError(f"{len(self.nodes)} nodes and {len(self.outputs)} outputs do not fit")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        return {name: value for name, value in data.items() if value}


class PreciseUnitReport(ReportModel):
    """A unit in floating point or in 16 bits; the fields are those of `PreciseUnit`."""

    unit: str
    device: str
    alone: Finite


class TradePointReport(ReportModel):
    """A plan that keeps more than every cheaper one that was tried.

    `reached` is in the measure of the budget, null where outputs are equal; `seconds` and `cost`, in the
    unit of the objective, are predicted. `in_float` counts the units in floating point, `wide` those in
    16 bits. The others say how units differ from the plan before, in the first row from all being in the
    type that was asked for: which are in floating point now (`to_float`), in 16 bits (`to_wide`), or in
    that type again (`to_narrow`). `taken` is the plan that the report is of.
    """

    reached: Finite
    cost: float
    seconds: float
    in_float: int
    wide: int
    to_float: tuple[str, ...]
    to_wide: tuple[str, ...]
    to_narrow: tuple[str, ...]
    taken: bool


class QuantizedWeightReport(ReportModel):
    """Weights in blocks; the fields are those of `QuantizedWeight`."""

    name: str
    shape: tuple[int, ...]
    operator: str
    decibels: Finite
    bits: int = 4


class PrecisionReport(ReportModel):
    """A lowered precision; the fields are those of `LoweredPrecision`."""

    dtype: str | None
    source: str
    method: str
    samples: int
    random: bool
    units: int
    on_accelerators: int
    budget: str | None
    reached: Finite
    all_quantized: Finite
    measured: int
    measured_on: str
    in_float: tuple[PreciseUnitReport, ...]
    wide: tuple[PreciseUnitReport, ...] = ()
    trade: tuple[TradePointReport, ...] = ()
    trade_gap: float = 0.0
    weights: tuple[QuantizedWeightReport, ...]


@dataclass(frozen=True)
class TrialCandidate:
    """A strategy that was tried: the predicted seconds of a run, and the measured ones.

    `seconds` is the median and `spread` the distance of the quartiles, of `samples` runs; `ratio` is
    that to the candidate that was kept, in the same rounds. Where nothing was run, `problem` says why.
    """

    strategy: str
    regions: int = 0
    predicted: float | None = None
    seconds: float | None = None
    spread: float | None = None
    samples: int = 0
    problem: str = ""
    ratio: float | None = None


_LEFT_OUT_IF_EMPTY = (
    *("what_if_left_out", "break_even", "measured", "open_dimensions", "predicted_at", "perturbed"),
    *("passes", "generations", "variant", "chosen_sizes", "promises", "conditions", "placed"),
    *("memory", "sram"),
)


class ValuePromise(ReportModel):
    """A promise of an accelerator that is weaker than what ONNX defines, for some operators on it.

    `promise` is a key of the arithmetic contract, such as `nan`, and `value` what stands there.
    """

    target: str
    promise: str
    value: str
    operators: tuple[str, ...]


class ValueCondition(ReportModel):
    """A condition on values under which an accelerator is right; `nodes` depend on it."""

    target: str
    condition: str
    nodes: tuple[str, ...]


class Report(ReportModel):
    """The report of a plan. `measured` are the placements that were timed, if any, and the fastest kept.

    `not_verified` is why there is no `verification`, or why regions are missing in it, else None;
    `verification_missing` says that they were to be verified. `what_if_left_out` counts the reasons for
    refusing nodes that `what_if` leaves untried. `open_dimensions` are those whose size the model and
    the user leave open; `predicted_at` has predictions at the ends of ranges; `perturbed` what becomes
    of the placement at other costs; `passes` the effects of those that rewrote the model or its regions;
    `generations` the generations of targets whose rule files have several, by target; `variant` is the
    variant of the bundle that it is on, empty where there are none. `chosen_sizes`
    are those that byoc chose for it by itself, so that another, open variant serves all other sizes.
    `promises` are those of the
    accelerators that are weaker than what ONNX defines, and `conditions` on what they are right where
    values are assumed to be as they promise. `memory` is, by target that has `limits.memory`, what it
    counts: constants of all regions and the largest arena; `sram`, by target, the most that a region
    uses of the memory on the chip. `placed` are the nodes by place, in what
    `byoc partition --format json` prints; a manifest is without them, since a bundle has its decisions.
    """

    model: str
    targets: tuple[str, ...]
    strategy: str | None
    nodes: NodeCounts
    compute: Compute
    predicted: PredictedCosts
    regions: tuple[RegionReport, ...]
    refusals: tuple[RefusalReport, ...]
    host_reasons: tuple[HostReason, ...]
    what_if: tuple[WhatIf, ...]
    what_if_left_out: int = 0
    break_even: tuple[BreakEven, ...] = ()
    precision: PrecisionReport | None
    notes: tuple[NoteText, ...]
    verification: VerificationReport | None
    not_verified: str | None
    verification_missing: bool = False
    bundle: str | None
    measured: tuple[TrialCandidate, ...] = ()
    open_dimensions: tuple[OpenDimension, ...] = ()
    predicted_at: tuple[SizePrediction, ...] = ()
    perturbed: PerturbedPlan | None = None
    passes: tuple[PassEffect, ...] = ()
    generations: dict[str, str] = Field(default_factory=dict)
    variant: str = ""
    chosen_sizes: dict[str, int] = Field(default_factory=dict)
    promises: tuple[ValuePromise, ...] = ()
    conditions: tuple[ValueCondition, ...] = ()
    memory: dict[str, MemoryUse] = Field(default_factory=dict)
    sram: dict[str, MemoryUse] = Field(default_factory=dict)
    placed: tuple[PlacedNodes, ...] = ()

    @property
    def display_name(self) -> str:
        """The model, and which variant of it."""
        return f"{self.model}, {self.variant}" if self.variant else self.model

    def name_target(self, name: str) -> str:
        """Return the name of a target, with the generation where its rule file has several."""
        generation = self.generations.get(name)
        return f"{name} ({generation})" if generation else name

    @property
    def failures(self) -> tuple[RefusalReport, ...]:
        """The refusals that are defects of a codegen."""
        return tuple(each for each in self.refusals if each.failed)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Report":
        """Read what `to_json` gives. Raises InputError for anything else."""
        report, problems = validate_content(data, cls)
        if report is None:
            raise InputError(f"not a report of byoc: {'; '.join(problems)}")
        return report

    @model_serializer(mode="wrap")
    def _leave_out_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        for name in _LEFT_OUT_IF_EMPTY:
            if not data[name]:
                del data[name]
        return data
