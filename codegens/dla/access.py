"""The engine that runs a command, the operands that it reads, and the one that it writes."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum

from .isa import Command, Conv, ConvFlags, Load, Store
from .operand import DType, Operand


class Engine(Enum):
    """The two engines of the machine: DMA moves bytes, COMPUTE computes."""

    DMA = "dma"
    COMPUTE = "compute"


def engine_of(command: Command) -> Engine:
    """Return the engine that runs a command."""
    return Engine.DMA if isinstance(command, Load | Store) else Engine.COMPUTE


def read_operands(command: Command) -> Mapping[str, Operand]:
    """Return the operands that a command reads, by their fields' names.

    An ABSENT operand is left out only if the command may do without it.
    """
    unread = {"y", "target", *(_unread_fields(command) if isinstance(command, Conv) else ())}
    found = ((field.name, getattr(command, field.name)) for field in fields(command))
    return {name: value for name, value in found if isinstance(value, Operand) and name not in unread}


def _unread_fields(command: Conv) -> Iterator[str]:
    """Yield the fields of a convolution that this command does not read, or has left out."""
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    floats = command.x.dtype is DType.FLOAT32
    if first:
        yield "accumulator"
    if not last or not command.residual.rows:
        yield "residual"
    if (not first and (floats or not last)) or (floats and not command.parameters.rows):
        yield "parameters"


def written_operand(command: Command) -> Operand | None:
    """Return the operand that a command writes, None for END."""
    if isinstance(command, Load | Store):
        return command.target
    if isinstance(command, Conv) and not command.flags & ConvFlags.LAST:
        return command.accumulator
    return getattr(command, "y", None)
