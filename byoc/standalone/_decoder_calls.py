"""Calls of byoc's own kernels: fused nodes, and the operators of language decoders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from onnx import NodeProto

from byoc.model import is_onnx
from byoc.standalone._program_graph import (
    SCRATCH,
    Call,
    ProgramGraph,
    UnsupportedNodeError,
    format_float,
)

# Nodes that one kernel computes: a convolution or a product, the bias behind it, and the
# activation.

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


DECODER_FILE = "decoders.c"
_NORMALIZE, _MULTIPLY, _ATTEND = "kernel_normalize", "kernel_multiply_packed", "kernel_attend"
DECODER_KERNELS = frozenset({_NORMALIZE, _MULTIPLY, _ATTEND})
"""The functions of `DECODER_FILE`."""

_FLOAT_BYTES = 4  # bytes of float32
_BITS = 4  # of a weight that the kernel unpacks
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "smooth_softmax": (0, -1),
    "kv_cache_bit_width": (0,),
    "qk_output": (0,),
    "sliding_window_cache": (0,),
    "k_quant_type": ("NONE",),
    "v_quant_type": ("NONE",),
}
"""Attributes of GroupQueryAttention with the values that its kernel computes."""


def is_decoder_operator(node: NodeProto) -> bool:
    """Return whether a node is one of the operators of decoders that have a kernel."""
    return (node.domain, node.op_type) in _MAKERS


def make_decoder_call(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call of a kernel for an operator of decoders, None where its form has none.

    Raises UnsupportedNodeError with the reason where no other function computes that form, either.
    """
    return _MAKERS[node.domain, node.op_type](graph, node)


