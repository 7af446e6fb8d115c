"""Accuracy budgets as text: the precisions of units, and what each further decibel costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from byoc.bundle import PrecisionReport, Report, TradePointReport
from byoc.planning import WIDE
from byoc.reporting._quantities import format_count, format_quantity

_ROWS = 8  # of the trade that are shown unless all are wanted
_NAMES = 3


def format_budget(report: Report, most: int | None) -> Iterator[str]:
    """Yield the units that an accuracy budget has in floating point or 16 bits, with their accuracy."""
    precision = report.precision
    if precision is None or precision.budget is None:
        return
    seen = f"{format_count(precision.measured, 'sample')} of {precision.measured_on}"
    yield ""
    yield (
        f"Accuracy budget {precision.budget}: {_format_accuracy(precision, precision.reached)} kept on "
        f"{seen}, {_format_accuracy(precision, precision.all_quantized)} with all quantized"
    )
    if not precision.units:
        used = " and ".join(dict.fromkeys(region.device for region in report.regions))
        yield f"  nothing is quantized: what is on {used or 'the host'} computes in floating point"
    lines = [
        f"  in {precise} on {unit.device}: {unit.unit}, alone {_format_accuracy(precision, unit.alone)}"
        for precise, units in (("floating point", precision.in_float), (WIDE, precision.wide))
        for unit in units
    ]
    yield from lines[:most]
    if most is not None and len(lines) > most:
        yield f"  and {format_count(len(lines) - most, 'other unit')} (--verbose)"


def _format_accuracy(precision: PrecisionReport, value: float | None) -> str:
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
                _format_accuracy(precision, each.report.reached).removesuffix(" of classes"),
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
