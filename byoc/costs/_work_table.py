"""The tables of formulas for ONNX's operators, and onnxruntime's; docs/operations.md shows them.

Operators of ONNX are named alone, others with their domain. In the formulas `x` is the number of
elements of the first input and `y` that of the first output; a product, a sum, a comparison, a choice,
an exponential count as one each. What is done once for a row or a channel is left out.
"""

from math import prod

from byoc._dataclasses import dataclass
from byoc.costs import _work_attention as attention
from byoc.costs import _work_formulas as formulas
from byoc.costs._work_formulas import (
    DEQUANTIZE,
    GELU,
    QUANTIZE,
    SIGMOID,
    SILU,
    SOFTMAX,
    TANH_GELU,
    Formula,
    count_normalization,
    per_element_and_input,
    per_input,
    per_output,
)
from byoc.costs._work_node import CountedNode

_ML = "ai.onnx.ml."
_TRAINING = "ai.onnx.preview.training."


@dataclass(frozen=True, eq=False)
class OperationCount:
    """A row of the table: operators, their formula in words (`text`) and as a function (`count`)."""

    operators: tuple[str, ...]
    text: str
    count: Formula


def make_row(operators: str, text: str, count: Formula, domain: str = "") -> OperationCount:
    """Return the row of some operators, separated by blanks; `domain` ends with a period."""
    return OperationCount(tuple(domain + name for name in operators.split()), text, count)


_ZERO = per_output(0)

