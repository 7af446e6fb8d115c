"""The stages of the pipeline: frozen values, each of which takes a state and returns the next one."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.stages._ask_stage import Ask
    from byoc.stages._codegen_answers import AskedUnit, find_distinct_units, write_units
    from byoc.stages._emission_stages import Compile, Estimate, Pack, Write
    from byoc.stages._padding_stage import FindPadding
    from byoc.stages._planning_stages import (
        Annotate,
        Convert,
        EstimateGains,
        Group,
        Outline,
        Place,
        find_precisions,
        record_accuracy,
    )
    from byoc.stages._preparation_stages import Load, Quantize, Resolve, SetPrecisions
    from byoc.stages._results import Result, VariantResult, make_result
    from byoc.stages._rewriting import Rewrite, rewrite_model
    from byoc.stages._settings_loader import find_threads, load_settings, load_strategy, load_targets
    from byoc.stages._state import JointStage, Stage, State, run_stages, run_stages_jointly
    from byoc.stages._verify_stage import Verify
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
