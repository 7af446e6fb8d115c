"""Running a strategy, which may be third-party code, and checking its answer."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from byoc.errors import InputError, describe_error, must_propagate, shorten_text
from byoc.placement.canonical import order_canonically, restore_order
from byoc.placement.check import find_violation
from byoc.placement.objective import evaluate
from byoc.placement.problem import Problem
from byoc.placement.strategy import Placement, Strategy, strategy_display_name, describe_ignored

_MOST_CHARACTERS = 1000
_MOST_NOTES = 20


def solve_problem(problem: Problem, strategy: Strategy, names: Sequence[str]) -> Placement:
    """Return a strategy's placement, checked, and independent of the order of units and tensors.

    `names` are distinct names of the units; they define the canonical order, and error messages use
    them. The notes of the placement include a sentence on each requirement that the strategy ignores.
    Raises InputError if the strategy fails, or if its placement is invalid or breaks a limit.
    """
    name = strategy_display_name(strategy)
    ordered, order = order_canonically(problem, names)
    ignored = describe_ignored(strategy, ordered)
    placement = run_strategy(strategy, ordered)
    wrong = find_violation(ordered, placement)
    if wrong or not isinstance(placement, Placement):
        in_order = [names[unit] for unit in order.tolist()]
        sentence = re.sub(r"\bunit (\d+)", lambda found: f"unit '{in_order[int(found[1])]}'", wrong)
        # A cost that the strategy ignores cannot be the reason.
        limits = replace(ordered, launch=np.zeros_like(ordered.launch), fusions=())
        reasons = "; ".join(describe_ignored(strategy, limits))
        raise InputError(f"strategy {name}: {sentence}" + (f" ({reasons})" if reasons else ""))
    placement = normalize_placement(ordered, placement)
    notes = (*placement.notes, *(f"strategy {name}: {sentence}" for sentence in ignored))
    return replace(restore_order(ordered, placement, order), notes=tuple(dict.fromkeys(notes)))


def run_strategy(strategy: Strategy, problem: Problem) -> object:
    """Return a strategy's answer to a problem, unchecked (see `objection`).

    The strategy gets a read-only copy, so that it cannot change `problem`. Raises InputError if it
    fails; an attempt to exit the program is a failure too.
    """
    try:
        return strategy.solve(_read_only_copy(problem))
    except BaseException as error:  # a plug-in can fail in any way
        if must_propagate(error):
            raise
        raise InputError(f"strategy {strategy_display_name(strategy)}: failed with {describe_error(error)}") from error


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
        notes=tuple(shorten_text(note, _MOST_CHARACTERS) for note in placement.notes[:_MOST_NOTES]),
        why_host=shorten_text(placement.why_host, _MOST_CHARACTERS),
        fusions=fusions,
    )


def _read_only_copy(problem: Problem) -> Problem:
    """Return a deep copy of a problem with read-only arrays."""
    own = {field.name: getattr(problem, field.name) for field in fields(problem)}
    copies = {name: array.copy() for name, array in own.items() if isinstance(array, np.ndarray)}
    for array in copies.values():
        array.setflags(write=False)
    return replace(problem, **copies, fusions=tuple(replace(fusion) for fusion in problem.fusions))