STANDARD = (
    make_row(
        """BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant
        ConstantOfShape Crop DepthToSpace Dropout DynamicSlice Expand EyeLike Flatten Gather
        GatherElements GatherND GivenTensorFill Identity MaxUnpool MemcpyFromHost MemcpyToHost OneHot
        Optional OptionalGetElement OptionalHasElement Pad Reshape ReverseSequence SequenceAt
        SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice
        SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unsqueeze""",
        "0: bytes alone",
        _ZERO,
    ),
    make_row(
        """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
        BitwiseXor Ceil Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less
        LessOrEqual Log Mod Mul Neg Not Or Pow RandomNormal RandomNormalLike RandomUniform
        RandomUniformLike Reciprocal RegexFullMatch Relu Round Scale Sign Sin Sinh Sqrt StringConcat
        StringNormalizer StringSplit Sub Tan Tanh ThresholdedRelu Where Xor""",
        "y",
        per_output(1),
    ),
    make_row("Affine Bernoulli Clip ImageScaler LeakyRelu PRelu Range", "2 y", per_output(2)),
    make_row("MelWeightMatrix ScaledTanh Softplus Softsign", "3 y", per_output(3)),
    make_row(
        "Elu HannWindow HammingWindow HardSigmoid ParametricSoftplus Shrink Sigmoid",
        "4 y",
        per_output(4),
    ),
    make_row("HardSwish LogSoftmax Mish Selu Softmax", "5 y", per_output(SOFTMAX)),
    make_row("BlackmanWindow Celu", "7 y", per_output(7)),
    make_row("ImageDecoder", "16 y, roughly", per_output(16)),
    make_row("Gelu", "5 y, 8 y by tanh", formulas.count_gelu),
    make_row("Swish SwiGLU", "5 y; y each for alpha and the second factor", formulas.count_swish),
    make_row("Max Mean Min Sum", "y for each input after the first, y to divide", formulas.count_sum),
    make_row("QuantizeLinear", "4 y, and y for a zero point", per_element_and_input(4, 2)),
    make_row("DequantizeLinear", "y, and y for a zero point", per_element_and_input(1, 2)),
    make_row("DynamicQuantizeLinear", "7 x", per_input(7)),
    make_row("BatchNormalization", "2 y (folded), 7 y in training", formulas.count_batch_normalization),
    make_row("LayerNormalization", "5 y, y each for scale and bias", count_normalization(1, 2)),
    make_row("InstanceNormalization GroupNormalization", "7 y", count_normalization(1, 2)),
    make_row("MeanVarianceNormalization", "5 y", per_output(5)),
    make_row("RMSNormalization SimplifiedLayerNormalization", "4 y", per_output(4)),
    make_row("LpNormalization", "3 y", per_output(3)),
    make_row("LRN", "y (2 size + 4)", formulas.count_lrn),
    make_row(
        """ArgMax ArgMin CumProd CumSum GlobalAveragePool GlobalMaxPool NonZero ReduceLogSum ReduceMax
        ReduceMean ReduceMin ReduceProd ReduceSum Col2Im""",
        "x",
        per_input(1),
    ),
    make_row(
        "GlobalLpPool ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare",
        "2 x",
        per_input(2),
    ),
    make_row("NegativeLogLikelihoodLoss", "2 for each target", lambda node: 2 * node.count_input(1)),
    make_row("SoftmaxCrossEntropyLoss", "5 x, 2 for each target", formulas.count_softmax_loss),
    make_row("Conv", "y (2 C/group kernel + bias)", formulas.count_conv(1, 2)),
    make_row("ConvInteger", "2 y C/group kernel", formulas.count_conv(1, -1)),
    make_row("QLinearConv", "y (2 C/group kernel + bias)", formulas.count_conv(3, 8)),
    make_row("ConvTranspose", "2 x M/group kernel, and y for a bias", formulas.count_conv_transpose(2)),
    make_row(
        "DeformConv",
        "as Conv; 8 for each sample (C, kernel, position), 1 to mask it",
        formulas.count_deform_conv,
    ),
    make_row("CausalConvWithState", "y (2 kernel + bias + activation)", formulas.count_causal_conv),
    make_row("Gemm", "y (2 K + bias + scale)", formulas.count_gemm(2)),
    make_row("MatMul MatMulInteger QLinearMatMul", "2 y K", formulas.count_matmul()),
    make_row(
        "Einsum",
        "2 for each combination of the indices of two operands, from left to right; 1 if nothing is"
        " summed over",
        formulas.count_einsum,
    ),
    make_row(
        "LSTM",
        "directions steps batch H (8 (I + H) + 18 + 8 if B + 6 if P)",
        formulas.count_recurrent(4, 18, 8),
    ),
    make_row(
        "GRU",
        "directions steps batch H (6 (I + H) + 14 + 6 if B)",
        formulas.count_recurrent(3, 14, 6),
    ),
    make_row(
        "RNN",
        "directions steps batch H (2 (I + H) + 1 + 2 if B)",
        formulas.count_recurrent(1, 1, 2),
    ),
    make_row(
        "Attention",
        "batch heads pairs (2 size + 2 value size + 6 + mask + 3 softcap); pairs as above",
        attention.count_attention,
    ),
    make_row("RotaryEmbedding", "3 for each component turned", attention.count_rotary_embedding),
    make_row(
        "LinearAttention",
        "tokens heads size value size (4 or, by the rule, up to 7)",
        attention.count_linear_attention,
    ),
    make_row("AveragePool MaxPool", "y kernel", formulas.count_pool(1)),
    make_row("LpPool", "2 y kernel", formulas.count_pool(2)),
    make_row("MaxRoiPool", "regions C H W, the bound", formulas.count_roi_pool),
    make_row("RoiAlign", "8 y sampling_ratio^2 (4 if that is 0)", formulas.count_roi_align),
    make_row(
        "Resize Upsample",
        "0 for nearest; 2 y taps: 2 (linear) or 4 (cubic) for each axis that changes",
        formulas.count_resize,
    ),
    make_row(
        "GridSample",
        "4 for each coordinate, 2 y taps as for Resize",
        formulas.count_grid_sample,
    ),
    make_row("AffineGrid", "2 y columns of theta", formulas.count_affine_grid),
    make_row("DFT", "5 n log2 n for each line", formulas.count_dft),
    make_row("STFT", "n + 5 n log2 n for each frame", formulas.count_stft),
    make_row("TopK", "x log2 k", formulas.count_top_k),
    make_row("Unique", "x log2 x", formulas.count_sort),
    make_row(
        "NonMaxSuppression",
        "n log2 n for each class, 13 for each pair of boxes that may be kept",
        formulas.count_suppression,
    ),
    make_row("Multinomial", "3 x + y (1 + log2 classes)", formulas.count_multinomial),
    make_row("Det", "2/3 n^3 for each matrix", formulas.count_determinant),
    make_row(
        "Scatter ScatterElements ScatterND",
        "1 for each update that is reduced",
        formulas.count_scatter,
    ),
    make_row("TfIdfVectorizer", "x lengths skips", formulas.count_ngrams),
    make_row("FlexAttention", "as Attention", attention.count_attention, "ai.onnx.preview."),
    make_row("ArrayFeatureExtractor CastMap DictVectorizer FeatureVectorizer ZipMap", "0", _ZERO, _ML),
    make_row("Binarizer CategoryMapper Imputer LabelEncoder OneHotEncoder", "y", per_output(1), _ML),
    make_row("Scaler", "2 y", per_output(2), _ML),
    make_row("Normalizer", "3 y", per_output(3), _ML),
    make_row(
        "LinearClassifier LinearRegressor",
        "rows (2 coefficients + intercepts)",
        formulas.count_linear_model,
        _ML,
    ),
    make_row(
        "SVMClassifier SVMRegressor",
        "rows (2 support vectors + kernel + 2 coefficients)",
        formulas.count_support_vectors,
        _ML,
    ),
    make_row(
        "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
        "rows trees (depth if balanced + 1)",
        formulas.count_trees,
        _ML,
    ),
    make_row("Momentum", "7 for each weight", formulas.count_optimizer(7, 2), _TRAINING),
    make_row("Adagrad", "9 for each weight", formulas.count_optimizer(9, 2), _TRAINING),
    make_row("Adam", "14 for each weight", formulas.count_optimizer(14, 3), _TRAINING),
)
"""ONNX's own operators, and those that onnxruntime adds to its domain."""


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


