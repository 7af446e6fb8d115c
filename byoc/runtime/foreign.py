"""Tensors with element types that numpy lacks: bfloat16, float8, int4 and the like.

In byoc they are numpy arrays with the dtypes of ml_dtypes, as in onnx; onnxruntime takes and returns
them only as OrtValues, with elements below one byte packed.
"""

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from byoc.graph.types import DTYPES, DTYPE_NUMBERS, count_bits

_FOREIGN_PREFIXES = ("bfloat16", "float8", "float4", "float6", "int4", "uint4", "int2", "uint2")
_FOREIGN_DTYPES = frozenset(name for name in DTYPE_NUMBERS if name.startswith(_FOREIGN_PREFIXES))


def is_foreign_type(kind: str) -> bool:
    """Return whether onnxruntime's type name, such as `tensor(bfloat16)`, is one that numpy lacks."""
    return kind.startswith("tensor(") and kind.removeprefix("tensor(").removesuffix(")") in _FOREIGN_DTYPES


def run_foreign(ort: Any, session: Any, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """Run a session that has such tensors among its inputs or outputs; return the named outputs."""
    kinds = {value.name: value.type for value in session.get_inputs()}
    held = {name: _to_ort_value(ort, np.asarray(value), kinds[name]) for name, value in inputs.items()}
    results = session.run_with_ort_values(names, {name: value for name, (value, _) in held.items()})
    return [_from_ort_value(value) for value in results]


def _to_ort_value(ort: Any, array: Any, kind: str) -> tuple[Any, Any]:
    """Return an OrtValue and the array that owns its memory."""
    if not is_foreign_type(kind):
        return ort.OrtValue.ortvalue_from_numpy(array), array
    number = DTYPE_NUMBERS[kind.removeprefix("tensor(").removesuffix(")")]
    raw = numpy_helper.from_array(array).raw_data  # packed, as in onnxruntime
    carrier = np.empty(array.shape, helper.tensor_dtype_to_np_dtype(number))
    carrier.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, number), carrier


def _from_ort_value(value: Any) -> Any:
    number = value.element_type()
    if DTYPES[number] not in _FOREIGN_DTYPES:
        return value.numpy()
    size = -(-prod(value.shape()) * count_bits(DTYPES[number]) // 8)
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return numpy_helper.to_array(TensorProto(data_type=number, dims=value.shape(), raw_data=raw))
