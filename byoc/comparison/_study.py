"""The rows of a study: each strategy at each link, for a model that is read and annotated once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import Any

from byoc.costs import (
    CostFile,
    CostModel,
    CostTable,
    Fallback,
    Linear,
    check_trips,
    launch_price,
    transfer_prices,
    with_link,
)
from byoc.errors import ByocError, InputError, describe_error
from byoc.model import Model, unshare_dequantize
from byoc.options import PlanOptions
from byoc.placement import (
    Placement,
    Problem,
    Strategy,
    count_transferred_bytes,
    limit_time,
    strategy_display_name,
)
from byoc.planning import GraphPlan, GraphUnits, PlanSettings, annotate_graphs, group_graphs, plan_graphs
from byoc.reporting import collect_plan_notes
from byoc.stages import load_settings, load_strategy
from byoc.support import declare_field
from byoc.zoo import load_model

_GIGA = 1e9
# More than bounds and costs differ by for adding up in another order, and than `exact` tolerates.
_TOLERANCE = 1e-9

StrategyRow = dict[str, Any]

TOTAL = "total"
MAKESPAN = "makespan"

ROW_KEYS = (
    *("model", "link", "strategy", "measure", "objective", "bound", "gap", "regions", "offloaded"),
    *("bytes_moved", "regret_mean", "regret_worst", "seconds", "notes", "error"),
)
"""The keys of a row.

`link` in GB/s, null for the cost model's own; `measure` is `total` where all costs are added up, and
`makespan` where the strategy has host and accelerators work at once; `objective` and `bound` are by that
measure, in seconds, joules or a weighted sum; `gap` as a share of the objective; `offloaded` as a share
of the compute; `regret_mean` and `regret_worst` what the placement costs over the best one at
perturbed costs (`perturb`), null without; `seconds` that the strategy took; `notes` a list of sentences:
what the strategy said, what it leaves out, guessed costs; `error` a sentence where there was one. A row
that was not solved has nothing but null and no notes beside its error.

A makespan is that of the main graph: everything in the bodies of If, Loop and Scan is added up.
"""


@dataclass(frozen=True, kw_only=True)
class Study(PlanOptions):
    """A comparison of strategies: names only, so that it can be handed to another process."""

    strategies: Sequence[str] = declare_field(
        (), "the strategies' names; fast ones that suit the number of accelerators unless given."
    )
    links: Sequence[float | None] = declare_field(
        (None,), "bandwidths of the link in GB/s, None for the cost model's own."
    )

    def load_settings(self, strategy: str) -> PlanSettings:
        """Return the settings of planning with one of the strategies. Raises InputError."""
        return load_settings(self, strategy, among=self.strategies)

    def load_strategy(self, name: str) -> Strategy:
        """Return one of the strategies, with its options. Raises InputError."""
        chosen = load_strategy(name, self.strategy_options or {}, self.strategies)
        return limit_time(chosen, self.time_limit)


def make_rows(name: str, study: Study) -> list[StrategyRow]:
    """Return the rows of a model; a failure is a row with the reason, and the others go on."""
    try:
        base = study.load_settings(study.strategies[0])
        model = load_model(name, study.dims, study.shapes)
        check_trips(model.index, study.trips or {})
        if any(target.has_quantized_rules for target in base.targets):
            model = unshare_dequantize(model)
        marks = annotate_graphs(model.index, base.targets)
        units = group_graphs(model.index, base.targets, marks)
    except ByocError as error:
        return make_error_rows(name, study, str(error))
    rows: list[StrategyRow] = []
    for link in study.links:
        costs = base.costs if link is None else tuple(with_link(c, link * _GIGA) for c in base.costs)
        settings = replace(base, costs=costs)
        here = [
            _make_row(name, model, study, link, strategy, settings, units)
            for strategy in study.strategies
        ]
        # With bodies a bound may leave out regions in them, where limits are for all graphs together.
        rows += here if model.index.bodies else check_bounds(here)
    return rows


def check_bounds(rows: list[StrategyRow]) -> list[StrategyRow]:
    """Return the rows of a case, with an error where a lower bound is above another's objective."""
    checked = []
    for row in rows:
        same = [r for r in rows if r["objective"] is not None and r["measure"] == row["measure"]]
        best = min(same, key=lambda r: float(r["objective"]), default=row)
        if row["bound"] is not None and row["bound"] > best["objective"] * (1 + _TOLERANCE):
            bound, found = f"{row['bound']:.9g}", f"{best['objective']:.9g}"
            wrong = f"its bound, {bound}, is above what {best['strategy']} found, {found}"
            checked.append(row | {"error": f"{wrong}: one of them is wrong"})
        else:
            checked.append(row)
    return checked


