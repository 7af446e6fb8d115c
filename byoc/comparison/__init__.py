"""Comparison of placement strategies over models and links; the fastest of them by the clock."""

from byoc.comparison._autotune import fastest
from byoc.comparison._optimality_loss import OptimalityLoss, compare_decisions, measure_loss
from byoc.comparison._placement_diff import CostChange, NodeMove, PlacementDiff, RegionChange, diff
from byoc.comparison._process_pool import FAST_STRATEGIES, compare, run_study
from byoc.comparison._strategy_summary import summarize_strategies
from byoc.comparison._study import ROW_KEYS, TOTAL, StrategyRow, Study
from byoc.comparison._task_list import TASK_KEYS, TaskRow, list_tasks
