"""Calls of C functions: their operands, what a call needs beside them, and nodes that have none."""

from dataclasses import dataclass

Operand = str | None
"""A tensor by name; None is a null pointer."""

SCRATCH = "\0scratch"
"""The operand that points to a step's scratch memory; no tensor has this name."""


class UnsupportedNodeError(Exception):
    """A node for which there is no C; the message is the reason."""


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