def make_error_rows(name: str, study: Study, reason: str) -> list[StrategyRow]:
    """Return the rows of a model that could not be placed by any strategy."""
    return [
        _empty_row(name, link, strategy) | {"error": " ".join(reason.split())}
        for link in study.links
        for strategy in study.strategies
    ]


def _empty_row(name: str, link: float | None, strategy: str) -> StrategyRow:
    asked = {"model": name, "link": link, "strategy": strategy}
    return {**dict.fromkeys(ROW_KEYS), **asked, "notes": []}


def _make_row(  # noqa: PLR0913, PLR0917 - a model, a link, a strategy, and what they share
    name: str,
    model: Model,
    study: Study,
    link: float | None,
    strategy: str,
    settings: PlanSettings,
    units: Mapping[int, GraphUnits],
) -> StrategyRow:
    row = _empty_row(name, link, strategy)
    try:
        watched = Stopwatch(study.load_strategy(strategy))
        plan = plan_graphs(model.index, replace(settings, strategy=watched), units)
    except ByocError as error:
        return row | {"error": " ".join(str(error).split())}
    except Exception as error:  # a defect must not take the other strategies' rows with it
        return row | {"error": f"failed with {describe_error(error)}"}
    measure, cost = plan.placement.measure.value, plan.placement.value
    bound = plan.placement.bound
    done, total = _count_operations(plan)
    perturbed = plan.perturbed
    return row | {
        "measure": measure,
        "objective": cost,
        "bound": bound,
        "gap": None if bound is None else (cost - bound) / cost if cost else 0.0,
        "regions": sum(len(graph.regions) for graph in plan.walk()),
        "offloaded": done / total if total else 0.0,
        "bytes_moved": sum(
            graph.trips
            * count_transferred_bytes(
                graph.graph_problem.problem, graph.placement.labels, graph.graph_problem.sizes
            )
            for graph in plan.walk()
        ),
        "regret_mean": None if perturbed is None else perturbed.chosen.mean,
        "regret_worst": None if perturbed is None else perturbed.chosen.worst,
        "seconds": watched.seconds,
        "notes": collect_plan_notes(plan),
    }


def _count_operations(plan: GraphPlan) -> tuple[float, float]:
    each = [(graph.trips, *graph.operations) for graph in plan.walk()]
    return sum(t * done for t, done, _ in each), sum(t * total for t, _, total in each)


@dataclass
class Stopwatch:
    """A strategy that adds up the seconds it takes over all graphs of a model."""

    strategy: Strategy
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The strategy's own name."""
        return strategy_display_name(self.strategy)

    @property
    def honours(self) -> frozenset[str]:
        """The features of a problem that the strategy takes into account."""
        return getattr(self.strategy, "honours", frozenset())

    def solve(self, problem: Problem) -> Placement:
        """Solve with the strategy, and add the seconds it takes."""
        start = time.perf_counter()
        try:
            return self.strategy.solve(problem)
        finally:
            self.seconds += time.perf_counter() - start


def check_study(study: Study) -> None:
    """Raise InputError for a study that cannot be carried out for any model."""
    for link in study.links:
        if link is not None and not (isfinite(link) and link > 0):
            raise InputError(f"links: {link:g} is not a number of GB/s above 0")
    for strategy in study.strategies:
        settings = study.load_settings(strategy)
    if not settings.objective.energy:
        return
    names = _find_without_joules(settings)
    if names:
        models = "cost models" if len(names) > 1 else "cost model"
        give = "give" if len(names) > 1 else "gives"
        told = f"{models} {', '.join(names)} {give} no joules"
        raise InputError(f"objective {settings.objective}: {told}")


def _find_without_joules(settings: PlanSettings) -> list[str]:
    """Return the names of the cost models that never give joules."""
    names = [settings.host.name] if _lacks_joules(settings.host) else []
    names += [
        costs.name for costs in settings.costs if _moves_without_joules(costs) or _lacks_joules(costs)
    ]
    return list(dict.fromkeys(names))


def _moves_without_joules(model: CostModel) -> bool:
    return isnan(launch_price(model).joules) or isnan(float(transfer_prices(model, [1])[1][0]))


def _lacks_joules(model: CostModel) -> bool:
    """Return whether a model gives no joules for any operator; a plug-in is taken to give them."""
    if isinstance(model, Fallback):
        return _lacks_joules(model.first) and _lacks_joules(model.second)
    if not isinstance(model, CostFile) or model.energy is not None:
        return False
    if isinstance(model, CostTable):
        return all(entry.joules is None for entry in model.entries)
    if isinstance(model, Linear):
        lines = (*model.operators.values(), model.estimates)
        return all(line is None or line.joules is None for line in lines)
    return True
