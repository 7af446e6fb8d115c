"""Calls of C functions: their operands, and what a call needs beside them."""

from dataclasses import dataclass

Operand = str | None
"""A tensor by name; None is a null pointer."""

SCRATCH = "\0scratch"
"""The operand that points to a step's scratch memory; no tensor has this name."""


@dataclass(frozen=True)
class Call:
    """A call of a C function by one step of a program.

    `operands` are the pointers that it takes, in order. `structure` is the initializer of a constant
    structure of type `kind`, whose address comes first; empty where there is none. `scratch` are bytes
    of memory that hold nothing before and after the call.
    """

    function: str
    operands: tuple[Operand, ...]
    kind: str = ""
    structure: str = ""
    scratch: int = 0


def format_float(value: float) -> str:
    """Return a 32-bit float as a constant of C; nine digits tell all of them apart."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    digits = f"{value:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"
