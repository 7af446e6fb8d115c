"""The simulator: it runs programs in numpy, checks every access, and counts cycles."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ..machine import (
    ACTIVATIONS,
    MAX_SHIFT,
    Add,
    Command,
    Conv,
    DType,
    End,
    Function,
    Load,
    MachineFigures,
    MatMul,
    Memory,
    MinMax,
    Mul,
    Normalize,
    NormalizeKind,
    Operand,
    Pool,
    PoolKind,
    Program,
    Quantize,
    Scale,
    Statistics,
    Store,
    Table,
    Unpack,
    evaluate_function,
    find_dynamic_scale,
    format_command,
    read_operands,
    requantize,
    round_half_even,
    scaling_fields,
    shift_half_even,
    simulate_timing,
    split_bytes,
    written_operand,
)
from .kernel_convolutions import (
    Array,
    FaultError,
    PlainMemory,
    TaggedMemory,
    check_box,
    check_shifts,
    clamp_to_output,
    compute_conv,
    end_of,
    require_array,
    require_floats,
    require_integers,
    window_axes,
    window_view,
)

# The compute commands of the instruction set on arrays, in numpy.

_WORD = 2**31
_LONG = 2**63


def compute(command: Command, read: Mapping[str, Array]) -> Array:
    """Return the result of a compute command, an array [rows, cols, channels].

    `read` has the operands that it reads as such arrays, by name of the field. Raises FaultError if
    types or extents do not match, or a sum overflows.
    """
    target = written_operand(command)
    if "channels" in read and target is not None and target.dtype is DType.FLOAT32:
        raise FaultError("floats have no numbers by channel")
    with np.errstate(all="ignore"):  # floats that overflow are infinite, as in hardware
        return _KERNELS[type(command)](command, read)


def _compute_pool(command: Pool, read: Mapping[str, Array]) -> Array:
    x = read["x"]
    command = _take_channels(command, read)
    rows, cols = window_axes(command)
    counts = _window_counts(rows.count_positions(0, rows.size), cols.count_positions(0, cols.size))
    if not counts.all():
        raise FaultError("a window has no position in x")
    if command.padding_counts:
        down = rows.count_positions(-rows.before, rows.size + rows.after)
        counts = _window_counts(down, cols.count_positions(-cols.before, cols.size + cols.after))
    floats = command.x.dtype is DType.FLOAT32
    if not floats and not {command.x.dtype, command.y.dtype} <= {*ACTIVATIONS}:
        raise FaultError("x and y are float32, or both are activations in integers")
    maximum = command.kind is PoolKind.MAX
    if not floats:
        x = x.astype(np.int64) - command.x_zero
    fill = (-np.inf if floats else -_WORD) if maximum else 0
    view = window_view(x, rows, cols, fill)
    if maximum:
        best = view.max(axis=(2, 3))
        return clamp_to_output(best if floats else _requantize_checked(best, command), command)
    sums = view.sum(axis=(2, 3))
    if floats:
        return clamp_to_output(sums / counts.astype(np.float32), command)
    shift = int(np.max(command.shift))
    if int(counts.max()) << shift >= _LONG // 2:
        raise FaultError(f"a shift of {shift} is too large for an average of {counts.max()}")
    rounded = round_half_even(sums * command.mantissa, counts << command.shift)
    return clamp_to_output(rounded + command.y_zero, command)


def _window_counts(down: Array, right: Array) -> Array:
    return (down[:, None] * right[None, :])[:, :, None].astype(np.int64)


def _compute_add(command: Add, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(require_floats(a) + require_floats(b), command)
    command = _take_channels(command, read)
    a, b = require_integers(a) - command.a_zero, require_integers(b) - command.b_zero
    if _largest_product(a, command.a_mantissa) + _largest_product(b, command.b_mantissa) >= _LONG:
        raise FaultError("a sum leaves the range of int64")
    sums = a * command.a_mantissa + b * command.b_mantissa
    return clamp_to_output(shift_half_even(sums, command.shift) + command.y_zero, command)


def _compute_mul(command: Mul, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(require_floats(a) * require_floats(b), command)
    command = _take_channels(command, read)
    product = (require_integers(a) - command.a_zero) * (require_integers(b) - command.b_zero)
    return clamp_to_output(_requantize_checked(product, command), command)


def _compute_matmul(command: MatMul, read: Mapping[str, Array]) -> Array:
    a, b, y = read["a"], read["b"], command.y
    wanted = (y.rows, y.cols, a.shape[2]), (y.rows, a.shape[2], y.channels)
    if (a.shape, b.shape) != wanted:
        raise FaultError(f"matrices of {a.shape} and {b.shape}, but must be {wanted[0]} and {wanted[1]}")
    if y.dtype is DType.FLOAT32:
        return clamp_to_output(np.matmul(require_floats(a), require_floats(b)), command)
    if a.itemsize != 1 or b.itemsize != 1:
        raise FaultError("matrices of integers are int8 or uint8")
    if not all(-128 <= zero <= 255 for zero in (command.a_zero, command.b_zero)):
        raise FaultError("a zero point is not in [-128, 255]")
    factors = (a.astype(np.float64) - command.a_zero, b.astype(np.float64) - command.b_zero)
    sums = np.matmul(*factors)  # exact: a float64 has more bits than a sum of products of bytes needs
    if np.abs(sums).max() >= _WORD:
        raise FaultError("a sum leaves the range of int32")
    return clamp_to_output(_requantize_checked(sums.astype(np.int64), command), command)


def _compute_normalize(command: Normalize, read: Mapping[str, Array]) -> Array:
    x = require_floats(read["x"])
    if command.kind is NormalizeKind.SOFTMAX:
        if "scale" in read or "bias" in read:
            raise FaultError("a SOFTMAX has neither scale nor bias")
        e: Array = np.exp(x - x.max(axis=2, keepdims=True))
        shares: Array = e / e.sum(axis=2, keepdims=True)
        return shares
    if command.kind is NormalizeKind.LAYER:
        x = x - x.mean(axis=2, keepdims=True)
    made: Array = x / np.sqrt((x * x).mean(axis=2, keepdims=True) + np.float32(command.epsilon))
    if "scale" in read:
        made = made * require_array(read["scale"], (1, 1, x.shape[2]), np.float32)
    if "bias" in read:
        made = made + require_array(read["bias"], (1, 1, x.shape[2]), np.float32)
    return made


def _compute_scale(command: Scale, read: Mapping[str, Array]) -> Array:
    x = read["x"]
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(_scale_to_floats(command, x), command)
    command = _take_channels(command, read)
    if command.x.dtype is DType.FLOAT32:
        reals = np.ldexp(x.astype(np.float64) * command.mantissa, -np.asarray(command.shift, np.intc))
        return clamp_to_output(np.rint(reals) + command.y_zero, command)
    return clamp_to_output(_requantize_checked(require_integers(x) - command.x_zero, command), command)


def _scale_to_floats(command: Scale, x: Array) -> Array:
    """Return the real numbers of activations in float32, or what is given as it is."""
    if command.x.dtype not in ACTIVATIONS:
        return x.astype(np.float32) if x.dtype == np.int32 else require_floats(x)
    check_shifts(np.asarray(command.shift), 0, MAX_SHIFT)
    whole = (x.astype(np.int64) - command.x_zero).astype(np.float64)
    reals: Array = np.ldexp(whole * command.mantissa, -command.shift).astype(np.float32)
    return reals


def _look_up(command: Table, read: Mapping[str, Array]) -> Array:
    x, table = read["x"], read["table"]
    if x.itemsize != 1 or command.y.dtype.size != 1 or table.itemsize != 1:
        raise FaultError("a table is of bytes, for int8 and uint8")
    if table.shape not in ((1, 1, 256), (1, command.y.channels, 256)):
        raise FaultError("a table has 256 channels, and a column, or one for each channel of y")
    entries = np.ascontiguousarray(table[0]).view(command.y.dtype.array_type)
    return entries[np.arange(x.shape[2]) % len(entries), np.ascontiguousarray(x).view(np.uint8)]


def _compute_function(command: Function, read: Mapping[str, Array]) -> Array:
    return evaluate_function(command.kind, require_floats(read["x"]), command.alpha, command.beta)


def _compute_min_max(command: MinMax, read: Mapping[str, Array]) -> Array:
    x = require_floats(read["x"])
    low, high = np.fmin(x, np.float32(0)).min(), np.fmax(x, np.float32(0)).max()
    if "before" in read:
        before = require_array(read["before"], (1, 1, 2), np.float32)
        low, high = np.fmin(low, before[0, 0, 0]), np.fmax(high, before[0, 0, 1])
    return np.array([[[low, high]]], np.float32)


def _compute_quantize(command: Quantize, read: Mapping[str, Array]) -> Array:
    x, limits = require_floats(read["x"]), require_array(read["limits"], (1, 1, 2), np.float32)
    if command.y.dtype not in (DType.FLOAT32, DType.INT16):
        raise FaultError("the result of QUANTIZE is float32 or int16")
    scale, zero = find_dynamic_scale(limits)
    level = np.fmin(np.fmax(np.rint(x / scale) + zero, np.float32(0)), np.float32(255)) - zero
    return level.astype(np.int16) if command.y.dtype is DType.INT16 else level * scale


_KERNELS: Mapping[type[Command], Callable[[Any, Mapping[str, Array]], Array]] = {
    Conv: compute_conv,
    Pool: _compute_pool,
    Add: _compute_add,
    Mul: _compute_mul,
    MatMul: _compute_matmul,
    Normalize: _compute_normalize,
    Scale: _compute_scale,
    Table: _look_up,
    Function: _compute_function,
    MinMax: _compute_min_max,
    Quantize: _compute_quantize,
}


ScaledT = TypeVar("ScaledT", Add, Mul, Scale, Pool)


def _take_channels(command: ScaledT, read: Mapping[str, Array]) -> ScaledT:
    """Return a command whose numbers from the first zero point to `high` are those of `channels`.

    They are int64 [channels] then, and broadcast as single numbers do.
    """
    if "channels" not in read:
        return command
    names = scaling_fields(type(command))
    count = command.y.channels
    rows = require_array(read["channels"], (1, 1, len(names) * count), np.int32)
    given: dict[str, Any] = dict(
        zip(names, rows.reshape(len(names), count).astype(np.int64), strict=True)
    )
    check_shifts(given["shift"], 0, MAX_SHIFT)
    return replace(command, **given)


def _requantize_checked(values: Array, command: Pool | Mul | MatMul | Scale) -> Array:
    if _largest_product(values, command.mantissa) >= _LONG:
        raise FaultError("a product leaves the range of int64")
    return requantize(values, command.mantissa, command.shift, command.y_zero)


def _broadcast_to(values: Array, box: Operand) -> Array:
    """Broadcast values to the extents of the output. Raises FaultError if that is impossible."""
    shape = (box.rows, box.cols, box.channels)
    if any(extent not in (1, wanted) for extent, wanted in zip(values.shape, shape, strict=True)):
        raise FaultError(f"an operand of {values.shape} cannot be broadcast to {shape}")
    return np.broadcast_to(values, shape)


def _largest_product(values: Array, mantissa: Array | int) -> int:
    return int(np.abs(values).max()) * int(np.abs(mantissa).max())


# Weights of four bits, unpacked as the machine does while it loads them.


def unpack_weights(command: Unpack, packed: Array) -> Array:
    """Return the float32 weights [1, outputs, inputs] of a command, of its bytes [1, 1, bytes].

    Raises FaultError if extents or types do not match.
    """
    target = command.target
    if command.source.dtype is not DType.UINT8 or target.dtype is not DType.FLOAT32 or target.rows != 1:
        raise FaultError("weights of four bits are one row of uint8, and become one of float32")
    if not command.block or command.has_zeros > 1:
        raise FaultError("a block of weights has no elements, or `has_zeros` is neither 0 nor 1")
    outputs, inputs = target.cols, target.channels
    blocks, width = -(-inputs // command.block), -(-inputs // 2)
    sizes = (outputs * width, 4 * outputs * blocks, command.has_zeros * outputs * blocks)
    if packed.shape != (1, 1, sum(sizes)):
        raise FaultError(
            f"{packed.size} bytes, but {sum(sizes)} are needed for {outputs} x {inputs} weights"
        )
    numbers, scales, zeros = np.split(packed.reshape(-1), np.cumsum(sizes[:2]))
    whole = split_bytes(numbers.reshape(outputs, width), inputs)
    block = np.arange(inputs) // command.block
    factors = np.ascontiguousarray(scales).view("<f4").reshape(outputs, blocks)[:, block]
    zero = zeros.reshape(outputs, blocks)[:, block] if command.has_zeros else np.float32(8)
    made: Array = (whole.astype(np.float32) - zero) * factors
    return made.astype(np.float32).reshape(1, outputs, inputs)


class SimulationError(Exception):
    """A violation of the rules of the machine: the number of the command, the command, the reason."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The outputs of a run in the order requested, as [rows, cols, channels], and its statistics."""

    outputs: tuple[Array, ...]
    statistics: Statistics


