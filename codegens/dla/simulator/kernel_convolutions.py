"""Convolutions on arrays: exact sums of integers, and the output stage that makes bytes of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..machine import (
    ACTIVATIONS,
    MAX_SHIFT,
    ZERO,
    Add,
    Conv,
    ConvFlags,
    DType,
    FunctionKind,
    MatMul,
    Mul,
    Operand,
    Pool,
    Scale,
    evaluate_function,
    find_dynamic_scale,
    requantize,
    saturate,
)

# Simulated memories; a tagged memory records for each byte the tensor and row last written there.

Array = NDArray[Any]


class FaultError(Exception):
    """A violation of the rules of the machine by a command."""


class PlainMemory:
    """A memory without tags: the class itself serves the weights."""

    def __init__(self, name: str, content: NDArray[np.uint8]) -> None:
        """Take the bytes, and the name of the memory in messages."""
        self.name = name
        self.bytes = content

    def read(self, box: Operand) -> Array:
        """Return a box as an array [rows, cols, channels]; it may be a view of the memory.

        Raises FaultError if the box exceeds the memory.
        """
        views = []
        for run in _row_runs(box):
            self._check_bounds(box, run)
            self._check_tags(box, run)
            views.append(_view_elements(self.bytes, box, run))
        return views[0] if len(views) == 1 else np.concatenate(views)

    def _check_bounds(self, box: Operand, run: "_RowRun") -> None:
        end, size = _end_of_run(box, run), len(self.bytes)
        if end > size:
            raise FaultError(f"it needs byte {end - 1} of the {self.name}, which has {size} bytes")
        if box.nbytes > size:
            raise FaultError(f"it has {box.nbytes} bytes, but the {self.name} only {size}")

    def _check_tags(self, box: Operand, run: "_RowRun") -> None:
        """Raise FaultError if the tags are not those of a box; plain bytes have none."""


class TaggedMemory(PlainMemory):
    """A memory with a tag for each byte, all of them 0 at first.

    A tag is tensor * 2**32 + row, and 0 if nothing was ever written. Reading an operand checks that
    every byte of it has the operand's tags. So bytes that were overwritten or never written, and those
    of another row of a rolling window, are detected when they are read.
    """

    def __init__(self, name: str, size: int) -> None:
        """Create a memory of `size` bytes without any written."""
        super().__init__(name, np.zeros(size, np.uint8))
        self.tags = np.zeros(size, np.uint64)

    def write(self, box: Operand, values: Array) -> None:
        """Write an array [rows, cols, channels] to a box, and tag it.

        Raises FaultError if the box exceeds the memory, or does not fit the array.
        """
        if values.dtype != box.dtype.array_type or values.shape != (box.rows, box.cols, box.channels):
            raise FaultError(f"{values.shape} {values.dtype} do not fit the operand that is written")
        start = 0
        for run in _row_runs(box):
            self._check_bounds(box, run)
            _view_elements(self.bytes, box, run)[...] = values[start : start + run.rows]
            tags = _view_tags(self.tags, box, run)
            tags[...] = _expected_tags(box, run, tags.ndim)
            start += run.rows

    def _check_tags(self, box: Operand, run: "_RowRun") -> None:
        tags = _view_tags(self.tags, box, run)
        expected = _expected_tags(box, run, tags.ndim)
        if (tags == expected).all():
            return
        place = np.argwhere(tags != expected)[0]
        found = int(tags[tuple(place)])
        byte = run.address + int(place @ np.array(tags.strides)) // self.tags.itemsize
        there = f"row {found % 2**32} of tensor {found >> 32}" if found else "nothing yet"
        raise FaultError(
            f"byte {byte} of the {self.name} should hold row {run.first + int(place[0])} of tensor "
            f"{box.tensor}, but {there} was written there"
        )


def check_box(name: str, box: Operand) -> None:
    """Raise FaultError for an operand that is absent, is empty, or has more rows than its window."""
    if not (box.tensor and box.rows and box.cols and box.channels):
        raise FaultError(f"the operand {name} has no tensor or no elements")
    if box.rows > box.window:
        raise FaultError(f"the operand {name} has {box.rows} rows, but its window only {box.window}")


def end_of(box: Operand) -> int:
    """Return one past the last byte of a box that passes `check_box`."""
    return max(_end_of_run(box, run) for run in _row_runs(box))


class _RowRun(NamedTuple):
    """Consecutive rows of a box that do not wrap around its window."""

    first: int
    rows: int
    address: int


def _row_runs(box: Operand) -> Iterator[_RowRun]:
    row, end = box.first_row, box.first_row + box.rows
    while row < end:
        slot = row % box.window
        rows = min(end - row, box.window - slot)
        yield _RowRun(row, rows, box.address + slot * box.row_pitch)
        row += rows


def _end_of_run(box: Operand, run: _RowRun) -> int:
    last = run.address + (run.rows - 1) * box.row_pitch + (box.cols - 1) * box.pixel_pitch
    return last + (box.channels - 1) * box.channel_pitch + box.dtype.size


def _view_elements(memory: Array, box: Operand, run: _RowRun) -> Array:
    """Return a view [rows, cols, channels] of the elements."""
    shape = (run.rows, box.cols, box.channels)
    strides = (box.row_pitch, box.pixel_pitch, box.channel_pitch)
    return np.ndarray(shape, box.dtype.array_type, memory.data, run.address, strides)


def _view_tags(tags: Array, box: Operand, run: _RowRun) -> Array:
    """Return a view [rows, ...] of the tags of the elements' bytes, in as few dimensions as possible."""
    extents = [(box.dtype.size, 1)]
    for count, pitch in ((box.channels, box.channel_pitch), (box.cols, box.pixel_pitch)):
        inner, step = extents[0]
        if count == 1 or pitch == inner * step:
            extents[0] = (count * inner, step)
        else:
            extents.insert(0, (count, pitch))
    item = tags.itemsize
    shape = (run.rows, *(count for count, _ in extents))
    steps = (box.row_pitch * item, *(pitch * item for _, pitch in extents))
    return np.ndarray(shape, tags.dtype, tags.data, run.address * item, steps)


