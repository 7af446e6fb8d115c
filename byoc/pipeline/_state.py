"""The states of a model on its way through the pipeline: each has what the stages so far have made.

A stage takes one kind of state and returns a later one, so that none can read what is not made yet. A
bundle of several variants has a state for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from byoc._dataclasses import dataclass, field, fields, replace
from byoc.codegen import Codegens
from byoc.model import ONLY_VARIANT
from byoc.planning import RefusalHistory

if TYPE_CHECKING:
    from byoc.bundle import Bundle, EstimateReport, MemoryUse, RegionCompiler, WeightFile
    from byoc.codegen import Refusal, Region
    from byoc.model import GraphIndex, Model, Variant
    from byoc.padding import PaddingDecision, PaddingRule
    from byoc.passes import LoadedPass, PassEffect, PassProcess
    from byoc.patterns import Mark
    from byoc.pipeline._ask_stage import CodegenAnswers
    from byoc.pipeline._partition_options import Options
    from byoc.planning import (
        GraphPlan,
        GraphUnits,
        PartitionedModel,
        Plan,
        PlanSettings,
        PredictionAtSizes,
        TradePoint,
    )
    from byoc.quantization import AccuracyTest, ChosenPrecision, KeptAccuracy, UnitPrecisions
    from byoc.samples import Sample
    from byoc.verification import NotVerified, Verification
    from byoc.zoo import GenaiFolder, Source


@dataclass(frozen=True, eq=False)
class Request:
    """The caller's request."""

    source: Source
    options: Options
    codegens: Codegens = field(default_factory=Codegens)
    """Where codegens are found, and the processes that they run in."""
    variant: Variant = ONLY_VARIANT
    package: Path | None = None
    """The folder with the models of a package that are written already, whose weights are shared."""


# Parts of states.


@dataclass(frozen=True)
class ChosenPasses:
    """The passes of a run: those for the model, those for the regions of each target by its name."""

    model: tuple[LoadedPass, ...] = ()
    regions: Mapping[str, tuple[LoadedPass, ...]] = field(default_factory=dict)
    process: PassProcess | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """The things that the options name, besides the settings of planning."""

    record: Mapping[str, Any]
    """The options as the manifest keeps them."""
    passes: ChosenPasses
    """The passes that rewrite the model and the regions."""
    compilers: Mapping[str, RegionCompiler] = field(default_factory=dict)
    """The compiler of each target, by the target's name; none where nothing is compiled."""
    output: Path | None = None
    """The absolute path of the bundle."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The user's model, and what was read with it."""

    original: Model
    static_rule: PaddingRule | None = None
    """The padding of a model whose caches got a fixed length, so that `original` is no user's."""
    samples: Sequence[Sample] = ()
    """What the user wants the bundle verified on; none where samples are made."""
    genai: GenaiFolder | None = None
    """The folder of onnxruntime-genai that the model is from, and the bundle is to be; else None."""


@dataclass(frozen=True, eq=False)
class MetBudget:
    """The outcome of an accuracy budget."""

    precisions: UnitPrecisions
    """The units that are not in the type that was asked for."""
    accuracy: KeptAccuracy
    all_quantized: KeptAccuracy
    """The accuracy with all in the type that was asked for."""
    trade: tuple[TradePoint, ...]
    """The plans that keep more than every cheaper one, in rising order."""
    trade_gap: float
    """The greatest share by which one of them costs more than its lower bound."""


@dataclass(frozen=True, eq=False)
class Findings:
    """The findings of earlier rounds of planning, which the next one goes by."""

    history: RefusalHistory = field(default_factory=RefusalHistory)
    """The rounds in which codegens refused regions of the variant."""
    answers: CodegenAnswers | None = None
    """What codegens answered about the model's units, None where they were not asked."""
    whole: Model | None = None
    """The model before nodes were put in parts, for the next round; None where none is."""
    not_in_parts: str = ""
    """Why nodes stay whole: what became of a bundle in which some were in parts."""
    budget: MetBudget | None = None
    """None where there is no accuracy budget, and as long as it is not met."""


# Preparation: what each stage makes is in the state that is named after it.


@dataclass(frozen=True, eq=False, kw_only=True)
class Resolved:
    """A model that is not read yet, with what the options name; later stages update the settings."""

    request: Request
    setup: Setup
    settings: PlanSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class Loaded(Resolved):
    """A model as the user has it."""

    loaded: LoadedModel


