"""Asking a strategy, which may be anybody's code: what it can touch, and what of its answer counts."""

from dataclasses import fields, replace

import numpy as np

from byoc.errors import InputError, described, goes_on, shortened
from byoc.placement.objective import evaluate
from byoc.placement.problem import Problem
from byoc.placement.strategy import Placement, Strategy, called

_MOST_CHARACTERS = 1000
_MOST_NOTES = 20


def answer(strategy: Strategy, problem: Problem) -> object:
    """Return what a strategy says to a problem, unchecked: see `objection`.

    It gets a copy that it cannot write to, and whatever it does to that, `problem` stays as it is.
    Raises InputError where it fails; leaving the program is a failure too.
    """
    try:
        return strategy.solve(_apart(problem))
    except BaseException as error:  # a plug-in can fail in any way; say whose fault it was
        if goes_on(error):
            raise
        raise InputError(f"strategy {called(strategy)}: failed with {described(error)}") from error


def settled(problem: Problem, placement: Placement) -> Placement:
    """Return a placement without objection as it counts: costed anew, long sentences cut."""
    labels, regions = np.array(placement.labels), np.array(placement.regions)
    fusions = tuple(int(number) for number in placement.fusions)
    return replace(
        placement,
        labels=labels,
        regions=regions,
        cost=evaluate(problem, labels, regions, fusions),
        bound=None if placement.bound is None else float(placement.bound),
        notes=tuple(shortened(note, _MOST_CHARACTERS) for note in placement.notes[:_MOST_NOTES]),
        why_host=shortened(placement.why_host, _MOST_CHARACTERS),
        fusions=fusions,
    )


def _apart(problem: Problem) -> Problem:
    """Return a problem that shares nothing with another, its arrays read-only."""
    own = {field.name: getattr(problem, field.name) for field in fields(problem)}
    copies = {name: array.copy() for name, array in own.items() if isinstance(array, np.ndarray)}
    for array in copies.values():
        array.setflags(write=False)
    return replace(problem, **copies, fusions=tuple(replace(fusion) for fusion in problem.fusions))