def _expected_tags(box: Operand, run: _RowRun, dimensions: int) -> Array:
    """Return the expected tags of some rows, to compare with a view of so many dimensions."""
    rows = np.arange(run.first, run.first + run.rows, dtype=np.uint64)
    tags = (np.uint64(box.tensor) << np.uint64(32)) + rows
    return tags.reshape(-1, *[1] * (dimensions - 1))


# Operands and results of commands as arrays: types and extents that they must have, limits, shifts.


def clamp_to_output(values: Array, command: Conv | Pool | Add | Mul | MatMul | Scale) -> Array:
    """Limit values to the range of the command, and convert them to the type of its output."""
    if command.y.dtype is DType.FLOAT32:
        return np.clip(values, np.float32(command.low), np.float32(command.high))
    return saturate(values, command.low, command.high, command.y.dtype.array_type)


def check_shifts(shifts: Array, least: int, most: int) -> None:
    """Raise FaultError for a shift out of a range, both ends of which are in it."""
    if (shifts < least).any() or (shifts > most).any():
        raise FaultError(f"a shift is not in [{least}, {most}]")


def require_array(values: Array, shape: tuple[int, ...], dtype: type) -> Array:
    """Return values. Raises FaultError if they have another shape or type."""
    if values.shape != shape or values.dtype != dtype:
        wanted = f"{shape} {np.dtype(dtype)}"
        raise FaultError(f"an operand is {values.shape} {values.dtype}, but must be {wanted}")
    return values


def require_floats(values: Array) -> Array:
    """Return values. Raises FaultError if they are not float32."""
    if values.dtype != np.float32:
        raise FaultError(f"an operand is {values.dtype}, but the output is float32")
    return values


def require_integers(values: Array) -> Array:
    """Return values as int64. Raises FaultError if they are float32, or sums of 48 bits."""
    if values.dtype == np.float32:
        raise FaultError("an operand is float32, but the output is an integer type")
    if values.dtype == np.int64:
        raise FaultError("an operand is int64, which accumulators alone are")
    return values.astype(np.int64)


# Windows of convolutions and pools over tiles.

_MAX_VALUES = 1 << 28
"""Values that a padded tile, and all windows of a command together, may hold in the simulator."""


