"""A bench for the dla's commands: operands laid out one after another, one command run on arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from byoc.codegens.dla.machine import (
    Command,
    DType,
    End,
    Load,
    MachineFigures,
    Memory,
    Operand,
    Program,
    Store,
)
from byoc.codegens.dla.simulator import Simulator
from numpy.typing import NDArray

from byoc.onnxrt import open_session, without_optimizations

Array = NDArray[Any]
FIGURES = MachineFigures({"float32": 1e12, "int8": 4e12, "int16": 2e12}, 32e9, 1e-6, 5e-6, 1e9)
TYPES = {
    np.dtype(np.float32): DType.FLOAT32,
    np.dtype(np.int8): DType.INT8,
    np.dtype(np.uint8): DType.UINT8,
    np.dtype(np.int32): DType.INT32,
    np.dtype(np.int16): DType.INT16,
    np.dtype(np.int64): DType.INT64,
}


def box(tensor: int, address: int, shape: tuple[int, ...], dtype: DType, **other: int) -> Operand:
    """Return an operand whose elements lie densely, with what is to differ."""
    rows, cols, channels = shape
    fields = {
        "first_row": 0,
        "window": rows,
        "row_pitch": cols * channels * dtype.size,
        "pixel_pitch": channels * dtype.size,
        "channel_pitch": dtype.size,
        **other,
    }
    return Operand(tensor, address, rows=rows, cols=cols, channels=channels, dtype=dtype, **fields)


def program(*commands: Command, arena: int = 4096, scratchpad: int = 4096, weights: int = 0) -> Program:
    return Program((*commands, End(0)), arena, scratchpad, weights)


def run_one(
    make: Callable[..., Command],
    arrays: Mapping[str, Array],
    shape: tuple[int, ...],
    dtype: DType = DType.FLOAT32,
) -> Array:
    """Run one compute command on the machine; `make` gets the operands by name, and `y`."""
    machine, inputs, y = make_machine(make, arrays, shape, dtype)
    return machine.run(inputs, [y]).outputs[0]


def make_machine(
    make: Callable[..., Command],
    arrays: Mapping[str, Array],
    shape: tuple[int, ...],
    dtype: DType = DType.FLOAT32,
) -> tuple[Simulator, list[tuple[Operand, Array]], Operand]:
    """Return a machine with one compute command, its inputs, and where the result will be."""
    commands: list[Command] = []
    inputs, boxes, address = [], {}, 0
    for tensor, (name, array) in enumerate(arrays.items(), 1):
        cube = array.reshape(1, 1, -1) if array.ndim != 3 else array
        boxes[name] = box(tensor, address, cube.shape, TYPES[cube.dtype])
        inputs.append((boxes[name], cube))
        commands.append(Load(0, Memory.ARENA, boxes[name], boxes[name]))
        address += -(-cube.nbytes // 64) * 64
    y = box(len(arrays) + 1, address, shape, dtype)
    commands += [make(**boxes, y=y), Store(0, y, y)]
    size = address + y.nbytes
    return Simulator(program(*commands, arena=size, scratchpad=size), b"", FIGURES), inputs, y


def onnx_run(text: str, feeds: Mapping[str, Array]) -> Array:
    """Return the first output of a model as text, from onnxruntime, which changes nothing of it."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n{text}'
    )
    with without_optimizations():
        session = open_session(model)
    return session.run(None, dict(feeds))[0]


def to_rows(image: Array) -> Array:
    """Return an ONNX image [1, C, H, W] as rows, columns, channels."""
    return np.ascontiguousarray(image[0].transpose(1, 2, 0))
