"""All commands of the instruction set, and programs, which consist of them."""

from dataclasses import dataclass

from .element_commands import Add, Function, Mul, Normalize, Scale, Table
from .instructions import Command, End, Load, Store, Unpack
from .window_commands import Conv, MatMul, Pool

COMMANDS: tuple[type[Command], ...] = (
    Load, Store, Conv, Pool, Add, Mul, Scale, Table, Function, End, MatMul, Normalize, Unpack,
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Commands, the last of which is END, and the sizes in bytes of the memories that they need."""

    commands: tuple[Command, ...]
    arena: int
    scratchpad: int
    weights: int
