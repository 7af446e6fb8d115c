"""Running a strategy, which may be third-party code, and checking its answer."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError, describe_error, must_propagate, shorten_text
from byoc.numerics import SearchBudget, sort_topologically
from byoc.placement._branch_and_cut import find_nearest_placement
from byoc.placement._conditions import fix_reloads, list_reloading, price_reloads
from byoc.placement._form_regions import (
    are_fusions_acyclic,
    find_region_components,
    is_contraction_acyclic,
)
from byoc.placement._hard_limits import Cost, evaluate, find_broken_limit
from byoc.placement._problem import Fusion, Ints, Problem
from byoc.placement._strategy import (
    DIRECT_LINKS,
    FUSIONS,
    LAUNCH,
    Measure,
    NoPlacementError,
    Placement,
    Strategy,
    describe_ignored,
    strategy_display_name,
)

# A canonical order of units and tensors, so that results do not depend on the order in the file.


def order_canonically(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    """Return the problem in canonical order, and that order of its units, int64 (units,).

    `keys` are distinct names of the units (the first output, for example). Units are in topological
    order, the smallest key first; tensors are sorted by producer, consumers and costs, and two that
    agree in all of these are interchangeable. Unit `i` of the new problem is unit `order[i]` of the old
    one. The order of a problem is found once, however often it is asked for. Raises ValueError unless
    there is one distinct key for each unit.
    """
    known = _ORDERS.get(problem)
    if known is None or known[0] != list(keys):
        known = _ORDERS[problem] = (list(keys), *_order(problem, keys))
    return known[1:]


_ORDERS: "WeakKeyDictionary[Problem, tuple[list[str], Problem, Ints]]" = WeakKeyDictionary()


def _order(problem: Problem, keys: Sequence[str]) -> tuple[Problem, Ints]:
    if len(keys) != problem.units or len(set(keys)) < len(keys):
        raise ValueError(f"one distinct key for each of {problem.units} units is needed")
    source, target = problem.edges
    reader = np.argsort(target, kind="stable")
    producers = source[reader].tolist()
    starts = np.searchsorted(target[reader], np.arange(problem.units + 1)).tolist()
    before = [producers[first:last] for first, last in pairwise(starts)]
    order = np.array(sort_topologically(before, keys), np.int64)
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    tensors = _order_tensors(problem, position)
    fusions = _fusion_order(problem, position)
    ordered = _take_order(problem.plain, order, position, tensors, fusions)
    conditions = problem.conditions
    if conditions is not None:
        other = conditions.other and _take_order(conditions.other, order, position, tensors, fusions)
        ordered = replace(ordered, conditions=conditions.reorder(order, tensors, other))
    return ordered, order


def _take_order(
    problem: Problem, order: Ints, position: Ints, tensors: Ints, fusions: Sequence[int]
) -> Problem:
    """Return a problem whose units, tensors and fusions are in another order."""
    rank = np.empty(problem.tensors, np.int64)
    rank[tensors] = np.arange(problem.tensors)
    readers = position[problem.consumers]
    start = np.zeros(problem.tensors + 1, np.int64)
    np.cumsum(np.diff(problem.consumer_start)[tensors], out=start[1:])
    return replace(
        problem,
        seconds=problem.seconds[order],
        producer=np.append(position, -1)[problem.producer][tensors],
        consumer_start=start,
        consumers=readers[np.lexsort((readers, rank[problem.consumed]))],
        is_output=problem.is_output[tensors],
        to_device=problem.to_device[tensors],
        to_host=problem.to_host[tensors],
        must=problem.must[order],
        size=problem.size[order],
        memory=problem.memory[order],
        fusions=tuple(_renumber(problem.fusions[number], position) for number in fusions),
    )


def _order_tensors(problem: Problem, position: Ints) -> Ints:
    """Return the tensors sorted by producer, consumers and costs, by the new numbers of units."""
    producer = np.append(position, -1)[problem.producer]
    order = np.argsort(producer, kind="stable")
    starts = np.flatnonzero(np.diff(producer[order], prepend=-2, append=problem.units))

    def describe(tensor: int) -> tuple[object, ...]:
        read = problem.consumers[problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]]
        transfers = [*problem.to_device[tensor].tolist(), *problem.to_host[tensor].tolist()]
        if problem.conditions is not None:
            other, direct = problem.conditions.other, problem.conditions.direct
            transfers += [] if direct is None else direct[tensor].ravel().tolist()
            transfers += other.to_device[tensor].tolist() if other else []
            transfers += other.to_host[tensor].tolist() if other else []
        return sorted(position[read].tolist()), bool(problem.is_output[tensor]), transfers

    for first, last in pairwise(starts.tolist()):
        if last - first > 1:  # most units make one tensor
            order[first:last] = sorted(order[first:last].tolist(), key=describe)
    return order


def restore_order(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Convert a placement of the canonical problem to the original `problem` and its unit order."""
    labels, regions = np.empty_like(placement.labels), np.empty_like(placement.regions)
    labels[order], regions[order] = placement.labels, placement.regions
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    numbers = _fusion_order(problem, position)
    fusions = tuple(sorted(numbers[number] for number in placement.fusions))
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def reorder_placement(problem: Problem, placement: Placement, order: Ints) -> Placement:
    """Convert a placement of a problem to its canonical order, the inverse of `restore_order`."""
    position = np.empty(problem.units, np.int64)
    position[order] = np.arange(problem.units)
    number_of = {number: new for new, number in enumerate(_fusion_order(problem, position))}
    fusions = tuple(sorted(number_of[number] for number in placement.fusions))
    labels, regions = placement.labels[order], placement.regions[order]
    return replace(placement, labels=labels, regions=regions, fusions=fusions)


