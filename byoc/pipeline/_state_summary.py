"""Summaries of states: lines of text about the work of a stage (`--print-after`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from byoc.console import format_count, format_quantity
from byoc.costs import objective_unit
from byoc.model import get_operator_name, walk_graph_paths
from byoc.planning import find_parts
from byoc.reporting import format_effect
from byoc.verification import NotVerified

if TYPE_CHECKING:
    from byoc.model import GraphIndex, Model
    from byoc.passes import LoadedPass
    from byoc.pipeline._results import Stage
    from byoc.pipeline._state import (
        Annotated,
        Compiled,
        Estimated,
        Grouped,
        Loaded,
        Outlined,
        Packed,
        Padded,
        Placed,
        Planned,
        Prepared,
        Resolved,
        Rewritten,
        Verified,
        Written,
    )

_MOST = 8  # operators, tensors or names in a line


def summarize_stage(stage: Stage[Any, Any], made: Any) -> list[str]:
    """Return the work of a stage as lines, those of each variant under its name; none for others.

    `made` is the state that the stage returned, or the states of all variants.
    """
    name = type(stage).__name__
    if name not in _SUMMARIES:
        return []
    lines: list[str] = []
    for state in made if isinstance(made, list) else [made]:
        variant = state.request.variant.name
        lines.append(f"after {name}{f', variant {variant}' if variant else ''}:")
        lines += [f"  {line}" for line in _SUMMARIES[name](state)]
    return lines


def _summarize_resolve(state: Resolved) -> Iterator[str]:
    setup, settings = state.setup, state.settings
    for target in settings.targets:
        compiler = setup.compilers.get(target.name)
        by = f", compiled by {compiler.codegen.name}" if compiler else ""
        yield f"target {target.name} of {target.source}{by}"
        own = setup.passes.regions.get(target.name, ())
        yield from _list_passes(f"regions of {target.name}", own)
    yield from _list_passes("the model", setup.passes.model)
    yield f"strategy {settings.strategy.name}, least {settings.objective}"
    yield f"bundle {setup.output.name}" if setup.output else "no bundle is written"


def _list_passes(where: str, passes: Sequence[LoadedPass]) -> Iterator[str]:
    if passes:
        yield f"passes for {where}: {', '.join(each.name for each in passes)}"


def _summarize_load(state: Loaded) -> Iterator[str]:
    loaded = state.loaded
    yield _describe_model(loaded.original)
    index = loaded.original.index
    for name in index.inputs:
        yield f"input {name}: {index.types.get(name)}"
    if loaded.static_rule is not None:
        yield "caches have a fixed length"
    if loaded.samples:
        yield f"verified on {format_count(len(loaded.samples), 'sample')} of the user's"
    if loaded.genai is not None:
        yield "a folder of onnxruntime-genai"
    for past, present in (state.settings.state or {}).items():
        yield f"state: {present} is the next {past}"


def _summarize_rewrite(state: Rewritten) -> Iterator[str]:
    yield from map(format_effect, state.pass_effects)
    yield _describe_model(state.rewritten)


def _summarize_quantize(state: Prepared) -> Iterator[str]:
    precision = state.precision
    if precision.ranges is None and not precision.weights:
        yield "nothing is quantized"
    if precision.ranges is not None:
        yield f"{format_count(len(precision.units), 'unit')} in {precision.narrow_dtype}"
    if precision.weights:
        yield f"{format_count(len(precision.weights), 'weight')} in 4 bits"
    for target in state.settings.targets:
        if target.compute_dtype:
            yield f"{target.name} computes in {target.compute_dtype}"
    yield from map(str, precision.notes)
    yield _describe_model(state.model)


def _summarize_annotate(state: Annotated) -> Iterator[str]:
    for path, index in _walk_graphs(state):
        for target, marks in zip(state.settings.targets, state.marks[id(index)], strict=True):
            placed = [node for node in range(len(index.nodes)) if node not in index.constant_nodes]
            taken = [index.nodes[node] for node in placed if marks[node].verdict]
            refused = [index.nodes[node] for node in placed if not marks[node].verdict]
            yield f"{path}{target.name} takes {len(taken)} of {format_count(len(placed), 'node')}"
            for what, nodes in (("taken", taken), ("refused", refused)):
                if nodes:
                    yield f"  {what}: {_count_operators(map(get_operator_name, nodes))}"


def _walk_graphs(state: Annotated) -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs that are planned with the beginning of a line about each."""
    for path, index in walk_graph_paths(state.index):
        if id(index) in state.marks:
            yield f"{path}: " if path else "", index


def _summarize_group(state: Grouped) -> Iterator[str]:
    for path, index in _walk_graphs(state):
        units = state.units[id(index)].units
        yield f"{path}{format_count(len(units), 'unit')}"
        for number, target in enumerate(state.settings.targets):
            own = [part for unit in units for part in unit.on_device[number]]
            supported = sum(unit.is_supported(number) for unit in units)
            yield f"  {target.name} supports {supported} of them"
            composites = [unit.composite for unit in own if unit.composite]
            if composites:
                yield f"  composites: {_count_operators(composites)}"


def _summarize_ask(state: Grouped) -> Iterator[str]:
    answers = state.findings.answers
    yield from ("codegens were not asked",) if answers is None else answers.notes


def _summarize_parts(state: Placed) -> Iterator[str]:
    parts = find_parts(state.root)
    if not parts:
        yield "no node is in parts"
        return
    yield f"in parts: {', '.join(parts)}"
    yield from _summarize_place(state)


