"""The report as text: a summary line, a table of regions, and the commonest reasons."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from byoc.bundle import (
    HostReason,
    PredictedCosts,
    ReachReport,
    RefusalReport,
    Report,
    ReportedTensor,
    TrialCandidate,
    VerificationReport,
)
from byoc.console import print_lines, print_table
from byoc.planning import WhatIf
from byoc.reporting._estimates import ESTIMATE_LIMIT
from byoc.reporting._perturbation_text import format_perturbation
from byoc.reporting._quantities import format_count, format_quantity, format_share, objective_unit

_REASONS = 3
_UNITS = 10
_FLAGS = 4
# The columns of numbers, which are aligned on the right.
_NUMBERS = ("nodes", "inputs", "outputs", "runs", "predicted")
# Gains below this share of the objective are in the JSON only.
_LEAST_GAIN = 1e-3
# A smaller share would be shown as 0.0 %.
_LEAST_ESTIMATE = 5e-4

# What a strategy minimized where that is no sum.
_MEASURES = {
    "total": "",
    "makespan": ", {} with host and accelerators at work at once",
    "load": ", in a pipeline a run every {}",
}


def summarize_report(report: Report) -> str:
    """Format the one-line summary of a report."""
    nodes, regions = report.nodes, len(report.regions)
    used = {region.device for region in report.regions}
    target = " and ".join(name for name in report.targets if not used or name in used)
    return (
        f"{report.model}: {nodes.offloaded} of {format_count(nodes.total, 'node')} "
        f"({_format_compute(report)}) on {target} in "
        f"{format_count(regions, 'region')}, {nodes.host} on the host; "
        f"{_format_returned(report.refusals)}{_format_prediction(report.predicted)}; "
        f"{_format_estimate(report.predicted)}{_format_verification(report)}"
    )


def _format_compute(report: Report) -> str:
    """Format the share of the compute that is offloaded, `unknown` if more than that is an estimate.

    Operations behind an unknown shape are hardly counted, so where they are many it is of the rest.
    """
    some = report.nodes.offloaded > 0
    if some and report.predicted.estimated > report.compute.offloaded:
        return "an unknown share of the compute"
    known = "known " if some and report.predicted.estimated > ESTIMATE_LIMIT else ""
    return f"{format_share(report.compute.offloaded)} of the {known}compute"


def _format_estimate(predicted: PredictedCosts) -> str:
    """Format the share of the work that is an estimate, with `; ` at the end; empty if there is none."""
    if predicted.estimated < _LEAST_ESTIMATE:
        return ""
    return f"{format_share(predicted.estimated)} of the work is an estimate; "


def _format_returned(refusals: Iterable[RefusalReport]) -> str:
    """Format the number of nodes that went back to the host, and why, with `; ` at the end."""
    back = [each for each in refusals if each.host]
    if not back:
        return ""
    reasons = dict.fromkeys(f"codegen {each.codegen}: {each.reason}" for each in back)
    first, *others = reasons
    more = f", and {format_count(len(others), 'other reason')}" if others else ""
    nodes = format_count(sum(each.host for each in back), "node")
    return f"{nodes} went back to the host: {first}{more}; "


def _format_prediction(predicted: PredictedCosts) -> str:
    """Format the prediction: joules first if they are the objective, last if they are known."""
    seconds = format_quantity(predicted.seconds, "s")
    unit, joules = objective_unit(predicted.objective), predicted.joules
    if unit == "J" and joules is not None:
        alone = predicted.host_only_joules
        host = "" if alone is None else f", host alone {format_quantity(alone, 'J')}"
        return f"predicted {format_quantity(joules, 'J')}{host}; {seconds}"
    also = "" if unit or joules is None else f"; {format_quantity(joules, 'J')}"
    least = _MEASURES[predicted.measure].format(format_quantity(predicted.optimized, unit))
    return f"predicted {seconds}{least}, host alone {format_quantity(predicted.host_only, 's')}{also}"


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


def print_report(report: Report, console: Console, every_reason: bool = False) -> None:
    """Print the summary, the regions, and the commonest (or all) reasons for staying on the host."""

    print_lines(_lines_above(report), console)
    if report.regions:
        print_table(_region_rows(report), console, _NUMBERS)
    print_lines(_lines_below(report, every_reason), console)


def _lines_above(report: Report) -> Iterator[str]:
    """Yield the lines above the table of regions."""
    if report.verification_missing:
        yield f"Not verified: {report.not_verified}"
    for each in report.failures:
        yield f"Codegen {each.codegen} failed: {each.region}: {each.reason}"
    yield summarize_report(report)
    yield from _measurement_lines(report.measured)
    yield from _dimension_lines(report)


def _lines_below(report: Report, every_reason: bool) -> Iterator[str]:
    """Yield the lines below the table of regions."""
    yield from _host_reason_lines(report.host_reasons, every_reason)
    yield from _what_if_lines(report)
    yield from _break_even_lines(report)
    yield from format_perturbation(report.perturbed)
    yield from _budget_lines(report)
    yield from (f"{note.severity}: {note.text}" for note in report.notes)
    if report.verification is not None:
        yield from (f"note: {text}" for text in report.verification.notes)
    if report.bundle:
        yield from ("", f"Written to {report.bundle}")


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


def _host_reason_lines(reasons: Sequence[HostReason], every_reason: bool) -> Iterator[str]:
    shown = len(reasons) if every_reason else _REASONS
    if reasons:
        yield from ("", "On the host, and why:")
    for item in reasons[:shown]:
        yield f"  {item.nodes:>5}  {item.reason}"
    if rest := reasons[shown:]:
        nodes = sum(item.nodes for item in rest)
        yield f"  {nodes:>5}  for {format_count(len(rest), 'other reason')} (--reasons)"


def _what_if_lines(report: Report) -> Iterator[str]:
    least = _LEAST_GAIN * report.predicted.optimized
    gains = [item for item in report.what_if if item.gain >= least]
    if gains:
        yield from ("", "If it were supported:")
    for item in gains:
        yield _format_what_if(item, report)
    if gains and report.what_if_left_out:
        yield f"  {format_count(report.what_if_left_out, 'other reason')} not tried, with less at stake"


def _break_even_lines(report: Report) -> Iterator[str]:
    """Yield a line for each group of units that a device supports and the host runs more cheaply."""
    if report.break_even:
        yield from ("", "Supported, but cheaper on the host, unless:")
    for item in report.break_even:
        ways = []
        if item.link is not None:
            ways.append(f"the link had {item.link / 1e9:.3g} GB/s")
        if item.faster is not None:
            ways.append(f"{item.target} were {item.faster:.3g} times as fast there")
        alike = f" and {item.groups - 1} like {'it' if item.nodes == 1 else 'them'}" * (item.groups > 1)
        nodes = f"{format_count(item.nodes, 'node')} from '{item.unit}'{alike}"
        yield f"  {nodes}: {' or '.join(ways)}"


def _format_what_if(item: WhatIf, report: Report) -> str:
    saved = format_quantity(item.gain, objective_unit(report.predicted.objective))
    where = f" on {item.target}" if len(report.targets) > 1 else ""
    nodes = f" ({format_count(item.nodes, 'node')})" if item.nodes > 1 else ""
    reason = item.reason.removeprefix(f"{item.operator}: ").removeprefix(f"{item.operator} ")
    return f"  -{saved:<9} {item.operator}{nodes}{where}: {reason}"


def _region_rows(report: Report) -> list[dict[str, str]]:
    """Return a row for each region; if some are in bodies, with their paths and trip counts."""
    inside = any(region.graph for region in report.regions)
    return [
        {
            "region": region.name,
            "device": region.device,
            **({"in": region.graph} if inside else {}),
            "nodes": str(region.nodes),
            "inputs": _format_boundary(region.inputs),
            "outputs": _format_boundary(region.outputs),
            **({"runs": f"{region.trips:g} x"} if inside else {}),
            "predicted": format_quantity(region.seconds, "s"),
        }
        for region in report.regions
    ]


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


def _format_verification(report: Report) -> str:
    verification = report.verification
    if verification is not None:
        error = verification.largest_relative_error
        size = f"{error:.1e}" if error else "0"
        left = _format_accuracy(verification)
        if " dB " in left and report.precision is not None and report.precision.budget:
            left += " on the verification's sample"  # the budget was held on others
        on = f" on {verification.samples} samples" if verification.samples > 1 else ""
        by = f" by {verification.judge}" if verification.judge else ""
        return (
            f"verified{on}{by}, largest error {size} of the output's range"
            f"{_format_noise(verification)}{_format_ties(verification)}"
            f"{_format_reach(verification.reach)}{left}"
        )
    return "not verified" if report.verification_missing else f"not verified: {report.not_verified}"


def _format_noise(verification: VerificationReport) -> str:
    """Format what explains the largest error where that is beyond the tolerance."""
    known = [each for each in verification.outputs if each.noise and each.relative is not None]
    worst = max(known, key=lambda each: each.relative or 0.0, default=None)
    return f", within the noise of {worst.noise_source}" if worst is not None else ""


def _format_ties(verification: VerificationReport) -> str:
    """Format the rows that are in another order or others, of the selection with most of them."""
    if not verification.tie_breaks:
        return ""
    first, *others = verification.tie_breaks
    moved = f"{first.moved} in another order" if first.moved else ""
    replaced = f"{first.replaced} replaced by others" if first.replaced else ""
    more = f", and {format_count(len(others), 'other selection')} like it" if others else ""
    return (
        f"; of {first.rows} rows of {', '.join(first.outputs)} "
        f"{' and '.join(filter(None, (moved, replaced)))}, tied within {first.gap:.1e}{more}"
    )


def _format_reach(reach: ReachReport | None) -> str:
    """Format the number of regions that the sample did not reach, and what they were compared on."""
    if reach is None or not reach.not_reached:
        return ""
    ways = [
        f"{reach.others} reached by other inputs" if reach.others else "",
        f"{reach.alone} compared alone" if reach.alone else "",
        f"{reach.never} never compared" if reach.never else "",
    ]
    missed = f"{reach.not_reached} of {format_count(reach.regions, 'region')}"
    return f"; {missed} not reached by the sample ({', '.join(filter(None, ways))})"


def _format_accuracy(verification: VerificationReport) -> str:
    """Format the accuracy that lower precision left of the original's, for the worst output."""
    accuracy = verification.accuracy
    if accuracy is None:
        return ""
    known = [output.signal_to_noise for output in accuracy.outputs]
    worst = min((ratio for ratio in known if ratio is not None), default=None)
    if worst is None:
        exact = all(output.exact for output in accuracy.outputs)
        return f"; equal to {accuracy.original}" if exact else ""
    return f"; {worst:.1f} dB signal-to-noise against {accuracy.original}"