def _renumber(fusion: Fusion, position: Ints) -> Fusion:
    return Fusion(tuple(sorted(position[list(fusion.members)].tolist())), fusion.device, fusion.saving)


def _fusion_order(problem: Problem, position: Ints) -> list[int]:
    """Return the numbers of the fusions in canonical order."""
    fusions = [_renumber(fusion, position) for fusion in problem.fusions]
    content = [(fusion.members, fusion.device, fusion.saving) for fusion in fusions]
    return sorted(range(len(content)), key=content.__getitem__)


_MAX_CHARACTERS = 1000  # of a plug-in's note
_MAX_NOTES = 20  # of a plug-in; a thousand would hide the summary
_MAX_MEASURES = 32  # columns that a plug-in may add to the tables of a study


def find_violation(problem: Problem, placement: object) -> str:
    """Return a sentence on the first fault of a strategy's answer to a problem; empty if it is valid."""
    malformed = _find_malformation(problem, placement)
    if malformed or not isinstance(placement, Placement):
        return malformed
    checks = (_check_limits, _check_fusions, _check_cost)
    return next((wrong for check in checks if (wrong := check(problem, placement))), "")


def _find_malformation(problem: Problem, placement: object) -> str:
    """Return a sentence on what makes an answer no placement of the problem, whatever the limits."""
    if not isinstance(placement, Placement):
        return f"it gave a {type(placement).__name__} instead of a Placement"
    # Each check relies on the ones before it.
    checks = (_check_types, _check_measures, _check_arrays, _check_labels, _check_regions)
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


def _check_measures(_: Problem, placement: Placement) -> str:
    measures: object = placement.measures
    if not isinstance(measures, Mapping) or len(measures) > _MAX_MEASURES:
        return f"its measures are not a mapping of at most {_MAX_MEASURES} numbers"
    for name, value in measures.items():
        if not (isinstance(name, str) and name.isidentifier() and name.isascii() and len(name) <= 40):
            return "the name of one of its measures is not that of a variable"
        if not (_is_number(value) and math.isfinite(value)):
            return f"its measure {name} is not a finite number"
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
    # Contention and weights can make a makespan longer than all costs together.
    is_bounded = problem.conditions is None or placement.measure is Measure.total
    if placement.bound is not None and is_bounded and placement.bound > total:
        return f"its bound {placement.bound:g} s is above its own total {total:g} s"
    return ""


