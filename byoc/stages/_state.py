"""The state of a model on its way through the pipeline, and the protocol of the stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from byoc.codegen import Codegens
from byoc.errors import InputError
from byoc.model import ONLY_VARIANT
from byoc.planning import RefusalHistory
from byoc.stages._chosen_passes import ChosenPasses

if TYPE_CHECKING:
    from byoc.bundle import Bundle, EstimateReport, RegionCompiler, WeightFile
    from byoc.codegen import Refusal, Region
    from byoc.model import GraphIndex, Model, Variant
    from byoc.options import Options
    from byoc.padding import PaddingDecision, PaddingRule
    from byoc.passes import PassEffect
    from byoc.patterns import Mark
    from byoc.planning import (
        GraphPlan,
        GraphUnits,
        LoweredPrecision,
        PartitionedModel,
        Plan,
        PlanSettings,
        PredictionAtSizes,
        TradePoint,
    )
    from byoc.quantization import AccuracyTest, ChosenPrecision, KeptAccuracy, UnitPrecisions
    from byoc.samples import Sample
    from byoc.stages._codegen_answers import CodegenAnswers
    from byoc.verification import NotVerified, Verification
    from byoc.zoo import GenaiFolder, Source

# A field that is still to be filled in: no stage reads what a later one makes.
_LATER: Any = None


@dataclass(frozen=True, eq=False)
class State:
    """A model with all that the stages so far have made of it; each field names its stage.

    A bundle of several variants has a state for each.
    """

    source: Source
    options: Options

    codegens: Codegens = field(default_factory=Codegens)
    """Where codegens are found, and the processes that they run in."""

    variant: Variant = ONLY_VARIANT

    # Resolve
    record: Mapping[str, Any] = _LATER
    """The options as the manifest keeps them."""
    settings: PlanSettings = _LATER
    compilers: Mapping[str, RegionCompiler] = field(default_factory=dict)
    """The compiler of each target, by the target's name; none where nothing is compiled."""
    output: Path | None = None
    """The absolute path of the bundle."""

    passes: ChosenPasses = field(default_factory=ChosenPasses)
    """The passes that rewrite the model and the regions."""

    # Load
    original: Model = _LATER
    static_rule: PaddingRule | None = None
    """The padding of a model whose caches got a fixed length, so that `original` is no user's."""
    samples: Sequence[Sample] = ()
    """What the user wants the bundle verified on; none where samples are made."""
    genai: GenaiFolder | None = None
    """The folder of onnxruntime-genai that the model is from, and the bundle is to be; else None."""

    # Rewrite
    rewritten: Model = _LATER
    """The original as passes rewrote it; itself where there are none."""
    pass_effects: tuple[PassEffect, ...] = ()
    """The effects of these passes."""

    # Quantize
    precision: ChosenPrecision = _LATER
    model: Model = _LATER
    """The model to be planned: quantized, where it has to be."""
    lowered: LoweredPrecision | None = None
    accuracy_test: AccuracyTest | None = None
    """The measure of an accuracy budget, where there is one."""

    # The search for the precisions of units
    precisions: UnitPrecisions | None = None
    """The units that are not in the type that was asked for, None as long as none were chosen."""
    accuracy: KeptAccuracy = _LATER
    all_quantized: KeptAccuracy = _LATER
    """The accuracy with all in the type that was asked for."""
    trade: tuple[TradePoint, ...] = ()
    """The plans that keep more than every cheaper one, in rising order."""
    trade_gap: float = 0.0
    """The greatest share by which one of them costs more than its lower bound."""

    # Annotate, Group, Ask, Place, Outline, Convert
    index: GraphIndex = _LATER
    marks: Mapping[int, Sequence[Sequence[Mark]]] = _LATER
    """For each graph, by the id of its index, and each target the marks of the nodes."""
    units: Mapping[int, GraphUnits] = _LATER
    """The units of each graph, by the id of its index."""
    answers: CodegenAnswers | None = None
    """What codegens answered about the model's units, None where they were not asked."""
    root: GraphPlan = _LATER
    predictions: tuple[PredictionAtSizes, ...] = ()
    """Those at the ends of ranges of open dimensions."""
    partitioned: PartitionedModel = _LATER
    plan: Plan = _LATER
    history: RefusalHistory = field(default_factory=RefusalHistory)
    """The rounds of planning in which codegens refused regions of the variant."""

    # Write, Compile, Estimate, Verify
    folder: Path = _LATER
    """The folder to write the bundle into, which becomes `output` when all went well."""
    weights: WeightFile = _LATER
    """The weight file there, which all variants share."""
    regions: Sequence[Region] = ()
    """The regions whose models are written."""
    bundle: Bundle = _LATER
    """The bundle, for the variant."""
    estimates: Mapping[str, EstimateReport] = field(default_factory=dict)
    """The compilers' estimates of regions, by name."""
    verification: Verification | NotVerified = _LATER
    """The comparison with the original, or why there was none."""
    padding: PaddingDecision | None = None
    """Which dimensions of the variant may be smaller, None where that is not asked."""

    # Pack
    not_signed: str = ""
    """Why the bundle is not signed, empty where it is, or was not to be."""

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan."""
        return self.plan is not None

    def heed_refusals(self, refusals: Sequence[Refusal]) -> State:
        """Return the state with new limits, if codegens refused regions of its plan.

        It is without a plan, unless regions are only compiled with other options.
        """
        names = {region.name for region in self.plan.regions}
        own = [refusal for refusal in refusals if refusal.region in names]
        if not own:
            return self
        history = self.history.add(self.plan, own)
        settings = replace(self.settings, known_limits=history.limits)
        known = self.history.limits
        stays = history.limits.refused == known.refused and history.limits.sizes == known.sizes
        plan = replace(self.plan, refusals=history.refused) if stays else _LATER
        return replace(self, history=history, settings=settings, plan=plan)


class Stage(Protocol):
    """A step of the pipeline; its fields, if any, are its options."""

    def run(self, state: State) -> State:
        """Return the state with what this stage makes."""


@runtime_checkable
class JointStage(Protocol):
    """A step of the pipeline that all variants of a bundle take together."""

    def run_jointly(self, states: Sequence[State]) -> list[State]:
        """Return the states of the variants with what this stage makes."""


def run_stages(stages: Iterable[Stage], state: State) -> State:
    """Run stages one after the other. Raises InputError as they do, with the variant's name in front."""
    with _naming_variant(state.variant):
        for stage in stages:
            state = stage.run(state)
    return state


def run_stages_jointly(stages: Iterable[Stage | JointStage], states: Sequence[State]) -> list[State]:
    """Run stages one after the other on the states of all variants. Raises as `run_stages`."""
    for stage in stages:
        if isinstance(stage, JointStage):
            states = stage.run_jointly(states)
        else:
            states = [run_stages((stage,), state) for state in states]
    return list(states)


@contextmanager
def _naming_variant(variant: Variant) -> Iterator[None]:
    """Put the name of a variant, if it has one, in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        if not variant.name or type(error) is not InputError:  # others say more than a message
            raise
        raise InputError(f"variant {variant.name}: {error}") from error
