"""Where each unit runs: a `Problem` goes in, a `Strategy` solves it, a `Placement` comes out.

A problem holds units, tensors and costs as numpy arrays and has never heard of ONNX. A placement
labels every unit with a device (0 = host), gathers what is launched as one into regions, and says
what that costs and, where the strategy can prove it, what no placement can fall below.
"""

from byoc.placement.ask import answer, settled
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
    "unhonoured",
]
