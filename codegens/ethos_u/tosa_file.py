"""Write TOSA 1.0 graphs as the flatbuffers that Vela and Arm's reference model read.

Numbers and fields are those of the schema `tosa.fbs` of TOSA 1.0 (github.com/arm/tosa-serialization,
Apache-2.0). An operator's number is its attribute's number, too.
"""

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
