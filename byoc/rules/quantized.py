"""Tensors between DequantizeLinear and QuantizeLinear: what they are on the outer side."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.unshare import is_dequantize, is_quantize
from byoc.graph.values import constant_value
from byoc.rules.objections import Kind, Objection
from byoc.rules.schema import QuantizedRule
from byoc.rules.view import Use

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class Outer:
    """How a tensor is quantized: its type on the outer side, and the tensors of scale and zero point."""

    kind: TensorType | None
    scale: str
    zero_point: str


def outer(index: GraphIndex, use: Use) -> Outer | None:
    """Return how a tensor is quantized, None when it does not come from or go to a quantized one.

    An input is when a DequantizeLinear makes it, an output when only QuantizeLinear reads it.
    """
    if not use.output:
        number = index.producer.get(use.tensor)
        node = None if number is None else index.nodes[number]
        if node is None or not is_dequantize(node):
            return None
        return _outer(index, node, node.input[0])
    readers = [index.nodes[number] for number in index.consumers.get(use.tensor, ())]
    if not readers or use.tensor in index.outputs:
        return None
    if not all(is_quantize(node) and node.input[0] == use.tensor for node in readers):
        return None
    return _outer(index, readers[0], readers[0].output[0])


def _outer(index: GraphIndex, node: NodeProto, tensor: str) -> Outer:
    scale, zero_point = (*node.input[1:], "", "")[:2]
    return Outer(index.types.get(tensor), scale, zero_point)


def is_inner(index: GraphIndex, use: Use) -> bool:
    """Return whether a tensor that is not quantized is a float all the same: inside of a composite."""
    known = index.types.get(use.tensor)
    return known is not None and known.dtype in _FLOATS


def quantization_objections(
    place: str, use: Use, rule: QuantizedRule, index: GraphIndex
) -> Iterator[Objection]:
    """Yield what a rule has against a tensor's quantization; floats inside a composite are not held."""
    name, found = use.formal, outer(index, use)
    if found is None:
        if not is_inner(index, use) or index.is_constant(use.tensor):
            yield Objection(place, f"{name} is not quantized")
        return
    if rule.per_channel is not None:
        known = index.types.get(found.scale)
        count = known.elements if known else None
        if count is None:
            yield _unknown(f"{place}.per_channel", f"the number of scales of {name}")
        elif (count > 1) != rule.per_channel:
            told = "one scale for all channels" if count == 1 else "a scale for each channel"
            yield Objection(f"{place}.per_channel", f"{name} has {told}, which is not supported")
    if rule.symmetric is not None:
        points = constant_value(index, found.zero_point) if found.zero_point else np.zeros(1)
        if points is None:
            yield _unknown(f"{place}.symmetric", f"the zero point of {name}")
        elif bool(np.any(points)) == rule.symmetric:
            told = "" if rule.symmetric else "not "
            yield Objection(f"{place}.symmetric", f"the zero point of {name} must {told}be 0")
    if rule.power_of_two is not None:
        scales = constant_value(index, found.scale)
        if scales is None:
            yield _unknown(f"{place}.power_of_two", f"the scale of {name}")
        elif bool(np.all(np.frexp(scales)[0] == 0.5)) != rule.power_of_two:
            told = "" if rule.power_of_two else "not "
            yield Objection(f"{place}.power_of_two", f"the scale of {name} must {told}be a power of two")


def _unknown(place: str, what: str) -> Objection:
    return Objection(place, f"{what} is not known", Kind.UNKNOWN)
