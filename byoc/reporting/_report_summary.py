"""Lines of a report as text: its summary, accuracy budgets, passes, host reasons, gains, break-evens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from byoc._dataclasses import dataclass
from byoc.bundle import (
    HostReason,
    PrecisionReport,
    PredictedCosts,
    ReachReport,
    RefusalReport,
    Report,
    TradePointReport,
    VerificationReport,
)
from byoc.console import format_count, format_quantity, format_share
from byoc.costs import objective_unit
from byoc.passes import REGION_SCOPE, PassEffect
from byoc.planning import LEAST_GAIN, WIDE, ActionKind, WhatIf
from byoc.reporting._estimates import ESTIMATE_LIMIT
from byoc.reporting._remedies import find_likeness

# Accuracy budgets as text: the precisions of units, and what each further decibel costs.

_ROWS = 8  # of the trade that are shown unless all are wanted
_NAMES = 3  # of nodes for a pass without `--verbose`


def format_budget(report: Report, most: int | None) -> Iterator[str]:
    """Yield the units that an accuracy budget has in floating point or 16 bits, with their accuracy."""
    precision = report.precision
    if precision is None or precision.budget is None:
        return
    seen = f"{format_count(precision.measured, 'sample')} of {precision.measured_on}"
    yield ""
    yield (
        f"Accuracy budget {precision.budget}: {_format_kept(precision, precision.reached)} kept on "
        f"{seen}, {_format_kept(precision, precision.all_quantized)} with all quantized"
    )
    if not precision.units:
        used = " and ".join(dict.fromkeys(region.device for region in report.regions))
        yield f"  nothing is quantized: what is on {used or 'the host'} computes in floating point"
    lines = [
        f"  in {precise} on {unit.device}: {unit.unit}, alone {_format_kept(precision, unit.alone)}"
        for precise, units in (("floating point", precision.in_float), (WIDE, precision.wide))
        for unit in units
    ]
    yield from lines[:most]
    if most is not None and len(lines) > most:
        yield f"  and {format_count(len(lines) - most, 'other unit')} (--verbose)"


def _format_kept(precision: PrecisionReport, value: float | None) -> str:
    if value is None:
        return "all"
    return f"{value:.1f} dB" if _is_ratio(precision) else f"{100 * value:.1f} % of classes"


def _is_ratio(precision: PrecisionReport) -> bool:
    """Return whether a budget is of a signal-to-noise ratio, and not of classes."""
    return not (precision.budget or "").startswith("top1")


def format_trade(report: Report, most: int | None) -> Iterator[str]:
    """Yield a table of an accuracy budget's plans: their accuracy and predicted seconds, both rising.

    Unless `most` is None, rows are left out where they keep little more than the one before, and units
    where there are many.
    """
    precision = report.precision
    if precision is None or len(precision.trade) < 2:
        return
    points = [*_accumulate(precision.trade)]
    shown = points if most is None else _thin(points)
    unit, scale = ("dB", 1) if _is_ratio(precision) else ("%", 100)
    total = len(precision.in_float) + precision.units
    names = {"narrow": precision.dtype or "integers", "wide": WIDE, "float": "float"}
    if not any(each.report.wide for each in points):
        del names["wide"]
    rows = [("", "kept", "predicted", f"a further {unit}", *names.values(), "")]
    before: _Point | None = None
    for each in shown:
        counts = {"float": each.report.in_float, "wide": each.report.wide}
        counts["narrow"] = total - sum(counts.values())
        rows.append(
            (
                "*" if each.report.taken else "",
                _format_kept(precision, each.report.reached).removesuffix(" of classes"),
                format_quantity(each.report.seconds, "s"),
                "" if each.report.in_float == total else _format_step(before, each, scale),
                *(str(counts[kind]) for kind in names),
                _format_changes(before, each, names, None if most is None else _NAMES),
            )
        )
        before = each
    yield ""
    yield f"Plans by what they keep, with {total} units in each precision; * is taken:"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for mark, *cells, changes in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:-1], strict=True))
        yield f"  {mark:{widths[0]}} {'  '.join(numbers)}  {changes}".rstrip()
    if len(shown) < len(points):
        yield f"  and {format_count(len(points) - len(shown), 'other plan')} (--verbose)"
    gap = f"{100 * precision.trade_gap:.1f}"
    yield f"  each is within {gap} % of the least predicted, if noises of units alone add up"


@dataclass(frozen=True)
class _Point:
    """A plan of the trade, with what its units are in that are not narrow, `float` or `wide`."""

    report: TradePointReport
    kinds: Mapping[str, str]


def _accumulate(trade: Sequence[TradePointReport]) -> Iterator[_Point]:
    """Yield each plan with the precisions of all units, from what differs from the one before."""
    kinds: dict[str, str] = {}
    for each in trade:
        changed = {*each.to_narrow, *each.to_wide, *each.to_float}
        kinds = {name: kind for name, kind in kinds.items() if name not in changed}
        kinds |= dict.fromkeys(each.to_wide, "wide") | dict.fromkeys(each.to_float, "float")
        yield _Point(each, kinds)


def _thin(points: Sequence[_Point]) -> list[_Point]:
    """Return at most `_ROWS` plans: the ends, the one that is taken, and others far apart."""
    left = [*points]
    while len(left) > _ROWS:
        inner = [number for number in range(1, len(left) - 1) if not left[number].report.taken]
        left.pop(min(inner, key=lambda number: _find_gain(left[number - 1], left[number])))
    return left


def _find_gain(one: _Point, other: _Point) -> float:
    """Return the accuracy that the second of two plans gains, infinite where it is exact."""
    low, high = one.report.reached, other.report.reached
    return inf if low is None or high is None else high - low


def _format_step(before: _Point | None, each: _Point, scale: float) -> str:
    """Format the seconds of a further decibel, or per cent of classes.

    Empty for an exact plan, and for the one that is taken where it keeps no more than the one before.
    """
    gain = inf if before is None else scale * _find_gain(before, each)
    if before is None or gain == inf or gain <= 0:
        return ""
    return format_quantity((each.report.seconds - before.report.seconds) / gain, "s")


def _format_changes(
    before: _Point | None, each: _Point, names: Mapping[str, str], most: int | None
) -> str:
    """Format how the precisions of a plan's units differ from those of the plan before."""
    known = {} if before is None else before.kinds
    parts = []
    for kind in ("float", "wide", "narrow"):
        units = [
            name
            for name in {**each.kinds, **known}
            if each.kinds.get(name, "narrow") == kind != known.get(name, "narrow")
        ]
        if units:
            parts.append(f"to {names[kind]}: {_shorten(units, most)}")
    return "; ".join(parts)