def _make_norm(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a SimplifiedLayerNormalization: x, scale."""
    x, scale = node.input
    attributes = graph.index.get_attributes(node)
    shape = graph.get_shape(x)
    axis = int(attributes.get("axis", -1)) % len(shape)
    if graph.get_shape(scale) != shape[axis:]:
        raise UnsupportedNodeError(f"its scale is not of the axes from {axis} on")
    return _make_norm_call(graph, node, axis, (x, None, None, scale), None)


def _make_skip_norm(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a SkipSimplifiedLayerNormalization: x, skip, scale, bias."""
    x, skip, scale, bias = (*node.input, "")[:4]
    total = (*node.output, *[""] * 4)[3]
    axis = len(graph.get_shape(x)) - 1
    return _make_norm_call(graph, node, axis, (x, skip, bias or None, scale), total or None)


def _make_norm_call(
    graph: ProgramGraph, node: NodeProto, axis: int, given: tuple[str | None, ...], total: str | None
) -> Call:
    _require_floats(graph, *(name for name in given if name))
    if any(node.output[1:3]):
        raise UnsupportedNodeError("its second and third output have no kernel")
    shape = graph.get_shape(node.input[0])
    rows, cols = prod(shape[:axis]), prod(shape[axis:])
    skip_rows = prod(graph.get_shape(given[1])) // max(cols, 1) if given[1] else 1
    epsilon = format_float(float(graph.index.get_attributes(node).get("epsilon", 1e-5)))
    structure = f"{{{rows}, {cols}, {skip_rows}, {epsilon}}}"
    return Call(_NORMALIZE, (*given, total, node.output[0]), "kernel_norm", structure)


def _make_packed_product(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a MatMulNBits of four bits: x, numbers, scales, zero points, order, bias."""
    x, numbers, scales, zeros, order, bias = (*node.input, *[""] * 3)[:6]
    attributes = graph.index.get_attributes(node)
    depth, cols, block = (int(attributes[name]) for name in ("K", "N", "block_size"))
    floats = [name for name in (x, scales, bias) if name]
    if (
        int(attributes["bits"]) != _BITS
        or order
        or any(graph.get_dtype(name) != "float32" for name in floats)
        or (zeros and graph.get_dtype(zeros) != "uint8")
    ):
        return None  # emx-onnx-cgen's
    rows, blocks = prod(graph.get_shape(x)[:-1]), -(-depth // block)
    structure = f"{{{rows}, {depth}, {cols}, {blocks}, {block}}}"
    operands = (x, numbers, scales, zeros or None, bias or None, node.output[0], SCRATCH)
    scratch = blocks * block * _FLOAT_BYTES
    return Call(_MULTIPLY, operands, "kernel_packed", structure, scratch)


def _make_attention(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a GroupQueryAttention.

    Its inputs are queries, keys, values, the cache of both, lengths, their largest, cosines, sines, and
    others that have no kernel.
    """
    query, key, value, *cache, lengths, total, cosines, sines = (*node.input, *[""] * 9)[:9]
    attributes = graph.index.get_attributes(node)
    heads, kv_heads = (int(attributes[name]) for name in ("num_heads", "kv_num_heads"))
    made = (*node.output, *[""] * 3)[:4]
    _require_floats(graph, *(name for name in (query, key, value, *cache, cosines, sines) if name))
    batch, count, width = graph.get_shape(query)
    head = width // (heads if key else heads + 2 * kv_heads)
    past = graph.get_shape(cache[0])[2] if cache[0] else 0
    _check_attention(node, attributes)
    length = graph.get_shape(made[1])[2]
    rotates = bool(attributes.get("do_rotary", 0))
    rotated = 2 * graph.get_shape(cosines)[1] if rotates else 0
    window = int(attributes.get("local_window_size", -1))
    if -1 < window < length:
        raise UnsupportedNodeError(f"local_window_size is {window}, less than the {length} of its cache")
    if length < count or (rotates and graph.get_shape(cosines)[0] < length):
        raise UnsupportedNodeError(f"its cache of {length} is not that of its positions")
    scale = float(attributes.get("scale", 0.0)) or 1 / sqrt(head)
    numbers = (batch, count, heads, kv_heads, head, past, length, rotated)
    interleaved = int(attributes.get("rotary_interleaved", 0))
    factors = (format_float(scale), format_float(float(attributes.get("softcap", 0.0))))
    structure = f"{{{', '.join(map(str, (*numbers, interleaved, *factors)))}}}"
    given = (query, key, value, *cache, lengths, total, *((cosines, sines) if rotates else ("", "")))
    operands = (*(name or None for name in given), *made[:3], SCRATCH)
    scratch = (head + length) * _FLOAT_BYTES
    return Call(_ATTEND, operands, "kernel_attention", structure, scratch)


def _check_attention(node: NodeProto, attributes: Mapping[str, Any]) -> None:
    """Raise UnsupportedNodeError for what the kernel of attention does not compute."""
    for name, allowed in _WITHOUT_EFFECT.items():
        value = attributes.get(name, allowed[0])
        if (value.decode() if isinstance(value, bytes) else value) not in allowed:
            raise UnsupportedNodeError(f"{name} is {value}, and must be {allowed[0]}")
    if any(node.input[9:]) or any(node.output[3:]):
        raise UnsupportedNodeError("it has positions, a bias, sinks, scales or scores")
    if not all((*node.output, "", "")[1:3]):
        raise UnsupportedNodeError("its caches are not outputs")


def _require_floats(graph: ProgramGraph, *names: str) -> None:
    """Raise UnsupportedNodeError for tensors of other types."""
    for name in names:
        if graph.get_dtype(name) != "float32":
            raise UnsupportedNodeError(f"'{name}' is {graph.get_dtype(name)}, and must be float32")


_MAKERS: Mapping[tuple[str, str], Callable[[ProgramGraph, NodeProto], Call | None]] = {
    ("", "SimplifiedLayerNormalization"): _make_norm,
    ("com.microsoft", "SimplifiedLayerNormalization"): _make_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _make_skip_norm,
    ("com.microsoft", "MatMulNBits"): _make_packed_product,
    ("com.microsoft", "GroupQueryAttention"): _make_attention,
}
