"""The stage that asks codegens about a model's units before they are placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from byoc import bundle, runtime, verification
from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import (
    CodegenFailedError,
    Codegens,
    CompileError,
    CompilerAnswers,
    Executable,
    Isolation,
    Oracle,
    RegionTrial,
    can_estimate,
    limit_trial,
)
from byoc.console import format_quantity
from byoc.costs import LATENCY, build_tasks, find_device_tasks, price_launch, price_task, with_seconds
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import find_boundary, is_large, name_nodes
from byoc.numerics import fit_proportions
from byoc.pipeline._outlining import cut_regions
from byoc.pipeline._planning_stages import Place
from byoc.pipeline._settings_loader import choose_by_target
from byoc.pipeline._state import Grouped
from byoc.planning import PlannedRegion
from byoc.rules import ASKED_RULE
from byoc.support import report_each, report_step

if TYPE_CHECKING:
    from byoc.bundle import RegionCompiler
    from byoc.codegen import Artifact, Region
    from byoc.costs import CostModel, Task
    from byoc.model import GraphIndex, Model
    from byoc.patterns import Unit
    from byoc.planning import GraphPlan, GraphUnits, PlanSettings
    from byoc.rules import Target
    from byoc.support.cache import Cache


# The answers of codegens about units of the main graph: which they take, and their seconds.

TaskKey = tuple[str, str, str]
_WEIGHT_DTYPES = frozenset({"float32", "float16", "bfloat16", "float64", "int8", "uint8"})


@dataclass(frozen=True, eq=False)
class CodegenAnswers:
    """The answers about a model's units, by target: nodes that are refused with the reason, and seconds.

    `own_cpu` has the nodes that a CPU of the device's own computes. Nodes go by name and by first
    output, those of `own_cpu` by first output alone. `notes` are sentences for the user.
    """

    model: Model
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    seconds: Mapping[str, Mapping[TaskKey, float]] = field(default_factory=dict)
    own_cpu: Mapping[str, frozenset[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def add(self, target: Target, refused: Mapping[str, str], *notes: str) -> CodegenAnswers:
        """Return the answers with more nodes that are refused for a target, and with more notes."""
        of_target = {**self.refused.get(target.name, {}), **refused}
        everyone = {**self.refused, target.name: of_target}
        return replace(self, refused=everyone, notes=(*self.notes, *notes))

    def heed(self, settings: PlanSettings) -> PlanSettings:
        """Return settings with which what is refused is not placed, at the seconds that were told."""
        known, costs = settings.known_limits, list(settings.costs)
        for number, target in enumerate(settings.targets):
            by_reason: dict[str, list[str]] = {}
            for node, why in self.refused.get(target.name, {}).items():
                by_reason.setdefault(why, []).append(node)
            for why, nodes in by_reason.items():
                known = known.with_refused(target.name, nodes, why)
            seconds = self.seconds.get(target.name)
            if seconds:
                costs[number] = with_seconds(costs[number], seconds)
        return replace(settings, known_limits=known, costs=tuple(costs))


@dataclass(frozen=True, eq=False)
class AskedUnit:
    """A unit that stands for all that are alike: its task, and the nodes of each of them."""

    unit: Unit
    task: Task
    nodes: list[tuple[int, ...]]


def ask_codegens(  # noqa: PLR0913, PLR0917 - what is asked, and who
    model: Model,
    index: GraphIndex,
    units: GraphUnits,
    settings: PlanSettings,
    compilers: Mapping[str, RegionCompiler],
    questions: str,
    cache: Cache | None,
) -> CodegenAnswers:
    """Ask the codegen of each target about the units that its rules accept; alike ones once.

    `index` is that of the main graph, `questions` is as in the options. Raises InputError when a codegen
    cannot be asked.
    """
    found = CodegenAnswers(model)
    runs = questions in {"numbers", "everything"}
    for device, target in enumerate(settings.targets):
        compiler = compilers[target.name]
        answers = CompilerAnswers(compiler.codegen, compiler.parsed_options, cache)
        wanted = settings.devices[device].wants.compute
        asked = list(find_distinct_units(index, units, device, wanted, by_values=runs))
        with TemporaryDirectory(prefix="byoc-") as folder:
            regions = write_units(model, index, target, asked, Path(folder)) if asked else []
            inquiry = _Inquiry(index, target, compiler, answers, tuple(zip(asked, regions, strict=True)))
            if runs:
                found = _try_units(found, inquiry)
                found = _refuse_unasked(found, inquiry, units, device)
                inquiry = inquiry.without(found.refused[target.name])
            if questions != "costs":
                found = _ask_legality(found, inquiry, settings.host)
            if questions in {"costs", "both"}:
                found = _ask_costs(found, inquiry, price_launch(settings.costs[device]).seconds)
    return found


@dataclass(frozen=True, eq=False)
class _Inquiry:
    """The units that a target's codegen is asked about, each with the region that it is written as."""

    index: GraphIndex
    target: Target
    compiler: RegionCompiler
    answers: CompilerAnswers
    asked: tuple[tuple[AskedUnit, Region], ...]

    @property
    def codegen(self) -> str:
        """The name of the codegen."""
        return self.compiler.codegen.name

    @property
    def count(self) -> int:
        """The number of units, alike ones each by itself."""
        return sum(len(each.nodes) for each, _ in self.asked)

    def without(self, refused: Mapping[str, str]) -> _Inquiry:
        """Return the inquiry about the units that are not refused, by names and outputs of nodes."""
        outputs = self.index.node_outputs
        kept = (pair for pair in self.asked if refused.keys().isdisjoint(outputs[pair[0].unit.nodes[0]]))
        return replace(self, asked=tuple(kept))

    def name_refused(self, units: Sequence[tuple[int, ...]], why: str) -> dict[str, str]:
        """Return why units are refused, by the name and the outputs of the first node of each."""
        names, outputs = name_nodes(self.index, ""), self.index.node_outputs
        known = [(names.get(nodes[0]), *outputs[nodes[0]]) for nodes in units]
        return dict.fromkeys(filter(None, (name for each in known for name in each)), why)


