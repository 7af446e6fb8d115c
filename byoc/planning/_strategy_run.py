"""Solving a problem by a strategy, which may be anybody's code; its placement is checked."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.errors import InputError
from byoc.model import GraphIndex
from byoc.patterns import NodeGroup
from byoc.placement import (
    Placement,
    Problem,
    Strategy,
    describe_ignored,
    find_violation,
    normalize_placement,
    order_canonically,
    restore_order,
    run_strategy,
    strategy_display_name,
)


def run_strategy(strategy: Strategy, problem: Problem, keys: Sequence[str]) -> Placement:
    """Return a strategy's placement of a problem, the same whatever the order of its units.

    `keys` name the units, distinct. What the strategy does not take into account is among the notes.
    Raises InputError when it fails, or its placement breaks what must hold.
    """
    name = strategy_display_name(strategy)
    ordered, order = order_canonically(problem, keys)
    ignored = describe_ignored(strategy, ordered)
    placement = run_strategy(strategy, ordered)
    wrong = find_violation(ordered, placement)
    if wrong or not isinstance(placement, Placement):
        limits = replace(ordered, launch=np.zeros_like(ordered.launch), fusions=())
        untold = describe_ignored(strategy, limits)  # a cost that it ignores breaks nothing
        because = f" ({'; '.join(untold)})" if untold else ""
        names = [keys[unit] for unit in order.tolist()]
        raise InputError(f"strategy {name}: {_name_units_in(wrong, names)}{because}")
    told = [f"strategy {name}: {sentence}" for sentence in ignored]
    placement = normalize_placement(ordered, placement)
    notes = tuple(dict.fromkeys((*placement.notes, *told)))
    return replace(restore_order(ordered, placement, order), notes=notes)


def _name_units_in(sentence: str, names: Sequence[str]) -> str:
    """Return a sentence on `unit 3` with that unit's name: its number says nothing to a user."""
    return re.sub(r"\bunit (\d+)", lambda found: f"unit '{names[int(found[1])]}'", sentence)


def name_units(index: GraphIndex, units: Sequence[NodeGroup]) -> list[str]:
    """Return a distinct name for each unit that does not depend on the order of the nodes."""
    names = []
    for unit in units:
        made = (name for node in reversed(unit.nodes) for name in index.nodes[node].output if name)
        names.append(next(made, f"\0{unit.nodes[0]}"))  # no tensor is called so
    return names
