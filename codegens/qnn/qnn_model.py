"""A model in the form that suits the provider, with the origin of each node in the original."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.defs
from onnx import ModelProto, NodeProto, numpy_helper

from byoc.codegen import MAX_IR, node_names

_PREFIX = "n"


@dataclass(frozen=True, eq=False)
class ProviderModel:
    """A model of standard operators with nodes named `n0`, `n1`, ...

    `origins` has, for each of these numbers, the position of its node in `original`.
    """

    proto: ModelProto
    original: ModelProto
    origins: Sequence[int]

    def origin_of(self, name: str) -> int | None:
        """Return the position in the original of a node of onnxruntime, None for an inserted node.

        Nodes that onnxruntime rewrites get a suffix; those that it inserts have other names.
        """
        number = name.partition("_")[0].removeprefix(_PREFIX)
        return self.origins[int(number)] if number.isdecimal() and name.startswith(_PREFIX) else None

    def display_names(self, positions: Iterable[int]) -> list[str]:
        """Return the display names of nodes of the original."""
        return node_names(self.original.graph.node[position] for position in positions)


def adapt_model(original: ModelProto, inlined: ModelProto) -> ProviderModel:
    """Return a copy of a model for the provider.

    `inlined` is the original with composites inlined, and with constants in memory.
    """
    proto = ModelProto()
    proto.CopyFrom(inlined)
    proto.ir_version = min(proto.ir_version, MAX_IR)
    tidier = _NodeFixer(inlined)
    del proto.graph.node[:]
    known: list[int] = []
    for node, origin in zip(inlined.graph.node, _node_origins(original, inlined), strict=True):
        new = tidier.nodes_before(node)
        proto.graph.node.extend([*new, node])
        if new:
            proto.graph.node[-1].input[0] = new[-1].output[0]
        known += [origin] * (len(new) + 1)
    tidier.drop_unread(proto.graph.node)
    for number, node in enumerate(proto.graph.node):
        node.name = f"{_PREFIX}{number}"
    return ProviderModel(proto, original, known)


def _node_origins(original: ModelProto, inlined: ModelProto) -> list[int]:
    """Return for each inlined node the position of its origin; both are in the same order."""
    origins: list[int] = []
    left = iter(inlined.graph.node)
    for position, node in enumerate(original.graph.node):
        missing = {name for name in node.output if name}
        while missing and (part := next(left, None)) is not None:
            origins.append(position)
            missing -= set(part.output)
    return origins + [origins[-1] for _ in left] if origins else []


class _NodeFixer:
    """Changes of nodes that work around faults of the provider.

    The provider computes `Conv, Relu, QuantizeLinear` wrongly unless the zero point is the least number,
    and refuses `Gemm, Relu, QuantizeLinear`. With a QuantizeLinear and a DequantizeLinear before the
    Relu or Clip, of the same scale as after it, both work. The result is the same: Q is monotonic, so
    Q(max(c, m)) = max(Q(c), Q(m)), and DQ inverts Q on its results; likewise for min.
    """

    def __init__(self, model: ModelProto) -> None:
        """Index a model, which is not changed."""
        graph = model.graph
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers = defaultdict[str, list[NodeProto | None]](list)
        for node in graph.node:
            for name in filter(None, node.input):
                self._readers[name].append(node)
        for value in graph.output:
            self._readers[value.name].append(None)

    def nodes_before(self, clamp: NodeProto) -> list[NodeProto]:
        """Return the pair of nodes to insert before a clamp; for most nodes none."""
        if clamp.op_type not in ("Relu", "Clip") or clamp.domain not in ("", "ai.onnx"):
            return []
        maker = self._makers.get(clamp.input[0])
        readers = self._readers[clamp.output[0]]
        if maker is None or maker.op_type == "DequantizeLinear" or len(readers) != 1:
            return []
        quantize = readers[0]
        if quantize is None or quantize.op_type != "QuantizeLinear":
            return []
        if clamp.op_type == "Relu" and self._is_least(quantize):
            return []
        made = (f"{clamp.input[0]}/byoc_{what}/{clamp.output[0]}" for what in ("q", "dq"))
        first, second = NodeProto(), NodeProto()
        first.CopyFrom(quantize)
        first.input[0], first.output[0] = clamp.input[0], next(made)
        second.CopyFrom(first)
        second.op_type, second.input[0], second.output[0] = (
            "DequantizeLinear",
            first.output[0],
            next(made),
        )
        kept = [each for each in second.attribute if each.name in ("axis", "block_size")]
        del second.attribute[:]
        second.attribute.extend(kept)
        return [first, second]

    def drop_unread(self, nodes: Iterable[NodeProto]) -> None:
        """Remove optional last outputs that are not read, such as indices of a pool, from nodes."""
        for node in nodes:
            while len(node.output) > 1 and not self._readers[node.output[-1]] and _is_optional(node):
                del node.output[-1]

    def _is_least(self, quantize: NodeProto) -> bool:
        """Return whether the zero point is the least number, so that quantizing includes a Relu."""
        if len(quantize.input) < 3 or not quantize.input[2]:
            return not quantize.attribute  # uint8 and 0, unless an attribute says otherwise
        if quantize.input[2] not in self._stored:
            return False
        zero = numpy_helper.to_array(self._stored[quantize.input[2]])
        return zero.dtype.kind in "iu" and bool(np.all(zero == np.iinfo(zero.dtype).min))


def _is_optional(node: NodeProto) -> bool:
    """Return whether the last output of a standard node is optional."""
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
        return False
    outputs = onnx.defs.get_schema(node.op_type).outputs
    last = outputs[min(len(node.output), len(outputs)) - 1]
    return bool(last.option == onnx.defs.OpSchema.FormalParameterOption.Optional)
