"""A model as the provider takes it best, and which of the original's nodes each node of it came from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from byoc.codegen.single import called
from byoc.graph.outline import NEWEST_IR

_CLAMPS = ("Relu", "Clip")
_PREFIX = "n"


@dataclass(frozen=True, eq=False)
class Standard:
    """A model of standard operators whose nodes are called `n0`, `n1`, ...

    `origins` has for each of these numbers the node of the original that it came from.
    """

    proto: ModelProto
    origins: Sequence[NodeProto]

    def origin(self, name: str) -> NodeProto | None:
        """Return the original's node that a node of onnxruntime's came from; None where none is known.

        Nodes that onnxruntime rewrites get a suffix; those that it puts in have names of their own.
        """
        number = name.partition("_")[0].removeprefix(_PREFIX)
        return self.origins[int(number)] if number.isdecimal() and name.startswith(_PREFIX) else None

    def told(self, nodes: Sequence[NodeProto]) -> list[str]:
        """Return what some of the original's nodes are called, each once and in their order."""
        wanted = {id(node) for node in nodes}
        return list(dict.fromkeys(called(node for node in self.origins if id(node) in wanted)))


def standard(original: ModelProto, inlined: ModelProto) -> Standard:
    """Return a model of its own for the provider.

    `inlined` is the original with the bodies of composites in their place, constants in memory.
    """
    origins = _origins(original, inlined)
    proto = ModelProto()
    proto.CopyFrom(inlined)
    proto.ir_version = min(proto.ir_version, NEWEST_IR)
    nodes, known = [], []
    for node, origin in zip(_kept(proto), origins, strict=True):
        new = [*_pair(proto, node), node]
        nodes += new
        known += [origin] * len(new)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for number, node in enumerate(proto.graph.node):
        node.name = f"{_PREFIX}{number}"
    return Standard(proto, known)


def _kept(proto: ModelProto) -> list[NodeProto]:
    copies = []
    for node in proto.graph.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    return copies


def _origins(original: ModelProto, inlined: ModelProto) -> list[NodeProto]:
    """Return for each inlined node the original's that it came from: they are in the same order."""
    origins: list[NodeProto] = []
    left = iter(inlined.graph.node)
    for node in original.graph.node:
        missing = {name for name in node.output if name}
        while missing and (part := next(left, None)) is not None:
            origins.append(node)
            missing -= set(part.output)
    return origins + [origins[-1] for _ in left] if origins else []


def _pair(proto: ModelProto, node: NodeProto) -> list[NodeProto]:
    """Return the QuantizeLinear and DequantizeLinear to put before a clamp, which then reads these.

    The provider fuses `Conv, Relu, QuantizeLinear` and, where the zero point is not the least number,
    gets other numbers; it takes no `Gemm, Relu, QuantizeLinear`. With the same pair before the clamp as
    comes behind, it is right and takes both. Nothing changes: Q grows with its argument, so that
    Q(max(c, m)) = max(Q(c), Q(m)), and DQ is its inverse on what Q gives; likewise for min.
    """
    if node.op_type not in _CLAMPS or node.domain not in ("", "ai.onnx"):
        return []
    makers = {name: each for each in proto.graph.node for name in each.output}
    readers = [each for each in proto.graph.node if node.output[0] in each.input]
    maker = makers.get(node.input[0])
    if maker is None or maker.op_type == "DequantizeLinear" or len(readers) != 1:
        return []
    (quantize,) = readers
    if quantize.op_type != "QuantizeLinear" or _is_least(proto, quantize, node.op_type):
        return []
    quantized, again = (f"{node.input[0]}/byoc_{what}/{node.output[0]}" for what in ("q", "dq"))
    first, second = NodeProto(), NodeProto()
    first.CopyFrom(quantize)
    first.input[0], first.output[0] = node.input[0], quantized
    second.CopyFrom(first)
    second.op_type, second.input[0], second.output[0] = "DequantizeLinear", quantized, again
    both = {"axis", "block_size"}
    attributes = [each for each in second.attribute if each.name in both]
    del second.attribute[:]
    second.attribute.extend(attributes)
    node.input[0] = again
    return [first, second]


def _is_least(proto: ModelProto, quantize: NodeProto, clamp: str) -> bool:
    """Return whether a zero point is the least number, so that quantizing does all that a Relu does."""
    if clamp != "Relu":
        return False
    if len(quantize.input) < 3 or not quantize.input[2]:
        return not quantize.attribute  # of dtype uint8, zero point 0
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    if quantize.input[2] not in stored:
        return False
    zero = numpy_helper.to_array(stored[quantize.input[2]])
    return zero.dtype.kind in "iu" and bool(np.all(zero == np.iinfo(zero.dtype).min))
