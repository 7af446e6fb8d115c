"""The state of a model on its way through the pipeline, and the protocol of the stages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from byoc.bundle import Bundle, EstimateReport, RegionCompiler
from byoc.codegen import Codegens
from byoc.model import GraphIndex, Model
from byoc.options import Options
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
)
from byoc.quantization import AccuracyTest, ChosenPrecision, KeptAccuracy
from byoc.samples import Sample
from byoc.stages._chosen_passes import ChosenPasses
from byoc.stages._codegen_answers import CodegenAnswers
from byoc.verification import NotVerified, Verification
from byoc.zoo import Source

# A field that is still to be filled in: no stage reads what a later one makes.
_LATER: Any = None


@dataclass(frozen=True, eq=False)
class State:
    """A model with all that the stages so far have made of it; each field names its stage."""

    source: Source
    options: Options

    codegens: Codegens = field(default_factory=Codegens)
    """Where codegens are found, and the processes that they run in."""

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
    samples: Sequence[Sample] = ()
    """What the user wants the bundle verified on; none where samples are made."""

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

    # The search for units to leave in floating point
    in_float: Sequence[str] | None = None
    """The units that are left in floating point, None as long as none were chosen."""
    accuracy: KeptAccuracy = _LATER
    all_quantized: KeptAccuracy = _LATER
    """The accuracy with nothing left in floating point."""

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

    # Compile, Estimate, Verify
    folder: Path = _LATER
    """The folder to write the bundle into, which becomes `output` when all went well."""
    bundle: Bundle = _LATER
    estimates: Mapping[str, EstimateReport] = field(default_factory=dict)
    """The compilers' estimates of regions, by name."""
    verification: Verification | NotVerified = _LATER
    """The comparison with the original, or why there was none."""

    # Pack
    not_signed: str = ""
    """Why the bundle is not signed, empty where it is, or was not to be."""


class Stage(Protocol):
    """A step of the pipeline; its fields, if any, are its options."""

    def run(self, state: State) -> State:
        """Return the state with what this stage makes."""


def run_stages(stages: Iterable[Stage], state: State) -> State:
    """Run stages one after the other."""
    for stage in stages:
        state = stage.run(state)
    return state