class Simulator:
    """A program ready to run any number of times; each run starts with empty memories."""

    def __init__(self, program: Program, weights: bytes, figures: MachineFigures) -> None:
        """Take a program, the content of WEIGHTS, and the speed of the machine.

        Raises SimulationError if the program is for weights of another size, or END is not its end.
        """
        ends = [number for number, command in enumerate(program.commands) if isinstance(command, End)]
        if ends != [len(program.commands) - 1]:
            raise SimulationError(
                f"END must be the last of {len(program.commands)} commands, and no other"
            )
        if len(weights) != program.weights:
            raise SimulationError(
                f"the program is for {program.weights} bytes of weights, but there are {len(weights)}"
            )
        self._program = program
        self._weights = PlainMemory("weights", np.frombuffer(weights, np.uint8))
        self._figures = figures

    def run(
        self, inputs: Sequence[tuple[Operand, Array]], outputs: Sequence[Operand]
    ) -> SimulationResult:
        """Write the inputs into the arena, run the program, and read the outputs from there.

        Inputs are arrays [rows, cols, channels] of the operand's type. Raises SimulationError for a
        violation by the program, and if an output is not in its place at the end.
        """
        run = self._begin_run(inputs, outputs)
        for number, command in enumerate(self._program.commands[:-1]):  # without END
            run.run_command(number, command)
        return SimulationResult(tuple(run.read_output(box) for box in outputs), self._statistics)

    def trace(
        self, inputs: Sequence[tuple[Operand, Array]], results: Sequence[tuple[Operand, bool]]
    ) -> list[Array | None]:
        """Run the program; return the result of each layer as it was when the layer had run.

        `results` has, for each layer, the box of its result, and whether that is in the scratchpad. One
        of which a part was overwritten by then is None. Raises SimulationError as `run` does.
        """
        run = self._begin_run(inputs, [])
        last = {each.layer: number for number, each in enumerate(self._program.commands[:-1])}
        found: list[Array | None] = [None] * len(results)
        for number, command in enumerate(self._program.commands[:-1]):
            run.run_command(number, command)
            if last[command.layer] == number and command.layer < len(results):
                found[command.layer] = run.find_result(*results[command.layer])
        return found

    def _begin_run(
        self, inputs: Sequence[tuple[Operand, Array]], outputs: Sequence[Operand]
    ) -> "_SimulationRun":
        """Return a run whose inputs are in the arena."""
        borders = [box for box, _ in inputs] + list(outputs)
        run = _SimulationRun(
            self._weights, self._memory_size(Memory.ARENA, borders), self._memory_size(None, [])
        )
        for box, values in inputs:
            run.write_input(box, values)
        return run

    def _memory_size(self, memory: Memory | None, borders: Sequence[Operand]) -> int:
        """Return the bytes that a run needs of the arena, or of the scratchpad if `memory` is None.

        They are the size in the header, but at most as many as operands reach, so that a header with
        gigabytes allocates none.
        """
        size = self._program.scratchpad if memory is None else self._program.arena
        return min(size, max([self._memory_ends.get(memory, 0), *map(_end_of_valid, borders)]))

    @cached_property
    def _memory_ends(self) -> Mapping[Memory | None, int]:
        return find_memory_ends(self._program.commands)

    @cached_property
    def _statistics(self) -> Statistics:
        """The statistics, which are the same for each run; computed after the first valid run."""
        return simulate_timing(
            replace(self._program, scratchpad=self._memory_size(None, [])), self._figures
        )