def find_distinct_units(
    index: GraphIndex,
    units: GraphUnits,
    device: int,
    compute: str | None,
    *,
    by_values: bool = False,
) -> Iterator[AskedUnit]:
    """Yield the units of a graph that a device's rules accept, alike ones as one.

    Alike are those of equal tasks that also have the same small constants other than weights; with
    `by_values` small weights count as well, scales and zero points among them.
    """
    accepted: list[Unit] = [
        part
        for unit in units.units
        if unit.is_supported(device) and unit.nodes[0] not in index.bodies
        for part in unit.on_device[device]
    ]
    tasks, numbers = find_device_tasks(build_tasks(index, compute), accepted)
    found: dict[object, AskedUnit] = {}
    for unit, number in zip(accepted, numbers.tolist(), strict=True):
        if number >= 0:
            task = tasks[number]
            key = (*task.key, _list_settings(index, unit, by_values))
            found.setdefault(key, AskedUnit(unit, task, [])).nodes.append(unit.nodes)
    yield from found.values()


def _list_settings(index: GraphIndex, unit: Unit, with_weights: bool) -> tuple[bytes, ...]:
    """Return the small constants that a unit's nodes read: shapes, axes; weights where asked for."""
    names = [name for node in unit.nodes for name in index.node_inputs[node]]
    stored = [index.stored_tensors[name] for name in names if name in index.stored_tensors]
    return tuple(
        tensor.raw_data or tensor.SerializeToString(deterministic=True)
        for tensor in stored
        if not is_large(tensor) and (with_weights or index.get_dtype(tensor.name) not in _WEIGHT_DTYPES)
    )


def write_units(
    model: Model, index: GraphIndex, target: Target, asked: Sequence[AskedUnit], folder: Path
) -> list[Region]:
    """Write each unit as a region of its own, as it would be compiled; return the regions in order."""
    report_step(f"ask about {len(asked)} units of {target.name}")
    planned = [
        PlannedRegion(
            name=f"{target.name}_{number}",
            target=target,
            index=index,
            units=(each.unit,),
            interface=find_boundary(index, sorted(each.unit.nodes)),
            seconds=0.0,
            trips=1.0,
        )
        for number, each in enumerate(asked)
    ]
    return write_planned(model, index, planned, folder)


def write_planned(
    model: Model, index: GraphIndex, planned: Sequence[PlannedRegion], folder: Path
) -> list[Region]:
    """Write regions of a graph as they would be compiled; return them in order."""
    converted = cut_regions(index, planned, model.folder)
    with bundle.WeightFile(folder) as weights:
        proto = bundle.move_weights(converted.proto, model.folder, weights)
    return bundle.write_regions(folder, proto, planned, converted.values, converted.origins)


