"""The quantization of a tensor: scale, zero point and axis, and the arithmetic that they define."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import count_bits

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of a tensor: real value = (stored - zero_point) * scale.

    `scale` is an array of floats and `zero_point` one of the tensor's stored dtype, of the same shape:
    rank 0 for one pair for the whole tensor, rank 1 for one pair for each index of the dimension `axis`,
    which is None otherwise. With a `block_size` other than 0 they have the tensor's rank, and one pair
    holds for that many consecutive indices of `axis` (ONNX, DequantizeLinear).
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0

    @property
    def dtype(self) -> str:
        """The stored dtype, such as `int8` or `uint4`."""
        return self.zero_point.dtype.name.replace("_", "")  # ml_dtypes writes float8_e4m3fn

    @property
    def is_per_tensor(self) -> bool:
        """Whether one scale and zero point hold for the whole tensor."""
        return self.axis is None

    @property
    def limits(self) -> tuple[int, int]:
        """The least and greatest integer of the dtype. Raises ValueError where floats are stored."""
        if not self.is_integer:
            raise ValueError(f"{self.dtype} has no least and greatest integer")
        bits = count_bits(self.dtype)
        low = 0 if self.dtype.startswith("u") else -(2 ** (bits - 1))
        return low, low + 2**bits - 1

    @property
    def is_integer(self) -> bool:
        """Whether integers are stored, and not floats of 8 or 4 bits."""
        return "int" in self.dtype

    def dequantize(self, stored: Array) -> Array:
        """Return the real values of stored ones in the dtype of `scale`, as DequantizeLinear does."""
        wide = np.int64 if self.is_integer else np.float32
        difference = stored.astype(wide) - self._expand(self.zero_point, stored).astype(wide)
        real: Array = difference.astype(self.scale.dtype) * self._expand(self.scale, stored)
        return real

    def quantize(self, real: Array) -> Array:
        """Return the stored integers of real values, as QuantizeLinear does: half to even, saturated."""
        low, high = self.limits
        rounded = np.rint(real / self._expand(self.scale, real))
        wide = rounded.astype(np.float64) + self._expand(self.zero_point, real).astype(np.float64)
        return np.clip(wide, low, high).astype(self.zero_point.dtype)

    def _expand(self, values: Array, tensor: Array) -> Array:
        """Return scales or zero points in a shape that broadcasts to a tensor."""
        if self.axis is None:
            return values
        if self.block_size:
            return np.repeat(values, self.block_size, self.axis)[
                tuple(slice(extent) for extent in tensor.shape)
            ]
        extents = [1] * tensor.ndim
        extents[self.axis] = values.size
        return values.reshape(extents)
