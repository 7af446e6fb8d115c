"""Reports as text: tables and sentences for people, and how good the outputs are."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from byoc._dataclasses import dataclass, replace
from byoc.bundle import (
    MemoryUse,
    QuantizedWeightReport,
    RefusalReport,
    RegionReport,
    Report,
    ReportedTensor,
    TrialCandidate,
)
from byoc.console import (
    format_count,
    format_decibels,
    format_quantity,
    format_share,
    print_lines,
    print_table,
)
from byoc.planning import DoubtfulUnit, PerturbedPlan
from byoc.reporting._estimates import format_conditions, format_promises
from byoc.reporting._report_document import CHOSEN_SIZES, SLOWER_THAN_HOST, format_changes
from byoc.reporting._report_summary import (
    describe_culprit,
    describe_poor_output,
    format_break_evens,
    format_budget,
    format_effect,
    format_gains,
    format_host_reasons,
    format_trade,
    summarize_report,
)

if TYPE_CHECKING:
    from byoc.bundle import OutputAccuracy


_FLAGS = 4  # `--dim` in the advised command; more do not fit on a line


@dataclass(frozen=True)
class ReportSize:
    """The most rows of each section of the report, None for all.

    `characters` is the length that a line below the regions is cut to.
    """

    regions: int | None
    reasons: int | None
    gains: int | None
    break_evens: int | None
    notes: int | None
    others: int | None
    characters: int | None


SCREEN = ReportSize(9, 6, 3, 2, 4, 4, 190)
"""What fits a screen of 50 lines of 100 characters."""
BRIEF = ReportSize(4, 3, 1, 1, 2, 2, 100)
"""What leaves room on that screen."""
WHOLE = ReportSize(None, None, None, None, None, None, None)


def _measurement_lines(candidates: Iterable[TrialCandidate]) -> Iterator[str]:
    """Yield a line for each placement that was measured, the fastest first."""
    for each in sorted(candidates, key=lambda one: (bool(one.problem), one.seconds or 0.0)):
        if each.predicted is None or each.seconds is None or each.spread is None:
            yield f"  {each.strategy}: {each.problem}"
            continue
        seconds, spread = format_quantity(each.seconds, "s"), format_quantity(each.spread, "s")
        kept = "" if each.ratio is None else f"{each.ratio:.3f} times what is kept, "
        yield (
            f"  {each.strategy}: measured {seconds} (quartiles {spread} apart, "
            f"{format_count(each.samples, 'run')}), {kept}predicted "
            f"{format_quantity(each.predicted, 's')}"
        )


def print_report(report: Report, console: Console, size: ReportSize = SCREEN) -> None:
    """Print what must not be overlooked, the summary, the regions, and what keeps nodes on the host."""
    print_lines(_lines_above(report, size), console)
    kinds = fold_regions(report.regions)
    if size.regions is None:  # each by itself
        kinds = [RegionKind(each, 1, each.trips * each.seconds) for each in report.regions]
    shown, line = select_kinds(kinds, len(kinds) if size.regions is None else size.regions)
    if shown:
        print_table(make_region_rows(shown), console, NUMBER_COLUMNS)
    print_lines([line] if line else [], console)
    below = _lines_below(report, size)
    print_lines((_cut_line(line, size.characters) for line in below), console)
    if report.bundle:
        print_lines(["", f"Written to {report.bundle}"], console)


def print_reports(reports: Sequence[Report], console: Console, size: ReportSize = SCREEN) -> None:
    """Print the reports of a bundle's variants: a line for each, unless all is wanted (`WHOLE`).

    Where byoc chose the sizes of the first, it is printed as a single one is, and a line of the other.
    """
    if len(reports) == 1:
        print_report(reports[0], console, size)
        return
    if reports[0].chosen_sizes and size.regions is not None:
        print_report(reports[0].model_copy(update={"bundle": None}), console, size)
        print_lines(["", *map(summarize_report, reports[1:])], console)
        reports = reports[:1] if reports[0].bundle else []
        print_lines([f"Written to {each.bundle}" for each in reports], console)
        return
    for report in reports if size.regions is None else ():
        print_report(report.model_copy(update={"bundle": None}), console, size)
        print_lines([""], console)
    for report in reports if size.regions is not None else ():
        warnings = (f"warning: {note.text}" for note in report.notes if note.severity == "warning")
        name = report.variant or report.display_name
        marked = (f"{name}: {line}" for line in (*_list_alarms(report), *warnings))
        print_lines([*marked, summarize_report(report)], console)
    if reports[0].bundle:
        print_lines([f"Written to {reports[0].bundle}"], console)


def _cut_line(line: str, characters: int | None) -> str:
    if characters is None or len(line) <= characters:
        return line
    return f"{line[: characters - 4]} ..."


def _list_alarms(report: Report) -> Iterator[str]:
    """Yield the lines that must not be overlooked, the worst first."""
    for each in report.failures:
        yield f"codegen {each.codegen} failed: {each.region}: {each.reason}{_format_outcome(each)}"
    if report.nodes.total and not report.nodes.offloaded:
        culprit = describe_culprit(report.host_reasons)
        yield f"nothing was offloaded{culprit and ': '}{culprit}"
    compiled = report.bundle or any(region.not_here for region in report.regions)
    if compiled and report.not_verified is not None:
        yield f"not verified: {report.not_verified}"
    yield from filter(None, [describe_poor_output(report)])
    yield from (note.text for note in report.notes if _is_slower(note.text))


def _format_outcome(refusal: RefusalReport) -> str:
    """Format what became of a region at which a codegen failed, as the end of a sentence."""
    if refusal.options:
        return f", it is compiled with {format_changes(refusal.options)}"
    if not refusal.host:
        return ""
    alone = refusal.host == len(refusal.nodes) == 1
    return ", it runs on the host" if alone else f", {refusal.host} nodes run on the host"


def _is_slower(text: str) -> bool:
    return text.startswith(SLOWER_THAN_HOST)


def _lines_above(report: Report, size: ReportSize) -> Iterator[str]:
    """Yield the lines above the table of regions."""
    for alarm in _list_alarms(report):
        yield alarm[:1].upper() + alarm[1:]
    yield summarize_report(report)
    yield from map(format_effect, report.passes)
    yield from _take(list(_measurement_lines(report.measured)), size.others, "placement")
    yield from _dimension_lines(report)
    yield from _memory_lines(report)
    yield from (text[:1].upper() + text[1:] for text in _list_chosen(report))


def _list_chosen(report: Report) -> list[str]:
    """Return the note on sizes that byoc chose, if it did."""
    return [note.text for note in report.notes if note.text.startswith(CHOSEN_SIZES)]


def _lines_below(report: Report, size: ReportSize) -> Iterator[str]:
    """Yield the lines below the table of regions."""
    yield from format_host_reasons(report.host_reasons, size.reasons)
    yield from format_gains(report, size.gains)
    yield from format_break_evens(report, size.break_evens)
    yield from format_perturbation(report.perturbed, size.others)
    yield from format_budget(report, size.others)
    yield from format_trade(report, size.others)
    yield from _weight_lines(report, size.others)
    yield from format_promises(report.promises)
    yield from _take([*format_conditions(report.conditions)], size.notes, "condition")
    above = {*filter(_is_slower, (each.text for each in report.notes)), *_list_chosen(report)}
    notes = [f"{each.severity}: {each.text}" for each in report.notes if each.text not in above]
    if report.verification is not None:
        notes += [f"note: {text}" for text in report.verification.notes]
    notes.sort(key=lambda text: text.startswith("note: "))  # warnings first
    yield from _take(notes, size.notes, "note")


def _take(lines: Sequence[str], most: int | None, thing: str) -> Iterator[str]:
    """Yield the first lines, and the number of the others."""
    yield from lines[:most]
    if most is not None and len(lines) > most:
        yield f"  and {format_count(len(lines) - most, f'other {thing}')} (--verbose)"


def _dimension_lines(report: Report) -> Iterator[str]:
    """Yield the sizes that open dimensions are counted with, and predictions at the ends of ranges."""
    chosen = [dim for dim in report.open_dimensions if dim.least is None]
    if chosen:
        sizes = ", ".join(f"{dim.name} = {dim.size}" for dim in chosen)
        flags = " ".join(f"--dim {shlex.quote(f'{dim.name}={dim.size}')}" for dim in chosen[:_FLAGS])
        more = " ..." if len(chosen) > _FLAGS else ""
        yield f"Open dimensions, counted as {sizes}; to fix them: {flags}{more}"
    for point in report.predicted_at:
        ranged = {dim.name for dim in report.open_dimensions if dim.least is not None}
        sizes = ", ".join(f"{name} = {size}" for name, size in point.sizes.items() if name in ranged)
        seconds, host = (format_quantity(value, "s") for value in (point.seconds, point.host_only))
        yield f"At {sizes}: predicted {seconds}, host alone {host}"


def _memory_lines(report: Report) -> Iterator[str]:
    """Yield a line for the memory of each target that has a limit: its use by all regions together.

    A target with several compiled regions has a line for the SRAM of the one that is closest to full.
    """
    for target, use in report.memory.items():
        constants = format_quantity(use.constants or 0, "B")
        arena = "not known" if use.activations is None else format_quantity(use.activations, "B")
        parts = f"constants of all regions {constants}, largest arena of activations {arena}"
        yield f"Memory of {report.name_target(target)}: {_format_use(use)} ({parts})"
    regions = Counter(region.device for region in report.regions)
    for target, use in report.sram.items():
        if regions[target] > 1:
            yield f"SRAM of {report.name_target(target)}: at most {_format_use(use)}"


def _weight_lines(report: Report, most: int | None) -> Iterator[str]:
    """Yield the weights of few bits with their errors, the worst first."""
    weights = () if report.precision is None else report.precision.weights
    if not weights:
        return

    def measure(weight: QuantizedWeightReport) -> float:
        return inf if weight.decibels is None else weight.decibels

    yield ""
    count = format_count(len(weights), "product")
    what = "the ratio of the weights, or of outputs on --data, to their errors"
    used = ", ".join(map(str, sorted({each.bits for each in weights})))
    yield f"Weights of {used} bits in {count}, by {what}:"
    ordered = sorted(weights, key=measure)
    several = len({each.bits for each in weights}) > 1
    lines = [
        f"  {measure(each):.1f} dB: '{each.name}', {each.operator}"
        + (f", {each.bits} bits" if several else "")
        for each in ordered
    ]
    yield from _take(lines, most, "product")


# The lines of a report that say how much a placement depends on its costs.


def format_perturbation(found: PerturbedPlan | None, most: int | None) -> Iterator[str]:
    """Yield the regrets of a placement at perturbed costs, and the units whose device is in doubt.

    At most so many groups of units are told (`most`), None for all.
    """
    if found is None:
        return
    yield ""
    yield (
        f"With costs off by random factors ({found.sigma:g} the deviation of their logarithm, "
        f"{format_count(found.samples, 'sample')}):"
    )
    own = found.nominal if found.robust is None else found.chosen
    yield (
        f"  the placement costs {own.mean:.3f} times the best one on average, {own.worst:.3f} times at "
        f"worst; it is the best in {own.best:.0%} of the samples"
    )
    if found.robust is not None:
        before = found.nominal
        yield (
            f"  it is the best of {found.candidates} candidates for {_AIMS[found.robust]}; the one for "
            f"the costs as they are: {before.mean:.3f} on average, {before.worst:.3f} at worst"
        )
    if found.proven < found.samples:
        yield f"  the best is proven in {found.proven} of the samples; elsewhere regrets may be larger"
    yield from _format_units(found, most)


_AIMS = {"mean": "the average", "worst": "the worst case"}


def _format_units(found: PerturbedPlan, most: int | None) -> Iterator[str]:
    """Yield a line for all units of the same operators that change in the same way."""
    alike: dict[tuple[str, str, str], list[DoubtfulUnit]] = {}
    for unit in found.units:
        key = " ".join(unit.operators), unit.device, unit.elsewhere
        alike.setdefault(key, []).append(unit)
    for (operators, device, elsewhere), units in list(alike.items())[:most]:
        nodes = sum(unit.nodes for unit in units)
        many = f" ({format_count(nodes, 'node')})" if nodes > 1 else ""
        share, largest = sum(unit.share for unit in units) / len(units), units[0].share
        each = f", the likeliest of them in {largest:.0%}" if largest > share else ""
        better = f"{elsewhere} is better in {share:.0%} of the samples"
        yield f"  {operators}{many} on {device}: {better}{each}"
    if most is not None and len(alike) > most:
        yield f"  and {format_count(len(alike) - most, 'other group')} of units (--verbose)"


# The table of regions: equal ones in one row, and of many kinds those that take longest.

NUMBER_COLUMNS = (
    *("nodes", "own CPU", "inputs", "outputs", "memory", "SRAM"),
    *("runs", "predicted", "estimate", "together"),
)
"""The columns that are aligned on the right."""


@dataclass(frozen=True)
class RegionKind:
    """Equal regions: their number and the first of them, and the seconds of all in a run."""

    first: RegionReport
    count: int
    seconds: float


def fold_regions(regions: Sequence[RegionReport]) -> list[RegionKind]:
    """Return the kinds of regions in the order of the first of each.

    Equal regions have the same device, graph, nodes, composites, tensor types and seconds.
    """
    kinds: dict[tuple[object, ...], RegionKind] = {}
    for region in regions:
        types = [
            tuple((each.dtype, each.shape, each.bytes) for each in side)
            for side in (region.inputs, region.outputs)
        ]
        composites = tuple(sorted(region.composites.items()))
        told = [region.seconds, *([] if region.estimate is None else [region.estimate.seconds])]
        seconds = [f"{each:.6g}" for each in told]  # equal but for the order of a sum
        counts = (region.nodes, region.own_cpu, region.trips)
        used = [None if use is None else use.used for use in (region.memory, region.sram)]
        key = (region.device, region.graph, *counts, composites, *types, *seconds, *used)
        known = kinds.get(key, RegionKind(region, 0, 0.0))
        added = known.seconds + region.trips * region.seconds
        kinds[key] = replace(known, count=known.count + 1, seconds=added)
    return list(kinds.values())


def select_kinds(kinds: Sequence[RegionKind], most: int) -> tuple[list[RegionKind], str]:
    """Return the kinds of regions that take longest, in their order, and a line on the others."""
    if len(kinds) <= most:
        return list(kinds), ""
    shown = {id(kind) for kind in sorted(kinds, key=lambda kind: -kind.seconds)[:most]}
    left = [kind for kind in kinds if id(kind) not in shown]
    number, seconds = sum(kind.count for kind in left), sum(kind.seconds for kind in left)
    line = f"  and {format_count(number, 'other region')}, {format_quantity(seconds, 's')} (--verbose)"
    return [kind for kind in kinds if id(kind) in shown], line


def make_region_rows(kinds: Sequence[RegionKind]) -> list[dict[str, str]]:
    """Return a row for each kind of region; if some are in bodies, with their paths and trip counts."""
    inside = any(kind.first.graph for kind in kinds)
    folded = any(kind.count > 1 for kind in kinds)
    estimated = any(kind.first.estimate is not None for kind in kinds)
    on_cpu = any(kind.first.own_cpu for kind in kinds)
    planned = any(kind.first.memory is not None for kind in kinds)
    on_chip = any(kind.first.sram is not None for kind in kinds)
    rows = []
    for kind in kinds:
        region = kind.first
        times = f" x {kind.count}" if kind.count > 1 else ""
        rows.append(
            {
                "region": f"{region.name}{times}",
                "device": region.device,
                **({"in": region.graph} if inside else {}),
                "nodes": str(region.nodes),
                **({"own CPU": str(region.own_cpu)} if on_cpu else {}),
                "inputs": _format_boundary(region.inputs),
                "outputs": _format_boundary(region.outputs),
                **({"memory": _format_need(region.memory)} if planned else {}),
                **({"SRAM": _format_use(region.sram)} if on_chip else {}),
                **({"runs": f"{region.trips:g} x"} if inside else {}),
                "predicted": format_quantity(region.seconds, "s"),
                **({"estimate": _format_estimate(region)} if estimated else {}),
                **({"together": format_quantity(kind.seconds, "s")} if folded else {}),
            }
        )
    return rows


def _format_estimate(region: RegionReport) -> str:
    return "" if region.estimate is None else format_quantity(region.estimate.seconds, "s")


def _format_need(use: MemoryUse | None) -> str:
    return "" if use is None else format_quantity(use.used, "B")


def _format_use(use: MemoryUse | None) -> str:
    """Format used bytes and their limit: `12 of 512 KiB`, `12 KiB of 2 MiB`."""
    if use is None or use.limit is None:
        return _format_need(use)
    limit = format_quantity(use.limit, "B")
    unit = limit.rpartition(" ")[2]
    return f"{_format_need(use).removesuffix(f' {unit}')} of {limit}"


def _format_boundary(values: Sequence[ReportedTensor]) -> str:
    sizes = [value.bytes for value in values]
    known = sum(size for size in sizes if size is not None)
    if None not in sizes:
        return f"{len(values)} ({format_quantity(known, 'B')})"
    return (
        f"{len(values)} ({format_quantity(known, 'B')} + unknown)"
        if known
        else f"{len(values)} (unknown)"
    )


# The accuracy of a bundle in lower precision: each output against the float model, in words.


# Conventions of byoc, of no standard: an error of 3 % and of 10 % of the signal, by root mean squares.
_GOOD = 30.0  # dB
_FAIR = 20.0  # dB
# MLPerf Inference wants 99 % of the float model's accuracy. Networks that choose a class keep it at
# ratios that ruin a picture: benchmarks/RESULTS.md has a text recognizer with 0.999 at 14 dB.
_SAME_CLASS = 0.99  # of the rows

Level = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class OutputQuality:
    """An output of lower precision against the float model.

    `ratio` is its signal-to-noise ratio as text, `same_class` the share of rows with the same largest
    element, empty if it is not known. `level` is `good` from 30 dB, `bad` below 20 dB unless 99 % of the
    rows agree, and `warn` otherwise.
    """

    output: str
    ratio: str
    same_class: str
    level: Level


def list_output_qualities(report: Report) -> list[OutputQuality]:
    """Return the outputs, the worst first; none unless a precision was lowered and verified."""
    verification = report.verification
    if verification is None or verification.accuracy is None:
        return []
    outputs = sorted(verification.accuracy.outputs, key=_get_ratio)
    return [
        OutputQuality(
            each.name,
            format_decibels(_get_ratio(each)),
            "" if each.same_class is None else format_share(each.same_class),
            _find_level(each),
        )
        for each in outputs
    ]


def list_quality_warnings(report: Report) -> Iterator[str]:
    """Yield why the accuracy of a lower precision says little, or is not known, or is bad."""
    if report.precision is None:
        return
    yield from filter(None, [describe_poor_output(report)])
    if report.precision.random:
        yield "scales are from random data"
    if report.verification is not None and report.verification.accuracy is None:
        yield "accuracy was not measured"


def _get_ratio(output: OutputAccuracy) -> float:
    if output.exact:
        return inf
    return -inf if output.signal_to_noise is None else output.signal_to_noise


def _find_level(output: OutputAccuracy) -> Level:
    ratio = _get_ratio(output)
    if ratio >= _GOOD:
        return "good"
    agrees = output.same_class is not None and output.same_class >= _SAME_CLASS
    return "warn" if ratio >= _FAIR or agrees or output.signal_to_noise is None else "bad"
