"""Validation of a strategy's answer before it is used."""

import math
from numbers import Integral, Real

import numpy as np

from byoc.placement.fusions import are_fusions_acyclic
from byoc.placement.limits import find_broken_limit
from byoc.placement.objective import Cost, evaluate
from byoc.placement.problem import Ints, Problem
from byoc.placement.regions import find_region_components, is_contraction_acyclic
from byoc.placement.strategy import Placement


def find_violation(problem: Problem, placement: object) -> str:
    """Return a sentence on the first fault of a strategy's answer to a problem; empty if it is valid."""
    if not isinstance(placement, Placement):
        return f"it gave a {type(placement).__name__} instead of a Placement"
    # Each check relies on the ones before it.
    checks = (
        _check_types,
        _check_arrays,
        _check_labels,
        _check_regions,
        _check_limits,
        _check_fusions,
        _check_cost,
    )
    return next((wrong for check in checks if (wrong := check(problem, placement))), "")


def _check_types(_: Problem, placement: Placement) -> str:
    cost, bound = placement.cost, placement.bound
    if not isinstance(placement.notes, (tuple, list)) or not all(
        isinstance(note, str) for note in placement.notes
    ):
        return "its notes are not a tuple of texts"
    if not isinstance(placement.why_host, str):
        return "its why_host is not a text"
    if not isinstance(placement.fusions, (tuple, list)) or not all(
        isinstance(number, Integral) for number in placement.fusions
    ):
        return "its fusions are not a tuple of whole numbers"
    if not isinstance(cost, Cost) or not all(
        _is_number(part) for part in (cost.execution, cost.transfer, cost.launch, cost.saved)
    ):
        return "its cost is not a Cost of numbers"
    if bound is not None and not (_is_number(bound) and 0 <= bound < math.inf):
        value = f" {float(bound):g}" if _is_number(bound) else ""
        return f"its bound{value} is not a number of seconds, 0 or more, nor None"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_arrays(problem: Problem, placement: Placement) -> str:
    for name in ("labels", "regions"):
        array = getattr(placement, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.int64:
            return f"its {name} are not an int64 array"
        if array.shape != (problem.units,):
            return f"its {name} have the shape {list(array.shape)}, and there are {problem.units} units"
    return ""


def _check_labels(problem: Problem, placement: Placement) -> str:
    labels = placement.labels
    if ((labels < 0) | (labels > problem.devices)).any():
        return f"a label is not one of 0 (the host) to {problem.devices}"
    refused = np.flatnonzero(np.isinf(problem.seconds[np.arange(problem.units), labels]))
    if refused.size:
        return f"it placed unit {refused[0]} on device {labels[refused[0]]}, which refuses it"
    return ""


def _check_regions(problem: Problem, placement: Placement) -> str:
    labels, regions = placement.labels, placement.regions
    if ((regions >= 0) != (labels > 0)).any():
        return "a unit of an accelerator has no region, or one of the host has"
    used = np.unique(regions[regions >= 0])
    if not np.array_equal(used, np.arange(used.size)):
        return "its regions are not numbered 0, 1, ..."
    if any(np.unique(labels[regions == region]).size > 1 for region in used):
        return "a region spans several devices"
    if not is_contraction_acyclic(problem, regions):
        return "its regions wait for one another in a circle"
    return ""


def _check_limits(problem: Problem, placement: Placement) -> str:
    scattered = np.append(False, problem.connected)[placement.labels]
    if scattered.any():
        component = find_region_components(problem, placement.regions)
        regions: Ints = placement.regions[scattered]
        pieces = len(np.unique(component[scattered]))
        if pieces > len(np.unique(regions)):
            return "one of its regions is not connected, and the device takes connected ones alone"
    return find_broken_limit(problem, placement.labels, placement.regions)


def _check_fusions(problem: Problem, placement: Placement) -> str:
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
    if placement.fusions and not are_fusions_acyclic(problem, list(placement.fusions)):
        return "the fusions it chose wait for one another in a circle"
    return ""


def _check_cost(problem: Problem, placement: Placement) -> str:
    fusions = tuple(placement.fusions)
    try:
        total = evaluate(problem, placement.labels, placement.regions, fusions).total
    except OverflowError:
        total = math.inf
    if not (math.isfinite(total) and math.isfinite(placement.cost.total)):
        return "its cost is not finite"
    if placement.bound is not None and placement.bound > total:
        return f"its bound {placement.bound:g} s is above its own total {total:g} s"
    return ""
