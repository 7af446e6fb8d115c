"""Solving cases: models are read and annotated once for all cases of a process that share them."""

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from byoc.comparison._content_digests import digest_model, digest_settings
from byoc.comparison._joule_check import check_joules
from byoc.comparison._study_case import StudyCase
from byoc.costs import with_link
from byoc.errors import ByocError, InputError, describe_error
from byoc.model import GraphIndex
from byoc.placement import Placement, Problem, Strategy, count_transferred_bytes, strategy_display_name
from byoc.planning import GraphPlan, GraphUnits, PlanSettings, load_units, plan_graphs
from byoc.reporting import collect_plan_notes
from byoc.rules import Target
from byoc.stages import load_settings
from byoc.support import validate_content

Outcome = dict[str, Any]
"""The result of a case, as plain JSON: `status`, and the columns of its row that solving gives."""

OK, REFUSED, TIMED_OUT, CRASHED, FAILED = "ok", "refused", "timed out", "crashed", "failed"
"""The statuses: solved; refused with a sentence; stopped by the clock; the process died; a defect."""
STATUSES = (OK, REFUSED, TIMED_OUT, CRASHED, FAILED)

_GIGA = 1e9
_MODELS, _SETTINGS = 3, 64

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _PreparedModel:
    """A model's graphs and units."""

    index: GraphIndex
    units: Mapping[int, GraphUnits]
    digest: str


@dataclass
class _RecentResults(Generic[T]):
    """A cache of the results, or errors, of the last `most` distinct calls."""

    most: int
    _kept: "OrderedDict[str, T | ByocError]" = field(default_factory=OrderedDict)

    def find(self, key: str, make: Callable[[], T]) -> T:
        """Return the result kept under a key, or make it. A kept error is raised again."""
        if key not in self._kept:
            while len(self._kept) >= self.most:  # before, so that two large models need not fit
                self._kept.popitem(last=False)
            try:
                self._kept[key] = make()
            except ByocError as error:
                self._kept[key] = error
        self._kept.move_to_end(key)
        found = self._kept[key]
        if isinstance(found, ByocError):
            raise found.with_traceback(None)
        return found


@dataclass
class CaseSolver:
    """Solves cases one by one; models and settings that the next cases share are kept."""

    _models: _RecentResults[_PreparedModel] = field(default_factory=lambda: _RecentResults(_MODELS))
    _settings: _RecentResults[PlanSettings] = field(default_factory=lambda: _RecentResults(_SETTINGS))

    def solve(self, case: StudyCase) -> Outcome:
        """Return the outcome of a case; an error is an outcome, too, and never raised."""
        start = time.perf_counter()
        try:
            outcome = self._solve(case)
        except ByocError as error:
            outcome = make_failure(REFUSED, " ".join(str(error).split()))
        except MemoryError:
            outcome = make_failure(FAILED, "there is not enough memory for it")
        except Exception as error:  # a defect must not take the other cases with it
            outcome = make_failure(FAILED, f"failed with {describe_error(error)}")
        return outcome | {"case_seconds": time.perf_counter() - start}

    def _solve(self, case: StudyCase) -> Outcome:
        loaded = self.load_settings(case)
        model = self._models.find(case.preparation_key, lambda: _prepare_model(case, loaded))
        _compare_digests(case, {**digest_settings(loaded), "model": model.digest})
        settings = restrict_settings(case, loaded)
        watched = Stopwatch(settings.strategy)
        plan = plan_graphs(model.index, replace(settings, strategy=watched), model.units)
        return describe_plan(plan, settings) | {"solver_seconds": watched.seconds}

    def load_settings(self, case: StudyCase) -> PlanSettings:
        """Return the settings of a case, without its limits and its link. Raises InputError."""
        options = case.options
        key = json.dumps([repr(options), case.strategy, dict(case.parameters)], sort_keys=True)
        return self._settings.find(
            key, lambda: load_settings(options, case.strategy, parameters=case.parameters)
        )


