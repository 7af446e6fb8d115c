"""Layouts: extents in memory of tensors with ONNX's shapes."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import CompileError, TensorContract

from .tensors import INTEGERS, Extents, Shape

Array = NDArray[Any]
_NHWC = (0, 2, 3, 1)


def memory_extents(shape: Shape) -> Extents:
    """Return images, height, width and channels of a tensor with a shape of ONNX.

    Rank 4 is a batch of images; any other rank is one image, with axis 0 as rows and the last axis as
    channels.
    """
    if len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    if len(shape) < 2:
        return (1, 1, 1, prod(shape))
    return (1, shape[0], prod(shape[1:-1]), shape[-1])


def onnx_order_extents(shape: Shape) -> Extents:
    """Return the extents of a tensor in ONNX's own order of axes, where each image is a row."""
    return (1, shape[0], shape[1], prod(shape[2:])) if len(shape) == 4 else memory_extents(shape)


def is_reordered(shape: Shape) -> bool:
    """Whether the order of elements in memory differs from ONNX's."""
    return len(shape) == 4 and shape[1] > 1 and prod(shape[2:]) > 1


def to_memory_layout(array: Array, rank: int) -> Array:
    """Return a constant, broadcast to a rank, as an array [images, height, width, channels]."""
    shape = (1,) * (rank - array.ndim) + array.shape
    full = array.reshape(shape)
    array_in_memory = full.transpose(_NHWC) if rank == 4 else full
    return np.ascontiguousarray(array_in_memory).reshape(memory_extents(shape))


def check_dtype(name: str, dtype: str) -> None:
    """Raise CompileError for activations of a type that the machine lacks."""
    if dtype not in ("float32", *INTEGERS):
        raise CompileError(f"'{name}' is {dtype}, but must be float32, int8 or uint8")


def needs_reordering(contract: TensorContract, shape: Shape) -> bool:
    """Whether a boundary tensor is an image in ONNX's order of axes, which has to be reordered.

    Raises CompileError for a layout other than NCHW and NHWC.
    """
    if contract.layout not in ("", "NCHW", "NHWC"):
        raise CompileError(f"'{contract.name}' has layout {contract.layout}, but must have NHWC or NCHW")
    return contract.layout != "NHWC" and is_reordered(shape)


def boundary_shape(contract: TensorContract) -> Shape:
    """Return the shape of a boundary tensor on the host; all its extents must be known."""
    return tuple(extent for extent in contract.type.shape or () if isinstance(extent, int))
