"""The table of formulas for the operators that onnxruntime adds to ONNX's.

Their definitions are in onnxruntime's `docs/ContribOperators.md`. Quantizing counts as 5 operations an
element (division, rounding, zero point, two bounds), dequantizing as 2; integer products as any others.
"""

from math import prod

from byoc.costs import _work_attention as attention
from byoc.costs import _work_formulas as formulas
from byoc.costs import _work_products as products
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
from byoc.costs._work_table import OperationCount, make_row

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