@dataclass(frozen=True)
class WindowAxis:
    """A window along rows or along columns.

    `size` is the extent of the tile, `before` and `after` are its padding, `beyond` is how far windows
    may reach past that, `count` is the extent of the output.
    """

    size: int
    before: int
    after: int
    beyond: int
    kernel: int
    stride: int
    dilation: int
    count: int

    @property
    def span(self) -> int:
        """Positions from the start of the first window to the end of the last."""
        return (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    def count_positions(self, low: int, high: int) -> Array:
        """Return for each output how many positions of its window are in [low, high) of the tile."""
        starts = np.arange(self.count)[:, None] * self.stride - self.before
        reached = starts + np.arange(self.kernel)[None, :] * self.dilation
        counts: Array = np.count_nonzero((reached >= low) & (reached < high), axis=1)
        return counts


def window_axes(command: Conv | Pool) -> tuple[WindowAxis, WindowAxis]:
    """Return the window of a command along rows and along columns.

    Raises FaultError if the output depends on positions that are neither in the tile nor in its padding,
    and if a window or the padded tile is too large to be simulated.
    """
    beyond = command.overhang if isinstance(command, Pool) else ZERO
    x, y, pads = command.x, command.y, command.pads
    kernel, strides, dilations = command.kernel, command.strides, command.dilations
    rows = WindowAxis(
        x.rows, pads.top, pads.bottom, beyond.rows, kernel.rows, strides.rows, dilations.rows, y.rows
    )
    cols = WindowAxis(
        x.cols, pads.left, pads.right, beyond.cols, kernel.cols, strides.cols, dilations.cols, y.cols
    )
    for name, axis in (("rows", rows), ("columns", cols)):
        there = axis.before + axis.size + axis.after + axis.beyond
        if not (axis.kernel and axis.stride and axis.dilation):
            raise FaultError(f"a kernel, stride or dilation of 0 along the {name}")
        if axis.span > there:
            raise FaultError(f"its windows need {axis.span} {name}, but x has {there} with the padding")
    padded = max(rows.span, rows.before + rows.size) * max(cols.span, cols.before + cols.size)
    values = max(padded, rows.count * rows.kernel * cols.count * cols.kernel) * x.channels
    if values > _MAX_VALUES:
        raise FaultError(f"its windows and padding hold {values} values; {_MAX_VALUES} can be simulated")
    return rows, cols


def window_view(x: Array, rows: WindowAxis, cols: WindowAxis, fill: float) -> Array:
    """Return a view [output rows, output cols, kernel rows, kernel cols, channels] of a padded tile.

    `x` is [rows, cols, channels]; `fill` is the value of the padding.
    """
    lacking = [max(axis.span - axis.before - axis.size, 0) for axis in (rows, cols)]
    around = ((rows.before, lacking[0]), (cols.before, lacking[1]), (0, 0))
    padded = np.pad(x, around, constant_values=fill) if np.any(around) else x
    down, right, along = padded.strides
    shape = (rows.count, cols.count, rows.kernel, cols.kernel, x.shape[2])
    strides = (
        down * rows.stride, right * cols.stride, down * rows.dilation, right * cols.dilation, along
    )  # fmt: skip
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


_EXACT = 2**24  # float32 represents all integers up to here
_WORD = 2**31
_WIDE = 2**47  # of the sums of int16
_BOXES = tuple(dtype.array_type for dtype in ACTIVATIONS)


def compute_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    """Return the result of CONV, or its sums where more input channels follow."""
    floats = command.x.dtype is DType.FLOAT32
    if command.y.dtype is DType.FLOAT32 and command.x.dtype not in (DType.FLOAT32, DType.INT16):
        raise FaultError("y is float32, but x is neither float32 nor int16")
    if floats and command.y.dtype is not DType.FLOAT32:
        raise FaultError("x is float32, but y is not")
    return _compute_float_conv(command, read) if floats else _compute_integer_conv(command, read)


def _compute_float_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    box = command.y
    sums = convolve(command, read["x"], require_floats(read["weights"]))
    if ConvFlags.FIRST not in command.flags:
        sums = sums + require_array(read["accumulator"], (box.rows, box.cols, box.channels), np.float32)
    elif "parameters" in read:
        sums = sums + require_array(read["parameters"], (1, 1, box.channels), np.float32)
    if ConvFlags.LAST not in command.flags:
        return sums
    if "residual" in read:
        sums = sums + require_array(read["residual"], sums.shape, np.float32)
    made = evaluate_function(command.function, sums, command.alpha, command.beta)
    return clamp_to_output(made, command)


def _compute_integer_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    is_wide = command.x.dtype is DType.INT16
    applies = is_wide or command.function is not FunctionKind.IDENTITY
    if "residual" in read and not applies:
        raise FaultError("a convolution of bytes without a function has no residual")
    if command.x.dtype not in ACTIVATIONS or command.weights.dtype is not DType.INT8:
        raise FaultError("the weights of int8, uint8 and int16 are int8")
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    if last and command.y.dtype is DType.INT64:
        raise FaultError("y is int64, which accumulators alone are")
    rows = _conv_parameters(command, read) if first or last else {}
    if applies and last and "y_mantissa" not in rows:
        raise FaultError("a convolution with a function or of int16 has nine rows of parameters")
    into_floats = command.y.dtype is DType.FLOAT32
    taken = _CONV_FIELDS[:1] if into_floats else _CONV_FIELDS
    given: dict[str, Any] = {name: rows[name] for name in taken if name in rows}
    command = replace(command, **given)
    sums = convolve(command, read["x"].astype(np.int32) - _input_zeros(command), read["weights"])
    kind, most = (np.int64, _WIDE) if is_wide else (np.int32, _WORD)
    sums = sums + (rows["bias"] if first else require_array(read["accumulator"], sums.shape, kind))
    if sums.min() < -most or sums.max() >= most:
        raise FaultError(f"a sum leaves the range of {'48 bits' if is_wide else 'int32'}")
    if not last:
        return sums.astype(kind)
    if into_floats:
        return clamp_to_output(_compute_dynamic_stage(command, sums, rows, read), command)
    if applies:
        return clamp_to_output(_compute_output_stage(command, sums, rows, read), command)
    check_shifts(rows["shift"], 0, MAX_SHIFT)
    return clamp_to_output(requantize(sums, rows["mantissa"], rows["shift"], command.y_zero), command)


_CONV_FIELDS = ("x_zero", "y_zero", "low", "high")
_CONV_ROWS = ("bias", "mantissa", "shift", *_CONV_FIELDS, "y_mantissa", "y_shift")
_MOST_REAL_SHIFT = 2000  # binary places: beyond the exponents of float64, so any real factor fits


def _conv_parameters(command: Conv, read: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows of parameters by name, each int64 [channels]: three, or all."""
    channels = command.y.channels
    count = 3 if read["parameters"].size == 3 * channels else len(_CONV_ROWS)
    rows = require_array(read["parameters"], (1, 1, count * channels), np.int32)
    return dict(zip(_CONV_ROWS, rows.reshape(count, channels).astype(np.int64), strict=False))


def _input_zeros(command: Conv) -> Array:
    """Return the zero point of the input, or one for each of its channels, int32."""
    zeros, channels = np.asarray(command.x_zero, np.int32).reshape(-1), command.x.channels
    if (zeros == zeros[0]).all():
        zeros = zeros[:1]
    else:
        if command.groups != channels or len(zeros) % channels:
            raise FaultError("the channels of x have zero points of their own, but share a group")
        each = zeros.reshape(channels, -1)
        if (each != each[:, :1]).any():
            raise FaultError("a channel of x has several zero points")
        zeros = each[:, 0]
    least, most = (-(2**15), 2**15 - 1) if command.x.dtype is DType.INT16 else (-128, 255)
    if (zeros < least).any() or (zeros > most).any():
        raise FaultError("its zero point is not one of its type")
    return zeros


def _compute_output_stage(
    command: Conv, sums: Array, rows: Mapping[str, Array], read: Mapping[str, Array]
) -> Array:
    """Return the function of sums and residual in units of the result, float64."""
    check_shifts(rows["shift"], -_MOST_REAL_SHIFT, _MOST_REAL_SHIFT)
    check_shifts(rows["y_shift"], -_MOST_REAL_SHIFT, _MOST_REAL_SHIFT)
    shift, y_shift = (rows[name].astype(np.intc) for name in ("shift", "y_shift"))
    reals = np.ldexp(sums.astype(np.float64) * rows["mantissa"], -shift)
    if "residual" in read:
        residual = read["residual"]
        if residual.shape != sums.shape or residual.dtype not in _BOXES:
            raise FaultError("a residual of integers is a box of activations like y")
        whole = residual.astype(np.float64) - command.residual_zero
        reals = reals + whole * float(np.float32(command.residual_scale))
    made = evaluate_function(command.function, reals, command.alpha, command.beta)
    found: Array = np.rint(np.ldexp(made * rows["y_mantissa"], -y_shift)) + command.y_zero
    return found


def _compute_dynamic_stage(
    command: Conv, sums: Array, rows: Mapping[str, Array], read: Mapping[str, Array]
) -> Array:
    """Return the real numbers of sums of what QUANTIZE made, float32."""
    check_shifts(rows["shift"], -_MOST_REAL_SHIFT, _MOST_REAL_SHIFT)
    if "residual" not in read:
        raise FaultError("a CONV from int16 into float32 has the limits of its input as residual")
    limits = require_array(read["residual"], (1, 1, 2), np.float32)
    scale, _ = find_dynamic_scale(limits)
    bias = np.ascontiguousarray(rows["y_zero"].astype(np.int32)).view(np.float32)
    shift = rows["shift"].astype(np.intc)
    reals = np.ldexp(sums.astype(np.float64) * rows["mantissa"], -shift) * float(scale) + bias
    made = evaluate_function(command.function, reals, command.alpha, command.beta)
    return made.astype(np.float32)


def convolve(command: Conv, x: Array, weights: Array) -> Array:
    """Return the sums of a convolution without bias, [rows, cols, channels]: float32, or exact int64.

    `x` is the tile [rows, cols, channels] with the zero point subtracted, `weights` those of the
    command.
    """
    kernel, groups = command.kernel, command.groups
    if not groups or x.shape[2] % groups or command.y.channels % groups:
        raise FaultError(f"{groups} groups do not divide the channels of x and y")
    per_group = x.shape[2] // groups
    shape = (command.y.channels, kernel.rows, kernel.cols, per_group)
    if weights.size != prod(shape):
        raise FaultError(f"there are {weights.size} weights, but {prod(shape)} are needed")
    weights = weights.reshape(shape)
    integers = x.dtype.kind == "i"
    if integers:
        kind = _exact_type(x, weights)
        x, weights = x.astype(kind), weights.astype(kind)
    rows, cols = window_axes(command)
    view = window_view(x, rows, cols, 0)
    sums = _depthwise_sums(view, weights) if per_group == 1 else _grouped_products(view, weights, groups)
    return sums.astype(np.int64) if integers else sums


def _exact_type(x: Array, weights: Array) -> type:
    """Return the fastest float type whose sums of products are exact integers, in any order."""
    most = int(np.abs(x).max()) * int(np.abs(weights.astype(np.int64)).sum(axis=(1, 2, 3)).max())
    return np.float32 if most <= _EXACT else np.float64


def _grouped_products(view: Array, weights: Array, groups: int) -> Array:
    """Return one matrix product per group; `view` is the result of `window_view`."""
    rows, cols, down, right, channels = view.shape
    count, per_group = len(weights) // groups, channels // groups
    tile = view.reshape(rows, cols, down, right, groups, per_group)
    left = tile.transpose(4, 0, 1, 2, 3, 5).reshape(groups, rows * cols, -1)
    factors = weights.reshape(groups, count, -1).transpose(0, 2, 1)
    products: Array = np.matmul(left, factors)
    return products.transpose(1, 0, 2).reshape(rows, cols, groups * count)


def _depthwise_sums(view: Array, weights: Array) -> Array:
    """Return the sums of a depthwise convolution: a product for each kernel position."""
    rows, cols, down, right, channels = view.shape
    times = len(weights) // channels
    sums = np.zeros((rows, cols, len(weights)), view.dtype)
    for u in range(down):
        for v in range(right):
            sums += np.repeat(view[:, :, u, v], times, axis=2) * weights[:, u, v, 0]
    return sums
