"""TOSA 1.0 graphs: built of tensors by value and operators in order, and written as flatbuffers.

Vela and Arm's reference model read the file. Its numbers and fields are those of the schema `tosa.fbs`
of TOSA 1.0 (github.com/arm/tosa-serialization, Apache-2.0). The attribute of an operator has its number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: Mapping[str, int] = {"int8": 3, "int16": 4, "int32": 5, "int48": 6, "shape": 10}
"""TOSA's number of each element type that this codegen writes."""

_OPERATORS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "AVG_POOL2D": (2, {"kernel": "ints", "stride": "ints", "pad": "ints", "acc_type": "number"}),
    "CONV2D": (
        3,
        {
            "pad": "ints",
            "stride": "ints",
            "dilation": "ints",
            "local_bound": "flag",
            "acc_type": "number",
        },
    ),
    "DEPTHWISE_CONV2D": (
        5,
        {
            "pad": "ints",
            "stride": "ints",
            "dilation": "ints",
            "local_bound": "flag",
            "acc_type": "number",
        },
    ),
    "MATMUL": (7, {}),
    "MAX_POOL2D": (8, {"kernel": "ints", "stride": "ints", "pad": "ints", "nan_mode": "number"}),
    "TRANSPOSE_CONV2D": (
        10,
        {"out_pad": "ints", "stride": "ints", "local_bound": "flag", "acc_type": "number"},
    ),
    "CLAMP": (11, {"min_val": "bytes", "max_val": "bytes", "nan_mode": "number"}),
    "ADD": (15, {}),
    "ARITHMETIC_RIGHT_SHIFT": (16, {"round": "flag"}),
    "LOGICAL_LEFT_SHIFT": (22, {}),
    "MAXIMUM": (26, {"nan_mode": "number"}),
    "MINIMUM": (27, {"nan_mode": "number"}),
    "MUL": (28, {}),
    "SUB": (30, {}),
    "TABLE": (31, {}),
    "CLZ": (35, {}),
    "REDUCE_MAX": (51, {"axis": "integer", "nan_mode": "number"}),
    "REDUCE_MIN": (52, {"axis": "integer", "nan_mode": "number"}),
    "REDUCE_SUM": (54, {"axis": "integer"}),
    "CONCAT": (55, {"axis": "integer"}),
    "PAD": (56, {}),
    "RESHAPE": (57, {}),
    "SLICE": (59, {}),
    "TILE": (60, {}),
    "TRANSPOSE": (61, {"perms": "ints"}),
    "RESIZE": (64, {"mode": "number"}),
    "RESCALE": (
        66,
        {
            "scale32": "flag",
            "rounding_mode": "number",
            "per_channel": "flag",
            "input_unsigned": "flag",
            "output_unsigned": "flag",
        },
    ),
    "CONST": (67, {}),
    "IDENTITY": (68, {}),
    "CONST_SHAPE": (75, {}),
}
"""Of each operator its number in the schema, and the fields of its attribute in the schema's order."""


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of a graph: `data` is its value if it is a constant, or a `shape`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array | None = None


@dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator of a graph: names of its inputs and outputs, values of its attribute's fields."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def write_tosa(
    tensors: Sequence[FileTensor],
    operators: Sequence[FileOperator],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    """Return the flatbuffer of a graph of one block: the same bytes for the same graph."""
    builder = flatbuffers.Builder(1 << 16)
    shapes = [each for each in tensors if each.dtype == "shape"]
    name = builder.CreateSharedString("main")
    block = _write_table(
        builder,
        [
            name,
            _write_offsets(builder, [_write_operator(builder, each) for each in operators]),
            _write_offsets(
                builder, [_write_tensor(builder, each) for each in tensors if each.dtype != "shape"]
            ),
            _write_texts(builder, inputs),
            _write_texts(builder, outputs),
            _write_offsets(builder, [_write_shape(builder, each) for each in shapes]),
        ],
    )
    region = _write_table(builder, [name, _write_offsets(builder, [block])])
    builder.StartObject(4)  # 1.0.0, no draft
    for slot, number in enumerate((1, 0, 0)):
        builder.PrependInt32Slot(slot, number, -1)
    builder.PrependBoolSlot(3, False, True)
    version = builder.EndObject()
    root = _write_table(builder, [version, _write_offsets(builder, [region])])
    builder.Finish(root, b"TOSA")
    return bytes(builder.Output())


