"""The answers of codegens about units of the main graph: which they take, and their seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from byoc import bundle, codegen
from byoc.costs import build_tasks, find_device_tasks, price_launch, with_seconds
from byoc.model import find_boundary, is_large, name_nodes
from byoc.planning import PlannedRegion, cut_regions
from byoc.support import report_step

if TYPE_CHECKING:
    from byoc.bundle import RegionCompiler
    from byoc.cache import Cache
    from byoc.codegen import Artifact, Region
    from byoc.costs import Task
    from byoc.model import GraphIndex, Model
    from byoc.patterns import Unit
    from byoc.planning import GraphUnits, PlanSettings
    from byoc.rules import Target

TaskKey = tuple[str, str, str]
_WEIGHT_DTYPES = frozenset({"float32", "float16", "bfloat16", "float64", "int8", "uint8"})


@dataclass(frozen=True, eq=False)
class CodegenAnswers:
    """The answers about a model's units, by target: nodes that are refused with the reason, and seconds.

    Nodes go by name and by first output. `notes` are sentences for the user.
    """

    model: Model
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    seconds: Mapping[str, Mapping[TaskKey, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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

    `index` is that of the main graph, `questions` is `legality`, `costs` or `both`. Raises InputError
    when a codegen cannot be asked.
    """
    found = CodegenAnswers(model)
    for device, target in enumerate(settings.targets):
        compiler = compilers[target.name]
        answers = codegen.CompilerAnswers(compiler.codegen, compiler.parsed_options, cache)
        asked = list(find_distinct_units(index, units, device, settings.devices[device].wants.compute))
        with TemporaryDirectory(prefix="byoc-") as folder:
            regions = write_units(model, index, target, asked, Path(folder)) if asked else []
            if questions != "costs":
                found = _ask_legality(found, index, target, answers, asked, regions)
            if questions != "legality":
                launch = price_launch(settings.costs[device]).seconds
                found = _ask_costs(found, index, target, answers, asked, regions, launch, compiler)
    return found


def find_distinct_units(
    index: GraphIndex, units: GraphUnits, device: int, compute: str | None
) -> Iterator[AskedUnit]:
    """Yield the units of a graph that a device's rules accept, alike ones as one.

    Alike are those of equal tasks that also have the same small constants other than weights.
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
            key = (*task.key, _list_settings(index, unit))
            found.setdefault(key, AskedUnit(unit, task, [])).nodes.append(unit.nodes)
    yield from found.values()


def _list_settings(index: GraphIndex, unit: Unit) -> tuple[bytes, ...]:
    """Return the small constants that a unit's nodes read and that are no weights: shapes, axes."""
    names = [name for node in unit.nodes for name in index.node_inputs[node]]
    stored = [index.stored_tensors[name] for name in names if name in index.stored_tensors]
    return tuple(
        tensor.raw_data or tensor.SerializeToString(deterministic=True)
        for tensor in stored
        if not is_large(tensor) and index.get_dtype(tensor.name) not in _WEIGHT_DTYPES
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


def _ask_legality(  # noqa: PLR0913, PLR0917 - as above
    found: CodegenAnswers,
    index: GraphIndex,
    target: Target,
    answers: codegen.CompilerAnswers,
    asked: Sequence[AskedUnit],
    regions: Sequence[Region],
) -> CodegenAnswers:
    """Return the answers with what a target's compiler refuses."""
    name = answers.codegen.name
    if not isinstance(answers.codegen, codegen.Oracle):
        note = f"codegen {name} cannot be asked which nodes it takes: it has no `check`"
        return replace(found, notes=(*found.notes, note))
    names = name_nodes(index, "")
    refused: dict[str, str] = {}
    count = on_own_cpu = 0
    for each, verdict in zip(asked, answers.find_verdicts(regions), strict=True):
        on_own_cpu += len(each.nodes) * verdict.own_cpu
        for nodes in each.nodes if not verdict else ():
            count += 1
            known = (names.get(nodes[0]), *filter(None, index.node_outputs[nodes[0]]))
            refused |= dict.fromkeys(filter(None, known), f"codegen {name} refuses it: {verdict}")
    total = sum(len(each.nodes) for each in asked)
    note = f"codegen {name} was asked about {total} units of {target.name}, and refuses {count}"
    if on_own_cpu:
        note += f"; the device's own CPU computes {on_own_cpu}"
    everyone = {**found.refused, target.name: refused}
    return replace(found, refused=everyone, notes=(*found.notes, note))


def _ask_costs(  # noqa: PLR0913, PLR0917 - as above
    found: CodegenAnswers,
    index: GraphIndex,
    target: Target,
    answers: codegen.CompilerAnswers,
    asked: Sequence[AskedUnit],
    regions: Sequence[Region],
    launch: float,
    compiler: RegionCompiler,
) -> CodegenAnswers:
    """Return the answers with the seconds of a target's units, without those of a launch."""
    name = answers.codegen.name
    if not answers.has_seconds:
        note = f"codegen {name} cannot be asked what units cost: it has no `estimate` and no `cost`"
        return replace(found, notes=(*found.notes, note))
    refused = found.refused.get(target.name, {})
    seconds: dict[TaskKey, float] = {}
    failures: list[str] = []
    for each, region in zip(asked, regions, strict=True):
        is_refused = any(name in refused for name in index.node_outputs[each.unit.nodes[0]])
        if each.task.view or not each.task.sized or is_refused:
            continue
        try:
            told = answers.find_seconds(region, partial(compile_alone, compiler))
        except codegen.CodegenFailedError as error:
            failures.append(f"codegen {name} failed to say what {each.task} costs: {error}")
            continue
        if told is not None:
            seconds[each.task.key] = max(told - launch, 0.0)
    note = f"codegen {name} gave the seconds of {len(seconds)} kinds of units of {target.name}"
    everyone = {**found.seconds, target.name: seconds}
    return replace(found, seconds=everyone, notes=(*found.notes, note, *failures[:1]))


def compile_alone(compiler: RegionCompiler, region: Region) -> Artifact:
    """Return the artifact of a region, that of the cache where it has one. Raises CompileError."""
    known = compiler.cache.find((region,))
    if known is not None:
        return known[region.name]
    try:
        made = compiler.compile(region)
    except codegen.CompileError as error:
        compiler.cache.add_refusal((region,), error)
        raise
    compiler.cache.add((region,), {region.name: made})
    return made
