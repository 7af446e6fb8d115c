"""Programs as bytes, and as text for people to read.

A file is little-endian 32-bit words: the magic and the version, the bytes of the arena, the scratchpad
and the weights, then the commands. A command is its opcode, the number of words that follow, and these:
its fields in the order of the dataclass, with a nested dataclass written as its fields in a row. So the
classes of the instruction set alone define the format.

A program is of the least version that has all it uses, so that older machines run it where they can.
Version 5 added int16: as the type of an operand, and with it int64 sums; SCALE between integers and
float32; POOL from one type of integers to another. Version 6 added MINMAX, QUANTIZE, and CONV from int16
into float32.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, get_type_hints

from byoc.codegen import InputError

from .instructions import Command, DType, End, Load, Memory, Operand, Signed, Store, Unpack
from .window_commands import (
    Add,
    Conv,
    Function,
    MatMul,
    MinMax,
    Mul,
    Normalize,
    Pool,
    Quantize,
    Scale,
    Table,
)

# All commands of the instruction set, and programs, which consist of them.

COMMANDS: tuple[type[Command], ...] = (
    Load, Store, Conv, Pool, Add, Mul, Scale, Table, Function, End, MatMul, Normalize, Unpack, MinMax,
    Quantize,
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Commands, the last of which is END, and the sizes in bytes of the memories that they need."""

    commands: tuple[Command, ...]
    arena: int
    scratchpad: int
    weights: int


MAGIC = b"DLA1"
VERSION = 6  # of the file's layout
VERSIONS = (4, 5, VERSION)
"""The versions that are read."""
_HEADER = struct.Struct("<4sIIII")
_START = struct.Struct("<II")


