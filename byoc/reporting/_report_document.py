"""The making of a report from a plan and its verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import fsum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from byoc import verification
from byoc.bundle import (
    Compute,
    MemoryUse,
    NodeCounts,
    OpenDimension,
    PrecisionReport,
    PredictedCosts,
    RefusalReport,
    RegionReport,
    Report,
    ReportedTensor,
    SizePrediction,
    TradePointReport,
)
from byoc.console import format_count, format_quantity
from byoc.model import name_nodes
from byoc.placement import Measure
from byoc.planning import find_neighbours, find_sent_tensors, measure_memory
from byoc.reporting._decision_document import count_user_nodes, list_host_reasons
from byoc.reporting._estimates import (
    describe_kept_state,
    describe_unknown_costs,
    find_promises,
    find_value_conditions,
    list_placed_nodes,
    make_estimate_notes,
)
from byoc.support import Note

if TYPE_CHECKING:
    from byoc.bundle import EstimateReport, VerificationReport
    from byoc.model import GraphIndex, PlannedSizes
    from byoc.padding import PaddingDecision
    from byoc.planning import (
        GraphPlan,
        LoweredPrecision,
        Plan,
        PlannedRegion,
        RefusedRegion,
        RegionMemory,
        SentTensor,
    )
    from byoc.rules import Target
    from byoc.verification import NotVerified

_SHOWN = 5  # nodes in a sentence
SLOWER_THAN_HOST = "the placement is predicted to be slower than the host alone"
"""The beginning of the note on a placement that the host alone would beat."""

# A node: the path of its graph, and its number there.
_NodeKey = tuple[str, int]


def _make_refusal_reports(plan: Plan) -> tuple[RefusalReport, ...]:
    counted = set[_NodeKey]()
    return tuple(
        RefusalReport(
            target=each.target,
            region=each.region,
            codegen=each.codegen,
            reason=each.reason,
            nodes=each.nodes,
            host=_count_on_host(plan, each, counted),
            split=each.split or None,
            failed=each.failed,
            options=dict(each.options),
            tried=each.tried,
            detail=each.detail,
        )
        for each in plan.refusals
    )


def format_changes(options: Mapping[str, str]) -> str:
    """Format options as on the command line: `integers=false`."""
    return ", ".join(f"{name}={text}" for name, text in options.items())


def _make_refusal_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning for each refused region."""
    kept = {region.name for region in plan.regions}
    last = {each.region: each for each in plan.refusals}
    for each in plan.refusals:
        if each.options:
            refused = f"codegen {each.codegen}: {each.region}: {each.reason}"
            holds = each.region in kept and last[each.region] is each
            outcome = "which holds" if holds else "which does not hold"
            options = format_changes(each.options)
            yield Note("warning", f"{refused}; it is compiled with {options}, {outcome}")
            continue
        if each.split:
            change = f"split into regions of at most {format_count(each.split, 'node')}"
        elif each.nodes:
            names = ", ".join(each.nodes[:_SHOWN])
            more = f" and {len(each.nodes) - _SHOWN} more" if len(each.nodes) > _SHOWN else ""
            change = f"without {names}{more}"
        else:
            change = "without any node"
        refused = f"codegen {each.codegen}: {each.region}: {each.reason}"
        tried = f" ({each.tried})" if each.tried else ""
        yield Note("warning", f"{refused}{tried}; {each.target} is planned again {change}")


