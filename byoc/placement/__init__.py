"""Placement of units on devices: a `Strategy` turns a `Problem` into a `Placement`.

A problem holds units, tensors and costs as numpy arrays and does not depend on ONNX. A placement
assigns each unit a device (0 = host), groups the units of accelerators into regions that are launched as
one, and states the cost and, if the strategy proves one, a lower bound of it.
"""

from byoc.placement.ask import answer, settled, solve_problem
from byoc.placement.canonical import canonical, placed_back
from byoc.placement.check import objection
from byoc.placement.limits import breach, repaired
from byoc.placement.objective import Cost, evaluate, moved
from byoc.placement.problem import UNLIMITED, Fusion, Problem
from byoc.placement.regions import contraction_is_acyclic, form_regions
from byoc.placement.strategy import EVERYTHING, Placement, Strategy, called, needs, unhonoured

__all__ = [
    "EVERYTHING",
    "UNLIMITED",
    "Cost",
    "Fusion",
    "Placement",
    "Problem",
    "Strategy",
    "answer",
    "breach",
    "called",
    "canonical",
    "contraction_is_acyclic",
    "evaluate",
    "form_regions",
    "moved",
    "needs",
    "objection",
    "placed_back",
    "repaired",
    "settled",
    "solve_problem",
    "unhonoured",
]
