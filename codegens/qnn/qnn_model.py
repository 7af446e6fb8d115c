"""A model in the form that suits the provider, with the origin of each node in the original."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.defs
import onnx_graphsurgeon as gs
from onnx import ModelProto

from byoc.codegen import MAX_IR, node_names

_PREFIX = "n"
_STANDARD = (None, "", "ai.onnx")


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
    graph = gs.import_onnx(inlined)
    nodes: list[gs.Node] = []
    known: list[int] = []
    for node, origin in zip(graph.nodes, _node_origins(original, inlined), strict=True):
        made = [*_insert_before(node, graph), node]
        nodes += made
        known += [origin] * len(made)
    graph.nodes = nodes
    for number, node in enumerate(nodes):
        _drop_unread(node, graph)
        node.name = f"{_PREFIX}{number}"
    proto = gs.export_onnx(graph)
    proto.ir_version = min(inlined.ir_version, MAX_IR)
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


def _insert_before(clamp: gs.Node, graph: gs.Graph) -> list[gs.Node]:
    """Insert a pair of nodes before a clamp, and return it; for most nodes none.

    The provider computes `Conv, Relu, QuantizeLinear` wrongly unless the zero point is the least number,
    and refuses `Gemm, Relu, QuantizeLinear`. With a QuantizeLinear and a DequantizeLinear before the
    Relu or Clip, of the same scale as after it, both work. The result is the same: Q is monotonic, so
    Q(max(c, m)) = max(Q(c), Q(m)), and DQ inverts Q on its results; likewise for min.
    """
    if clamp.op not in ("Relu", "Clip") or clamp.domain not in _STANDARD:
        return []
    x, y = clamp.inputs[0], clamp.outputs[0]
    if not x.inputs or x.inputs[0].op == "DequantizeLinear" or len(y.outputs) != 1 or y in graph.outputs:
        return []
    quantize = y.outputs[0]
    if quantize.op != "QuantizeLinear" or (clamp.op == "Relu" and _is_least(quantize)):
        return []
    pair: list[gs.Node] = []
    for op, kept in (
        ("QuantizeLinear", set(quantize.attrs)),
        ("DequantizeLinear", {"axis", "block_size"}),
    ):
        made = gs.Variable(f"{x.name}/byoc_{op}/{y.name}")
        attributes = {name: value for name, value in quantize.attrs.items() if name in kept}
        source = pair[-1].outputs[0] if pair else x
        pair.append(gs.Node(op, "", attributes, [source, *quantize.inputs[1:]], [made]))
    clamp.inputs[0] = pair[-1].outputs[0]
    return pair


def _is_least(quantize: gs.Node) -> bool:
    """Return whether the zero point is the least number, so that quantizing includes a Relu."""
    if len(quantize.inputs) < 3 or not quantize.inputs[2].name:
        return not quantize.attrs  # uint8 and 0, unless an attribute says otherwise
    if not isinstance(quantize.inputs[2], gs.Constant):
        return False
    zero = quantize.inputs[2].copy().values  # of a copy: the graph cannot export 4 bits that were read
    return zero.dtype.kind in "iu" and bool(np.all(zero == np.iinfo(zero.dtype).min))


def _drop_unread(node: gs.Node, graph: gs.Graph) -> None:
    """Remove optional last outputs that are not read, such as indices of a pool."""
    while len(node.outputs) > 1 and _is_optional(node):
        if node.outputs[-1].outputs or node.outputs[-1] in graph.outputs:
            break
        del node.outputs[-1]


def _is_optional(node: gs.Node) -> bool:
    """Return whether the last output of a standard node is optional."""
    if node.domain not in _STANDARD or not onnx.defs.has(node.op):
        return False
    outputs = onnx.defs.get_schema(node.op).outputs
    last = outputs[min(len(node.outputs), len(outputs)) - 1]
    return bool(last.option == onnx.defs.OpSchema.FormalParameterOption.Optional)