def _count_on_host(plan: Plan, refused: RefusedRegion, counted: set[_NodeKey]) -> int:
    """Count the nodes that are on the host because of a refusal, and add them to `counted`.

    Nodes that are `counted` already are left out.
    """
    if (
        refused.split or refused.options
    ):  # nodes that do not fit in smaller regions either have a refusal of their own
        return 0
    number = [target.name for target in plan.targets].index(refused.target)
    found = set[_NodeKey]()
    for graph in plan.root.walk():
        names, keys = name_nodes(graph.index, graph.path), set(refused.nodes)
        for row, label in enumerate(graph.placement.labels.tolist()):
            kept = graph.graph_problem.kept_on_host[number].get(row)
            if label == 0 and kept is not None and kept.text == refused.why:
                nodes = (n for n in graph.units[row].nodes if n not in graph.index.inserted_nodes)
                found.update((graph.path, n) for n in nodes if not keys or names.get(n) in keys)
    found -= counted
    counted |= found
    return len(found)


def make_report(
    plan: Plan,
    outcome: verification.Verification | NotVerified,
    bundle: Path | None = None,
    estimates: Mapping[str, EstimateReport] = MappingProxyType({}),
    sram: Mapping[str, MemoryUse] = MappingProxyType({}),
) -> Report:
    """Make the report of a plan, with its verification or the reason why there was none.

    `estimates` are the compilers' own of regions, by name, and `sram` what these use on the chip.
    """
    operations, total = plan.offloaded_operations
    placed = [(each, list_placed_nodes(plan, each)) for each in plan.targets if each.arithmetic.clauses]
    not_here = outcome.not_here if isinstance(outcome, verification.Verification) else {}
    return Report(
        model=plan.model.source,
        targets=tuple(target.name for target in plan.targets),
        strategy=plan.asked.get("strategy"),
        nodes=_count_nodes(plan),
        compute=Compute(operations=total, offloaded=operations / total if total else 0.0),
        predicted=_report_costs(plan),
        regions=tuple(
            report
            for graph in plan.root.walk()
            for report in _report_regions(graph, plan, estimates, sram, not_here)
        ),
        refusals=_make_refusal_reports(plan),
        host_reasons=list_host_reasons(plan),
        what_if=plan.what_ifs,
        what_if_left_out=plan.untried,
        break_even=plan.break_evens,
        precision=_report_precision(plan),
        notes=(
            *_make_refusal_notes(plan),
            *make_estimate_notes(plan),
            *plan.notes,
            *(Note("note", text) for text in _list_remarks(plan)),
        ),
        verification=_describe_verification(outcome),
        not_verified=outcome.not_verified or None
        if isinstance(outcome, verification.Verification)
        else outcome.reason,
        verification_missing=bool(outcome.not_verified)
        if isinstance(outcome, verification.Verification)
        else outcome.missing,
        bundle=None if bundle is None else str(bundle),
        open_dimensions=_list_open_dimensions(plan.model.planned),
        predicted_at=tuple(map(SizePrediction.model_validate, plan.predicted_at)),
        perturbed=plan.root.perturbed,
        passes=plan.passes,
        generations={each.name: each.generation for each in plan.targets if each.generation},
        variant=plan.variant.name,
        chosen_sizes=dict(plan.variant.dims) if plan.variant.automatic else {},
        promises=tuple(p for t, nodes in placed for p in find_promises(t, nodes)),
        conditions=tuple(c for t, nodes in placed for c in find_value_conditions(t, nodes)),
        memory=_sum_memory(plan),
        sram=_find_most_sram(plan, sram),
    )


def _describe_verification(
    outcome: verification.Verification | NotVerified,
) -> VerificationReport | None:
    if not isinstance(outcome, verification.Verification):
        return None
    # A plan needs none of what this imports: it is not verified.
    from byoc.reporting._verification_document import make_verification_report  # noqa: PLC0415

    return make_verification_report(outcome)


def _list_open_dimensions(planned: PlannedSizes) -> tuple[OpenDimension, ...]:
    ends = {name: planned.ranges.get(name, (None, None)) for name in planned.sizes}
    return tuple(
        OpenDimension(name=name, size=size, least=ends[name][0], largest=ends[name][1])
        for name, size in planned.sizes.items()
    )


