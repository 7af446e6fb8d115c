"""The stages of the pipeline: frozen values, each of which takes a state and returns the next one."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.stages._ask_stage import Ask, AskedUnit, find_distinct_units, write_units
    from byoc.stages._compile_stages import Compile, Write
    from byoc.stages._emission_stages import Estimate, FindPadding, Pack
    from byoc.stages._planning_stages import (
        Annotate,
        Convert,
        Group,
        Outline,
        Place,
        Rewrite,
        rewrite_model,
    )
    from byoc.stages._preparation_stages import Load, Quantize, Resolve
    from byoc.stages._results import (
        Chain,
        Each,
        Result,
        Stage,
        VariantResult,
        make_plan_result,
        make_result,
        watch_stages,
    )
    from byoc.stages._settings_loader import (
        ChooseSizes,
        add_size_notes,
        find_threads,
        is_worth_sizes,
        load_settings,
        load_strategy,
        load_targets,
        wants_sizes,
    )
    from byoc.stages._state import (
        ChosenPasses,
        Emitting,
        LoadedModel,
        Packed,
        Planned,
        Prepared,
        Request,
        Resolved,
        Rewritten,
        Setup,
        take,
    )
    from byoc.stages._state_summary import summarize_stage
    from byoc.stages._trial_stages import EstimateGains, MeetBudget, PlaceParts
    from byoc.stages._verify_stage import Verify
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