def assemble(program: Program) -> bytes:
    """Return a program as bytes. Raises InputError for a field that does not fit into its word."""
    sizes = (program.arena, program.scratchpad, program.weights)
    try:
        parts = [_HEADER.pack(MAGIC, find_version(program), *sizes)]
    except struct.error:
        raise InputError(f"a memory of {max(sizes)} bytes: addresses have 32 bits") from None
    for number, command in enumerate(program.commands):
        form = _LAYOUTS[command.opcode]
        try:
            words = form.packing.pack(*form.word_values(command))
        except (struct.error, OverflowError) as error:
            raise InputError(f"command {number}, {_command_title(command)}: {error}") from None
        parts += [_START.pack(command.opcode, len(words) // 4), words]
    return b"".join(parts)


def disassemble(content: bytes) -> Program:
    """Return the program that is encoded in bytes. Raises InputError if they are not a program."""
    if len(content) < _HEADER.size or content[: len(MAGIC)] != MAGIC:
        raise InputError("not a program of the dla: it does not begin with the magic bytes DLA1")
    _, version, *sizes = _HEADER.unpack_from(content)
    if version not in VERSIONS:
        known = f"{', '.join(map(str, VERSIONS[:-1]))} and {VERSION}"
        raise InputError(f"the program has version {version}, but only versions {known} are supported")
    commands = tuple(_commands(content))
    if not commands or not isinstance(commands[-1], End):
        raise InputError(f"the program breaks off after {len(commands)} commands, without END")
    return Program(commands, *sizes)


def find_version(program: Program) -> int:
    """Return the least version of the instruction set that has all that a program uses."""
    if any(map(_quantizes_dynamically, program.commands)):
        return VERSION
    return VERSIONS[1] if any(map(_has_int16, program.commands)) else VERSIONS[0]


def _quantizes_dynamically(command: Command) -> bool:
    """Return whether the versions before the last lack what a command does."""
    if isinstance(command, Conv):
        return command.x.dtype is DType.INT16 and command.y.dtype is DType.FLOAT32
    return isinstance(command, MinMax | Quantize)


def _has_int16(command: Command) -> bool:
    """Return whether version 4 lacks what a command does, and version 5 has it."""
    operands = [value for value in vars(command).values() if isinstance(value, Operand)]
    if any(operand.dtype in (DType.INT16, DType.INT64) for operand in operands):
        return True
    if isinstance(command, Pool):
        return command.x.dtype is not command.y.dtype
    if not isinstance(command, Scale) or command.x.dtype is DType.INT32:
        return False
    return DType.FLOAT32 in (command.x.dtype, command.y.dtype) and command.x.dtype is not command.y.dtype


def format_program(program: Program) -> str:
    """Return a program as text, one line for each command; fields at their default are left out."""
    sizes = f"arena {program.arena}, scratchpad {program.scratchpad}, weights {program.weights} bytes"
    lines = [f"{number:5} {format_command(command)}" for number, command in enumerate(program.commands)]
    return "\n".join([sizes, *lines]) + "\n"


def format_command(command: Command) -> str:
    """Return a command as one line of text."""
    shown = [
        f"{field.name}={_format_value(getattr(command, field.name))}"
        for field in fields(command)
        if field.name != "layer" and getattr(command, field.name) != field.default
    ]
    text = " ".join([f"[{command.layer}]", _command_title(command), *shown])
    if isinstance(command, Load) and command.memory is Memory.WEIGHTS:  # which has no tags
        return text.replace(f"source=t{command.source.tensor}[", "source=[")
    return text


def _commands(content: bytes) -> Iterator[Command]:
    """Yield the commands up to END, which must be the last."""
    position, number, ended = _HEADER.size, 0, False
    while position < len(content):
        where = f"command {number} at byte {position}"
        if ended:
            raise InputError(f"{where}: it follows END")
        if len(content) - position < _START.size:
            raise InputError(f"{where}: the program breaks off inside it")
        opcode, words = _START.unpack_from(content, position)
        if opcode not in _LAYOUTS:
            raise InputError(f"{where}: no command has the opcode {opcode}")
        form = _LAYOUTS[opcode]
        size = form.packing.size
        if words * 4 != size:
            raise InputError(f"{where}: {words} words, but {form.kind.__name__.upper()} has {size // 4}")
        position += _START.size
        if len(content) - position < size:
            raise InputError(f"{where}: the program breaks off inside it")
        try:
            command = form.build_instance(iter(form.packing.unpack_from(content, position)))
        except ValueError as error:  # a number that is no member of the enumeration
            raise InputError(f"{where}: {error}") from None
        yield command
        ended = form.kind is End
        position, number = position + size, number + 1


@dataclass(frozen=True, eq=False)
class _FieldLayout:
    """The fields of a dataclass by name, each with its type, or its form if it is a dataclass."""

    kind: type[Any]
    fields: tuple[tuple[str, Any], ...]

    def format_letters(self) -> str:
        """Return the format of the words, one letter of `struct` for each."""
        return "".join(
            what.format_letters() if isinstance(what, _FieldLayout) else _LETTERS.get(what, "I")
            for _, what in self.fields
        )

    @cached_property
    def packing(self) -> struct.Struct:
        """The packing of an instance."""
        return struct.Struct("<" + self.format_letters())

    def word_values(self, instance: object) -> Iterator[Any]:
        """Yield the words of an instance as numbers."""
        for name, what in self.fields:
            value = getattr(instance, name)
            if isinstance(what, _FieldLayout):
                yield from what.word_values(value)
            else:
                yield value

    def build_instance(self, words: Iterator[Any]) -> Any:
        """Return an instance with fields that are taken from the words in order."""
        return self.kind(*(_read_field(what, words) for _, what in self.fields))


_LETTERS = {float: "f", Signed: "i"}


def _read_field(what: Any, words: Iterator[Any]) -> Any:
    """Return the value of the next field: a dataclass, a number, or a member of an enumeration."""
    if isinstance(what, _FieldLayout):
        return what.build_instance(words)
    word = next(words)
    return what(word) if isinstance(what, type) else word


def _field_layout(kind: Any) -> _FieldLayout:
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    parts = [_field_layout(hints[name]) if is_dataclass(hints[name]) else hints[name] for name in names]
    return _FieldLayout(kind, tuple(zip(names, parts, strict=True)))


_LAYOUTS = {kind.opcode: _field_layout(kind) for kind in COMMANDS}


def _command_title(command: Command) -> str:
    return type(command).__name__.upper()


def _format_value(value: Any) -> str:
    if isinstance(value, Operand):
        return _format_box(value)
    if is_dataclass(value):
        return ",".join(str(getattr(value, field.name)) for field in fields(value))
    return f"{value:g}" if isinstance(value, float) else getattr(value, "name", None) or str(value)


def _format_box(box: Operand) -> str:
    """Return an operand as text: tensor, extents, type, where it starts, the pitches."""
    if not box.rows:
        return "none"
    last = box.first_row + box.rows
    kept = f"%{box.window}" if box.window < last else ""
    pitches = f"{box.row_pitch}/{box.pixel_pitch}/{box.channel_pitch}"
    extents = f"{box.first_row}:{last}{kept},{box.cols},{box.channels}"
    return f"t{box.tensor}[{extents}]{box.dtype.name.lower()}@{box.address}+{pitches}"