def _list_remarks(plan: Plan) -> Iterator[str]:
    yield from plan.model.notes
    yield from collect_plan_notes(plan.root)
    yield from _slower_than_host_notes(plan)
    yield from _unused_target_notes(plan)


def count_offloaded(root: GraphPlan) -> int:
    """Count the user's nodes on accelerators, bodies included."""
    return sum(_count_region_nodes(region) for graph in root.walk() for region in graph.regions)


CHOSEN_SIZES = "planned for "
"""How the note begins that says which sizes byoc chose; it is told above all others."""


def describe_chosen_sizes(
    fixed: Plan, opened: Plan, planned: PlannedSizes, padding: PaddingDecision | None = None
) -> tuple[Note, Note]:
    """Return the notes of a plan whose sizes byoc chose, and of the open one that serves the others.

    `planned` are these sizes, with the reasons for them. By `padding` shorter inputs are padded to them,
    and a session runs some batches in several calls of the first plan.
    """
    sizes = ", ".join(f"{name} = {size}" for name, size in fixed.variant.dims.items())
    where = "on the host"
    if opened.regions:
        counts, used = _count_nodes(opened), {region.target.name for region in opened.regions}
        where = f"with {counts.offloaded} of {format_count(counts.total, 'node')} on "
        where += " and ".join(sorted(used))
    advice = "--dim, --bucket or --variant choose others, --keep-open makes one open plan"
    rule, split = (None, None) if padding is None else (padding.rule, padding.split)
    padded = "" if rule is None else f"{rule.describe_smaller()} is padded; "
    rows = "" if split is None else f"a session runs {split.describe()}; "
    inside = [
        *([] if rule is None else [rule.describe_smaller()]),
        *([] if split is None else [split.range]),
    ]
    others = f"; {' and '.join(inside)} only outside of sessions' calls" if inside else ""
    return (
        Note(
            "note",
            f"{CHOSEN_SIZES}{planned.describe()}; {padded}{rows}other sizes run {where} ({advice})",
        ),
        Note(
            "note", f"for all sizes but {sizes}, which are those of variant {fixed.variant.name}{others}"
        ),
    )


def _count_nodes(plan: Plan) -> NodeCounts:
    offloaded = count_offloaded(plan.root)
    host = _count_host_nodes(plan)
    constant = sum(count_user_nodes(index, index.constant_nodes) for index in plan.model.index.walk())
    return NodeCounts(total=offloaded + host, offloaded=offloaded, host=host, constant=constant)


def _report_costs(plan: Plan) -> PredictedCosts:
    cost = plan.cost
    return PredictedCosts(
        seconds=cost.total,
        execution=cost.execution,
        transfer=cost.transfer,
        launch=cost.launch,
        host_only=plan.root.host_only,
        estimated=plan.estimated_share,
        bound=plan.placement.bound,
        objective=str(plan.asked.get("objective", "latency")),
        measure=plan.placement.measure.value,
        optimized=plan.placement.value,
        joules=plan.root.joules,
        host_only_joules=_host_only_joules(plan.root),
    )


def _report_regions(
    plan: GraphPlan,
    whole: Plan,
    estimates: Mapping[str, EstimateReport],
    sram: Mapping[str, MemoryUse],
    not_here: Mapping[str, str],
) -> Iterator[RegionReport]:
    sent = find_sent_tensors(plan)
    for region in plan.regions:
        own_cpu = () if plan.path else whole.own_cpu.get(region.target.name, ())
        names = region.index.node_outputs
        on_cpu = [node for node in region.nodes if own_cpu and names[node][0] in own_cpu]
        boundary = sent[region.name]
        yield RegionReport(
            name=region.name,
            device=region.target.name,
            graph=plan.path,
            nodes=_count_region_nodes(region),
            trips=region.trips,
            composites=dict(sorted(Counter(u.composite for u in region.units if u.composite).items())),
            inputs=tuple(_report_tensor(each, region.index) for each in boundary if each.enters),
            outputs=tuple(_report_tensor(each, region.index) for each in boundary if not each.enters),
            seconds=region.seconds,
            borders=tuple(find_neighbours(plan, region)),
            estimate=estimates.get(region.name),
            not_here=not_here.get(region.name, ""),
            own_cpu=count_user_nodes(region.index, on_cpu),
            tried=_list_tried_options(whole, region.name),
            memory=_report_memory(region.target, region.memory),
            sram=sram.get(region.name),
        )


