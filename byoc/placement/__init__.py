"""Placement of units on devices: a `Strategy` turns a `Problem` into a `Placement`.

A problem holds units, tensors and costs as numpy arrays and does not depend on ONNX. A placement
assigns each unit a device (0 = host), groups the units of accelerators into regions that are launched as
one, and states the cost and, if the strategy proves one, a lower bound of it.
"""

from byoc.placement.ask import run_strategy, normalize_placement, solve_problem
from byoc.placement.canonical import order_canonically, restore_order
from byoc.placement.check import find_violation
from byoc.placement.limits import find_broken_limit, repair_labels
from byoc.placement.objective import Cost, evaluate, count_transferred_bytes
from byoc.placement.problem import UNLIMITED, Fusion, Problem
from byoc.placement.regions import is_contraction_acyclic, form_regions
from byoc.placement.strategy import ALL_REQUIREMENTS, Placement, Strategy, strategy_display_name, find_requirements, describe_ignored

__all__ = [
    "ALL_REQUIREMENTS",
    "UNLIMITED",
    "Cost",
    "Fusion",
    "Placement",
    "Problem",
    "Strategy",
    "run_strategy",
    "find_broken_limit",
    "strategy_display_name",
    "order_canonically",
    "is_contraction_acyclic",
    "evaluate",
    "form_regions",
    "count_transferred_bytes",
    "find_requirements",
    "find_violation",
    "restore_order",
    "repair_labels",
    "normalize_placement",
    "solve_problem",
    "describe_ignored",
]