def _try_units(found: CodegenAnswers, inquiry: _Inquiry) -> CodegenAnswers:
    """Return the answers with what a target's compiler does not take alone, or computes otherwise.

    Raises InputError where nothing that it compiles runs here.
    """
    name, target = inquiry.codegen, inquiry.target
    if inquiry.asked and not isinstance(inquiry.compiler.codegen, Executable):
        raise InputError(f"codegen {name} cannot run what it compiles here (it has no `load`)")
    refused: dict[str, str] = {}
    count = 0
    for each, region in report_each(inquiry.asked, lambda pair: f"try {pair[0].task.op} alone"):
        with limit_trial():
            why = inquiry.answers.find_trial(region, partial(_try_region, inquiry.compiler, target))
        if why:
            count += len(each.nodes)
            refused |= inquiry.name_refused(each.nodes, f"codegen {name} {why}")
    note = (
        f"codegen {name} was tried on {inquiry.count} units of {target.name}, {len(inquiry.asked)} "
        f"kinds, each compiled and run alone: {count} are refused or computed otherwise"
    )
    return found.add(target, refused, note)


def _try_region(compiler: RegionCompiler, target: Target, region: Region) -> RegionTrial:
    """Compile a region, run it on made and on special values, and compare it with its ONNX.

    The answer is kept for other graphs, so that integers reach the ends of their types. Raises
    InputError where it does not run on this machine.
    """
    name = compiler.codegen.name
    assert isinstance(compiler.codegen, Executable)
    try:
        artifact = compile_alone(compiler, region)
    except CodegenFailedError as error:
        return RegionTrial(f"fails to compile it: {error}", lasting=False)
    except CompileError as error:
        return RegionTrial(f"refuses it: {error}", error.lasting)
    try:
        run = runtime.load_executor(compiler.codegen, name, region, artifact)
        compared, _ = verification.compare_unit(region, run, target.arithmetic, lambda *_: (-inf, inf))
    except (MissingRuntimeError, runtime.RegionNotHereError) as failure:
        raise InputError(f"codegen {name} cannot be tried here: {failure}") from failure
    except InputError as failure:
        return RegionTrial(f"does not run it: {failure}", lasting=False)
    if compared.sample == "none":
        return RegionTrial(
            "cannot be held to it: plain onnxruntime runs it on no values made for it alone"
        )
    return RegionTrial("" if compared.within else f"computes it otherwise: {compared.description}")


def _refuse_unasked(
    found: CodegenAnswers, inquiry: _Inquiry, units: GraphUnits, device: int
) -> CodegenAnswers:
    """Return the answers in which no unit is taken that no rule takes and nobody was asked of."""
    known = {nodes for each, _ in inquiry.asked for nodes in each.nodes}
    lone = [
        part.nodes
        for unit in units.units
        for part in unit.on_device[device]
        if ASKED_RULE in part.rules and part.nodes not in known
    ]
    why = "no rule takes it, and its compiler cannot be asked"
    return found.add(inquiry.target, inquiry.name_refused(lone, why))


def _ask_legality(found: CodegenAnswers, inquiry: _Inquiry, host: CostModel) -> CodegenAnswers:
    """Return the answers with what a target's compiler refuses, and what it leaves to its own CPU.

    A unit that a CPU of the device's own computes takes what the host takes for it, since the target's
    cost model is of its accelerator; what the codegen says of costs comes after this.
    """
    name, target, index = inquiry.codegen, inquiry.target, inquiry.index
    if not isinstance(inquiry.compiler.codegen, Oracle):
        note = f"codegen {name} cannot be asked which nodes it takes: it has no `check`"
        return found.add(target, {}, note)
    refused: dict[str, str] = {}
    on_own_cpu: dict[TaskKey, float] = {}
    on_cpu_nodes: set[str] = set()
    operators: Counter[str] = Counter()
    count = 0
    verdicts = inquiry.answers.find_verdicts([region for _, region in inquiry.asked])
    for (each, _), verdict in zip(inquiry.asked, verdicts, strict=True):
        if verdict.own_cpu:
            operators[each.task.op] += len(each.nodes)
            on_own_cpu[each.task.key] = price_task(host, each.task)[0].seconds
            on_cpu_nodes.update(index.node_outputs[node][0] for unit in each.nodes for node in unit)
        if not verdict:
            count += len(each.nodes)
            refused |= inquiry.name_refused(each.nodes, f"codegen {name} refuses it: {verdict}")
    note = f"codegen {name} was asked about {inquiry.count} units of {target.name}, and refuses {count}"
    if operators:
        named = ", ".join(operators)
        note += f"; the device's own CPU computes {operators.total()} ({named}), priced as on the host"
    return replace(
        found.add(target, refused, note),
        seconds={**found.seconds, target.name: on_own_cpu},
        own_cpu={**found.own_cpu, target.name: frozenset(on_cpu_nodes)},
    )


