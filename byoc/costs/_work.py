"""Counting the work of a node: floating-point operations and bytes, from the real shapes.

A multiplication and an addition are two operations. Counts follow the operators' definitions in the
ONNX operator documentation; transcendental functions (Exp, a power) count as one each, as is usual
in roofline models (Williams, Waterman, Patterson 2009).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from onnx import NodeProto

from byoc.costs import _work_attention as attention
from byoc.costs import _work_formulas as formulas
from byoc.costs import _work_products as products
from byoc.costs._work_bytes import count_bytes_read, count_bytes_written
from byoc.costs._work_formulas import (
    DEQUANTIZE,
    GELU,
    QUANTIZE,
    SIGMOID,
    SILU,
    SOFTMAX,
    TANH_GELU,
    per_element_and_input,
    per_input,
    per_output,
)
from byoc.costs._work_node import CountedNode
from byoc.costs._work_sizes import Sizes
from byoc.costs._work_table import STANDARD, OperationCount, make_row
from byoc.model import (
    GraphIndex,
    get_constant_value,
    get_operator_name,
    is_dequantize,
    is_onnx,
    is_qdq_node,
)

# The table of formulas for the operators that onnxruntime adds to ONNX's.
#
# Their definitions are in onnxruntime's `docs/ContribOperators.md`. Quantizing counts as 5
# operations an element (division, rounding, zero point, two bounds), dequantizing as 2; integer
# products as any others.

_DOMAIN = "com.microsoft."
_REQUANTIZE = DEQUANTIZE + QUANTIZE
_PAIR = 2 * DEQUANTIZE + QUANTIZE


def _count_quantized_pool(node: CountedNode) -> int:
    taps = prod(node.get_numbers("kernel_shape"))
    return node.count_output() * (taps + _REQUANTIZE)


def _count_quantized_reduction(node: CountedNode) -> int:
    return node.count_input() + _REQUANTIZE * node.count_output()


def _count_split_gelu(node: CountedNode) -> int:
    return node.count_input() + (GELU + 1) * node.count_output()


def _count_gemma_rotation(node: CountedNode) -> int:
    return 3 * (node.count_output() + node.count_output(1)) + 2 * node.count_input()


def _count_quantized_concat(node: CountedNode) -> int:
    return _REQUANTIZE * node.count_output()


_ROWS = (
    make_row(
        """Crop ExpandDims GatherND GatherPacked Pad RelativePositionBias RemovePadding RestorePadding
        TorchEmbedding Trilu UnfoldTensor""",
        "0: bytes alone",
        per_output(0),
    ),
    make_row("IsAllFinite MulInteger Tokenizer", "y", per_output(1)),
    make_row("BiasAdd GatedAdd GatherBlockQuantized Range", "2 y", per_output(2)),
    make_row("ComplexMul ComplexMulConj", "3 y", per_output(3)),
    make_row("Gelu", "5 y", per_output(GELU)),
    make_row("BiasGelu QuickGelu BiasSoftmax", "6 y", per_output(GELU + 1)),
    make_row("FastGelu", "8 y, y for a bias", per_element_and_input(TANH_GELU, 1)),
    make_row("BiasSplitGelu", "x + 6 y", _count_split_gelu),
    make_row("ScaledSiLU", "6 y", per_output(SILU + 1)),
    make_row("SwiGLU", "5 y, y for the second factor", per_element_and_input(SILU, 1)),
    make_row("BiasDropout BitmaskBiasDropout", "y, y for the residual", per_element_and_input(1, 2)),
    make_row("BitmaskDropout", "0", per_output(0)),
    make_row("QuantizeLinear", "4 y, and y for a zero point", per_element_and_input(4, 2)),
    make_row("DequantizeLinear", "y, and y for a zero point", per_element_and_input(1, 2)),
    make_row("QuantizeWithOrder", "5 y", per_output(QUANTIZE)),
    make_row("DequantizeWithOrder", "2 y", per_output(DEQUANTIZE)),
    make_row("QLinearAdd QLinearMul", "10 y", per_output(_PAIR + 1)),
    make_row("QLinearWhere", "9 y", per_output(_PAIR)),
    make_row("QLinearSigmoid", "11 y", per_output(_REQUANTIZE + SIGMOID)),
    make_row("QLinearLeakyRelu", "9 y", per_output(_REQUANTIZE + 2)),
    make_row("QLinearSoftmax QOrderedGelu", "12 y", per_output(_REQUANTIZE + SOFTMAX)),
    make_row("QLinearConcat", "7 y", _count_quantized_concat),
    make_row("QLinearAveragePool", "y (kernel + 7)", _count_quantized_pool),
    make_row("QLinearGlobalAveragePool QLinearReduceMean", "x + 7 y", _count_quantized_reduction),
    make_row("ReduceSumInteger", "x", per_input(1)),
    make_row("NhwcMaxPool MaxpoolWithMask", "y kernel", formulas.count_pool(1)),
    make_row(
        "SkipLayerNormalization",
        "7 y, y each for beta and bias",
        formulas.count_skip_normalization,
    ),
    make_row(
        "SkipSimplifiedLayerNormalization",
        "5 y, y for a bias",
        formulas.count_skip_normalization,
    ),
    make_row("BranchwiseRMSNorm", "3 y, y for a scale", per_element_and_input(3, 1)),
    make_row("GatedRMSNorm", "10 y", per_output(4 + SILU + 1)),
    make_row("QOrderedLayerNormalization", "14 y", per_output(7 + _REQUANTIZE)),
    make_row("GroupNorm", "7 y, 5 y for its SiLU", formulas.count_group_norm),
    make_row("SkipGroupNorm", "as GroupNorm, y each for skip and bias", formulas.count_group_norm),
    make_row(
        "EmbedLayerNormalization",
        "8 y, y for segments",
        formulas.count_embed_layer_normalization,
    ),
    make_row(
        "QEmbedLayerNormalization",
        "as EmbedLayerNormalization, 2 y to dequantize each table",
        formulas.count_embed_layer_normalization,
    ),
    make_row(
        "FusedMatMul TransposeMatMul FusedMatMulActivation MatMulInteger16 SparseToDenseMatMul",
        "y (2 K + scale + activation)",
        products.count_fused_matmul,
    ),
    make_row("FusedGemm", "y (2 K + bias + scale + activation)", products.count_gemm(2)),
    make_row("GemmFloat8", "y (2 K + bias + scale)", products.count_gemm(2)),
    make_row("GemmFastGelu", "y (2 K + 8 + bias)", products.count_matmul(2, TANH_GELU)),
    make_row("QGemm", "y (2 K + 5 + bias + scale)", products.count_gemm(6, QUANTIZE)),
    make_row("QOrderedMatMul", "y (2 K + 5 + bias)", products.count_matmul(5, QUANTIZE)),
    make_row("MatMulIntegerToFloat", "y (2 K + 1 + bias)", products.count_matmul(6, 1)),
    make_row(
        "DynamicQuantizeMatMul",
        "7 x + y (2 K + 1 + bias)",
        products.count_dynamic_quantize_matmul,
    ),
    make_row("MatMulNBits", "y (2 K + bias): 2 M N K", products.count_packed_matmul(5)),
    make_row(
        "MatMulBnb4 MatMulFpQ4 MatMulPacked",
        "2 y K",
        products.count_packed_matmul(),
    ),
    make_row("MatMulBlockQuantizedFp4Weight", "y (2 K + bias)", products.count_packed_matmul(5)),
    make_row("MatMulBlockQuantizedFp8Weight", "y (2 K + bias)", products.count_packed_matmul(4)),
    make_row(
        "MatMulNBitsMlp",
        "y (4 K + biases + activation + 1), and the norm of x",
        products.count_projections_mlp,
    ),
    make_row(
        "MatMulNBitsQkv",
        "(2 K + bias) for each element of Q, K and V, and the norm of x",
        products.count_projections_qkv,
    ),
    make_row("MatMulNBitsQLoRA", "y (2 K + 2 rank + 1) + 2 M K rank", products.count_lora),
    make_row(
        "MoE QMoE",
        "tokens k (2 hidden inner (2, gated 3) + activation), 6 for each expert",
        products.count_mixture_of_experts,
    ),
    make_row(
        "FusedConv NhwcFusedConv",
        "as Conv; y each for Z and the activation",
        products.count_fused_conv,
    ),
    make_row("NhwcConv", "y (2 C/group kernel + bias)", products.count_conv(1, 2)),
    make_row("QLinearConv", "y (2 C/group kernel + bias)", products.count_conv(3, 8)),
    make_row(
        "ConvTransposeWithDynamicPads",
        "2 x M/group kernel, and y for a bias",
        products.count_conv_transpose(3),
    ),
    make_row("CausalConvWithState", "y (2 kernel + bias + activation)", products.count_causal_conv),
    make_row(
        "DynamicQuantizeLSTM",
        "as LSTM, 7 to quantize each input and state",
        products.count_quantized_lstm,
    ),
    make_row(
        """Attention QAttention PackedAttention QOrderedAttention DecoderMaskedSelfAttention
        LongformerAttention""",
        "tokens (2 I + 1) (widths of Q, K, V) for the projections; then as ONNX's Attention",
        attention.count_projected_attention,
    ),
    make_row(
        "MultiHeadAttention DecoderMaskedMultiHeadAttention PackedMultiHeadAttention",
        "as ONNX's Attention, 1 for each biased element of Q, K and V",
        attention.count_multi_head_attention,
    ),
    make_row(
        "GroupQueryAttention SparseAttention",
        "as ONNX's Attention, causal, within `local_window_size`; 3 for each component turned, 4 for"
        " each normalized",
        attention.count_grouped_query_attention,
    ),
    make_row(
        "DecoderAttention",
        "the projections, then as ONNX's Attention",
        attention.count_decoder_attention,
    ),
    make_row(
        "GatedRelativePositionBias",
        "y, and the gates of each query",
        attention.count_relative_position_bias,
    ),
    make_row(
        "LinearAttention",
        "tokens heads size value size (4 or, by the rule, up to 7)",
        attention.count_linear_attention,
    ),
    make_row(
        "RotaryEmbedding MRotaryEmbedding",
        "3 for each component turned",
        attention.count_rotary_embedding,
    ),
    make_row("GemmaRotaryEmbedding", "3 for each component, 2 x", _count_gemma_rotation),
    make_row("GridSample", "4 for each coordinate, 2 y taps", formulas.count_grid_sample),
    make_row("CropAndResize", "8 y, 0 for nearest", formulas.count_crop_and_resize),
    make_row("Rfft Irfft", "5 n log2 n for each line", formulas.count_last_axis_fourier),
    make_row("Inverse", "2 n^3 for each matrix", formulas.count_determinant),
    make_row("CDist", "3 y K", formulas.count_distances),
    make_row("Unique", "x log2 x", formulas.count_sort),
    make_row("NGramRepeatBlock", "y", per_output(1)),
)

CONTRIB = tuple(
    OperationCount(tuple(_DOMAIN + name for name in row.operators), row.text, row.count) for row in _ROWS
)
"""The operators of com.microsoft, those that transformers and quantized networks use."""


# Counting the work of a node: floating-point operations and bytes, from the real shapes.

# These operators reinterpret the same bytes with another shape, so they cost nothing on either side.
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
# The bodies of these are counted in graphs of their own.
BODY_OPERATORS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# onnxruntime's internal domains have ONNX's operators on other layouts.
_LAYOUT_DOMAINS = ("com.ms.internal.nhwc.", "com.microsoft.nchwc.")

COUNTS: Mapping[str, OperationCount] = {
    name: row for row in (*STANDARD, *CONTRIB) for name in row.operators
}
"""The rows of the table by operator, spelled as in rule files."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes; `estimated` if the operator or a shape was not known exactly.

    `constants` are those of the bytes that are weights and other constants, as they are stored.
    """

    operations: float
    bytes: float
    estimated: bool = False
    constants: float = 0.0


def is_view(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a node returns the bytes that it reads, and so costs nothing on any device."""
    if node.op_type not in VIEWS or not is_onnx(node):
        return False
    if node.op_type != "Dropout":
        return True
    masked = len(node.output) > 1 and index.is_used(node.output[1])
    if masked or len(node.input) < 3 or not node.input[2]:
        return not masked
    training = get_constant_value(index, node.input[2])
    return training is not None and not training.any()


