"""The whole program: stages, each of which takes a state of a model and returns a later one.

The choices of a user are declared here once, for Python, the command line and the manifest alike.
`partition` does one model, `package` one for several devices, `partition_together` several models.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.pipeline._ask_stage import AskedUnit, find_distinct_units, write_units
    from byoc.pipeline._package import package
    from byoc.pipeline._partition_options import Options, PackageOptions, RoundOptions
    from byoc.pipeline._plan_options import (
        DEFAULT_STRATEGY,
        VARIANT_RULES,
        PlanOptions,
        UnitOptions,
        list_files,
    )
    from byoc.pipeline._planning_stages import rewrite_model
    from byoc.pipeline._program import (
        PLANNING,
        PREPARATION,
        PlanVariant,
        emit,
        list_emission,
        list_stages,
        make_plan,
        partition,
        prepare_variants,
    )
    from byoc.pipeline._results import Chain, Each, Result, Stage, watch_stages
    from byoc.pipeline._settings_loader import (
        find_threads,
        is_worth_sizes,
        load_settings,
        load_strategy,
        load_targets,
        wants_sizes,
    )
    from byoc.pipeline._state import (
        ChosenPasses,
        LoadedModel,
        Planned,
        Prepared,
        Request,
        Resolved,
        Setup,
        take,
    )
    from byoc.pipeline._state_summary import summarize_stage
    from byoc.pipeline._together import PlacedTogether, partition_together
    from byoc.pipeline._trial_stages import EstimateGains, MeetBudget
    from byoc.pipeline._verify_stage import Verify
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
