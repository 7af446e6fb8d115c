"""Rounding of constants to float16 and bfloat16: to nearest, ties to even (IEEE 754).

Values beyond the range become the largest finite number, not infinity: attention masks hold the lowest
float32 and would produce NaN. Infinities, NaN and subnormal numbers are kept.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.graph.tensors import read_raw_bytes
from byoc.graph.types import DTYPE_NUMBERS

FLOAT16, BFLOAT16 = "float16", "bfloat16"

_LARGEST = {FLOAT16: 0x7BFF, BFLOAT16: 0x7F7F}
_INFINITY = {FLOAT16: 0x7C00, BFLOAT16: 0x7F80}
_SIGN = 0x8000
_QUIET = 0x0040


def round_values(values: NDArray[np.float32], dtype: str) -> tuple[NDArray[np.uint16], int]:
    """Return float32 values in `dtype`, as uint16 bit patterns of the same shape.

    The second result is the number of finite values that were beyond the range.
    """
    if dtype == FLOAT16:
        with np.errstate(over="ignore", under="ignore"):
            bits = values.astype(np.float16).view(np.uint16)
    else:
        bits = _round_to_bfloat16(values)
    beyond = ((bits & ~np.uint16(_SIGN)) == _INFINITY[dtype]) & np.isfinite(values)
    bits = np.where(beyond, (bits & np.uint16(_SIGN)) | np.uint16(_LARGEST[dtype]), bits)
    return bits.astype(np.uint16), int(beyond.sum())


def _round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper half of each float32, rounded by its lower half."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    carry = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nearest = ((bits + carry) >> np.uint32(16)).astype(np.uint16)
    quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(_QUIET)
    return np.where(np.isnan(values), quiet, nearest)


def round_tensor(
    tensor: TensorProto, name: str, dtype: str, folder: Path | None = None
) -> tuple[TensorProto, int]:
    """Return a stored float32 tensor rounded to `dtype`, and the number of values beyond its range.

    `folder` is the directory of external data; the result holds its own data. Raises InputError if the
    data is missing.
    """
    values = np.frombuffer(read_raw_bytes(tensor, folder), "<f4")
    bits, beyond = round_values(values, dtype)
    result = TensorProto(name=name, data_type=DTYPE_NUMBERS[dtype], dims=tensor.dims)
    result.doc_string = tensor.doc_string
    result.raw_data = bits.astype("<u2").tobytes()
    return result, beyond