def _ask_costs(found: CodegenAnswers, inquiry: _Inquiry, launch: float) -> CodegenAnswers:
    """Return the answers with the seconds of a target's units, without those of a launch."""
    name, target = inquiry.codegen, inquiry.target
    if not inquiry.answers.has_seconds:
        note = f"codegen {name} cannot be asked what units cost: it has no `estimate` and no `cost`"
        return found.add(target, {}, note)
    seconds: dict[TaskKey, float] = {}
    failures: list[str] = []
    for each, region in inquiry.without(found.refused.get(target.name, {})).asked:
        if each.task.view or not each.task.sized:
            continue
        try:
            told = inquiry.answers.find_seconds(region, partial(compile_alone, inquiry.compiler))
        except CodegenFailedError as error:
            failures.append(f"codegen {name} failed to say what {each.task} costs: {error}")
            continue
        if told is not None:
            seconds[each.task.key] = max(told - launch, 0.0)
    note = f"codegen {name} gave the seconds of {len(seconds)} kinds of units of {target.name}"
    everyone = {**found.seconds, target.name: {**found.seconds.get(target.name, {}), **seconds}}
    return replace(found.add(target, {}, note, *failures[:1]), seconds=everyone)


def compile_alone(compiler: RegionCompiler, region: Region) -> Artifact:
    """Return the artifact of a region, that of the cache where it has one. Raises CompileError."""
    known = compiler.cache.find((region,))
    if known is not None:
        return known[region.name]
    try:
        made = compiler.compile(region)
    except CompileError as error:
        compiler.cache.add_refusal((region,), error)
        raise
    compiler.cache.add((region,), {region.name: made})
    return made


@dataclass(frozen=True)
class Ask:
    """Ask the targets' codegens which units their compilers take, and what they cost.

    Codegens run in processes of their own. Nothing is asked unless the options say so, nor a second time
    about the same model. Raises InputError when a codegen cannot be loaded or asked.
    """

    def run(self, state: Grouped) -> Grouped:
        """Return the state with the answers; the settings get the limits and costs that they tell."""
        options, settings = state.request.options, state.settings
        if options.ask is None:
            return state
        answers = state.findings.answers
        if answers is None or answers.model is not state.model:
            names = choose_by_target(
                settings.targets, options.codegen, "codegen", lambda target: target.rules.codegen
            )
            cache = options.open_cache()
            with closing(Codegens(options.isolation or Isolation())) as codegens:
                given = options.codegen_options or {}
                compilers = bundle.load_compilers(settings.targets, names, given, codegens, cache)
                units = state.units[id(state.index)]
                answers = ask_codegens(
                    state.model, state.index, units, settings, compilers, options.ask, cache
                )
                if options.ask in {"costs", "both"}:
                    answers = correct_by_estimates(state, answers, compilers, cache)
        return _heed(state, answers)


def _heed(state: Grouped, answers: CodegenAnswers) -> Grouped:
    findings = replace(state.findings, answers=answers)
    return replace(state, findings=findings, settings=answers.heed(state.settings))


# Placements corrected by compilers' estimates of whole regions, which fuse what units alone do not.

_MOST_PLACEMENTS = 3  # from each start
_LEAST_SECONDS = 1e-12  # of a task that is scaled: none would stay none


@dataclass(frozen=True, eq=False)
class EstimatedPlacement:
    """A placement: the answers that it was made by, its regions' estimates, and its seconds by these."""

    answers: CodegenAnswers
    root: GraphPlan
    estimates: Mapping[str, float]
    seconds: float


def correct_by_estimates(
    state: Grouped,
    answers: CodegenAnswers,
    compilers: Mapping[str, RegionCompiler],
    cache: Cache | None,
) -> CodegenAnswers:
    """Return answers whose seconds of units add up to what compilers estimate for whole regions.

    The model is placed, its regions in the main graph are compiled and estimated, the seconds of their
    units are scaled to the estimates, and it is placed again, until a placement comes again. That begins
    once with what units take alone and once with the cost models, at most three placements each. The
    answers are those by which the best placement was made, scaled to its estimates where that leaves
    it as it is. Nothing changes where no codegen estimates, or something else than latency is minimized.
    """
    able = [can_estimate(compilers[target.name].codegen) for target in state.settings.targets]
    if state.settings.objective != LATENCY or not any(able):
        return answers
    tried: list[EstimatedPlacement] = []
    for start in (answers, replace(answers, seconds={})):
        current = start
        for _ in range(_MOST_PLACEMENTS):
            root = _place(state, current)
            if any(_is_same(each.root, root) for each in tried):
                break
            estimates = _estimate_regions(state, root, compilers, cache)
            seconds = root.whole_cost.total + _sum_differences(root, estimates)
            tried.append(EstimatedPlacement(current, root, estimates, seconds))
            current = _scale_tasks(state, current, root, estimates)
    best = min(tried, key=lambda each: each.seconds)
    scaled = _scale_tasks(state, best.answers, best.root, best.estimates)
    found = scaled if _is_same(_place(state, scaled), best.root) else best.answers
    placements = "1 placement" if len(tried) == 1 else f"{len(tried)} placements"
    note = (
        f"compilers estimated the regions of {placements} as wholes; the one that is kept takes "
        f"{format_quantity(best.seconds, 's')}"
    )
    return replace(found, notes=(*answers.notes, note))


