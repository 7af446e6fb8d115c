"""Which operands a command reads, and which it writes, and where they are."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from .isa import Command, Conv, ConvFlags, Load, Store
from .operand import DType, Operand


def moves(command: Command) -> bool:
    """Return whether the DMA engine runs a command, and not the compute engine."""
    return isinstance(command, Load | Store)


def reads(command: Command) -> Mapping[str, Operand]:
    """Return the operands that a command reads, by their fields' names: LOAD and STORE their source."""
    found = {
        field.name: value
        for field in fields(command)
        if isinstance(value := getattr(command, field.name), Operand) and value.rows
    }
    for name in ("y", "target"):
        found.pop(name, None)
    if isinstance(command, Conv):
        for name in _unread(command):
            found.pop(name, None)
    return found


def _unread(command: Conv) -> Iterator[str]:
    """Yield the operands that a convolution has for its other commands."""
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    if first:
        yield "accumulator"
    if not last:
        yield "residual"
    if not first and (not last or command.x.dtype is DType.FLOAT32):
        yield "parameters"


def written(command: Command) -> Operand | None:
    """Return the operand that a command writes; None for END."""
    if isinstance(command, Load | Store):
        return command.target
    if isinstance(command, Conv) and not command.flags & ConvFlags.LAST:
        return command.accumulator
    return getattr(command, "y", None)
