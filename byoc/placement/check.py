"""Holding a strategy to its word: what a researcher's code placed is checked before it is used."""

import math

import numpy as np

from byoc.placement.fusions import fusions_are_acyclic
from byoc.placement.limits import breach
from byoc.placement.problem import Ints, Problem
from byoc.placement.regions import components_within, contraction_is_acyclic
from byoc.placement.strategy import Placement


def objection(problem: Problem, placement: object) -> str:
    """Return what is wrong with a strategy's answer to a problem, empty when nothing is."""
    if not isinstance(placement, Placement):
        return f"it gave a {type(placement).__name__} instead of a Placement"
    checks = (_arrays, _labels, _regions, _limits, _fusions, _cost)  # each relies on those before it
    return next((wrong for check in checks if (wrong := check(problem, placement))), "")


def _arrays(problem: Problem, placement: Placement) -> str:
    for name in ("labels", "regions"):
        array = getattr(placement, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.int64:
            return f"its {name} are not an int64 array"
        if array.shape != (problem.units,):
            return f"its {name} have the shape {list(array.shape)}, and there are {problem.units} units"
    return ""


def _labels(problem: Problem, placement: Placement) -> str:
    labels = placement.labels
    if ((labels < 0) | (labels > problem.devices)).any():
        return f"a label is not one of 0 (the host) to {problem.devices}"
    refused = np.flatnonzero(np.isinf(problem.seconds[np.arange(problem.units), labels]))
    if refused.size:
        return f"it placed unit {refused[0]} on device {labels[refused[0]]}, which refuses it"
    return ""


def _regions(problem: Problem, placement: Placement) -> str:
    labels, regions = placement.labels, placement.regions
    if ((regions >= 0) != (labels > 0)).any():
        return "a unit of an accelerator has no region, or one of the host has"
    used = np.unique(regions[regions >= 0])
    if not np.array_equal(used, np.arange(used.size)):
        return "its regions are not numbered 0, 1, ..."
    if any(np.unique(labels[regions == region]).size > 1 for region in used):
        return "a region spans several devices"
    if not contraction_is_acyclic(problem, regions):
        return "its regions wait for one another in a circle"
    return ""


def _limits(problem: Problem, placement: Placement) -> str:
    scattered = np.append(False, problem.connected)[placement.labels]
    if scattered.any():
        component = components_within(problem, placement.regions)
        regions: Ints = placement.regions[scattered]
        pieces = len(np.unique(component[scattered]))
        if pieces > len(np.unique(regions)):
            return "one of its regions is not connected, and the device takes connected ones alone"
    return breach(problem, placement.labels, placement.regions)


def _fusions(problem: Problem, placement: Placement) -> str:
    taken: set[int] = set()
    for number in placement.fusions:
        if not 0 <= number < len(problem.fusions):
            return f"it chose fusion {number}, and there are {len(problem.fusions)}"
        fusion = problem.fusions[number]
        members = list(fusion.members)
        if (placement.labels[members] != fusion.device).any() or np.ptp(placement.regions[members]):
            return f"it chose fusion {number}, which is not in one region of device {fusion.device}"
        if not taken.isdisjoint(members):
            return f"it chose fusion {number}, which overlaps another that it chose"
        taken.update(members)
    if placement.fusions and not fusions_are_acyclic(problem, list(placement.fusions)):
        return "the fusions it chose wait for one another in a circle"
    return ""


def _cost(_: Problem, placement: Placement) -> str:
    if not math.isfinite(placement.cost.total):
        return "its cost is not finite"
    if placement.bound is not None and placement.bound > placement.cost.total:
        return f"its bound {placement.bound:g} s is above its own total {placement.cost.total:g} s"
    return ""