def _report_memory(target: Target, memory: RegionMemory | None) -> MemoryUse | None:
    """Return the bytes that count for `limits.memory` of a target, None where it has none."""
    if memory is None:
        return None
    return MemoryUse(
        used=round(memory.total),
        limit=target.rules.limits.memory,
        constants=round(memory.constants),
        activations=memory.activations,
    )


def _sum_memory(plan: Plan) -> dict[str, MemoryUse]:
    """Return by target the memory of all its regions together, where `limits.memory` holds."""
    found = {}
    for target in plan.targets:
        own = (region for region in plan.regions if region.target.name == target.name)
        use = _report_memory(target, measure_memory(own))
        if use is not None:
            found[target.name] = use
    return found


def _find_most_sram(plan: Plan, sram: Mapping[str, MemoryUse]) -> dict[str, MemoryUse]:
    """Return by target the use of the region that comes closest to its limit, or uses most without."""
    found = dict[str, MemoryUse]()
    for region in plan.regions:
        if region.name in sram:
            each = (found.get(region.target.name), sram[region.name])
            found[region.target.name] = max((use for use in each if use is not None), key=_fill)
    return found


def _fill(use: MemoryUse) -> tuple[float, int]:
    return (use.used / use.limit if use.limit else 0.0), use.used


def _list_tried_options(plan: Plan, region: str) -> tuple[dict[str, str], ...]:
    """Return the options that a region was compiled with in turn, the last of which holds."""
    own = [each for each in plan.refusals if each.region == region]
    return tuple(dict(each.options) for each in own) if own and all(e.options for e in own) else ()


def _count_region_nodes(region: PlannedRegion) -> int:
    """Count the user's nodes of a region, including those inside nodes that have bodies."""
    inside = sum(_count_inner_nodes(region.index, node) for node in region.nodes)
    return count_user_nodes(region.index, region.nodes) + inside


def _count_inner_nodes(index: GraphIndex, node: int) -> int:
    indices = (inner for body in index.bodies.get(node, ()) for inner in body.index.walk())
    return sum(len(inner.nodes) - len(inner.constant_nodes) for inner in indices)


def _count_host_nodes(plan: Plan) -> int:
    """Count the user's nodes on the host; those of a body without a plan count with its node."""
    total = 0
    for graph in plan.root.walk():
        nodes = [node for unit, _ in graph.host_units for node in unit.nodes]
        whole = [node for node in nodes if node in graph.index.bodies and node not in graph.bodies]
        total += count_user_nodes(graph.index, nodes)
        total += sum(_count_inner_nodes(graph.index, node) for node in whole)
    return total


def collect_plan_notes(root: GraphPlan) -> list[str]:
    """Return the notes of strategies, bodies included, and the number of estimated costs; each once."""
    notes = dict.fromkeys(note for graph in root.walk() for note in graph.notes)
    for note in (describe_unknown_costs(root), describe_kept_state(root)):
        if note:
            notes[note] = None
    return list(notes)


def _host_only_joules(plan: GraphPlan) -> float | None:
    """Return the joules of one run of a graph entirely on the host, None if unknown.

    In the problem the cost of a node includes its bodies as they were placed; what placing them saves is
    added back.
    """
    if plan.graph_problem.energy is None:
        return None
    joules = fsum(plan.graph_problem.energy.seconds[:, 0])
    for body in (body for inner in plan.bodies.values() for body in inner):
        alone = _host_only_joules(body)
        if alone is None or body.joules is None:
            return None
        joules += (alone - body.joules) * (body.trips / plan.trips if plan.trips else 0.0)
    return joules