def solve_problem(
    problem: Problem,
    strategy: Strategy,
    names: Sequence[str],
    describe: Callable[[BaseException], str] = describe_error,
) -> Placement:
    """Return a strategy's placement, checked, and independent of the order of units and tensors.

    `names` are distinct names of the units; they define the canonical order, and error messages use
    them. The notes of the placement include a sentence on each requirement that the strategy ignores.
    Where the answer of a `repairable` strategy breaks a limit, the nearest placement that keeps all is
    taken, and a note says so. Raises InputError if the strategy fails, in the words of `describe`, or if
    its placement is invalid or breaks a limit.
    """
    name = strategy_display_name(strategy)
    ordered, order = order_canonically(problem, names)
    ignored = describe_ignored(strategy, ordered)
    placement = _repair_placement(ordered, strategy, run_strategy(strategy, ordered, describe))
    wrong = find_violation(ordered, placement)
    if wrong or not isinstance(placement, Placement):
        in_order = [names[unit] for unit in order.tolist()]
        sentence = re.sub(r"\bunit (\d+)", lambda found: f"unit '{in_order[int(found[1])]}'", wrong)
        # A cost that the strategy ignores cannot be the reason.
        reasons = "; ".join(describe_ignored(strategy, ordered, {LAUNCH, FUSIONS}))
        raise InputError(f"strategy {name}: {sentence}" + (f" ({reasons})" if reasons else ""))
    placement = normalize_placement(ordered, placement)
    notes = (*placement.notes, *(f"strategy {name}: {sentence}" for sentence in ignored))
    return replace(restore_order(problem, placement, order), notes=tuple(dict.fromkeys(notes)))


# Seconds of an ordinary computer, counted by steps: the time limit that other searches have by default.
_NEAREST_SECONDS = 10.0


def _repair_placement(problem: Problem, strategy: Strategy, placement: object) -> object:
    """Return the nearest placement that keeps the limits, if a strategy asks for it and one is found."""
    if not getattr(strategy, "repairable", False) or _find_malformation(problem, placement):
        return placement
    assert isinstance(placement, Placement)
    if not _check_limits(problem, placement):
        return placement
    try:
        nearest = find_nearest_placement(problem, placement.labels, SearchBudget(_NEAREST_SECONDS))
    except NoPlacementError as error:
        raise InputError(f"strategy {strategy_display_name(strategy)}: {error}") from error
    if nearest is None:
        return placement
    moved = int(np.count_nonzero(nearest.labels != placement.labels))
    units = "1 unit was" if moved == 1 else f"{moved} units were"
    note = f"{units} moved from where it placed them, to keep the limits"
    return replace(nearest, notes=(*placement.notes, note), why_host=placement.why_host)


def run_strategy(
    strategy: Strategy, problem: Problem, describe: Callable[[BaseException], str] = describe_error
) -> object:
    """Return a strategy's answer to a problem, unchecked (see `find_violation`).

    The strategy gets a read-only copy, so that it cannot change `problem`. Raises InputError if it
    fails; an attempt to exit the program is a failure too. `describe` formats what it raised; rooms that
    know of plug-ins add the file and line.
    """
    if problem.conditions is not None and problem.conditions.reload is not None:
        return _solve_with_reloads(problem, strategy, describe)
    try:
        found = strategy.solve(_read_only_copy(problem))
    except BaseException as error:  # a plug-in can fail in any way
        if isinstance(error, NoPlacementError):
            raise InputError(f"strategy {strategy_display_name(strategy)}: {error}") from error
        if must_propagate(error):
            raise
        raise InputError(
            f"strategy {strategy_display_name(strategy)}: failed with {describe(error)}"
        ) from error
    if isinstance(found, Placement) and problem.conditions is not None:
        honours: Any = getattr(strategy, "honours", frozenset())
        if problem.conditions.direct is not None and DIRECT_LINKS not in honours:
            return replace(found, bound=None)  # of the problem without these links
    return found


# Prices of a byte that are tried between 0 and what loading it costs.
_PRICES = 4


