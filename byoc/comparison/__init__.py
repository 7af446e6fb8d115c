"""Studies of placements; strategies side by side; the fastest of them by the clock."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.comparison._autotune import fastest
    from byoc.comparison._bucket_choice import BucketRow, choose_row, choose_sizes
    from byoc.comparison._bucket_options import BucketOptions
    from byoc.comparison._buckets import BucketChoice, choose_buckets
    from byoc.comparison._case_solver import CaseSolver
    from byoc.comparison._compare import (
        ROW_KEYS,
        TOTAL,
        StrategyRow,
        compare,
        make_strategy_rows,
    )
    from byoc.comparison._comparison_options import FAST_STRATEGIES
    from byoc.comparison._length_distributions import make_log_normal, pick_candidates, read_lengths
    from byoc.comparison._model_problem import ModelProblem, build_problem
    from byoc.comparison._optimality_loss import OptimalityLoss, compare_decisions, measure_loss
    from byoc.comparison._placement_diff import CostChange, NodeMove, PlacementDiff, RegionChange, diff
    from byoc.comparison._rule_comparison import ComparedKind, RuleComparison, compare_rules
    from byoc.comparison._simplification import simplify
    from byoc.comparison._simplify_options import SimplifyOptions
    from byoc.comparison._strategy_summary import summarize_strategies
    from byoc.comparison._study_case import StudyCase
    from byoc.comparison._study_file import make_study_schema
    from byoc.comparison._study_plots import plot_study
    from byoc.comparison._study_results import format_csv, read_results, write_results
    from byoc.comparison._study_rows import ASKED_COLUMNS, COLUMNS, TIME_COLUMNS, StudyRow, make_rows
    from byoc.comparison._study_run import StoppedStudyError, StudyResult, study
    from byoc.comparison._study_tables import summarize_study, tabulate_study
    from byoc.comparison._task_list import TASK_KEYS, TaskRow, list_tasks
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
