"""Nodes of onnxruntime's own operators that its CPU provider cannot run, and what they make."""

import numpy as np
from contrib_nodes import GROUPS, QUANTIZED, SCALE, TOKENS, case, ints, longs

# onnxruntime has no kernels of these for the CPU. What they make is from its documentation
# (docs/ContribOperators.md) and the shape inference of its schemas.
DOCUMENTED = [
    (case("BiasAdd", "f:2x9x4", "f:4", "f:2x9x4"), ["float32[2, 9, 4]"]),
    (case("BiasDropout", "f:2x3", "f:3", n=2), ["float32[2, 3]", "bool[2, 3]"]),
    (case("BiasSoftmax", "f:2x3x4", "f:2x1x4", axis=2, is_inner_broadcast=1), ["float32[2, 3, 4]"]),
    (case("BiasSplitGelu", "f:2x5x8", "f:8"), ["float32[2, 5, 4]"]),
    (case("ComplexMul", "f:2x3x2", "f:1x3x2"), ["float32[2, 3, 2]"]),
    (
        case(
            "DecoderMaskedSelfAttention",
            "f:2x1x8",
            "f:8x24",
            "f:24",
            None,
            "f:2x2x2x9x4",
            None,
            ints(3),
            n=2,
            num_heads=2,
            past_present_share_buffer=1,
        ),
        ["float32[2, 1, 8]", "float32[2, 2, 2, 9, 4]"],
    ),
    (
        case(
            "GatedRelativePositionBias",
            "f:2x5x8",
            "f:8",
            "f:1x2x5x5",
            "f:4x8",
            "f:8",
            "f:1x2x1x1",
            num_heads=2,
        ),
        ["float32[2, 2, 5, 5]"],
    ),
    (case("GemmFastGelu", "f:2x3x4", "f:4x5"), ["float32[2, 3, 5]"]),
    (
        case("GemmaRotaryEmbedding", "f:2x5x8", "h:2x3x5x8", "h:2x3x5x8", "h:2x1x5x8", "h:2x1x5x8", n=2),
        ["float16[2, 3, 5, 8]", "float16[2, 1, 5, 8]"],
    ),
    (case("GroupNorm", "f:2x4x4x8", "f:8", "f:8", groups=2, activation=0), ["float32[2, 4, 4, 8]"]),
    (case("Irfft", "f:3x5x2", signal_ndim=1), ["float32[3, 8]"]),
    (case("MulInteger", "b:2x3", None, "b:3"), ["int32[2, 3]"]),
    (case("MultiHeadAttention", "f:2x5x2x3x4", num_heads=2), ["float32[2, 5, 8]"]),
    (case("MultiHeadAttention", "f:2x5x8", "f:2x7x2x2x4", num_heads=2), ["float32[2, 5, 8]"]),
    (case("NhwcConv", "h:2x9x8x4", "h:6x3x2x4"), ["float16[2, 7, 7, 6]"]),
    (case("NhwcFusedConv", "h:2x9x8x4", "h:6x3x2x4", pads=[1, 0, 1, 0]), ["float16[2, 9, 7, 6]"]),
    (
        case("PackedAttention", "f:7x8", "f:8x24", "f:24", TOKENS, ints(0, 4, 7), num_heads=2),
        ["float32[7, 8]"],
    ),
    (
        case(
            "PackedMultiHeadAttention", "f:7x2x3x4", None, None, None, TOKENS, ints(0, 4, 7), num_heads=2
        ),
        ["float32[7, 8]"],
    ),
    (
        case(
            "PagedAttention",
            "h:7x64",
            None,
            None,
            "h:3x16x2x8",
            "h:3x16x2x8",
            ints(0, 4, 7),
            ints(0, 0),
            TOKENS,
            n=3,
            **GROUPS,
        ),
        ["float16[7, 32]", "float16[3, 16, 2, 8]", "float16[3, 16, 2, 8]"],
    ),
    (
        case("QLinearReduceMean", "u:2x4x9x8", *QUANTIZED, *QUANTIZED, axes=[2, -1], keepdims=1),
        ["uint8[2, 4, 1, 1]"],
    ),
    (
        case("QLinearReduceMean", "u:2x4x9x8", *QUANTIZED, *QUANTIZED, axes=[2, -1], keepdims=0),
        ["uint8[2, 4]"],
    ),
    (
        case("QOrderedMatMul", "b:2x5x8", SCALE, "b:8x6", SCALE, SCALE, order_A=1, order_B=0, order_Y=1),
        ["int8[2, 5, 6]"],
    ),
    (case("QuantizeWithOrder", "f:2x5", SCALE, order_input=1, order_output=1), ["int8[2, 5]"]),
    (
        case("DequantizeWithOrder", "b:2x5", SCALE, order_input=1, order_output=1, to=10),
        ["float16[2, 5]"],
    ),
    (
        case("RelativePositionBias", "f:32x4", longs(5), longs(6), max_distance=10),
        ["float32[1, 4, 5, 6]"],
    ),
    (
        case("RemovePadding", "f:2x5x8", ints(5, 4), n=4),
        ["float32[?, 8]", "int32[2, 5]", "int32[3]", "int32[1]"],
    ),
    (case("RestorePadding", "f:9x8", TOKENS), ["float32[2, 5, 8]"]),
    (case("Rfft", "f:3x9"), ["float32[3, 5, 2]"]),
    (
        case("SkipGroupNorm", "f:2x4x4x8", "f:8", "f:8", "f:2x4x4x8", n=2, groups=2, activation=0),
        ["float32[2, 4, 4, 8]"] * 2,
    ),
    (
        case(
            *("SparseAttention", "f:2x5x32", "f:2x5x16", "f:2x5x16", "f:2x2x16x8", "f:2x2x16x8"),
            *(np.array([[0, 1]], np.int32), np.array([[0]], np.int32), ints(5), ints(5, 5)),
            n=3,
            sparse_block_size=16,
            **GROUPS,
        ),
        ["float32[2, 5, 32]", "float32[2, 2, 16, 8]", "float32[2, 2, 16, 8]"],
    ),
    (case("SwiGLU", "f:2x3x8"), ["float32[2, 3, 4]"]),
    (case("SwiGLU", "f:2x3x8", "f:2x3x8"), ["float32[2, 3, 8]"]),
    (
        case(
            "AttnLSTM", "f:7x2x8", "f:2x12x8", "f:2x12x3", n=3, hidden_size=3, direction="bidirectional"
        ),
        ["float32[7, 2, 2, 3]", "float32[2, 2, 3]", "float32[2, 2, 3]"],
    ),
    (case("BranchwiseRMSNorm", "f:2x3x8", "f:8"), ["float32[2, 3, 8]"]),
    (case("ComplexMulConj", "f:2x3x2", "f:1x3x2"), ["float32[2, 3, 2]"]),
    (
        case("FusedMatMulActivation", "f:2x5x8", "f:2x6x8", transB=1, activation="Relu"),
        ["float32[2, 5, 6]"],
    ),
    (case("GatedRMSNorm", "f:2x8", "f:8", "f:2x8"), ["float32[2, 8]"]),
    (case("GemmFloat8", "f:5x8", "f:6x8", transB=1, dtype=10), ["float16[5, 6]"]),
    (case("GreedySearch", TOKENS, ints(20), eos_token_id=1, pad_token_id=0), ["int32[2, 20]"]),
    (case("Sampling", TOKENS, ints(20), eos_token_id=1, pad_token_id=0), ["int32[2, 20]"]),
    (
        case(
            *("LongformerAttention", "f:2x8x8", "f:8x24", "f:24", "f:2x8", "f:8x24", "f:24", "i:2x8"),
            num_heads=2,
            window=2,
        ),
        ["float32[2, 8, 8]"],
    ),
    (
        case(
            *("MRotaryEmbedding", "f:2x5x16", np.zeros((3, 2, 5), np.int64), "f:9x2", "f:9x2"),
            mrope_section=[1, 1],
        ),
        ["float32[2, 5, 16]"],
    ),
    (case("MatMulFpQ4", "f:5x32", "u:120", longs(32, 6)), ["float32[5, 6]"]),
    (
        case(
            *("MatMulNBitsMlp", "f:2x32", "f:2x32", "f:32", "u:6x1x16", "f:6", None, "u:6x1x16", "f:6"),
            n=2,
            K=32,
            N=6,
            block_size=32,
            activation="silu",
        ),
        ["float32[2, 6]", "float32[2, 32]"],
    ),
    (
        case("MatMulNBitsQLoRA", "f:2x5x32", "u:6x1x16", "f:6", "u:4", "f:4", "u:4", "f:4", K=32, N=6),
        ["float32[2, 5, 6]"],
    ),
    (
        case(
            *("MatMulNBitsQkv", "f:2x32", "f:2x32", "f:32", "u:6x1x16", "f:6", None),
            *("u:3x1x16", "f:3", None, "u:3x1x16", "f:3", None),
            n=4,
            K=32,
            Nq=6,
            Nkv=3,
            block_size=32,
        ),
        ["float32[2, 6]", "float32[2, 3]", "float32[2, 3]", "float32[2, 32]"],
    ),
    (case("QMoE", "f:6x8", "f:6x4", "u:4x12x4", "f:4x12", None, "u:4x8x6", "f:4x8"), ["float32[6, 8]"]),
    (
        case(
            *("QOrderedAttention", "b:2x5x8", SCALE, SCALE, SCALE, SCALE, "b:8x8", "b:8x8", "b:8x4"),
            num_heads=2,
            order_input=1,
            order_output=1,
            order_weight=0,
        ),
        ["int8[2, 5, 4]"],
    ),
    (case("QOrderedGelu", "b:2x5", SCALE, SCALE), ["int8[2, 5]"]),
    (case("QOrderedLayerNormalization", "b:2x5", SCALE, "f:5", "f:5", SCALE), ["int8[2, 5]"]),
    (
        case(
            "QOrderedLongformerAttention",
            "b:2x8x8",
            num_heads=2,
            order_global_weight=0,
            order_input=1,
            order_output=1,
            order_weight=0,
            window=2,
        ),
        ["int8[2, 8, 8]"],
    ),
    (case("SampleOp", "f:2x5"), ["float32[2, 5]"]),
    (
        case(
            *("SparsePagedAttention", "h:7x32", "h:7x16", "h:7x16", "h:3x16x2x8", "h:3x16x2x8"),
            *(ints(0, 4, 7), ints(0, 0), TOKENS, None, TOKENS, ints(1, 1)),
            n=3,
            **GROUPS,
        ),
        ["float16[7, 32]", "float16[3, 16, 2, 8]", "float16[3, 16, 2, 8]"],
    ),
    (case("TorchEmbedding", "f:9x4", np.zeros((2, 3), np.int64)), ["float32[2, 3, 4]"]),
]
