"""Accuracy budgets as text: the units left in floating point, and what each further decibel costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from byoc.bundle import PrecisionReport, Report, TradePointReport
from byoc.reporting._quantities import format_count, format_quantity

_ROWS = 8  # of the trade that are shown unless all are wanted
_NAMES = 3


def format_budget(report: Report, most: int | None) -> Iterator[str]:
    """Yield the units that an accuracy budget left in floating point, with their accuracy."""
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
        floats = f": what is on {used} computes in floating point" if used else ""
        yield f"  nothing is quantized any more{floats}"
    elif not precision.on_accelerators:
        yield "  nothing that is quantized is on an accelerator: the host computes all of it in floats"
    lines = [
        f"  in floating point on {unit.device}: {unit.unit}, alone "
        f"{_format_accuracy(precision, unit.alone)}"
        for unit in precision.in_float
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
    rows = [("", "kept", "predicted", f"a further {unit}", "in floating point")]
    before: _Point | None = None
    for each in shown:
        rows.append(
            (
                "*" if each.report.taken else "",
                _format_accuracy(precision, each.report.reached).removesuffix(" of classes"),
                format_quantity(each.report.seconds, "s"),
                "" if each.report.in_float == total else _format_step(before, each, scale),
                _format_units(before, each, None if most is None else _NAMES),
            )
        )
        before = each
    yield ""
    yield f"Plans by what they keep, with units of {total} in floating point; * is taken:"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for mark, kept, predicted, step, units in rows:
        left = f"  {mark:{widths[0]}} {kept:>{widths[1]}}  {predicted:>{widths[2]}}"
        yield f"{left}  {step:>{widths[3]}}  {units}".rstrip()
    if len(shown) < len(points):
        yield f"  and {format_count(len(points) - len(shown), 'other plan')} (--verbose)"
    gap = f"{100 * precision.trade_gap:.1f}"
    yield f"  each is within {gap} % of the least predicted, if noises of units alone add up"


@dataclass(frozen=True)
class _Point:
    """A plan of the trade with all its units in floating point, in the order that they came."""

    report: TradePointReport
    names: tuple[str, ...]


def _accumulate(trade: Sequence[TradePointReport]) -> Iterator[_Point]:
    """Yield each plan with all its units, from what differs from the one before."""
    names: tuple[str, ...] = ()
    for each in trade:
        names = (*(name for name in names if name not in set(each.fewer)), *each.more)
        yield _Point(each, names)


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
    """Format the seconds of a further decibel, or per cent of classes; empty for an exact plan."""
    gain = inf if before is None else scale * _find_gain(before, each)
    if before is None or gain == inf:
        return ""
    return format_quantity((each.report.seconds - before.report.seconds) / gain, "s")


def _format_units(before: _Point | None, each: _Point, most: int | None) -> str:
    """Format the number of a plan's units in floating point, and how they differ from those before."""
    known = () if before is None else before.names
    more = [name for name in each.names if name not in known]
    fewer = [name for name in known if name not in each.names]
    parts = [f"{sign} {_shorten(names, most)}" for sign, names in (("+", more), ("-", fewer)) if names]
    return f"{each.report.in_float}{': ' if parts else ''}{'; '.join(parts)}"


def _shorten(names: Sequence[str], most: int | None) -> str:
    shown = ", ".join(names[:most])
    return shown if most is None or len(names) <= most else f"{shown} and {len(names) - most} more"
