"""The rows of one model: every strategy at every link, the model read and annotated once."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from byoc.costs.link import with_link
from byoc.errors import ByocError
from byoc.graph.load import Model
from byoc.graph.unshare import unshared
from byoc.pipeline import load_model, load_settings
from byoc.placement import Placement, Problem, Strategy, moved
from byoc.plan.data import GraphPlan
from byoc.plan.extract import Units
from byoc.plan.planner import Planner
from byoc.plan.settings import Settings
from byoc.plan.solve import called
from byoc.plugins import STRATEGIES
from byoc.plugins import load as load_plugin

_GIGA = 1e9

Row = dict[str, Any]

KEYS = (
    *("model", "link", "strategy", "objective", "bound", "gap", "regions", "offloaded"),
    *("bytes_moved", "seconds", "error"),
)
"""The keys of a row.

`link` in GB/s, null for the cost model's own; `objective` and `bound` in seconds, joules or a weighted
sum; `gap` as a share of the objective; `offloaded` as a share of the compute; `seconds` that the
strategy took; `error` a sentence where there was one, and then the rest is null.
"""


@dataclass(frozen=True)
class Study:
    """What is compared: names only, so that it can be handed to another process."""

    rules: tuple[str, ...]
    strategies: tuple[str, ...]
    links: tuple[float | None, ...] = (None,)
    objective: str = "latency"
    cost_model: str | Mapping[str, str] | None = None
    host_cost_model: str = "host"
    unknown_costs: str = "estimate"
    dims: Mapping[str, int] = field(default_factory=dict)


def rows_of(name: str, study: Study) -> list[Row]:
    """Return the rows of a model. What fails is a row with the reason, and the rest goes on."""
    try:
        base = load_settings(
            study.rules,
            strategy=study.strategies[0],
            objective=study.objective,
            cost_model=study.cost_model,
            host_cost_model=study.host_cost_model,
            unknown_costs=study.unknown_costs,
        )
        model = load_model(name, study.dims)
        if any(target.quantized for target in base.targets):
            model = unshared(model)
    except ByocError as error:
        return failed(name, study, str(error))
    units: dict[int, Units] = {}
    rows = []
    for link in study.links:
        costs = base.costs if link is None else tuple(with_link(c, link * _GIGA) for c in base.costs)
        for strategy in study.strategies:
            rows.append(_row(name, model, link, strategy, replace(base, costs=costs), units))
    return rows


def failed(name: str, study: Study, reason: str) -> list[Row]:
    """Return the rows of a model that could not be placed at all."""
    return [
        _empty(name, link, strategy) | {"error": " ".join(reason.split())}
        for link in study.links
        for strategy in study.strategies
    ]


def _empty(name: str, link: float | None, strategy: str) -> Row:
    return {**dict.fromkeys(KEYS), "model": name, "link": link, "strategy": strategy}


def _row(  # noqa: PLR0913, PLR0917 - a model, a link, a strategy, and what they share
    name: str,
    model: Model,
    link: float | None,
    strategy: str,
    settings: Settings,
    units: dict[int, Units],
) -> Row:
    row = _empty(name, link, strategy)
    try:
        watched = Stopwatch(load_plugin(STRATEGIES, strategy))
        plan = Planner(replace(settings, strategy=watched), units=units).plan(model.index)
    except ByocError as error:
        return row | {"error": " ".join(str(error).split())}
    cost, bound = plan.placement.cost.total, plan.placement.bound
    done, total = _operations(plan)
    return row | {
        "objective": cost,
        "bound": bound,
        "gap": None if bound is None else (cost - bound) / cost if cost else 0.0,
        "regions": sum(len(graph.regions) for graph in plan.walk()),
        "offloaded": done / total if total else 0.0,
        "bytes_moved": sum(
            graph.trips * moved(graph.posed.problem, graph.placement.labels, graph.posed.sizes)
            for graph in plan.walk()
        ),
        "seconds": watched.seconds,
    }


def _operations(plan: GraphPlan) -> tuple[float, float]:
    each = [(graph.trips, *graph.operations) for graph in plan.walk()]
    return sum(t * done for t, done, _ in each), sum(t * total for t, _, total in each)


@dataclass
class Stopwatch:
    """A strategy that counts the seconds it takes, over all graphs of a model."""

    strategy: Strategy
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The strategy's own name."""
        return called(self.strategy)

    @property
    def honours(self) -> frozenset[str]:
        """What the strategy takes into account."""
        return getattr(self.strategy, "honours", frozenset())

    def solve(self, problem: Problem) -> Placement:
        """Return what the strategy gives."""
        start = time.perf_counter()
        try:
            return self.strategy.solve(problem)
        finally:
            self.seconds += time.perf_counter() - start
