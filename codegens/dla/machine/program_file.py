"""Programs as bytes, and as text for people to read.

A file is little-endian 32-bit words: the magic and the version, the bytes of the arena, the scratchpad
and the weights, then the commands. A command is its opcode, the number of words that follow, and these:
its fields in the order of the dataclass, with a nested dataclass written as its fields in a row. So the
classes of the instruction set alone define the format.

A program is of the least version that has all it uses, so that older machines run it where they can.
Version 5 added int16: as the type of an operand, and with it int64 sums; SCALE between integers and
float32; POOL from one type of integers to another. Version 6 added MINMAX, QUANTIZE, and CONV from int16
into float32. Version 7 added the function NUMBER.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from math import frexp, pi
from typing import Any, get_type_hints

import numpy as np
import scipy
from numpy.typing import NDArray

from byoc.codegen import InputError

from ..dla_options import VERSION, VERSIONS
from .instructions import (
    Add,
    Command,
    Conv,
    DType,
    End,
    Function,
    FunctionKind,
    Load,
    MatMul,
    Memory,
    MinMax,
    Mul,
    Normalize,
    Operand,
    Pool,
    Quantize,
    Scale,
    Signed,
    Store,
    Table,
    Unpack,
)

# Fixed-point arithmetic: a factor is a mantissa and a shift, and results are rounded once.
#
# A factor f is mantissa / 2**shift with the mantissa in [2**30, 2**31), so its relative error is at
# most 2**-31 (Jacob et al. 2018, section 2.2, here with the rounding of ONNX's QuantizeLinear: half
# to even).
#
# Functions of one variable, and tables of 256 bytes for them between int8 or uint8 tensors.

Integers = NDArray[np.int64]

_LEVELS = 255  # the greatest uint8, which DynamicQuantizeLinear makes of the greatest number
_BITS = 31  # of a multiplier, signed 32 bits
MAX_SHIFT = 62
"""The largest shift: a smaller factor takes every int32 to 0."""


def to_multiplier(factor: float) -> tuple[int, int]:
    """Return the mantissa and the shift of a factor; (0, 0) for one that takes every int32 to 0.

    Raises InputError for a factor that is negative, not finite, or at least 2**31.
    """
    if not 0 <= factor < 2.0**_BITS:
        raise InputError(f"a scale of {factor}: a multiplier is at least 0 and less than 2**{_BITS}")
    fraction, exponent = frexp(factor)  # factor = fraction * 2**exponent, fraction in [0.5, 1)
    mantissa, shift = round(fraction * 2**_BITS), _BITS - exponent
    if mantissa == 2**_BITS:
        mantissa, shift = mantissa // 2, shift - 1
    if shift < 0:
        raise InputError(f"a scale of {factor}: a multiplier is less than 2**{_BITS}")
    return (mantissa, shift) if mantissa and shift <= MAX_SHIFT else (0, 0)


def to_common_multipliers(one: float, other: float) -> tuple[int, int, int]:
    """Return the mantissas of two factors and the shift of both, as ADD takes them.

    The larger mantissa is as `to_multiplier` makes it; the other's error is at most 2**-(shift + 1).
    Raises InputError as `to_multiplier` does.
    """
    _, shift = to_multiplier(max(one, other))
    for factor in (one, other):
        to_multiplier(factor)
    return round(one * 2**shift), round(other * 2**shift), shift


def round_half_even(numerator: Integers, denominator: Integers) -> Integers:
    """Return numerator / denominator rounded to the nearest integer, halves to even.

    The denominator is in [1, 2**62).
    """
    quotient, rest = np.divmod(numerator, denominator)
    twice = 2 * rest
    up = (twice > denominator) | ((twice == denominator) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def shift_half_even(values: Integers, shift: Integers | int) -> Integers:
    """Return values / 2**shift rounded to the nearest integer, halves to even; shift is in [0, 62]."""
    quotient = values >> shift
    one = np.int64(1) << shift
    twice = (values & (one - 1)) << 1
    up = (twice > one) | ((twice == one) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def requantize(
    sums: Integers, mantissa: Integers | int, shift: Integers | int, zero: Integers | int
) -> Integers:
    """Return sums * mantissa / 2**shift, rounded, plus the zero point.

    The product must fit into int64, as the product of an int32 and a mantissa always does.
    """
    return shift_half_even(sums.astype(np.int64) * mantissa, shift) + zero


def saturate(
    values: NDArray[Any],
    low: NDArray[Any] | float,
    high: NDArray[Any] | float,
    dtype: np.dtype[np.integer],
) -> NDArray[np.integer]:
    """Return values limited to [low, high] and to the range of a type, as that type; of a NaN, low."""
    limits = np.iinfo(dtype)
    least, most = np.maximum(low, limits.min), np.minimum(high, limits.max)
    limited: NDArray[np.integer] = np.fmin(np.fmax(values, least), most).astype(dtype)
    return limited


def to_real_multiplier(factor: float) -> tuple[int, int]:
    """Return the mantissa and the shift of a factor of CONV's output stage; the shift may be negative.

    The factor is finite and at least 0.
    """
    fraction, exponent = frexp(factor)
    mantissa, shift = round(fraction * 2**_BITS), _BITS - exponent
    return (mantissa // 2, shift - 1) if mantissa == 2**_BITS else (mantissa, shift)


Floats = NDArray[Any]
"""float32 or float64; a function's result has the type of its argument."""


def _erf(x: Floats) -> Floats:
    return np.asarray(scipy.special.erf(x), x.dtype)


_ROOT_HALF, _ROOT_TWO_PI = 0.5**0.5, (2 / pi) ** 0.5


