"""Studies; strategies side by side; the fastest by the clock; costs measured, predictions compared."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.comparison._buckets import BucketChoice, BucketRow, choose_buckets, fastest
    from byoc.comparison._compare import (
        ROW_KEYS,
        TOTAL,
        ModelProblem,
        OptimalityLoss,
        StrategyRow,
        build_problem,
        compare,
        compare_decisions,
        make_strategy_rows,
        measure_loss,
        summarize_strategies,
    )
    from byoc.comparison._comparison_options import (
        FAST_STRATEGIES,
        HOST,
        BucketOptions,
        Clock,
        Patience,
        ProfileOptions,
        SimplifyOptions,
        Tolerances,
    )
    from byoc.comparison._measured_costs import Samples, measure_in_turn, write_costs
    from byoc.comparison._placement_changes import (
        CostChange,
        ErrorChange,
        NodeMove,
        PlacementDiff,
        RegionChange,
    )
    from byoc.comparison._placement_diff import diff
    from byoc.comparison._prediction_error import (
        NodePair,
        PredictionComparison,
        TimedRegion,
        compare_host,
        compare_placement,
        mean_error_factor,
        rank_correlation,
        time_regions,
    )
    from byoc.comparison._profile import Profile, profile
    from byoc.comparison._rule_comparison import ComparedKind, RuleComparison, compare_rules, simplify
    from byoc.comparison._study_file import TASK_KEYS, StudyCase, TaskRow, list_tasks, make_study_schema
    from byoc.comparison._study_plots import plot_study
    from byoc.comparison._study_results import (
        ASKED_COLUMNS,
        COLUMNS,
        RUN_COLUMNS,
        StudyRow,
        format_csv,
        read_results,
    )
    from byoc.comparison._study_run import (
        StoppedStudyError,
        StudyResult,
        replay_study,
        study,
    )
    from byoc.comparison._study_tables import describe_over, make_cells, summarize_study, tabulate_study
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