def _shorten(names: Sequence[str], most: int | None) -> str:
    shown = ", ".join(names[:most])
    return shown if most is None or len(names) <= most else f"{shown} and {len(names) - most} more"


# The effect of a pass as a line of text.

_PASS_OPERATORS = 4  # whose numbers a pass changed, in its line


def format_effect(effect: PassEffect) -> str:
    """Format the effect of a pass in a line: nodes before and after, by operator where they differ."""
    before, after = effect.nodes_before, effect.nodes_after
    where = f" on {effect.target}" if effect.target else ""
    if not effect.changed:
        return f"Pass {effect.name}{where}: nothing changed"
    kinds = sorted({*before, *after}, key=lambda op: (-abs(after.get(op, 0) - before.get(op, 0)), op))
    moves = [
        f"{op} {before.get(op, 0):,} to {after.get(op, 0):,}"
        for op in kinds
        if before.get(op, 0) != after.get(op, 0)
    ]
    more = f", {len(moves) - _PASS_OPERATORS} more" if len(moves) > _PASS_OPERATORS else ""
    shown = f" ({', '.join(moves[:_PASS_OPERATORS])}{more})" if moves else ""
    many = effect.scope == REGION_SCOPE
    regions = f" in {effect.changed} of {format_count(effect.applied, 'region')}" if many else ""
    total = sum(after.values())
    nodes = f"{sum(before.values()):,} to {total:,} nodes"
    if effect.rewritten and not moves:
        nodes = f"{effect.rewritten:,} of {total:,} nodes changed"
    return f"Pass {effect.name}{where}: {nodes}{regions}{shown}{_format_comparison(effect)}"


def _format_comparison(effect: PassEffect) -> str:
    if not effect.compared:
        return f"; not compared: {effect.not_compared}" if effect.not_compared else ""
    if effect.equal:
        return "; outputs equal, bit by bit"
    return f"; largest error {effect.largest_error:.1e} of the output's range"


# The lines of a report on why nodes are on the host, and on what would change that.

_OPERATORS = 3  # for a reason, in its line
# A smaller share would be shown as 0.0 %.
_LEAST_SHARE = 5e-4


@dataclass(frozen=True)
class _AlikeReasons:
    """Reasons that are told as one; `first` is the one with most work.

    They differ in names and values alone, else (`is_one_kind` is False) the same flags settle them.
    """

    first: HostReason
    others: int
    nodes: int
    share: float | None
    is_one_kind: bool = True


