"""Constraints on quantization: the scales, zero points and dtypes on the quantized side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from byoc.graph.index import GraphIndex
from byoc.graph.outer import Outer, outer_of_made, outer_of_read
from byoc.graph.values import constant_value
from byoc.rules.objections import Objection, unknown
from byoc.rules.schema import QuantizedRule
from byoc.rules.view import Use

_MOST_CHANNELS = 1 << 20
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def outer(index: GraphIndex, use: Use) -> Outer | None:
    """Return the quantization of a tensor, None if it is not quantized.

    An input is quantized if a DequantizeLinear makes it, an output if only QuantizeLinear nodes read it.
    """
    return (outer_of_made if use.output else outer_of_read)(index, use.tensor)


def is_inner(index: GraphIndex, use: Use) -> bool:
    """Return whether a tensor is a float without quantization, as inside of a composite."""
    known = index.types.get(use.tensor)
    return known is not None and known.dtype in _FLOATS


def quantization_objections(
    place: str, use: Use, rule: QuantizedRule, index: GraphIndex
) -> Iterator[Objection]:
    """Yield the objections to a tensor's quantization; floats inside a composite have none."""
    name, found = use.formal, outer(index, use)
    if found is None:
        if not is_inner(index, use) or index.is_constant(use.tensor):
            yield Objection(place, f"{name} is not quantized")
        return
    if rule.per_channel is not None:
        known = index.types.get(found.scale)
        count = known.elements if known else None
        if count is None:
            yield unknown(f"{place}.per_channel", f"the number of scales of {name}")
        elif (count > 1) != rule.per_channel:
            text = "one scale for all channels" if count == 1 else "a scale for each channel"
            yield Objection(f"{place}.per_channel", f"{name} has {text}, which is not supported")
    if rule.symmetric is not None:
        points = _values(index, found.zero_point) if found.zero_point else np.zeros(1)
        if points is None:
            yield unknown(f"{place}.symmetric", f"the zero point of {name}")
        elif bool(np.any(points)) == rule.symmetric:
            negation = "" if rule.symmetric else "not "
            yield Objection(f"{place}.symmetric", f"the zero point of {name} must {negation}be 0")
    if rule.power_of_two is not None:
        scales = _values(index, found.scale)
        if scales is None:
            yield unknown(f"{place}.power_of_two", f"the scale of {name}")
        elif bool(np.all(np.frexp(scales)[0] == 0.5)) != rule.power_of_two:
            text = f"must {'' if rule.power_of_two else 'not '}be a power of two"
            yield Objection(f"{place}.power_of_two", f"the scale of {name} {text}")


def _values(index: GraphIndex, name: str) -> NDArray[Any] | None:
    """Return scales or zero points, one for each of many channels if need be."""
    value, stored = constant_value(index, name), index.stored.get(name)
    if value is None and stored is not None and stored.data_location != TensorProto.EXTERNAL:
        known = index.types.get(name)
        if known is not None and (known.elements or 0) <= _MOST_CHANNELS:
            return numpy_helper.to_array(stored)
    return value