@dataclass(frozen=True, eq=False, kw_only=True)
class Rewritten(Loaded):
    """A model as passes rewrote it; itself where there are none."""

    rewritten: Model
    pass_effects: tuple[PassEffect, ...] = ()
    asked: tuple[Model, tuple[PassEffect, ...]] | None = None
    """The model as the passes that were asked for left it, before clean-up, with their effects."""
    unwanted: frozenset[str] = frozenset()
    """The nodes that keep their form, by their first output: in the other they would be on the host."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(Loaded):
    """A model that is ready to be planned."""

    pass_effects: tuple[PassEffect, ...] = ()
    precision: ChosenPrecision
    """The model in the precision to plan it in."""
    accuracy_test: AccuracyTest | None = None
    """The measure of an accuracy budget, where there is one."""
    findings: Findings = field(default_factory=Findings)

    def restore_whole(self) -> Self:
        """Return the state with the model as it was before nodes were put in parts."""
        whole = self.findings.whole
        if whole is None:
            return self
        findings = replace(self.findings, whole=None)
        return replace(self, precision=replace(self.precision, model=whole), findings=findings)

    @property
    def model(self) -> Model:
        """The model to be planned: quantized, where it has to be."""
        return self.precision.model


# Planning: these are dropped as soon as there is a plan, which holds what is of use later.


@dataclass(frozen=True, eq=False, kw_only=True)
class Annotated(Prepared):
    """A model with what each target's rules say of each node."""

    index: GraphIndex
    marks: Mapping[int, Sequence[Sequence[Mark]]]
    """For each graph, by the id of its index, and each target the marks of the nodes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouped(Annotated):
    """A model whose nodes are gathered into the units that are placed."""

    units: Mapping[int, GraphUnits]
    """The units of each graph, by the id of its index."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Placed(Grouped):
    """A model whose units are placed."""

    root: GraphPlan
    predictions: tuple[PredictionAtSizes, ...] = ()
    """Those at the ends of ranges of open dimensions."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Outlined(Placed):
    """A model with its regions as functions."""

    partitioned: PartitionedModel


@dataclass(frozen=True, eq=False, kw_only=True)
class Planned(Prepared):
    """A model with its plan."""

    plan: Plan

    def heed_refusals(self, refusals: Sequence[Refusal]) -> Prepared:
        """Return the state with new limits, if codegens refused regions of its plan.

        It is without a plan, unless regions are only compiled with other options.
        """
        names = {region.name for region in self.plan.regions}
        own = [refusal for refusal in refusals if refusal.region in names]
        if not own:
            return self
        known = self.findings.history.limits
        history = self.findings.history.add(self.plan, own)
        state = replace(
            self,
            findings=replace(self.findings, history=history),
            settings=replace(self.settings, known_limits=history.limits),
        )
        if history.limits.refused == known.refused and history.limits.sizes == known.sizes:
            return replace(state, plan=replace(self.plan, refusals=history.refused))
        return Prepared(**take(Prepared, state)).restore_whole()

    def forgo_parts(self, why: str) -> Prepared:
        """Return the state with all nodes whole from now on, without a plan if some were in parts."""
        if self.findings.whole is None:
            return self
        findings = replace(self.findings, not_in_parts=why)
        return replace(Prepared(**take(Prepared, self)), findings=findings).restore_whole()


# Emission.


@dataclass(frozen=True, eq=False, kw_only=True)
class Emitting(Planned):
    """A planned model with the weight file to write into, which all variants of a bundle share.

    The file's folder becomes the bundle when all went well.
    """

    weights: WeightFile


@dataclass(frozen=True, eq=False, kw_only=True)
class Written(Emitting):
    """A model with the regions whose models are written."""

    regions: Sequence[Region]


@dataclass(frozen=True, eq=False, kw_only=True)
class Compiled(Emitting):
    """A model with the bundle, for the variant."""

    bundle: Bundle


@dataclass(frozen=True)
class CompilerFigures:
    """Figures of compilers for their regions, by name: estimated times, and memory used on the chip."""

    estimates: Mapping[str, EstimateReport]
    sram: Mapping[str, MemoryUse]


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimated(Compiled):
    """A model with what compilers say of its regions."""

    figures: CompilerFigures


@dataclass(frozen=True, eq=False, kw_only=True)
class Verified(Estimated):
    """A model whose bundle was compared with the original, or with the reason why it was not."""

    verification: Verification | NotVerified


@dataclass(frozen=True, eq=False, kw_only=True)
class Padded(Verified):
    """A model with the dimensions that may be smaller, None where that is not asked."""

    padding: PaddingDecision | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Packed(Padded):
    """A model whose bundle is complete."""

    not_signed: str
    """Why the bundle is not signed, empty where it is, or was not to be."""


def take(kind: type[Resolved], state: Resolved) -> dict[str, Any]:
    """Return the fields of a state that an earlier kind of state has, too, to make a state of them."""
    return {each.name: getattr(state, each.name) for each in fields(kind)}