class _SimulationRun:
    """The memories during one run."""

    def __init__(self, weights: PlainMemory, arena: int, scratchpad: int) -> None:
        self._weights = weights
        try:
            self._arena = TaggedMemory("arena", arena)
            self._scratchpad = TaggedMemory("scratchpad", scratchpad)
        except MemoryError:
            what = f"an arena of {arena} bytes and a scratchpad of {scratchpad}"
            raise SimulationError(
                f"{what}, with their tags, do not fit into this computer's memory"
            ) from None

    def write_input(self, box: Operand, values: Array) -> None:
        try:
            check_box("to be written", box)
            self._arena.write(box, values)
        except FaultError as fault:
            raise SimulationError(f"input tensor {box.tensor}: {fault}") from None

    def read_output(self, box: Operand) -> Array:
        try:
            check_box("to be read", box)
            return np.array(self._arena.read(box))
        except FaultError as fault:
            raise SimulationError(f"output tensor {box.tensor}: {fault}") from None

    def find_result(self, box: Operand, near: bool) -> Array | None:
        """Return the values in a box, None where another tensor was written there."""
        try:
            check_box("to be read", box)
            return np.array((self._scratchpad if near else self._arena).read(box))
        except FaultError:
            return None

    def run_command(self, number: int, command: Command) -> None:
        try:
            self._execute(command)
        except FaultError as fault:
            raise SimulationError(f"command {number}, {format_command(command)}: {fault}") from None

    def _execute(self, command: Command) -> None:
        target = written_operand(command)
        if target is None:
            raise FaultError("it has no result")
        boxes = read_operands(command)
        for name, box in (*boxes.items(), ("to be written", target)):
            check_box(name, box)
        if isinstance(command, Load | Store):
            _check_rows(command)
        read = {name: self._source(command).read(box) for name, box in boxes.items()}
        (self._arena if isinstance(command, Store) else self._scratchpad).write(
            target, _result_values(command, read)
        )

    def _source(self, command: Command) -> PlainMemory:
        if not isinstance(command, Load):
            return self._scratchpad
        return self._weights if command.memory is Memory.WEIGHTS else self._arena