def _prepare_model(case: StudyCase, settings: PlanSettings) -> _PreparedModel:
    planning = case.planning
    digest = digest_model(case.model_path)
    dims, shapes, trips = (planning.get(name) for name in ("dims", "shapes", "trips"))
    left_out = planning.get("no_passes", ())
    model, units = load_units(case.model_path, settings.targets, dims, shapes, trips, left_out)
    return _PreparedModel(model.index, units, digest)


def _compare_digests(case: StudyCase, found: Mapping[str, str]) -> None:
    """Raise InputError where a file is another one than the study was begun with."""
    for what, digest in case.digests.items():
        if what in found and found[what] != digest:
            raise InputError(
                f"{what}: not as they were when the study was begun, or on the machine that began it"
            )


def restrict_settings(case: StudyCase, settings: PlanSettings) -> PlanSettings:
    """Return settings with the link and the limits of a case. Raises InputError for wrong limits."""
    check_joules(settings)
    costs = settings.costs
    if case.link is not None:
        costs = tuple(with_link(each, case.link * _GIGA) for each in costs)
    targets = tuple(_limit_target(target, case.limits) for target in settings.targets)
    return replace(settings, costs=costs, targets=targets)


def _limit_target(target: Target, given: Mapping[str, Any]) -> Target:
    """Return a target with other limits than its rule file states."""
    if not given:
        return target
    limits = target.rules.limits
    content = limits.model_dump(exclude_unset=True) | dict(given)
    changed, problems = validate_content(content, type(limits))
    if changed is None:
        raise InputError(*(f"limits: {problem}" for problem in problems))
    return replace(target, rules=target.rules.model_copy(update={"limits": changed}))


def make_failure(status: str, reason: str) -> Outcome:
    """Return the outcome of a case that was not solved."""
    return {"status": status, "reason": reason}


def describe_plan(plan: GraphPlan, settings: PlanSettings) -> Outcome:
    """Return the outcome of a case that was solved: the numbers of its plan, for one run of the model.

    `comparable` says that the bound holds for all placements of the problem. It may not where regions
    in bodies are limited together with those outside, and this plan has none in bodies for that.
    """
    graphs = list(plan.walk())
    cost, (done, total) = plan.whole_cost, plan.offloaded_operations
    limits = [target.rules.limits for target in settings.targets]
    is_limited = any(limit.regions is not None or limit.memory is not None for limit in limits)
    perturbed = plan.perturbed
    return {
        "status": OK,
        "measure": plan.placement.measure.value,
        "value": float(plan.placement.value),
        "bound": plan.placement.bound,
        "comparable": not (plan.index.bodies and is_limited) or bool(plan.bodies),
        "seconds": cost.total,
        "execution_seconds": cost.execution,
        "transfer_seconds": cost.transfer,
        "launch_seconds": cost.launch,
        "host_only_seconds": plan.host_only,
        "joules": None if plan.joules is None or math.isnan(plan.joules) else plan.joules,
        "regions": sum(len(graph.regions) for graph in graphs),
        "offloaded": done / total if total else 0.0,
        "bytes_moved": float(sum(graph.trips * _count_moved(graph) for graph in graphs)),
        "constant_bytes": sum(_count_constant_bytes(graph) for graph in graphs),
        "regret_mean": None if perturbed is None else perturbed.chosen.mean,
        "regret_worst": None if perturbed is None else perturbed.chosen.worst,
        "notes": collect_plan_notes(plan),
        "measures": dict(plan.placement.measures),
    }


def _count_moved(graph: GraphPlan) -> int:
    problem = graph.graph_problem
    return count_transferred_bytes(problem.problem, graph.placement.labels, problem.sizes)


def _count_constant_bytes(graph: GraphPlan) -> int:
    """Return the bytes of constants that accelerators hold, each once for each accelerator."""
    index, held = graph.index, set[tuple[int, str]]()
    for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True):
        if label:
            held.update((label, name) for node in unit.nodes for name in index.reads[node])
    sizes = (index.types.get(name) for _, name in held if index.is_constant(name))
    return sum(int(kind.bytes or 0) for kind in sizes if kind is not None)


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
