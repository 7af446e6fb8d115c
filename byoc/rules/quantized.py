"""Constraints on quantization: the scales, zero points and dtypes on the quantized side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from byoc.graph.index import GraphIndex
from byoc.graph.outer import TensorQuantization, get_output_quantization, get_input_quantization
from byoc.graph.values import get_constant_value
from byoc.rules.objections import Objection, make_unknown
from byoc.rules.schema import QuantizedRule
from byoc.rules.view import TensorUse

_MAX_CHANNELS = 1 << 20
_FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


def get_quantization(index: GraphIndex, use: TensorUse) -> TensorQuantization | None:
    """Return the quantization of a tensor, None if it is not quantized.

    An input is quantized if a DequantizeLinear makes it, an output if only QuantizeLinear nodes read it.
    """
    return (get_output_quantization if use.is_output else get_input_quantization)(index, use.tensor)


def is_unquantized_float(index: GraphIndex, use: TensorUse) -> bool:
    """Return whether a tensor is a float without quantization, as inside of a composite."""
    known = index.types.get(use.tensor)
    return known is not None and known.dtype in _FLOAT_DTYPES


def check_quantization(
    place: str, use: TensorUse, rule: QuantizedRule, index: GraphIndex
) -> Iterator[Objection]:
    """Yield the objections to a tensor's quantization; floats inside a composite have none."""
    name, found = use.formal, get_quantization(index, use)
    if found is None:
        if not is_unquantized_float(index, use) or index.is_constant(use.tensor):
            yield Objection(place, f"{name} is not quantized")
        return
    if rule.per_channel is not None:
        known = index.types.get(found.scale)
        count = known.elements if known else None
        if count is None:
            yield make_unknown(f"{place}.per_channel", f"the number of scales of {name}")
        elif (count > 1) != rule.per_channel:
            text = "one scale for all channels" if count == 1 else "a scale for each channel"
            yield Objection(f"{place}.per_channel", f"{name} has {text}, which is not supported")
    if rule.symmetric is not None:
        points = _read_values(index, found.zero_point) if found.zero_point else np.zeros(1)
        if points is None:
            yield make_unknown(f"{place}.symmetric", f"the zero point of {name}")
        elif bool(np.any(points)) == rule.symmetric:
            negation = "" if rule.symmetric else "not "
            yield Objection(f"{place}.symmetric", f"the zero point of {name} must {negation}be 0")
    if rule.power_of_two is not None:
        scales = _read_values(index, found.scale)
        if scales is None:
            yield make_unknown(f"{place}.power_of_two", f"the scale of {name}")
        elif bool(np.all(np.frexp(scales)[0] == 0.5)) != rule.power_of_two:
            text = f"must {'' if rule.power_of_two else 'not '}be a power of two"
            yield Objection(f"{place}.power_of_two", f"the scale of {name} {text}")


def _read_values(index: GraphIndex, name: str) -> NDArray[Any] | None:
    """Return scales or zero points, one for each of many channels if need be."""
    value, stored = get_constant_value(index, name), index.stored_tensors.get(name)
    if value is None and stored is not None and stored.data_location != TensorProto.EXTERNAL:
        known = index.types.get(name)
        if known is not None and (known.elements or 0) <= _MAX_CHANNELS:
            return numpy_helper.to_array(stored)
    return value