def _result_values(command: Command, read: Mapping[str, Array]) -> Array:
    if isinstance(command, Unpack):
        return unpack_weights(command, read["source"])
    return read["source"] if isinstance(command, Load | Store) else compute(command, read)


def _check_rows(command: Load | Store) -> None:
    """Raise FaultError for a copy within a tensor that changes the row numbers."""
    source, target = command.source, command.target
    constant = isinstance(command, Load) and command.memory is Memory.WEIGHTS
    if not constant and source.tensor == target.tensor and source.first_row != target.first_row:
        rows = f"row {source.first_row} of tensor {source.tensor} is copied as row {target.first_row}"
        raise FaultError(f"{rows} of the same tensor")


def find_memory_ends(commands: Iterable[Command]) -> dict[Memory | None, int]:
    """Return one past the last byte that commands access, by memory; None is the scratchpad."""
    found: dict[Memory | None, int] = {}
    for command in commands:
        for memory, box in _accessed_operands(command):
            found[memory] = max(found.get(memory, 0), _end_of_valid(box))
    return found


def _accessed_operands(command: Command) -> Iterator[tuple[Memory | None, Operand]]:
    """Yield the operands of a command with the memory of each; None is the scratchpad."""
    memory = command.memory if isinstance(command, Load) else None
    yield from ((memory, box) for box in read_operands(command).values())
    target = written_operand(command)
    if target is not None:
        yield Memory.ARENA if isinstance(command, Store) else None, target


def _end_of_valid(box: Operand) -> int:
    """Return one past the last byte of a box, 0 for an invalid one, at which a run stops."""
    try:
        check_box("", box)
    except FaultError:
        return 0
    return end_of(box)