def format_host_reasons(reasons: Sequence[HostReason], most: int | None) -> Iterator[str]:
    """Yield the reasons with the largest shares of the work, the first `most`; None for all."""
    if not reasons:
        return
    rows = [_AlikeReasons(each, 0, each.nodes, each.share) for each in reasons]
    if most is not None:
        rows = _fold_reasons(reasons)
    yield from ("", "On the host, and why, by share of the work:")
    for number, row in enumerate(rows[:most]):
        yield f"  {_format_part(row.share):>7} {row.nodes:>5}  {_format_reason(row, culprit=not number)}"
        if row.first.remedy and (most is None or not number):
            yield f"{'':>17}{row.first.remedy}"
    if rest := rows[len(rows) if most is None else most :]:
        known = [row.share for row in rest if row.share is not None]
        share, nodes = (sum(known) if known else None), sum(row.nodes for row in rest)
        others = format_count(sum(1 + row.others for row in rest), "other reason")
        yield f"  {_format_part(share):>7} {nodes:>5}  for {others} (--verbose)"


def describe_culprit(reasons: Sequence[HostReason]) -> str:
    """Describe the reason that keeps most of the work on the host, with its share; empty for none.

    The reasons are those of a model of which nothing is offloaded.
    """
    if not reasons:
        return ""
    row = _fold_reasons(reasons)[0]
    share = "" if row.share is None else f"for {format_share(row.share)} of the work the reason is: "
    return f"{share}{_format_reason(row, culprit=True)}"


def _fold_reasons(reasons: Sequence[HostReason]) -> list[_AlikeReasons]:
    """Return reasons as one that differ in names and values alone, or that the same flags settle.

    The largest share comes first.
    """
    alike: dict[object, list[HostReason]] = {}
    for each in reasons:
        flags = each.actions and all(action.kind is ActionKind.FLAG for action in each.actions)
        key = each.actions if flags else find_likeness(each.causes, each.reason)
        alike.setdefault(key, []).append(each)
    rows = []
    for same in alike.values():
        shares = [each.share for each in same if each.share is not None]
        nodes = sum(each.nodes for each in same)
        kinds = {find_likeness(each.causes, each.reason) for each in same}
        share = sum(shares) if shares else None
        rows.append(_AlikeReasons(same[0], len(same) - 1, nodes, share, len(kinds) == 1))
    return sorted(rows, key=lambda row: -(row.share or 0.0))


def _format_part(share: float | None) -> str:
    if share is None:
        return ""
    return "< 0.1 %" if 0 < share < _LEAST_SHARE else format_share(share)


def _format_reason(row: _AlikeReasons, *, culprit: bool) -> str:
    """Format a reason; where it names no operator, with those that it concerns most."""
    reason, operators = row.first.reason, row.first.operators
    text = reason
    if operators and not any(reason.startswith(name) for name in operators):
        more = f" and {len(operators) - _OPERATORS} more" if len(operators) > _OPERATORS else ""
        text = f"{', '.join(operators[:_OPERATORS])}{more}: {reason}"
    if row.others:
        others = f"{row.others} like it" if row.is_one_kind else f"{row.others} that go with it"
        text += f" (and {others})"
    if culprit and row.first.largest and row.nodes > 1:
        text += f"; the costliest is '{row.first.largest}'"
    return text


def format_gains(report: Report, most: int | None) -> Iterator[str]:
    """Yield lines on the gains if more were supported, the largest gain first."""
    least = LEAST_GAIN * report.predicted.optimized
    gains = [item for item in report.what_if if item.gain >= least]
    if gains:
        yield from ("", "If it were supported:")
    for item in gains[:most]:
        yield _format_what_if(item, report)
    if most is not None and (hidden := len(gains[most:])):
        yield f"  and {format_count(hidden, 'smaller gain')} (--verbose)"
    elif gains and report.what_if_left_out:
        yield f"  {format_count(report.what_if_left_out, 'other reason')} not tried, with less at stake"


def format_break_evens(report: Report, most: int | None) -> Iterator[str]:
    """Yield a line for each group of units that a device supports and the host runs more cheaply."""
    if report.break_even:
        yield from ("", "Supported, but cheaper on the host, unless:")
    for item in report.break_even[:most]:
        ways = []
        if item.link is not None:
            ways.append(f"the link had {item.link / 1e9:.3g} GB/s")
        if item.faster is not None:
            ways.append(f"{item.target} were {item.faster:.3g} times as fast there")
        alike = f" and {item.groups - 1} like {'it' if item.nodes == 1 else 'them'}" * (item.groups > 1)
        nodes = f"{format_count(item.nodes, 'node')} from '{item.unit}'{alike}"
        yield f"  {nodes}: {' or '.join(ways)}"
    if most is not None and (hidden := len(report.break_even[most:])):
        yield f"  and {format_count(hidden, 'other group')} (--verbose)"


