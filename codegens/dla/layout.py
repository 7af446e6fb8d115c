"""How tensors of ONNX's shapes lie in memory, and which of them lie otherwise than in ONNX."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import CompileError, Contract

from .shapes import Shape
from .tensors import INTEGERS, Extents

Array = NDArray[Any]
_NHWC = (0, 2, 3, 1)


def extents_of(shape: Shape) -> Extents:
    """Return the images, height, width and channels as which a tensor of ONNX's shape lies.

    Of rank 4 it is an image; of any other rank one image, axis 0 its rows and the last its channels.
    """
    if len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    if len(shape) < 2:
        return (1, 1, 1, prod(shape))
    return (1, shape[0], prod(shape[1:-1]), shape[-1])


def plain_extents(shape: Shape) -> Extents:
    """Return the extents of a tensor that lies in ONNX's own order of axes, a row for an image."""
    return (1, shape[0], shape[1], prod(shape[2:])) if len(shape) == 4 else extents_of(shape)


def is_reordered(shape: Shape) -> bool:
    """Whether a tensor of a shape lies in another order here than in ONNX."""
    return len(shape) == 4 and shape[1] > 1 and prod(shape[2:]) > 1


def laid(array: Array, rank: int) -> Array:
    """Return a constant as it lies beside tensors of a rank: [images, height, width, channels]."""
    shape = (1,) * (rank - array.ndim) + array.shape
    full = array.reshape(shape)
    lying = full.transpose(_NHWC) if rank == 4 else full
    return np.ascontiguousarray(lying).reshape(extents_of(shape))


def check_dtype(name: str, dtype: str) -> None:
    """Raise CompileError for activations of a type that the machine does not have."""
    if dtype not in ("float32", *INTEGERS):
        raise CompileError(f"'{name}' is {dtype}, and not float32, int8 or uint8")


def is_plain(contract: Contract, shape: Shape) -> bool:
    """Whether an image crosses in ONNX's order of axes and is to be reordered.

    Raises CompileError for another layout than NHWC.
    """
    if contract.layout not in ("", "NCHW", "NHWC"):
        raise CompileError(f"'{contract.name}' lies in {contract.layout}, and not in NHWC or NCHW")
    return contract.layout != "NHWC" and is_reordered(shape)


def crossing_extents(contract: Contract) -> Shape:
    """Return the shape with which a tensor crosses the border, whose extents are all known."""
    return tuple(extent for extent in contract.type.shape or () if isinstance(extent, int))