def _write_operator(builder: Any, operator: FileOperator) -> int:
    number, fields = _OPERATORS[operator.op]
    values = [(kind, operator.attributes.get(name)) for name, kind in fields.items()]
    written = [
        _VECTORS[kind](builder, value) if kind in _VECTORS and value is not None else value
        for kind, value in values
    ]
    builder.StartObject(len(fields))
    for slot, (kind, value) in enumerate(zip(fields.values(), written, strict=True)):
        if value is not None:
            _SLOTS[kind](builder, slot, value)
    attribute = builder.EndObject()
    inputs, outputs = _write_texts(builder, operator.inputs), _write_texts(builder, operator.outputs)
    builder.StartObject(6)
    builder.PrependUint32Slot(0, number, 0)
    builder.PrependUint8Slot(1, number, 0)
    for slot, offset in ((2, attribute), (3, inputs), (4, outputs)):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _write_tensor(builder: Any, tensor: FileTensor) -> int:
    name = builder.CreateSharedString(tensor.name)
    shape = _write_ints(builder, tensor.shape)
    data = None if tensor.data is None else _write_bytes(builder, _to_bytes(tensor.data, tensor.dtype))
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(1, shape, 0)
    builder.PrependUint32Slot(2, DTYPES[tensor.dtype], 0)
    if data is not None:
        builder.PrependUOffsetTRelativeSlot(3, data, 0)
    return int(builder.EndObject())


def _write_shape(builder: Any, tensor: FileTensor) -> int:
    assert tensor.data is not None
    name = builder.CreateSharedString(tensor.name)
    data = _write_bytes(builder, np.asarray(tensor.data, "<i8").tobytes())
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint32Slot(1, tensor.data.size, 0)
    builder.PrependUOffsetTRelativeSlot(2, data, 0)
    return int(builder.EndObject())


def _to_bytes(array: Array, dtype: str) -> bytes:
    """Return the bytes of a constant, little-endian; an int48 has six."""
    if dtype != "int48":
        return np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<")).tobytes()
    wide = np.ascontiguousarray(array, "<i8").reshape(-1)
    return wide.view(np.uint8).reshape(-1, 8)[:, :6].tobytes()


