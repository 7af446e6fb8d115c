"""Tensor types: dtype, shape, and size in bytes."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import prod

import onnx
from onnx import TensorProto, TypeProto

Dim = int | str | None
"""A known extent, the name of a symbolic one, or None."""

# ONNX spells two types as C does; users write the number of bits.
_DTYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}

DTYPES: dict[int, str] = {
    number: _DTYPE_NAMES.get(name, name.lower())
    for name, number in TensorProto.DataType.items()
    if name != "UNDEFINED"
}
"""Element type number (`onnx.TensorProto.DataType`) to the name that users write: `float32`."""

DTYPE_NUMBERS: dict[str, int] = {name: number for number, name in DTYPES.items()}
"""The inverse of `DTYPES`."""

# Several of these share a byte in a file (onnx.proto, TensorProto.raw_data), but not in numpy.
_BITS = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4e2m1": 4,
    "float6e2m3": 6,
    "float6e3m2": 6,
}
_POINTER_BITS = 64


@cache
def count_bits(dtype: str) -> int:
    """Return the bits of one element in a file; a string counts as a pointer."""
    if dtype == "string":
        return _POINTER_BITS
    if dtype in _BITS:
        return _BITS[dtype]
    return int(onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype]).itemsize) * 8


@dataclass(frozen=True, slots=True)
class TensorType:
    """The known type of a tensor: `dtype` as in `DTYPES`, `shape` None if the rank is not known."""

    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def elements(self) -> int | None:
        """The number of elements, None unless all dimensions are known."""
        if self.shape is None:
            return None
        known = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(known) if len(known) == len(self.shape) else None

    @property
    def bytes(self) -> int | None:
        """The size of the packed tensor in bytes, None unless all dimensions are known."""
        return None if self.elements is None else -(-self.elements * count_bits(self.dtype) // 8)

    def __str__(self) -> str:
        """Return for example `float32[1, 3, N, ?]`."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


def read_type(proto: TypeProto) -> TensorType | None:
    """Return the type of a tensor, None for a sequence, map, optional or sparse tensor."""
    if proto.WhichOneof("value") != "tensor_type":
        return None
    tensor = proto.tensor_type
    if tensor.elem_type not in DTYPES:
        return None
    if not tensor.HasField("shape"):
        return TensorType(DTYPES[tensor.elem_type], None)
    return TensorType(DTYPES[tensor.elem_type], tuple(map(_read_dim, tensor.shape.dim)))


def write_type(tensor: TensorType) -> TypeProto:
    """Return the ONNX form of a type; the inverse of `read_type`."""
    return onnx.helper.make_tensor_type_proto(DTYPE_NUMBERS[tensor.dtype], tensor.shape)


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for unknown
    return dim.dim_param or None


def rate_knowledge(proto: TypeProto | None) -> int:
    """Return a number that grows with the information in a type: kind, rank, each known extent."""
    if proto is None or proto.WhichOneof("value") is None:
        return 0
    kind = read_type(proto)
    if kind is None or kind.shape is None:
        return 1
    return 2 + sum(isinstance(dim, int) for dim in kind.shape)


def clear_shape(kind: TypeProto | None) -> TypeProto | None:
    """Return a tensor type without its shape, any other type as it is."""
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    result = deepcopy(kind)
    result.tensor_type.ClearField("shape")
    return result