def _solve_with_reloads(
    problem: Problem, strategy: Strategy, describe: Callable[[BaseException], str]
) -> Placement:
    """Return the best placement of a problem in which weights beyond a capacity are loaded anew.

    The strategy solves problems in which each byte of weights has a price and there is no capacity. For
    any price, the least cost less what the capacity would cost at it is a lower bound of all sums of
    costs. Where memory is more than full even if all bytes cost what loading them does, that placement
    is as good as its bound. Raises InputError as `run_strategy`, and for an answer that is not valid.
    """
    conditions, memories = problem.conditions, list_reloading(problem)
    assert conditions is not None
    assert conditions.reload is not None
    room = np.array([capacity for _, capacity in memories])
    dearest = np.array([conditions.reload[devices].max() for devices, _ in memories])
    answers: list[Placement] = []
    bounds: list[float] = []

    def attempt(prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add the answer at prices of a byte; return the bytes of each memory that are beyond it."""
        priced = price_reloads(problem, prices)
        found = _repair_placement(priced, strategy, run_strategy(strategy, priced, describe))
        wrong = find_violation(priced, found)
        if wrong or not isinstance(found, Placement):
            raise InputError(f"strategy {strategy_display_name(strategy)}: {wrong}")
        is_sum = found.measure is Measure.total
        if found.bound is not None and (not prices.any() or (is_sum and np.isfinite(prices).all())):
            bounds.append(
                found.bound * (1 - _ROUNDING) - (float(prices @ room) if prices.any() else 0.0)
            )
        answers.append(_measure_with_reloads(problem, found))
        taken = [
            math.fsum(problem.memory[found.labels == 1 + each, each].sum() for each in devices)
            for devices, _ in memories
        ]
        beyond: NDArray[np.float64] = np.array(taken) - room
        return beyond

    has_rates = conditions.has_rates  # kept at prices of a byte that are no less than what it costs
    if has_rates or (attempt(np.zeros(len(memories))) > 0).any():
        left = attempt(dearest) < 0
        if left.any():
            with suppress(InputError):  # there may be none within the capacities
                attempt(np.where(left, math.inf, dearest))
        low, high = np.where(left, 0.0, dearest), dearest
        for _ in range(_PRICES if left.any() and not has_rates else 0):
            middle = (low + high) / 2
            beyond = attempt(middle) > 0
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    best = min(answers, key=lambda each: each.value)
    return replace(best, bound=max(0.0, min(max(bounds), best.value)) if bounds else None)


# More than the rounding errors of a sum of one cost per unit.
_ROUNDING = 2.0**-36


def _measure_with_reloads(problem: Problem, placement: Placement) -> Placement:
    """Return a placement with what it costs where weights beyond a capacity are loaded anew."""
    from byoc.placement.strategies import measure_placement  # noqa: PLC0415 - strategies import this

    labels, fixed = placement.labels, fix_reloads(problem, placement.labels)
    cost = evaluate(fixed, labels, placement.regions, tuple(placement.fusions))
    found = measure_placement(fixed, replace(placement, cost=cost), placement.measure)
    if found.measure is Measure.total:
        return found
    # Figures in the strategy's notes are those of a problem in which bytes have prices.
    return replace(found, notes=(f"things are done side by side: {found.value:.4g} s",))


def normalize_placement(problem: Problem, placement: Placement) -> Placement:
    """Normalise a checked placement: recompute its cost, shorten long sentences, copy its arrays."""
    labels, regions = np.array(placement.labels), np.array(placement.regions)
    fusions = tuple(int(number) for number in placement.fusions)
    return replace(
        placement,
        labels=labels,
        regions=regions,
        cost=evaluate(problem, labels, regions, fusions),
        bound=None if placement.bound is None else float(placement.bound),
        notes=tuple(shorten_text(note, _MAX_CHARACTERS) for note in placement.notes[:_MAX_NOTES]),
        why_host=shorten_text(placement.why_host, _MAX_CHARACTERS),
        fusions=fusions,
        measures={str(name): float(value) for name, value in placement.measures.items()},
    )


def _read_only_copy(problem: Problem) -> Problem:
    """Return a deep copy of a problem with read-only arrays."""
    own = {field.name: getattr(problem, field.name) for field in fields(problem)}
    copies: dict[str, Any] = {
        name: array.copy() for name, array in own.items() if isinstance(array, np.ndarray)
    }
    for array in copies.values():
        array.setflags(write=False)
    conditions = problem.conditions
    if conditions is not None and conditions.other is not None:
        conditions = replace(conditions, other=_read_only_copy(conditions.other))
    fusions = tuple(replace(fusion) for fusion in problem.fusions)
    return replace(problem, **copies, fusions=fusions, conditions=conditions)