def _report_tensor(sent: SentTensor, index: GraphIndex) -> ReportedTensor:
    kind = index.types.get(sent.name)
    if kind is None:
        return ReportedTensor(name=sent.name, dtype=None, shape=None, bytes=sent.bytes)
    return ReportedTensor(name=sent.name, dtype=kind.dtype, shape=kind.shape, bytes=sent.bytes)


def _slower_than_host_notes(plan: Plan) -> Iterable[str]:
    """Yield a note if the placement is predicted to be slower than the host alone."""
    is_sum = plan.placement.measure is Measure.total
    if (plan.cost.total if is_sum else plan.placement.value) <= plan.root.host_only:
        return
    slower = SLOWER_THAN_HOST
    joules, alone = plan.root.joules, _host_only_joules(plan.root)
    if joules is not None and alone is not None and joules < alone:
        slower += (
            f", and to save {format_quantity(alone - joules, 'J')} of {format_quantity(alone, 'J')}"
        )
    yield slower


def _unused_target_notes(plan: Plan) -> Iterable[str]:
    """Yield the commonest reason for each target that got no node although another target did."""
    used = {region.target.name for region in plan.regions}
    for number, target in enumerate(plan.targets):
        if not used or target.name in used:  # with all on the host its reasons say it
            continue
        counts: Counter[str] = Counter()
        for graph in plan.root.walk():
            for row, unit in enumerate(graph.units):
                counts[_why_not_on(graph, row, number)] += count_user_nodes(graph.index, unit.nodes)
        for reason, nodes in counts.most_common(1):
            yield (
                f"{target.name} has no node: {reason} ({nodes} of "
                f"{format_count(counts.total(), 'node')})"
            )


def _why_not_on(plan: GraphPlan, row: int, number: int) -> str:
    """Return the first reason why a unit is not on a target."""
    kept, verdict = plan.graph_problem.kept_on_host[number].get(row), plan.units[row].verdicts[number]
    if kept is not None:
        return str(kept)
    if not verdict:
        return verdict.reasons[0]
    label = int(plan.placement.labels[row])
    if label == 0:
        return str(plan.host_reason(row))
    return f"supported, but placed on {plan.targets[label - 1].name}"


def _report_precision(plan: Plan) -> PrecisionReport | None:
    lowered = plan.lowered
    if lowered is None:
        return None
    quantized = sum(unit.kind == "qdq" for region in plan.regions for unit in region.units)
    stated = {name: getattr(lowered, name, None) for name in PrecisionReport.model_fields}
    trade = tuple(_report_trade(lowered))
    own = {"on_accelerators": quantized, "budget": lowered.budget or None, "trade": trade}
    return PrecisionReport.model_validate(stated | own)


def _report_trade(lowered: LoweredPrecision) -> Iterator[TradePointReport]:
    """Yield the plans of an accuracy budget, each with what differs from the one before."""
    taken = {each.unit for each in lowered.in_float}, {each.unit for each in lowered.wide}
    before: dict[str, str] = {}
    for point in lowered.trade:
        own = dict.fromkeys(point.in_float, "float") | dict.fromkeys(point.wide, "wide")
        changed = {name: kind for name, kind in own.items() if before.get(name) != kind}
        yield TradePointReport(
            reached=point.reached,
            cost=point.cost,
            seconds=point.seconds,
            in_float=len(point.in_float),
            wide=len(point.wide),
            to_float=tuple(name for name, kind in changed.items() if kind == "float"),
            to_wide=tuple(name for name, kind in changed.items() if kind == "wide"),
            to_narrow=tuple(sorted(before.keys() - own.keys())),
            taken=(set(point.in_float), set(point.wide)) == taken,
        )
        before = own
