"""Solving cases of a study: models are read once; digests of what a case depends on."""

import inspect
import json
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnx
from pydantic import BaseModel

from byoc._dataclasses import asdict, dataclass, field, is_dataclass, replace
from byoc.comparison._measured_costs import describe_machine
from byoc.comparison._study_file import StudyCase
from byoc.costs import (
    CostFile,
    CostModel,
    CostTable,
    Fallback,
    Linear,
    price_launch,
    transfer_prices,
    with_link,
)
from byoc.errors import ByocError, InputError, describe_error
from byoc.model import GraphIndex, find_external_data, name_nodes, read_model_file, walk_tensors
from byoc.pipeline import is_worth_sizes, load_settings, wants_sizes
from byoc.placement import Placement, Problem, Strategy, count_transferred_bytes, strategy_display_name
from byoc.planning import (
    GraphPlan,
    GraphUnits,
    PlanSettings,
    find_sizes,
    format_placement,
    format_problem,
    load_units,
    name_units,
    plan_graphs,
    read_placement,
)
from byoc.reporting import collect_plan_notes
from byoc.rules import Target
from byoc.support import validate_content, write_text
from byoc.zoo import ZOO, find_path, list_entries

# Digests of what a case is computed from: the model, the rules, the costs, the strategy's code.

_DIGITS = 16  # of a SHA-256 in hexadecimal: 64 bits


@lru_cache(maxsize=1)
def list_versions() -> dict[str, str]:
    """Return the versions that results depend on, by distribution."""
    return {name: version(name) for name in ("onnx-byoc", "onnx", "numpy", "scipy")}


def describe_run() -> dict[str, str]:
    """Return the machine, the time and the versions by which a case is solved, as columns of its row."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_describe_installation()}


@lru_cache(maxsize=1)
def _describe_installation() -> dict[str, str]:
    machine = describe_machine()
    versions = list_versions() | machine.versions
    cores = f"{machine.cores} {'core' if machine.cores == 1 else 'cores'}"
    named = {name: versions.get(name, "") for name in ("onnx", "onnxruntime", "scipy")}
    return {
        "machine": ", ".join(filter(None, (machine.cpu, cores, machine.os))),
        "byoc_version": versions["onnx-byoc"],
        **{f"{name}_version": found for name, found in named.items()},
    }


def digest_versions() -> str:
    """Return the digest of the versions that results depend on."""
    return _digest_text(json.dumps(list_versions()))


def digest_model(source: str) -> str:
    """Return the digest of a model: of its file and the files of its weights.

    That of a model of the zoo that has no file is of its name, its source and the versions of `byoc` and
    `onnx`, which decide what it is. Raises InputError when there is no such model.
    """
    if not source.startswith(ZOO):
        return _digest_file(Path(source))
    name = source.removeprefix(ZOO)
    path = find_path(name)
    if path is not None:
        return _digest_file(path)
    entry = next(entry for entry in list_entries() if entry.name == name)
    made = [name, entry.source, *(list_versions()[each] for each in ("onnx-byoc", "onnx"))]
    return _digest_text("\n".join(made))


def digest_settings(settings: PlanSettings) -> dict[str, str]:
    """Return the digests of the rules, the costs, and the strategy of settings.

    Files are read with all that they extend. A plug-in's digest is of its options and the source
    of its module, so that another version of it is another strategy.
    """
    rules = [target.rules.model_dump_json() for target in settings.targets]
    costs = [_describe_costs(each) for each in (*settings.costs, settings.host)]
    return {
        "rules": _digest_text("\n".join(rules)),
        "costs": _digest_text("\n".join(costs)),
        "strategy": _digest_text(_describe_plugin(settings.strategy)),
    }


def _digest_text(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]


def _digest_file(path: Path) -> str:
    """Return the digest of a model file, which may be large, and of the files with its weights."""
    try:
        with path.open("rb") as file:
            digests = [file_digest(file, "sha256").hexdigest()]
        for other in sorted(_find_weight_files(path)):
            with other.open("rb") as file:
                digests.append(f"{other.name} {file_digest(file, 'sha256').hexdigest()}")
    except (OSError, ValueError) as error:  # as reading it says
        read_model_file(path)
        raise InputError(f"{path}: cannot be read: {error}") from None
    return digests[0][:_DIGITS] if len(digests) == 1 else _digest_text("\n".join(digests))


def _find_weight_files(path: Path) -> set[Path]:
    found: set[Path] = set()
    if not any(other != path for other in path.parent.iterdir()):
        return found
    proto = read_model_file(path)
    known: dict[str, Path] = {}
    for tensor in walk_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            find_external_data(tensor, path.parent, known)
    return set(known.values())


def _describe_costs(model: CostModel) -> str:
    if isinstance(model, Fallback):
        return f"{_describe_costs(model.first)} else {_describe_costs(model.second)}"
    if isinstance(model, BaseModel):
        return f"{type(model).__name__} {model.model_dump_json()}"
    return _describe_plugin(model)


def _describe_plugin(plugin: Any) -> str:
    """Return the type, the source of its module, and the options of a plug-in."""
    kind = type(plugin)
    options = asdict(plugin) if is_dataclass(plugin) and not isinstance(plugin, type) else {}
    described = _describe_value(options)
    return "\n".join((f"{kind.__module__}.{kind.__qualname__}", *_list_sources(kind), described))


def _describe_value(value: Any) -> str:
    """Return a value as text that is the same in every process, whatever order its sets have there."""
    match value:
        case dict():
            pairs = (f"{key!r}: {_describe_value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_describe_value, value))}]"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(_describe_value, value)))})"
    return repr(value)


def _list_sources(kind: type) -> Iterator[str]:
    """Yield the source of the module of a class that is not byoc's, whose version says what it is."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__.partition(".")[0] == "byoc":
        return
    try:
        yield inspect.getsource(module)
    except (OSError, TypeError):  # a module without source, or from the prompt
        return


