"""Nodes that one kernel computes: a convolution or a product, the bias behind it, and the activation."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from byoc.model import is_onnx
from byoc.standalone._program_graph import ProgramGraph

PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_INFINITY = float("inf")


@dataclass(frozen=True)
class FusedNodes:
    """Nodes that follow one another: the first computes, an Add gives its bias, the last limits it.

    `bias` is the constant that a MatMul gets by an Add; `low` and `high` are limits on the result, which
    with `hard_swish` a HardSwish makes.
    """

    nodes: tuple[int, ...]
    bias: str = ""
    low: float = -_INFINITY
    high: float = _INFINITY
    hard_swish: bool = False


def find_fused_nodes(graph: ProgramGraph) -> list[FusedNodes]:
    """Return the nodes that are computed together, at least two each; all compute 32-bit floats."""
    found = []
    for number, node in enumerate(graph.index.nodes):
        if is_onnx(node) and node.op_type in PRODUCTS and number not in graph.sizes.constant_nodes:
            fused = _follow_node(graph, number)
            if len(fused.nodes) > 1:
                found.append(fused)
    return found


def _follow_node(graph: ProgramGraph, number: int) -> FusedNodes:
    nodes, bias = [number], ""
    if graph.get_dtype(graph.index.nodes[number].output[0]) != "float32":
        return FusedNodes((number,))
    behind = _find_reader(graph, number)
    if behind is not None and graph.index.nodes[number].op_type == "MatMul":
        bias = _find_bias(graph, number, graph.index.nodes[behind])
        if bias:
            nodes.append(behind)
            behind = _find_reader(graph, behind)
    if behind is not None and graph.index.nodes[behind].op_type == "HardSwish":
        return FusedNodes((*nodes, behind), bias, hard_swish=True)
    limits = None if behind is None else find_limits(graph, graph.index.nodes[behind])
    if behind is None or limits is None:
        return FusedNodes(tuple(nodes), bias)
    return FusedNodes((*nodes, behind), bias, *limits)


def _find_reader(graph: ProgramGraph, number: int) -> int | None:
    """Return the only reader of a node's result, None where there are others."""
    index = graph.index
    name = index.nodes[number].output[0]
    readers: Sequence[int] = index.consumers.get(name, ())
    if name in index.outputs or len(readers) != 1 or list(index.reads[readers[0]]).count(name) != 1:
        return None
    return readers[0] if is_onnx(index.nodes[readers[0]]) else None


def _find_bias(graph: ProgramGraph, number: int, add: NodeProto) -> str:
    """Return the constant of one number a column that an Add adds to a product, empty if it does not."""
    result = graph.index.nodes[number].output[0]
    if add.op_type != "Add":
        return ""
    other = next((name for name in add.input if name != result), "")
    shape = graph.get_shape(result)
    fits = other and graph.is_constant(other) and shape and graph.get_shape(other) == shape[-1:]
    return other if fits else ""


def find_limits(graph: ProgramGraph, node: NodeProto) -> tuple[float, float] | None:
    """Return the limits that a node sets on its operand, None for a node that does something else."""
    if node.op_type == "Relu":
        return 0.0, _INFINITY
    if node.op_type != "Clip":
        return None
    if graph.index.get_opset(node) < 11:
        given = graph.index.get_attributes(node)
        return float(given.get("min", -_INFINITY)), float(given.get("max", _INFINITY))
    names = [*node.input[1:], "", ""][:2]
    if any(name and not graph.is_constant(name) for name in names):
        return None
    low, high = (
        float(graph.get_constant(name)) if name else default
        for name, default in zip(names, (-_INFINITY, _INFINITY), strict=True)
    )
    return (low, high) if low <= high else None