_CONTRIB_ROWS = (
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
        formulas.count_fused_matmul,
    ),
    make_row("FusedGemm", "y (2 K + bias + scale + activation)", formulas.count_gemm(2)),
    make_row("GemmFloat8", "y (2 K + bias + scale)", formulas.count_gemm(2)),
    make_row("GemmFastGelu", "y (2 K + 8 + bias)", formulas.count_matmul(2, TANH_GELU)),
    make_row("QGemm", "y (2 K + 5 + bias + scale)", formulas.count_gemm(6, QUANTIZE)),
    make_row("QOrderedMatMul", "y (2 K + 5 + bias)", formulas.count_matmul(5, QUANTIZE)),
    make_row("MatMulIntegerToFloat", "y (2 K + 1 + bias)", formulas.count_matmul(6, 1)),
    make_row(
        "DynamicQuantizeMatMul",
        "7 x + y (2 K + 1 + bias)",
        formulas.count_dynamic_quantize_matmul,
    ),
    make_row("MatMulNBits", "y (2 K + bias): 2 M N K", formulas.count_packed_matmul(5)),
    make_row(
        "MatMulBnb4 MatMulFpQ4 MatMulPacked",
        "2 y K",
        formulas.count_packed_matmul(),
    ),
    make_row("MatMulBlockQuantizedFp4Weight", "y (2 K + bias)", formulas.count_packed_matmul(5)),
    make_row("MatMulBlockQuantizedFp8Weight", "y (2 K + bias)", formulas.count_packed_matmul(4)),
    make_row(
        "MatMulNBitsMlp",
        "y (4 K + biases + activation + 1), and the norm of x",
        formulas.count_projections_mlp,
    ),
    make_row(
        "MatMulNBitsQkv",
        "(2 K + bias) for each element of Q, K and V, and the norm of x",
        formulas.count_projections_qkv,
    ),
    make_row("MatMulNBitsQLoRA", "y (2 K + 2 rank + 1) + 2 M K rank", formulas.count_lora),
    make_row(
        "MoE QMoE",
        "tokens k (2 hidden inner (2, gated 3) + activation), 6 for each expert",
        formulas.count_mixture_of_experts,
    ),
    make_row(
        "FusedConv NhwcFusedConv",
        "as Conv; y each for Z and the activation",
        formulas.count_fused_conv,
    ),
    make_row("NhwcConv", "y (2 C/group kernel + bias)", formulas.count_conv(1, 2)),
    make_row("QLinearConv", "y (2 C/group kernel + bias)", formulas.count_conv(3, 8)),
    make_row(
        "ConvTransposeWithDynamicPads",
        "2 x M/group kernel, and y for a bias",
        formulas.count_conv_transpose(3),
    ),
    make_row("CausalConvWithState", "y (2 kernel + bias + activation)", formulas.count_causal_conv),
    make_row(
        "DynamicQuantizeLSTM",
        "as LSTM, 7 to quantize each input and state",
        formulas.count_quantized_lstm,
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
    OperationCount(tuple(_DOMAIN + name for name in row.operators), row.text, row.count)
    for row in _CONTRIB_ROWS
)
"""The operators of com.microsoft, those that transformers and quantized networks use."""
