"""Tensor types: dtype, shape and size in bytes, and their form in ONNX."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from byoc.model.schemas import DTYPE_NUMBERS, DTYPES

Dim = int | str | None
"""An extent: a number, the name or expression of an open one, or None where it is unknown."""

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
"""The dtypes of real numbers that operators compute in."""

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
_POINTER_BITS = 64  # an element of a string tensor counts as its pointer
_REGISTERED = 2
"""`numpy.dtype.isbuiltin` of the dtypes that ml_dtypes adds to numpy's own."""


def to_numpy_dtype(dtype: str) -> "np.dtype[Any]":
    """Return numpy's dtype; those that numpy lacks are of the package ml_dtypes."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype]))


def make_native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose elements have this machine's byte order and numpy's one dtype of their type.

    A dtype that `newbyteorder` made equals that one where the order is the same, yet `isbuiltin` and
    `is` tell them apart. An array that is so already is returned as it is.
    """
    dtype = array.dtype
    if dtype.kind in "biufc" or dtype.isbuiltin == _REGISTERED:
        return np.asarray(array, dtype.type)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


@cache
def count_bits(dtype: str) -> int:
    """Return the bits of one element in a file; a string counts as a pointer."""
    if dtype == "string":
        return _POINTER_BITS
    if dtype in _BITS:
        return _BITS[dtype]
    return to_numpy_dtype(dtype).itemsize * 8


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
    return _parse_type(proto.SerializeToString())


# A model has few distinct types, which are read again and again.
_MAX_TYPES = 1 << 16


@lru_cache(_MAX_TYPES)
def _parse_type(data: bytes) -> TensorType | None:
    proto = TypeProto.FromString(data)
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
    return make_tensor_type(DTYPE_NUMBERS[tensor.dtype], tensor.shape)


def make_tensor_type(dtype: int, shape: Sequence[Dim] | None) -> TypeProto:
    """Return the ONNX form of a type, given the number of its dtype."""
    result = TypeProto()
    result.CopyFrom(_make_tensor_type(dtype, None if shape is None else tuple(shape)))
    return result


def add_input(graph: GraphProto, tensor: TensorProto) -> None:
    """Add an input to a graph of a stored tensor's name and type."""
    graph.input.add(name=tensor.name, type=_make_tensor_type(tensor.data_type, tuple(tensor.dims)))


@lru_cache(_MAX_TYPES)
def _make_tensor_type(dtype: int, shape: tuple[Dim, ...] | None) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, shape)


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for unknown
    return dim.dim_param or None


def rate_knowledge(proto: TypeProto | None) -> int:
    """Return a number that grows with the information in a type: kind, rank, each known extent."""
    return 0 if proto is None else _rate_type(proto.SerializeToString())


@lru_cache(_MAX_TYPES)
def _rate_type(data: bytes) -> int:
    if TypeProto.FromString(data).WhichOneof("value") is None:
        return 0
    kind = _parse_type(data)
    if kind is None or kind.shape is None:
        return 1
    return 2 + sum(isinstance(dim, int) for dim in kind.shape)


def get_stated_types(proto: ModelProto) -> dict[str, TypeProto]:
    """Return the types that the main graph states for its tensors, stored ones included."""
    return get_graph_types(proto.graph)


def get_graph_types(graph: GraphProto) -> dict[str, TypeProto]:
    """Return the types that a graph states for its tensors, stored ones included.

    They are copies; tensors of equal types share one.
    """
    shared: dict[bytes, TypeProto | None] = {}
    types: dict[str, TypeProto] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        data = value.type.SerializeToString()
        if data not in shared:
            shared[data] = TypeProto.FromString(data) if _rate_type(data) else None
        kind = shared[data]
        if kind is not None:
            types[value.name] = kind
    for tensor in graph.initializer:
        types[tensor.name] = make_tensor_type(tensor.data_type, tensor.dims)
    return types


def read_tensor_types(types: Mapping[str, TypeProto]) -> dict[str, TensorType]:
    """Return the types of tensors; sequences, maps and optionals are left out."""
    known = {id(proto): proto for proto in types.values()}  # many tensors share a type
    read = {number: read_type(proto) for number, proto in known.items()}
    found = ((name, read[id(proto)]) for name, proto in types.items())
    return {name: kind for name, kind in found if kind is not None}


def clear_shape(kind: TypeProto | None) -> TypeProto | None:
    """Return a tensor type without its shape, any other type as it is."""
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    result = deepcopy(kind)
    result.tensor_type.ClearField("shape")
    return result
