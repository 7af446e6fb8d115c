"""Scale and zero point of QuantizeLinear and DequantizeLinear nodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from byoc.errors import InputError
from byoc.graph.attributes import get_stated_attributes
from byoc.graph.index import GraphIndex
from byoc.graph.marks import is_inserted
from byoc.graph.tensors import read_array
from byoc.graph.types import DTYPES
from byoc.graph.values import get_constant_value
from byoc.graph.walk import is_onnx


@dataclass(frozen=True)
class Scales:
    """The quantization that a node of byoc's or the user's applies to a tensor.

    `axis` is the dimension that has a scale for each index, None if one scale holds for the tensor.
    """

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None
    is_own: bool


def is_quantize(node: NodeProto) -> bool:
    """Return whether a node is ONNX's QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and is_onnx(node)


def is_dequantize(node: NodeProto) -> bool:
    """Return whether a node is ONNX's DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and is_onnx(node)


def read_scales(index: GraphIndex, node: NodeProto, folder: Path | None) -> Scales | None:
    """Return the quantization of a QuantizeLinear or DequantizeLinear, or None if it is not constant.

    `folder` is the directory of external data, which may hold the scales of many channels.
    """
    scale = _constant_value(index, node.input[1], folder)
    if scale is None:
        return None
    attributes = get_stated_attributes(node)
    zero_name = node.input[2] if len(node.input) > 2 else ""
    zero = _constant_value(index, zero_name, folder) if zero_name else np.zeros(scale.shape, np.uint8)
    if zero is None:
        return None
    quantized = node.output[0] if is_quantize(node) else node.input[0]
    known = index.types.get(zero_name or quantized)
    stated = DTYPES[attributes.get("output_dtype", TensorProto.UINT8)]
    dtype = known.dtype if known is not None else stated
    axis = None
    if scale.ndim and scale.size > 1:
        rank = _tensor_rank(index, node)
        axis = int(attributes.get("axis", 1))
        axis = axis + rank if axis < 0 and rank is not None else axis
    return Scales(
        dtype,
        tuple(map(float, scale.ravel())),
        tuple(int(number) for number in zero.ravel()),
        axis,
        is_inserted(node),
    )


def _tensor_rank(index: GraphIndex, node: NodeProto) -> int | None:
    known = index.types.get(node.input[0]) or index.types.get(node.output[0])
    return None if known is None or known.shape is None else len(known.shape)


def _constant_value(index: GraphIndex, name: str, folder: Path | None) -> NDArray[Any] | None:
    stored = index.stored_tensors.get(name)
    if stored is None:
        return get_constant_value(index, name)
    try:
        return read_array(stored, folder)
    except InputError:  # external data, and nobody said where
        return None