def _budget_lines(report: Report) -> Iterator[str]:
    """Yield the units that an accuracy budget left in floating point, with their accuracy."""
    precision = report.precision
    if precision is None or precision.budget is None:
        return
    snr = not precision.budget.startswith("top1")

    def accuracy(value: float | None) -> str:
        if value is None:
            return "all"
        return f"{value:.1f} dB" if snr else f"{100 * value:.1f} % of classes"

    seen = f"{format_count(precision.measured, 'sample')} of {precision.measured_on}"
    yield ""
    yield (
        f"Accuracy budget {precision.budget}: {accuracy(precision.reached)} kept on {seen}, "
        f"{accuracy(precision.all_quantized)} with all quantized"
    )
    if not precision.units:
        used = " and ".join(dict.fromkeys(region.device for region in report.regions))
        floats = f": what is on {used} computes in floating point" if used else ""
        yield f"  nothing is quantized any more{floats}"
    elif not precision.on_accelerators:
        yield "  nothing that is quantized is on an accelerator: the host computes all of it in floats"
    for unit in precision.in_float[:_UNITS]:
        yield f"  in floating point on {unit.device}: {unit.unit}, alone {accuracy(unit.alone)}"
    more = len(precision.in_float) - _UNITS
    if more > 0:
        yield f"  and {format_count(more, 'more unit')}"