def _gelu_tanh(x: Floats) -> Floats:
    inner: Floats = x + 0.044715 * x * x * x
    made: Floats = 0.5 * x * (1 + np.tanh(_ROOT_TWO_PI * inner))
    return made


_FORMULAS: Mapping[FunctionKind, Callable[[Floats, float, float], Floats]] = {
    FunctionKind.SIGMOID: lambda x, a, b: 1 / (1 + np.exp(-x)),
    FunctionKind.TANH: lambda x, a, b: np.tanh(x),
    FunctionKind.EXP: lambda x, a, b: np.exp(x),
    FunctionKind.SQRT: lambda x, a, b: np.sqrt(x),
    FunctionKind.HARD_SIGMOID: lambda x, a, b: np.clip(a * x + b, 0, 1),
    FunctionKind.HARD_SWISH: lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
    FunctionKind.LEAKY_RELU: lambda x, a, b: np.where(x < 0, a * x, x),
    FunctionKind.ELU: lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    FunctionKind.ERF: lambda x, a, b: _erf(x),
    FunctionKind.GELU: lambda x, a, b: 0.5 * x * (1 + _erf(x * _ROOT_HALF)),
    FunctionKind.GELU_TANH: lambda x, a, b: _gelu_tanh(x),
    FunctionKind.RECIPROCAL: lambda x, a, b: 1 / x,
    FunctionKind.SWISH: lambda x, a, b: x / (1 + np.exp(-a * x)),
    FunctionKind.IDENTITY: lambda x, a, b: x,
    FunctionKind.HARD_GATE: lambda x, a, b: x * np.clip(a * x + b, 0, 1),
    FunctionKind.NUMBER: lambda x, a, b: np.where(np.isnan(x), 0, x),
}


def evaluate_function(kind: FunctionKind, x: Floats, alpha: float = 0.0, beta: float = 0.0) -> Floats:
    """Apply a function to each element of an array, by the formula of ONNX's operator of that name.

    `alpha` and `beta` are rounded to float32, as a program has them.
    """
    with np.errstate(all="ignore"):  # exp of large numbers, roots of negative ones, one over 0
        return _FORMULAS[kind](x, float(np.float32(alpha)), float(np.float32(beta)))


def find_dynamic_scale(limits: NDArray[np.float32]) -> tuple[np.float32, np.float32]:
    """Return the scale and the zero point that QUANTIZE has for the least and the greatest number.

    They are those of ONNX's DynamicQuantizeLinear, computed in float32; `limits` has two elements, of
    which the first is at most 0, and the second at least 0.
    """
    low, high = (np.float32(limit) for limit in limits.reshape(-1))
    with np.errstate(all="ignore"):  # of limits that are infinite, or next to the greatest number
        scale = (high - low) / np.float32(_LEVELS)
        scale = scale if scale else np.float32(1)
        zero = np.fmin(np.fmax(np.rint(-low / scale), np.float32(0)), np.float32(_LEVELS))
    return scale, zero


def build_table(  # noqa: PLR0913, PLR0917 - a scale, a zero point and a type on either side
    function: Callable[[Floats], Floats],
    x_scale: float,
    x_zero: int,
    x_dtype: DType,
    y_scale: float,
    y_zero: int,
    y_dtype: DType,
) -> bytes:
    """Return the table of a function for TABLE, equal to ONNX's operators between quantized tensors.

    That is QuantizeLinear(function(DequantizeLinear(x))), all in float32, rounded half to even and
    saturated. Byte i is the result for the x with the bits of i.
    """
    x = np.arange(256, dtype=np.uint8).view(x_dtype.array_type).astype(np.float32)
    real = function((x - np.float32(x_zero)) * np.float32(x_scale))
    limits = np.iinfo(y_dtype.array_type)
    rounded = np.rint(real / np.float32(y_scale)) + np.float32(y_zero)
    return bytes(np.clip(rounded, limits.min, limits.max).astype(y_dtype.array_type))


def split_bytes(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return the first `count` numbers of 4 bits in rows of bytes, uint8 [rows, count].

    The earlier of two numbers is in the lower half of a byte, as in UNPACK and in MatMulNBits.
    """
    halves = np.stack([packed & 15, packed >> 4], axis=2)
    return halves.reshape(len(packed), 2 * packed.shape[1])[:, :count]


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
    if any(map(_makes_numbers, program.commands)):
        return VERSION
    if any(map(_quantizes_dynamically, program.commands)):
        return VERSIONS[2]
    return VERSIONS[1] if any(map(_has_int16, program.commands)) else VERSIONS[0]


def _makes_numbers(command: Command) -> bool:
    """Return whether the versions before the last lack what a command does."""
    kind = command.function if isinstance(command, Conv) else getattr(command, "kind", None)
    return kind is FunctionKind.NUMBER


def _quantizes_dynamically(command: Command) -> bool:
    """Return whether versions 4 and 5 lack what a command does, and version 6 has it."""
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
        # A program has a hundred thousand fields, most of which are numbers: they cost no call.
        return self.kind(*[next(words) if take is None else take(words) for take in self._takers])

    @cached_property
    def _takers(self) -> tuple[Callable[[Iterator[Any]], Any] | None, ...]:
        """The reader of each field; None for a number, which is the word itself."""
        return tuple(_find_taker(what) for _, what in self.fields)


_LETTERS = {float: "f", Signed: "i"}


def _find_taker(what: Any) -> Callable[[Iterator[Any]], Any] | None:
    """Return the reader of a dataclass or a member of an enumeration; None for a number."""
    if isinstance(what, _FieldLayout):
        return what.build_instance
    if what in (int, float, Signed):
        return None
    return lambda words: what(next(words))


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
