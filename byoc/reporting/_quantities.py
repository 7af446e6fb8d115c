"""Numbers formatted for people: `4.1 ms`, `588 KiB`, `99.2 %`, `1 region`."""

from byoc.costs import ENERGY, LATENCY, parse_objective

_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


def format_quantity(value: float, unit: str) -> str:
    """Format seconds or joules (`s`, `J`) with a decimal prefix, or bytes (`B`) with a binary one.

    Without a unit, format the number alone.
    """
    if not unit:
        return f"{value:.4g}"
    if unit == "B":
        step = 0
        while value >= 1024 and step < len(_BINARY) - 1:
            value, step = value / 1024, step + 1
        return f"{_format_digits(value)} {_BINARY[step]}"
    for scale, prefix in _SMALL:
        if value >= scale:
            return f"{_format_digits(value / scale)} {prefix}{unit}"
    return f"0 {unit}" if not value else f"{value:.1e} {unit}"


def objective_unit(objective: str) -> str:
    """Return the unit of the values of an objective: `s`, `J`, none for a weighted sum.

    Raise InputError for an unknown objective.
    """
    return {LATENCY: "s", ENERGY: "J"}.get(parse_objective(objective), "")


def format_share(value: float) -> str:
    """Format a part of one as a percentage that is never rounded up to the whole."""
    if value == 1:
        return "100 %"
    return f"{min(value * 100, 99.9):.1f} %"


def format_count(number: int, thing: str) -> str:
    """Format a number of things: `1 region`, `2 regions`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _format_digits(value: float) -> str:
    """Format three significant digits, or the whole part if it has more."""
    if value >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