def _sum_differences(root: GraphPlan, estimates: Mapping[str, float]) -> float:
    """Return the seconds of a run by which estimates exceed predictions."""
    estimated = [region for region in root.regions if region.name in estimates]
    return sum(each.trips * (estimates[each.name] - each.seconds) for each in estimated)


def _place(state: Grouped, answers: CodegenAnswers) -> GraphPlan:
    return Place().run(_heed(state, answers)).root


def _is_same(one: GraphPlan, other: GraphPlan) -> bool:
    pairs = zip(one.walk(), other.walk(), strict=False)
    return all(np.array_equal(a.placement.labels, b.placement.labels) for a, b in pairs)


def _estimate_regions(
    state: Grouped, root: GraphPlan, compilers: Mapping[str, RegionCompiler], cache: Cache | None
) -> dict[str, float]:
    """Return the compilers' seconds of the main graph's regions, by name, as far as they say."""
    found: dict[str, float] = {}
    report_step(f"estimate {len(root.regions)} regions")
    for target in state.settings.targets:
        compiler = compilers[target.name]
        planned = [region for region in root.regions if region.target is target]
        asked = CompilerAnswers(compiler.codegen, compiler.parsed_options, cache)
        if not planned or not can_estimate(compiler.codegen):
            continue
        with TemporaryDirectory(prefix="byoc-") as folder:
            for region in write_planned(state.model, state.index, planned, Path(folder)):
                try:
                    seconds = asked.find_seconds(region, lambda each: compile_alone(compiler, each))  # noqa: B023
                except CodegenFailedError:
                    continue  # as it is told where the region is compiled
                if seconds is not None:
                    found[region.name] = seconds
    return found


def _scale_tasks(
    state: Grouped, answers: CodegenAnswers, root: GraphPlan, estimates: Mapping[str, float]
) -> CodegenAnswers:
    """Return answers in which the tasks of each region add up to its estimate, without a launch.

    A task that several regions have is scaled by the mean of their factors, weighted by its seconds
    there, time and again (iterative proportional fitting).
    """
    settings = answers.heed(state.settings)
    seconds = dict(answers.seconds)
    for number, target in enumerate(settings.targets):
        planned = [r for r in root.regions if r.target is target and r.name in estimates]
        model, compute = settings.costs[number], settings.devices[number].wants.compute
        counts = [_count_tasks(region, compute) for region in planned]
        tasks = {key: task for each in counts for key, (task, _) in each.items()}
        if not tasks:
            continue
        keys = list(tasks)
        shares = np.array([[each.get(key, (None, 0))[1] for key in keys] for each in counts], float)
        alone = np.array([max(_price(model, tasks[key]), _LEAST_SECONDS) for key in keys])
        launch = price_launch(model).seconds
        goals = np.array([max(estimates[region.name] - launch, 0.0) for region in planned])
        scaled = dict(zip(keys, fit_proportions(shares, alone, goals).tolist(), strict=True))
        seconds[target.name] = {**seconds.get(target.name, {}), **scaled}
    return replace(answers, seconds=seconds)


def _count_tasks(region: PlannedRegion, compute: str | None) -> dict[TaskKey, tuple[Task, int]]:
    """Return the tasks of a region that take time, by their keys, and how many units have each."""
    tasks, numbers = find_device_tasks(build_tasks(region.index, compute), region.units)
    found: dict[TaskKey, tuple[Task, int]] = {}
    for number in numbers.tolist():
        task = tasks[number]
        if number >= 0 and task.sized and not task.view:
            found[task.key] = task, found.get(task.key, (task, 0))[1] + 1
    return found


def _price(model: CostModel, task: Task) -> float:
    return price_task(model, task)[0].seconds