def find_entering_and_leaving(index: GraphIndex, nodes: Collection[int]) -> tuple[list[str], list[str]]:
    """Return the tensors that enter and leave nodes run as one, constants included, in order."""
    made = {name for i in nodes for name in index.nodes[i].output if index.is_used(name)}
    entering = dict.fromkeys(name for i in nodes for name in index.reads[i] if name not in made)
    inside = set(nodes)
    leaving = [
        name
        for i in nodes
        for name in index.nodes[i].output
        if name in made
        and (name in index.outputs or not inside.issuperset(index.consumers.get(name, ())))
    ]
    return list(entering), leaving


def count_work(index: GraphIndex, sizes: Sizes, nodes: tuple[int, ...]) -> Work:
    """Return the work of nodes that run as one.

    Operations add up. Bytes are those of the tensors that enter and leave, since tensors inside never
    reach memory. The input of a lookup (Gather, Slice) counts as the part that is taken from it.
    Constants that a QDQ group dequantizes count as stored, with their scales and zero points.
    """
    entering, leaving = find_entering_and_leaving(index, nodes)
    made = [name for i in nodes for name in index.nodes[i].output if index.is_used(name)]
    operations, estimated = 0, not all(map(sizes.is_known, (*entering, *made)))
    working = [i for i in nodes if not is_view(index, index.nodes[i])]
    for i in working:
        count, exact = _count_operations(CountedNode(index, index.nodes[i], sizes))
        operations += count
        estimated |= not exact
    moved_bytes = constant_bytes = 0
    if working:
        read, written = _count_bytes(index, sizes, nodes)
        read |= _count_stored_bytes(index, sizes, nodes, entering)
        moved_bytes = sum(read[name] for name in entering) + sum(written[name] for name in leaving)
        constant_bytes = sum(read[name] for name in entering if index.is_constant(name))
    moved, constant = _limit_to_float(moved_bytes), _limit_to_float(constant_bytes)
    return Work(_limit_to_float(operations), moved, estimated, constant)