def _summarize_place(state: Placed) -> Iterator[str]:
    root = state.root
    for graph in root.walk():
        path = f"{graph.path}: " if graph.path else ""
        names = ("host", *(target.name for target in graph.targets))
        counts = Counter(graph.placement.labels.tolist())
        on = [f"{counts[label]} on {name}" for label, name in enumerate(names)]
        yield f"{path}{format_count(len(graph.units), 'unit')}: {', '.join(on)}"
        for region in graph.regions:
            nodes = [get_operator_name(graph.index.nodes[node]) for node in region.nodes]
            seconds = format_quantity(region.seconds, "s")
            units = format_count(len(region.units), "unit")
            yield f"  region {region.name}: {units}, {seconds}: {_count_operators(nodes)}"
    whole, alone = root.whole_cost.total, root.host_only
    yield f"predicted: {format_quantity(whole, 's')}, on the host alone {format_quantity(alone, 's')}"


def _summarize_outline(state: Outlined) -> Iterator[str]:
    made = vars(state.partitioned)  # where its properties keep what they made
    if "outlined" not in made:
        yield "nothing yet: the partitioned model is made when it is asked for"
        return
    yield f"main graph: {_count_operators(map(get_operator_name, made['outlined'].graph.node))}"
    for function in made["outlined"].functions:
        inside = _count_operators(map(get_operator_name, function.node))
        yield f"function {function.domain}.{function.name}: {inside}"


def _summarize_convert(state: Planned) -> Iterator[str]:
    made = vars(state.plan.partitioned)
    if "converted" not in made:
        yield "nothing yet: the partitioned model is made when it is asked for"
        return
    origins = made["converted"].origins
    yield f"{format_count(len(origins), 'tensor')} converted at the boundary"
    for name, origin in [*origins.items()][:_MOST]:
        yield f"  {name}, of {origin}"
    yield from made["converted"].notes


def _summarize_write(state: Written) -> Iterator[str]:
    for region in state.regions:
        counts = ((region.inputs, "input"), (region.outputs, "output"), (region.constants, "constant"))
        yield f"{region.path.name}: {', '.join(format_count(len(own), what) for own, what in counts)}"
    for each in state.plan.passes:
        if each.target:
            yield format_effect(each)


def _summarize_compile(state: Compiled) -> Iterator[str]:
    for entry in state.bundle.variant.regions:
        files = ", ".join(entry.artifact_files) or "no file"
        made = f"the artifact of {entry.same_as}" if entry.same_as else files
        yield f"{entry.name}, compiled by {entry.codegen}: {made}"


def _summarize_estimate(state: Estimated) -> Iterator[str]:
    if not state.figures.estimates:
        yield "no codegen estimated a region"
    for region in state.plan.regions:
        if region.name in state.figures.estimates:
            estimated = format_quantity(state.figures.estimates[region.name].seconds, "s")
            yield f"{region.name}: {estimated}, predicted {format_quantity(region.seconds, 's')}"


def _summarize_verify(state: Verified) -> Iterator[str]:
    found = state.verification
    if isinstance(found, NotVerified):
        yield f"not verified: {found.reason}"
        return
    yield f"compared with {found.against} on {format_count(found.samples, 'sample')}"
    owners = [("", found.outputs), *((f"{each.name}, ", each.outputs) for each in found.regions)]
    for owner, outputs in owners:
        for output in outputs:
            yield f"  {owner}{output.name}: {output.problem or f'off {output.error_phrase}'}"


def _summarize_padding(state: Padded) -> Iterator[str]:
    found = None if state.padding is None else state.padding.describe()
    yield found or "no dimension was looked at"


def _summarize_gains(state: Planned) -> Iterator[str]:
    plan, unit = state.plan, objective_unit(str(state.settings.objective))
    yield f"{format_count(len(plan.what_ifs), 'reason')} for refusing units tried, {plan.untried} not"
    for each in plan.what_ifs[:_MOST]:
        gain = format_quantity(each.gain, unit)
        yield f"  {each.target}, {format_count(each.nodes, 'node')}, gain {gain}: {each.reason}"


def _summarize_pack(state: Packed) -> Iterator[str]:
    folder = state.weights.folder
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        yield f"{path.relative_to(folder).as_posix()}: {format_quantity(path.stat().st_size, 'B')}"
    if state.not_signed:
        yield state.not_signed


def _describe_model(model: Model) -> str:
    nodes = [get_operator_name(node) for index in model.index.walk() for node in index.nodes]
    return f"model of {format_count(len(nodes), 'node')}: {_count_operators(nodes)}"


def _count_operators(names: Iterable[str]) -> str:
    """Return the number of nodes of each operator, the most frequent first."""
    counts = sorted(Counter(names).items(), key=lambda each: (-each[1], each[0]))
    more = f" and {len(counts) - _MOST} more" if len(counts) > _MOST else ""
    return ", ".join(f"{count} {name}" for name, count in counts[:_MOST]) + more


_SUMMARIES: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "Resolve": _summarize_resolve,
    "Load": _summarize_load,
    "Rewrite": _summarize_rewrite,
    "Quantize": _summarize_quantize,
    "Annotate": _summarize_annotate,
    "Group": _summarize_group,
    "Ask": _summarize_ask,
    "Place": _summarize_place,
    "PlaceParts": _summarize_parts,
    "Outline": _summarize_outline,
    "Convert": _summarize_convert,
    "Write": _summarize_write,
    "Compile": _summarize_compile,
    "Estimate": _summarize_estimate,
    "Verify": _summarize_verify,
    "FindPadding": _summarize_padding,
    "EstimateGains": _summarize_gains,
    "Pack": _summarize_pack,
}