def _format_what_if(item: WhatIf, report: Report) -> str:
    saved = format_quantity(item.gain, objective_unit(report.predicted.objective))
    where = f" on {item.target}" if len(report.targets) > 1 else ""
    nodes = f" ({format_count(item.nodes, 'node')})" if item.nodes > 1 else ""
    reason = item.reason.removeprefix(f"{item.operator}: ").removeprefix(f"{item.operator} ")
    return f"  -{saved:<9} {item.operator}{nodes}{where}: {reason}{_format_actions(item)}"


def _format_actions(item: WhatIf) -> str:
    """Format the flags and limits that a gain takes; of rules the reason says it."""
    parts = list[str]()
    for action in item.actions:
        if action.kind is ActionKind.FLAG:
            parts += action.flags
        elif action.kind is ActionKind.LIMIT:
            parts.append(f"{action.constraint}: {action.value}")
        elif action.kind is ActionKind.QUANTIZED:
            parts.append("quantized: true")
    return f"  [{' '.join(parts)}]" if parts else ""


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
    target = " and ".join(
        report.name_target(name) for name in report.targets if not used or name in used
    )
    return (
        f"{report.display_name}: {nodes.offloaded} of {format_count(nodes.total, 'node')} "
        f"({_format_compute(report)}) on {target} in "
        f"{format_count(regions, 'region')}{_format_own_cpu(report)}, {nodes.host} on the host; "
        f"{_format_returned(report.refusals)}{_format_prediction(report.predicted)}; "
        f"{_format_estimate(report.predicted)}{_format_verification(report)}"
    )


def _format_own_cpu(report: Report) -> str:
    """Format how many nodes of regions a CPU of the device's own computes; empty where none is known."""
    count = sum(region.own_cpu for region in report.regions)
    return f", {count} of them on the device's own CPU" if count else ""


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


def _format_verification(report: Report) -> str:
    verification = report.verification
    left = [region for region in report.regions if region.not_here]
    if left and len(left) == len(report.regions):
        return f"compiled, not verified here: {left[0].not_here}"
    if verification is not None:
        error = verification.largest_relative_error
        size = f"{error:.1e}" if error else "0"
        kept = _format_accuracy(verification)
        if " dB " in kept and report.precision is not None and report.precision.budget:
            kept += " on the verification's sample"  # the budget was held on others
        on = f" on {verification.samples} samples" if verification.samples > 1 else ""
        by = f" by {verification.judge}" if verification.judge else ""
        but = _format_left(len(left), len(report.regions))
        return (
            f"verified{but}{on}{by}, largest error {size} of the output's range"
            f"{_format_explanation(verification)}{_format_ties(verification)}"
            f"{_format_reach(verification.reach)}{kept}{_format_layers(verification)}"
        )
    return "not verified" if report.verification_missing else f"not verified: {report.not_verified}"


def _format_layers(verification: VerificationReport) -> str:
    """Format which layers were not compared; empty where all were, or there were none to compare."""
    left = verification.layers_not_compared
    return f"; {left}" if left else ""


def _format_left(count: int, total: int) -> str:
    """Format the number of regions that could not be run here; empty where there are none."""
    return f" but for {count} of {format_count(total, 'region')}" if count else ""


def _format_explanation(verification: VerificationReport) -> str:
    """Format what explains the largest error where that is beyond the tolerance: noise, or fidelity."""
    known = [
        each
        for each in verification.outputs
        if (each.noise or each.fidelity) and each.relative is not None
    ]
    worst = max(known, key=lambda each: each.relative or 0.0, default=None)
    if worst is None:
        return ""
    if worst.fidelity is not None and (worst.absolute or 0.0) > (worst.noise or 0.0):
        kept = worst.fidelity.reference
        of_reference = "" if kept is None else f" ({kept:.1f} dB)"
        return f", as near to the float model as onnxruntime with the same integers{of_reference}"
    return f", within the noise of {worst.noise_source}"


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


_POOR = 10.0  # dB: the errors are a third of the signal


def describe_poor_output(report: Report) -> str:
    """Describe the worst output of a lower precision where less than 10 dB are left; else return ""."""
    accuracy = None if report.verification is None else report.verification.accuracy
    if accuracy is None or report.precision is None:
        return ""
    known = [
        (each.signal_to_noise, each.name)
        for each in accuracy.outputs
        if each.signal_to_noise is not None
    ]
    ratio, name = min(known, default=(_POOR, ""))
    if ratio >= _POOR:
        return ""
    left = f"only {ratio:.1f} dB signal-to-noise are left in output '{name}'"
    if report.precision.weights:
        return f"{left}: a smaller --block keeps more"
    return f"{left}: choose scales with --data FOLDER, or finer types with --accuracy-budget"


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
