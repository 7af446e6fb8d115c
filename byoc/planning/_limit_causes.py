"""The hard limits of rule files that keep supported units on the host: needs, and what is allowed.

A strategy says of a unit that it is on the host, and not by which limit. So a graph is placed again
without the limits, then without each of them, and what moves to an accelerator then is told to be held
back by that one. Nothing is placed again where all that is supported is on accelerators, or where there
are no limits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byoc.errors import Cause, CauseKind, InputError
from byoc.placement import Strategy, limit_time
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._memory_fit import measure_memory
from byoc.planning._plan_settings import PlanSettings
from byoc.rules import Target

LIMITS = ("memory", "min_nodes", "max_nodes", "regions")
"""The keys of `limits` in a rule file that hold for placements; `batch` holds for nodes."""

_PREFIX = "limits."
# Counted seconds of a search, of which there may be one for each limit and for each action.
_MOST_SECONDS = 1.0
# More than any accelerator has; without a limit bytes would not be counted.
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit that a target's rule file sets."""

    target: str
    key: str


def shorten_search(strategy: Strategy) -> Strategy:
    """Return a strategy for plans that only explain another: one that counts time takes a second."""
    limit = getattr(strategy, "time_limit", None)
    if not isinstance(limit, (int, float)) or limit <= _MOST_SECONDS:
        return strategy
    return limit_time(strategy, _MOST_SECONDS)


def drop_limits(target: Target, keys: Sequence[str]) -> Target:
    """Return a target without some of its limits; of memory it then has more than any model needs."""
    free = {key: _MOST_BYTES if key == "memory" else None for key in keys}
    limits = target.rules.limits.model_copy(update=free)
    return replace(target, rules=target.rules.model_copy(update={"limits": limits}))


def explain_limits(
    plan: GraphPlan, settings: PlanSettings, place: Callable[[PlanSettings], GraphPlan]
) -> Mapping[int, tuple[Cause, ...]]:
    """Return the limits that keep units of a plan on the host, by the number of the unit.

    `place` places the graph with other settings. Where no limit alone does it, there are all that are
    set.
    """
    limits = [
        _Limit(target.name, key)
        for target in settings.targets
        for key in LIMITS
        if getattr(target.rules.limits, key) is not None
    ]
    held = _find_held(plan) if limits else frozenset[int]()
    if not held:
        return {}
    free = _place_without(limits, settings, place)
    left = held - (held if free is None else _find_held(free))
    if free is None or not left:
        return {}
    found: dict[int, tuple[Cause, ...]] = {}
    for limit in limits if len(limits) > 1 else ():
        other = _place_without([limit], settings, place)
        if other is not None:
            rows = left - _find_held(other) - found.keys()
            found |= dict.fromkeys(rows, (_make_cause(limit, settings, other),))
    together = tuple(_make_cause(limit, settings, free) for limit in limits)
    return dict.fromkeys(left - found.keys(), together) | found


def _find_held(plan: GraphPlan) -> frozenset[int]:
    """Return the units on the host that limits alone may keep off an accelerator."""
    rows = set(np.flatnonzero(plan.placement.labels == 0).tolist()) - plan.pins.keys()
    return frozenset(row for row in rows if any(_may_be_on(plan, row)))


def _may_be_on(plan: GraphPlan, row: int) -> Iterator[bool]:
    """Yield for each accelerator whether limits alone may keep a unit off it."""
    for verdict, kept in zip(plan.units[row].verdicts, plan.graph_problem.kept_on_host, strict=True):
        yield bool(verdict) and (row not in kept or kept[row].kind is CauseKind.LIMIT)


def _place_without(
    limits: Sequence[_Limit], settings: PlanSettings, place: Callable[[PlanSettings], GraphPlan]
) -> GraphPlan | None:
    """Return the plan without some limits, None where the strategy finds none."""
    targets = tuple(
        drop_limits(target, [limit.key for limit in limits if limit.target == target.name])
        for target in settings.targets
    )
    try:
        strategy = shorten_search(settings.strategy)
        free = replace(settings, targets=targets, strategy=strategy, doubt=None, names_limits=False)
        return place(free)
    except InputError:  # of a strategy that fails without limits nothing is told
        return None


def _make_cause(limit: _Limit, settings: PlanSettings, free: GraphPlan) -> Cause:
    """Return a limit as a cause, with what the plan without it needs."""
    number = [target.name for target in settings.targets].index(limit.target)
    allowed = getattr(settings.targets[number].rules.limits, limit.key)
    need = measure_need(limit.key, [free], number)
    sentences = {
        "memory": f"{limit.target} would need {need} bytes, and has {allowed}",
        "min_nodes": f"its region would have {need} nodes, and {allowed} are the fewest",
        "max_nodes": f"its region would have {need} nodes, and {allowed} are the most",
        "regions": f"{limit.target} would have {need} regions, and {allowed} are the most",
    }
    return Cause(
        CauseKind.LIMIT,
        f"{_PREFIX}{limit.key}: {sentences[limit.key]}",
        constraint=f"{_PREFIX}{limit.key}",
        value=str(need),
        allowed=str(allowed),
        target=limit.target if len(settings.targets) > 1 else "",
    )


def measure_need(key: str, graphs: Sequence[GraphPlan], number: int) -> int:
    """Return the need of placed graphs for a limit on an accelerator, by its place in the targets.

    That is the bytes of all constants and the largest arena, the nodes of the smallest or of the largest
    region, or the number of regions.
    """
    if key == "memory":
        each = [measure_memory(graph, number + 1) for graph in graphs]
        return int(sum(constants for constants, _ in each) + max(arena for _, arena in each))
    target = graphs[0].targets[number].name
    sizes = [
        len(region.nodes) for graph in graphs for region in graph.regions if region.target.name == target
    ]
    if key == "regions":
        return len(sizes)
    return (min if key == "min_nodes" else max)(sizes, default=0)