def _count_bytes(
    index: GraphIndex, sizes: Sizes, nodes: Collection[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each tensor that the nodes read, the largest read of each, and write."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for i in nodes:
        node = CountedNode(index, index.nodes[i], sizes)
        for name in index.reads[i]:
            if name not in node.proto.input:  # captured by a body
                read[name] = max(read.get(name, 0), sizes.get_bytes(name))
        for number, name in enumerate(node.proto.input):
            if name:
                read[name] = max(read.get(name, 0), count_bytes_read(node, number))
        for number, name in enumerate(node.proto.output):
            if name:
                written[name] = count_bytes_written(node, number)
    return read, written


def _count_stored_bytes(
    index: GraphIndex, sizes: Sizes, nodes: Collection[int], entering: Collection[str]
) -> dict[str, int]:
    """Return the stored bytes of dequantized constants that a QDQ group reads; empty for other nodes."""
    if not any(is_qdq_node(index.nodes[i]) for i in nodes):
        return {}
    result: dict[str, int] = {}
    for name in entering:
        behind = [index.nodes[i] for i in index.find_constant_nodes([name])]
        read = {each for node in behind if is_dequantize(node) for each in node.input if each}
        if read:
            result[name] = sum(map(sizes.get_bytes, read))
    return result


def _limit_to_float(count: int) -> float:
    return float(min(count, 10**30))  # shapes can state numbers beyond the range of a float


def find_count(node: NodeProto) -> OperationCount | None:
    """Return the row of the table for a node's operator, None if it is not counted."""
    name = get_operator_name(node)
    for domain in _LAYOUT_DOMAINS:
        name = name.removeprefix(domain)
    return COUNTS.get(name)


def is_counted(node: NodeProto) -> bool:
    """Return whether the operations of a node's operator are counted; those of its bodies are."""
    return find_count(node) is not None or (is_onnx(node) and node.op_type in BODY_OPERATORS)


def _count_operations(node: CountedNode) -> tuple[int, bool]:
    """Return a node's operations, and whether its operator is counted exactly."""
    row = find_count(node.proto)
    if row is None:
        return node.count_output(), False
    return max(row.count(node), 0), True
