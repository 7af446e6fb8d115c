"""Comparison of arrays with declared types."""

from typing import Any

import numpy as np
import onnx

from byoc.graph.types import DTYPE_NUMBERS, TensorType


def describe_mismatch(value: Any, kind: TensorType) -> str:
    """Describe a value that does not have a type, such as `float64[1, 3]`; return "" when it has.

    An unknown dimension matches any extent; strings may be numpy objects, bytes or text.
    """
    array = np.asarray(value)
    if _same_dtype(array, kind.dtype) and _same_shape(array.shape, kind):
        return ""
    return f"{array.dtype}{list(array.shape)}"


def _same_dtype(array: np.ndarray[Any, Any], dtype: str) -> bool:
    if dtype == "string":
        return array.dtype.kind in "OSU"
    return bool(array.dtype == onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype]))


def _same_shape(shape: tuple[int, ...], kind: TensorType) -> bool:
    if kind.shape is None:
        return True
    return len(shape) == len(kind.shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, kind.shape, strict=True)
    )