def _write_table(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartObject(len(offsets))
    for slot, offset in enumerate(offsets):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _write_offsets(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _write_texts(builder: Any, texts: Sequence[str]) -> int:
    return _write_offsets(builder, [builder.CreateSharedString(text) for text in texts])


def _write_ints(builder: Any, values: Sequence[int]) -> int:
    return int(builder.CreateNumpyVector(np.asarray(values, np.int32)))


def _write_bytes(builder: Any, data: bytes) -> int:
    """Write a vector of bytes that begins at a multiple of 8, as the schema asks."""
    builder.StartVector(1, len(data), 8)
    builder.head -= len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return int(builder.EndVector())


_VECTORS: Mapping[str, Callable[[Any, Any], int]] = {"ints": _write_ints, "bytes": _write_bytes}
_SLOTS: Mapping[str, Callable[[Any, int, Any], None]] = {
    "ints": lambda builder, slot, value: builder.PrependUOffsetTRelativeSlot(slot, value, 0),
    "bytes": lambda builder, slot, value: builder.PrependUOffsetTRelativeSlot(slot, value, 0),
    "flag": lambda builder, slot, value: builder.PrependBoolSlot(slot, value, False),
    "number": lambda builder, slot, value: builder.PrependUint32Slot(slot, value, 0),
    "integer": lambda builder, slot, value: builder.PrependInt32Slot(slot, value, 0),
}


SINGLE_ROUND = 1  # TOSA's number of the rounding mode
_PROPAGATE = 1  # NaN, which integers never are
ACCUMULATORS = {"int32": 5, "int48": 6}
_MAX_SHIFT = 62  # of TOSA's RESCALE
MOST_MOVED = 1 << 16
"""The longest axis that Vela moves, and for ranks above 3 the greatest product of all but two."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a TOSA graph: `data` is its value if it is a constant."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array | None = None

    @property
    def elements(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class TosaGraph:
    """Collects the tensors and operators of a graph, and writes its flatbuffer."""

    tensors: list[FileTensor] = field(default_factory=list)
    operators: list[FileOperator] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    reshaped: dict[str, Tensor] = field(default_factory=dict)  # of results of RESHAPE what they were

    def add_input(self, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a new input of the graph. Shapes of rank 0 have one element in TOSA's rank 1."""
        made = self._add_tensor(dtype, shape)
        self.inputs.append(made.name)
        return made

    def add_output(self, tensor: Tensor) -> None:
        """Make a tensor the next output; a constant, an input or an output is copied first."""
        if tensor.data is not None or tensor.name in (*self.inputs, *self.outputs):
            tensor = self.add("IDENTITY", [self.materialize(tensor)], tensor.dtype, tensor.shape)
        self.outputs.append(tensor.name)

    def constant(self, array: Array, dtype: str) -> Tensor:
        """Return a constant; it becomes part of the graph when an operator reads it."""
        array = np.asarray(array)
        return Tensor("", dtype, tuple(array.shape) or (1,), array.reshape(array.shape or (1,)))

    def add(
        self, op: str, inputs: Sequence[Tensor], dtype: str, shape: Sequence[int], **attributes: Any
    ) -> Tensor:
        """Add an operator of one output, and return that."""
        names = tuple(self.materialize(each).name for each in inputs)
        made = self._add_tensor(dtype, shape)
        self.operators.append(FileOperator(op, names, (made.name,), attributes))
        return made

    def materialize(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the graph: for a constant the one of a CONST operator, made once."""
        if tensor.data is None or tensor.name:
            return tensor
        key = (tensor.dtype, tensor.shape, np.ascontiguousarray(tensor.data).tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"c{len(self.constants)}"
            self.tensors.append(FileTensor(name, tensor.dtype, tensor.shape, tensor.data))
            op = "CONST_SHAPE" if tensor.dtype == "shape" else "CONST"
            self.operators.append(FileOperator(op, (), (name,)))
        return Tensor(self.constants[key], tensor.dtype, tensor.shape, tensor.data)

    def write(self) -> bytes:
        """Return the flatbuffer, without operators whose results nothing reads."""
        read = {*self.inputs, *self.outputs}
        kept = list[FileOperator]()
        for operator in reversed(self.operators):
            if not read.isdisjoint(operator.outputs):
                read.update(operator.inputs)
                kept.append(operator)
        tensors = [each for each in self.tensors if each.name in read]
        return write_tosa(tensors, kept[::-1], self.inputs, self.outputs)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a tensor in another shape of as many elements."""
        shape = tuple(shape) or (1,)
        if shape == tensor.shape:
            return tensor
        if tensor.data is not None:
            return self.constant(tensor.data.reshape(shape), tensor.dtype)
        source = self.reshaped.get(tensor.name, tensor)
        if source.shape == shape:
            return source
        made = self.add("RESHAPE", [source, self._shape(shape)], tensor.dtype, shape)
        self.reshaped[made.name] = source
        return made

    def transpose(self, tensor: Tensor, perms: Sequence[int]) -> Tensor:
        """Return a tensor with its axes in another order.

        Axes that stay side by side are moved as one, those of extent 1 for nothing. What is too large
        for Vela at once is done axis by axis.
        """
        if tensor.data is not None:
            return self.constant(tensor.data.transpose(perms), tensor.dtype)
        shape = [tensor.shape[axis] for axis in perms]
        extents, order = merge_axes(tensor.shape, perms)
        if len(extents) > 3 and _most_of_others(extents) > MOST_MOVED:
            return self.reshape(self._move_axes(self.reshape(tensor, extents), order), shape)
        return self._transpose_merged(tensor, perms)

    def _move_axes(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return a tensor with its axes in an order: the last of that is first brought to the front."""
        there = list(range(len(order)))
        for axis in reversed(order):
            place = there.index(axis)
            perms = [place, *(each for each in range(len(order)) if each != place)]
            there = [there[each] for each in perms]
            tensor = self._transpose_merged(tensor, perms)
        return tensor

    def _transpose_merged(self, tensor: Tensor, perms: Sequence[int]) -> Tensor:
        """Return a tensor with its axes in another order, by one TRANSPOSE of as few as possible."""
        extents, order = merge_axes(tensor.shape, perms)
        moved = self.reshape(tensor, extents)
        if len(extents) > 1:
            ordered = [extents[axis] for axis in order]
            moved = self.add("TRANSPOSE", [moved], tensor.dtype, ordered, perms=order)
        return self.reshape(moved, [tensor.shape[axis] for axis in perms])

    def slice(self, tensor: Tensor, start: Sequence[int], size: Sequence[int]) -> Tensor:
        """Return a part of a tensor."""
        if tuple(size) == tensor.shape:
            return tensor
        if tensor.data is not None:
            part = tuple(slice(first, first + count) for first, count in zip(start, size, strict=True))
            return self.constant(tensor.data[part], tensor.dtype)
        return self.add(
            "SLICE", [tensor, self._shape(start), self._shape(size)], tensor.dtype, tuple(size)
        )

    def pad(self, tensor: Tensor, pads: Sequence[tuple[int, int]], value: int) -> Tensor:
        """Return a tensor with `value` before and behind the elements of each axis."""
        if not any(before or behind for before, behind in pads):
            return tensor
        shape = [extent + sum(pair) for extent, pair in zip(tensor.shape, pads, strict=True)]
        flat = [count for pair in pads for count in pair]
        filler = self.constant(np.array([value]), tensor.dtype)
        return self.add("PAD", [tensor, self._shape(flat), filler], tensor.dtype, shape)

    def tile(self, tensor: Tensor, multiples: Sequence[int]) -> Tensor:
        """Return a tensor repeated along its axes."""
        if all(count == 1 for count in multiples):
            return tensor
        shape = [extent * count for extent, count in zip(tensor.shape, multiples, strict=True)]
        return self.add("TILE", [tensor, self._shape(multiples)], tensor.dtype, shape)

    def concatenate(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Return tensors behind each other along an axis."""
        if len(tensors) == 1:
            return tensors[0]
        shape = list(tensors[0].shape)
        shape[axis] = sum(each.shape[axis] for each in tensors)
        return self.add("CONCAT", tensors, tensors[0].dtype, shape, axis=axis)

    def clamp(self, tensor: Tensor, low: int, high: int) -> Tensor:
        """Return a tensor with its elements limited; itself where the dtype's limits are meant."""
        info = np.iinfo(tensor.dtype)
        if low <= info.min and high >= info.max:
            return tensor
        least, most = (np.array([each], tensor.dtype).tobytes() for each in (low, high))
        return self.add(
            "CLAMP",
            [tensor],
            tensor.dtype,
            tensor.shape,
            min_val=least,
            max_val=most,
            nan_mode=_PROPAGATE,
        )

    def look_up(self, tensor: Tensor, table: Array) -> Tensor:
        """Return `table[element + 128]` of each element of an int8 tensor."""
        return self.add("TABLE", [tensor, self.constant(table, "int8")], "int8", tensor.shape)

    def rescale(
        self,
        tensor: Tensor,
        dtype: str,
        scale: Array | float,
        zero_points: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Return `(element - zero_points[0]) * scale + zero_points[1]`, rounded half up, saturated.

        `scale` is one number, or one for each index of the last axis. Multipliers have 31 bits; those of
        int48 elements have 15.
        """
        scale = np.atleast_1d(np.asarray(scale, np.float64))
        narrow = tensor.dtype == "int48"
        multipliers, shifts = quantize_scales(scale, 15 if narrow else 31)
        constants = [
            self.constant(multipliers, "int16" if narrow else "int32"),
            self.constant(shifts, "int8"),
            self.constant(np.array([zero_points[0]]), tensor.dtype),
            self.constant(np.array([zero_points[1]]), dtype),
        ]
        attributes = {
            "scale32": not narrow,
            "rounding_mode": SINGLE_ROUND,
            "per_channel": scale.size > 1,
        }
        return self.add("RESCALE", [tensor, *constants], dtype, tensor.shape, **attributes)

    def convolve(
        self,
        op: str,
        operands: Sequence[Tensor],
        zero_point: int,
        shape: Sequence[int],
        attributes: Mapping[str, Any],
    ) -> Tensor:
        """Return the sums of a convolution of input, weights and bias: int32, or int48.

        `zero_point` is that of the input; weights have 0.
        """
        dtype = "int48" if operands[0].dtype == "int16" else "int32"
        points = [
            self.constant(np.array([point]), each.dtype)
            for point, each in zip((zero_point, 0), operands[:2], strict=True)
        ]
        kind = {"acc_type": ACCUMULATORS[dtype], "local_bound": False}
        return self.add(op, [*operands, *points], dtype, shape, **attributes, **kind)

    def reduce(self, op: str, tensor: Tensor, axis: int) -> Tensor:
        """Return REDUCE_MAX, REDUCE_MIN or REDUCE_SUM along an axis, which stays with extent 1."""
        shape = [1 if position == axis else extent for position, extent in enumerate(tensor.shape)]
        mode = {} if op == "REDUCE_SUM" else {"nan_mode": _PROPAGATE}
        return self.add(op, [tensor], tensor.dtype, shape, axis=axis, **mode)

    def combine(self, op: str, first: Tensor, second: Tensor, shift: int = 0) -> Tensor:
        """Return ADD, SUB, MUL, MAXIMUM or MINIMUM and the like of two tensors of one rank.

        `shift` is that of MUL: the product is rounded, and divided by 2 to its power.
        """
        shape = np.broadcast_shapes(first.shape, second.shape)
        operands = [first, second]
        attributes: dict[str, Any] = {}
        if op == "MUL":
            operands.append(self.constant(np.array([shift]), "int8"))
        elif op in ("MAXIMUM", "MINIMUM"):
            attributes["nan_mode"] = _PROPAGATE
        elif op == "ARITHMETIC_RIGHT_SHIFT":
            attributes["round"] = True
        return self.add(op, operands, first.dtype, shape, **attributes)

    def _add_tensor(self, dtype: str, shape: Sequence[int]) -> Tensor:
        made = Tensor(f"t{len(self.tensors)}", dtype, tuple(int(extent) for extent in shape) or (1,))
        self.tensors.append(FileTensor(made.name, made.dtype, made.shape))
        return made

    def _shape(self, values: Sequence[int]) -> Tensor:
        return self.constant(np.array(values, np.int64), "shape")


def merge_axes(shape: Sequence[int], perms: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a shape and an order of its axes that move elements alike, with as few axes as possible.

    Axes of extent 1 are left out, and axes that are neighbours before and after are one, unless Vela
    would not move so long a one.
    """
    groups = list[list[int]]()
    for axis in (axis for axis in perms if shape[axis] != 1):
        between = shape[groups[-1][-1] + 1 : axis] if groups and groups[-1][-1] < axis else (0,)
        joined = math.prod(shape[each] for each in groups[-1]) * shape[axis] if groups else 0
        if all(extent == 1 for extent in between) and joined <= MOST_MOVED:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    firsts = sorted(group[0] for group in groups)
    extents = {group[0]: int(np.prod([shape[axis] for axis in group])) for group in groups}
    return [extents[first] for first in firsts], [firsts.index(group[0]) for group in groups]


def _most_of_others(extents: Sequence[int]) -> int:
    """Return the greatest product of all axes but two, which Vela limits for a rank of 4 and more."""
    ordered = sorted(extents)
    return int(np.prod(ordered[2:], dtype=np.int64))


def quantize_scales(scales: Array, bits: int) -> tuple[Array, Array]:
    """Return multipliers of at most `bits` bits, and shifts: scale = multiplier / 2**shift.

    Shifts are between 2 and 62 (TOSA 1.0, apply_scale_32 and apply_scale_16): smaller scales lose bits,
    larger ones raise ValueError.
    """
    fractions, exponents = np.frexp(scales.astype(np.float64))
    multipliers = np.rint(fractions * 2.0**bits).astype(np.int64)
    shifts = bits - exponents.astype(np.int64)
    full = multipliers == 1 << bits
    multipliers, shifts = np.where(full, multipliers >> 1, multipliers), shifts - full
    if np.any(shifts < 2) or np.any(scales < 0):
        raise ValueError(
            f"a scale of {float(np.max(np.abs(scales))):.3g} cannot be a multiplier and a shift"
        )
    excess = np.clip(shifts - _MAX_SHIFT, 0, bits + 1)
    multipliers = np.where(shifts > _MAX_SHIFT, multipliers >> excess, multipliers)
    return multipliers, np.minimum(shifts, _MAX_SHIFT)