# Check of cost models against an objective with joules in it.


def check_joules(settings: PlanSettings) -> None:
    """Raise InputError where the objective counts joules and a cost model never gives any."""
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
    return math.isnan(price_launch(model).joules) or math.isnan(float(transfer_prices(model, [1])[1][0]))


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


Outcome = dict[str, Any]
"""The result of a case, as plain JSON: `status`, and the columns of its row that solving gives."""

OK, REFUSED, TIMED_OUT, CRASHED, FAILED = "ok", "refused", "timed out", "crashed", "failed"
"""The statuses: solved; refused with a sentence; stopped by the clock; the process died; a defect."""
STATUSES = (OK, REFUSED, TIMED_OUT, CRASHED, FAILED)

_GIGA = 1e9  # a study gives links in GB/s
_MODELS, _SETTINGS = 3, 64

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _PreparedModel:
    """A model's graphs and units; `sizes` are those that may be chosen where the case gives none."""

    index: GraphIndex
    units: Mapping[int, GraphUnits]
    digest: str
    sizes: Mapping[str, int]


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
        return outcome | {"case_seconds": time.perf_counter() - start, **describe_run()}

    def _solve(self, case: StudyCase) -> Outcome:
        loaded = self.load_settings(case)
        model = self._find_model(case, loaded)
        _compare_digests(case, {**digest_settings(loaded), "model": model.digest})
        settings = restrict_settings(case, loaded)
        watched = Stopwatch(settings.strategy)
        timed = replace(settings, strategy=watched, names_limits=False)
        if case.placement:
            return _price_saved(case, model, timed)
        plan = plan_graphs(model.index, timed, model.units)
        notes = []
        if model.sizes and wants_sizes(plan):
            with suppress(InputError):  # the model cannot have these sizes, and stays open
                fixed = self._find_model(_fix_sizes(case, model.sizes), loaded)
                other = plan_graphs(fixed.index, timed, fixed.units)
                if is_worth_sizes(other, plan):
                    sizes = ", ".join(f"{name} = {size}" for name, size in model.sizes.items())
                    plan, notes = other, [f"planned for {sizes}, as partition does"]
        found = describe_plan(plan, settings)
        if case.save:
            _save_plan(case, plan, settings)
        return found | {"notes": [*notes, *found["notes"]], "solver_seconds": watched.seconds}

    def _find_model(self, case: StudyCase, settings: PlanSettings) -> _PreparedModel:
        """Return the model of a case with its units, made once for the cases that share them."""
        return self._models.find(case.preparation_key, lambda: _prepare_model(case, settings))

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
    sizes = {} if dims or shapes else find_sizes(model, settings.state)
    return _PreparedModel(model.index, units, digest, sizes)


def _price_saved(case: StudyCase, model: _PreparedModel, settings: PlanSettings) -> Outcome:
    """Return the outcome of a saved placement at the costs of a case; nothing is proved or searched."""
    saved = read_placement(Path(case.placement))
    pins = saved.resolve(model.index, [target.name for target in settings.targets])
    found = describe_plan(plan_graphs(model.index, settings, model.units, pins), settings)
    notes = list(dict.fromkeys([*found["notes"], *pins.notes]))
    return found | {"bound": None, "notes": notes, "measures": {}}


def _save_plan(case: StudyCase, plan: GraphPlan, settings: PlanSettings) -> None:
    """Write a case with its problem, for `byoc place`, and its placement, for `byoc partition`.

    The case is last: where it is, the others are whole. Raises InputError where that is not possible.
    """
    names, units = name_nodes(plan.index, ""), plan.units
    problem = format_problem(
        plan.graph_problem.problem,
        case.model,
        str(settings.objective),
        [target.name for target in settings.targets],
        name_units(plan.index, units),
        [[names.get(node, "") for node in unit.nodes] for unit in units],
        plan.graph_problem.tensors,
        getattr(settings.strategy, "margin", 0.0),
    )
    texts = {
        "placement": format_placement(plan, case.model),
        "problem": json.dumps(problem, allow_nan=False),
        "case": json.dumps({"measure": plan.placement.measure.value, "case": asdict(case)}),
    }
    for what, text in texts.items():
        write_text(case.find_saved(what), text.rstrip("\n") + "\n")


def _fix_sizes(case: StudyCase, sizes: Mapping[str, int]) -> StudyCase:
    """Return a case with sizes for the model's open dimensions."""
    return replace(case, planning={**case.planning, "dims": dict(sizes)})


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
    return {"status": status, "reason": reason, **describe_run()}


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
