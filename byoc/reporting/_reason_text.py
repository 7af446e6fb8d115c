"""The lines of a report on why nodes are on the host, and on what would change that."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byoc.bundle import HostReason, Report
from byoc.planning import WhatIf
from byoc.reporting._quantities import format_count, format_quantity, format_share, objective_unit

_OPERATORS = 3
# Gains below this share of the objective are in the JSON only.
_LEAST_GAIN = 1e-3
# A smaller share would be shown as 0.0 %.
_LEAST_SHARE = 5e-4
_NAMES_AND_NUMBERS = re.compile(r"'[^']*'|\d+")


@dataclass(frozen=True)
class _AlikeReasons:
    """Reasons that differ in names and numbers alone; `first` is the one with most work."""

    first: HostReason
    others: int
    nodes: int
    share: float | None


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
    """Return reasons that differ in names and numbers alone as one, the largest share first."""
    alike: dict[str, list[HostReason]] = {}
    for each in reasons:
        alike.setdefault(_NAMES_AND_NUMBERS.sub("", each.reason), []).append(each)
    rows = []
    for same in alike.values():
        shares = [each.share for each in same if each.share is not None]
        nodes = sum(each.nodes for each in same)
        rows.append(_AlikeReasons(same[0], len(same) - 1, nodes, sum(shares) if shares else None))
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
        text += f" (and {row.others} like it)"
    if culprit and row.first.largest and row.nodes > 1:
        text += f"; the costliest is '{row.first.largest}'"
    return text


def format_gains(report: Report, most: int | None) -> Iterator[str]:
    """Yield lines on the gains if more were supported, the largest gain first."""
    least = _LEAST_GAIN * report.predicted.optimized
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
    return f"  -{saved:<9} {item.operator}{nodes}{where}: {reason}"
