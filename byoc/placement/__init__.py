"""Placement of units on devices: a `Strategy` turns a `Problem` into a `Placement`.

A problem holds units, tensors and costs as numpy arrays and does not depend on ONNX. A placement
assigns each unit a device (0 = host), groups the units of accelerators into regions that are launched as
one, and states the cost and, if the strategy proves one, a lower bound of it.
"""

from byoc.placement._canonical_order import order_canonically, reorder_placement, restore_order
from byoc.placement._components import find_components
from byoc.placement._cost_samples import Perturbation
from byoc.placement._device_loads import measure_loads
from byoc.placement._hard_limits import repair_labels
from byoc.placement._perturbation import PerturbedDecision, Regret, Robust, perturb_costs
from byoc.placement._placement_cost import Cost, count_transferred_bytes, evaluate
from byoc.placement._problem import UNLIMITED, Bools, Fusion, Ints, Occupancy, Problem
from byoc.placement._sensitivity import Sensitivity
from byoc.placement._solve import find_violation, normalize_placement, run_strategy, solve_problem
from byoc.placement._strategy import (
    ALL_REQUIREMENTS,
    Measure,
    Placement,
    Strategy,
    describe_ignored,
    limit_time,
    strategy_display_name,
)

__all__ = [
    "ALL_REQUIREMENTS",
    "UNLIMITED",
    "Bools",
    "Cost",
    "Fusion",
    "Ints",
    "Measure",
    "Occupancy",
    "Perturbation",
    "PerturbedDecision",
    "Placement",
    "Problem",
    "Regret",
    "Robust",
    "Sensitivity",
    "Strategy",
    "count_transferred_bytes",
    "describe_ignored",
    "evaluate",
    "find_components",
    "find_violation",
    "limit_time",
    "measure_loads",
    "normalize_placement",
    "order_canonically",
    "perturb_costs",
    "reorder_placement",
    "repair_labels",
    "restore_order",
    "run_strategy",
    "solve_problem",
    "strategy_display_name",
]
