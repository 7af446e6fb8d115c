"""annotations/ethos-u55.yaml: each documented limit holds on both sides, in QDQ form and only there."""

import pytest
from shipped_rules import firsts, mark, plain, qdq, taken, target, verdict, zoo
from support import LIGHT

from byoc.patterns import group_units
from byoc.rules import annotate_graph

FILE = "ethos-u55"
X = {"x": "1,8,20,20"}
W3 = {"w": "int8[4,8,3,3]"}
DEEP = {"w": "int8[8,1,3,3]"}
KERNEL = "the dilated kernel must be at most 64 high and have at most 4096 elements"
FILTER = "a filter of more than 65024 weights may exceed the limit of their sum, 8323072"
STRIDES = "strides must be at most 3, that of width perhaps a multiple of 2 or 3 that fits the width"
POOL = "the kernel must be at most 256 high and have at most 65536 elements"
AVERAGE = "with padding, the kernel is at most 8, the stride of width 3, and padding is not counted"
GROUPS = "a depthwise convolution must have as many results as channels"
LARGE = "the result must be as large as SAME or VALID padding make it"
MEAN = "only a mean over height and width is supported"
BOUNDS = "the bounds must be 0, 0 and 6, or -1 and 1"
SHAPES = "one input must have the shape of the result"
DEPTH = "the axis must be the channels' of an image, else the last"
SIDES = "only height and width can be padded"
BATCH = "the batch must be 1"
ASYMMETRIC = 'y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , k)'
ALIGNED = ASYMMETRIC.replace("asymmetric", "align_corners").replace("(x, , k)", "(x, , , k)")
TRANSPOSED = "strides must be 1x1 or 2x2, or 1x2 over a height of 1"

CASES = [
    # general: batch, dimensions, rank
    (X, "y = Relu (x)", {}, "", "yes"),
    ({"x": "2,8,20,20"}, "y = Relu (x)", {}, "", BATCH),
    ({"x": "2,8,20"}, "y = Relu (x)", {}, "", "yes"),
    ({"x": "65535"}, "y = Relu (x)", {}, "", "yes"),
    ({"x": "65536"}, "y = Relu (x)", {}, "", "dimension 0 of X is 65536, at most 65535 is supported"),
    ({"x": "1,2,3,4,5"}, "y = Relu (x)", {}, "", "X has rank 5; supported: 1, 2, 3, 4"),
    ({"x": ""}, "y = Relu (x)", {}, "", "X has rank 0; supported: 1, 2, 3, 4"),
    ({"x": "1,N"}, "y = Relu (x)", {}, "", "dimension N of input 'x_q' is not fixed (--dim N=SIZE)"),
    # CONV_2D
    (X, "y = Conv (x, w)", W3, "", "yes"),
    (X, "y = Conv (x, w)", {"w": "int8[4,8,3,3], float[4]"}, "", "yes"),
    (X, "y = Conv (x, w)", {"w": "uint8[4,8,3,3]"}, "", "W is uint8 outside; supported: int8"),
    (X, "y = Conv (x, w)", {}, "float[4,8,3,3] w", "W is not quantized"),
    ({**X, "w": "4,8,3,3"}, "y = Conv (x, w)", {}, "", "W must be a constant"),
    (X, "y = Conv (x, w, b)", {**W3, "b": "int32[4]"}, "", "yes"),
    (X, "y = Conv (x, w, b)", {**W3, "b": "int8[4]"}, "", "B is int8 outside; supported: int32"),
    (X, "y = Conv <group = 2> (x, w)", {"w": "int8[4,4,3,3]"}, "", "yes"),
    ({"x": "2,8,20,20"}, "y = Conv (x, w)", W3, "", "dimension 0 of X is 2; supported: 1"),
    ({"x": "1,8,70,70"}, "y = Conv (x, w)", {"w": "int8[4,8,64,64]"}, "", "yes"),
    ({"x": "1,8,70,70"}, "y = Conv (x, w)", {"w": "int8[4,8,65,1]"}, "", KERNEL),
    ({"x": "1,8,70,70"}, "y = Conv (x, w)", {"w": "int8[4,8,64,65]"}, "", KERNEL),
    ({"x": "1,8,70,70"}, "y = Conv <dilations = [21, 1]> (x, w)", {"w": "int8[4,8,4,3]"}, "", "yes"),
    ({"x": "1,8,70,70"}, "y = Conv <dilations = [22, 1]> (x, w)", {"w": "int8[4,8,4,3]"}, "", KERNEL),
    ({"x": "1,65024,2,2"}, "y = Conv (x, w)", {"w": "int8[1,65024,1,1]"}, "", "yes"),
    ({"x": "1,65025,2,2"}, "y = Conv (x, w)", {"w": "int8[1,65025,1,1]"}, "", FILTER),
    (X, "y = Conv <strides = [3, 3]> (x, w)", W3, "", "yes"),
    (X, "y = Conv <strides = [4, 3]> (x, w)", W3, "", STRIDES),
    (X, "y = Conv <strides = [3, 4]> (x, w)", W3, "", "yes"),
    ({"x": "1,8,20,21"}, "y = Conv <strides = [3, 4]> (x, w)", W3, "", STRIDES),
    (X, "y = Conv <strides = [3, 5]> (x, w)", W3, "", STRIDES),
    ({"x": "1,8,3,3"}, "y = Conv <strides = [5, 5]> (x, w)", W3, "", "yes"),
    (X, "y = Conv (x, w)", {"w": "!int8[4,8,3,3]"}, "", "the zero point of W must be 0"),
    (X, "y = Conv (x, w, b)", {**W3, "b": "!int32[4]"}, "", "the zero point of B must be 0"),
    # DEPTHWISE_CONV_2D
    (X, "y = Conv <group = 8> (x, w)", DEEP, "", "yes"),
    (X, "y = Conv <group = 8, strides = [1, 3]> (x, w)", DEEP, "", "yes"),
    (
        X,
        "y = Conv <group = 8, strides = [1, 4]> (x, w)",
        DEEP,
        "",
        "the strides of a depthwise convolution must be at most 3",
    ),
    (X, "y = Conv <group = 8> (x, w)", {"w": "int8[16,1,3,3]"}, "", GROUPS),
    # TRANSPOSE_CONV
    (X, "y = ConvTranspose <strides = [2, 2]> (x, w)", {"w": "int8[8,4,3,3]"}, "", "yes"),
    (
        X,
        'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)',
        {"w": "int8[8,4,3,3]"},
        "",
        "yes",
    ),
    (
        X,
        "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)",
        {"w": "int8[8,4,3,3]"},
        "",
        LARGE,
    ),
    (X, "y = ConvTranspose <strides = [3, 3]> (x, w)", {"w": "int8[8,4,3,3]"}, "", TRANSPOSED),
    (X, "y = ConvTranspose <strides = [1, 2]> (x, w)", {"w": "int8[8,4,3,3]"}, "", TRANSPOSED),
    (
        {"x": "1,8,1,20"},
        "y = ConvTranspose <strides = [1, 2]> (x, w)",
        {"w": "int8[8,4,1,3]"},
        "",
        "yes",
    ),
    (X, "y = ConvTranspose <group = 2> (x, w)", {"w": "int8[8,4,3,3]"}, "", "group is 2; supported: 1"),
    (
        X,
        "y = ConvTranspose <dilations = [2, 2]> (x, w)",
        {"w": "int8[8,4,3,3]"},
        "",
        "dilations[0] is 2",
    ),
    (X, "y = ConvTranspose (x, w)", {"w": "int8[8,4,65,1]"}, "", KERNEL),
    ({"x": "1,65025,2,2"}, "y = ConvTranspose (x, w)", {"w": "int8[65025,1,1,1]"}, "", FILTER),
    ({**X, "w": "8,4,3,3"}, "y = ConvTranspose (x, w)", {}, "", "W must be a constant"),
    (X, "y = ConvTranspose (x, w)", {"w": "!int8[8,4,3,3]"}, "", "the zero point of W must be 0"),
    # MAX_POOL_2D, AVERAGE_POOL_2D
    (
        X,
        "y, indices = MaxPool <kernel_shape = [2, 2]> (x)",
        {},
        "",
        "Indices is given, but must be absent",
    ),
    (
        X,
        'y = AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (x)',
        {},
        "",
        "auto_pad is SAME",
    ),
    ({"x": "1,8,300,300"}, "y = MaxPool <kernel_shape = [256, 256]> (x)", {}, "", "yes"),
    ({"x": "1,8,300,300"}, "y = MaxPool <kernel_shape = [257, 1]> (x)", {}, "", POOL),
    ({"x": "1,8,300,300"}, "y = MaxPool <kernel_shape = [256, 257]> (x)", {}, "", POOL),
    (X, "y = MaxPool <kernel_shape = [2, 2], strides = [3, 3]> (x)", {}, "", "yes"),
    (
        X,
        "y = MaxPool <kernel_shape = [2, 2], strides = [4, 1]> (x)",
        {},
        "",
        "strides[0] is 4, at most 3",
    ),
    (X, "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", {}, "", "yes"),
    (X, "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 1, 1]> (x)", {}, "", "yes"),
    (
        X,
        "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)",
        {},
        "",
        "yes",
    ),
    (
        X,
        'y = MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (x)',
        {},
        "",
        "auto_pad is SAME_LOWER",
    ),
    (
        X,
        "y = MaxPool <kernel_shape = [3, 3], ceil_mode = 1> (x)",
        {},
        "",
        "ceil_mode is 1; supported: 0",
    ),
    (X, "y = MaxPool <kernel_shape = [3, 3], dilations = [2, 2]> (x)", {}, "", "dilations[0] is 2"),
    (X, "y = AveragePool <kernel_shape = [9, 9]> (x)", {}, "", "yes"),
    ({"x": "1,8,300,20"}, "y = AveragePool <kernel_shape = [257, 1]> (x)", {}, "", POOL),
    (X, 'y = AveragePool <kernel_shape = [8, 8], auto_pad = "SAME_UPPER"> (x)', {}, "", "yes"),
    (X, 'y = AveragePool <kernel_shape = [9, 8], auto_pad = "SAME_UPPER"> (x)', {}, "", AVERAGE),
    (X, "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", {}, "", "yes"),
    (
        X,
        "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)",
        {},
        "",
        AVERAGE,
    ),
    (X, "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 0, 0]> (x)", {}, "", "yes"),
    (X, "y = AveragePool <kernel_shape = [4, 4], strides = [1, 4]> (x)", {}, "", "yes"),
    (
        X,
        'y = AveragePool <kernel_shape = [4, 4], strides = [1, 4], auto_pad = "SAME_UPPER"> (x)',
        {},
        "",
        AVERAGE,
    ),
    (X, "y = AveragePool <kernel_shape = [4, 4], strides = [4, 1]> (x)", {}, "", STRIDES),
    (
        X,
        "y = AveragePool <kernel_shape = [4, 4], ceil_mode = 1> (x)",
        {},
        "",
        "ceil_mode is 1; supported: 0",
    ),
    ({"x": "1,8,256,256"}, "y = GlobalMaxPool (x)", {}, "", "yes"),
    ({"x": "1,8,257,1"}, "y = GlobalMaxPool (x)", {}, "", "the image must be at most 256 high"),
    # MEAN
    ({"x": "1,8,4096,4096"}, "y = GlobalAveragePool (x)", {}, "", "yes"),
    (
        {"x": "1,8,1,4097"},
        "y = GlobalAveragePool (x)",
        {},
        "",
        "the width that is reduced must be at most 4096",
    ),
    (
        {"x": "1,8,4097,4096"},
        "y = GlobalAveragePool (x)",
        {},
        "",
        "at most 16777216 elements can be reduced",
    ),
    (X, "y = ReduceMean <axes = [2, 3]> (x)", {}, "", "yes"),
    (X, "y = ReduceMean <axes = [-2, -1], keepdims = 0> (x)", {}, "", "yes"),
    (X, "y = ReduceMean <axes = [1]> (x)", {}, "", MEAN),
    ({"x": "1,8,1,4097"}, "y = ReduceMean <axes = [2, 3]> (x)", {}, "", "at most 4096"),
    ({"x": "1,8,4097,4096"}, "y = ReduceMean <axes = [2, 3]> (x)", {}, "", "at most 16777216 elements"),
    # FULLY_CONNECTED
    ({"x": "2,8"}, "y = Gemm (x, w, b)", {"w": "int8[8,4]", "b": "int32[4]"}, "", "yes"),
    (
        {"x": "2,8"},
        "y = Gemm (x, w)",
        {"w": "int8[8,4], float[8]"},
        "",
        "B has a scale for each channel",
    ),
    (
        {"x": "2,8"},
        "y = Gemm <alpha = 2.0> (x, w)",
        {"w": "int8[8,4]"},
        "",
        "alpha is 2.0; supported: 1",
    ),
    ({"x": "2,8"}, "y = Gemm <beta = 2.0> (x, w)", {"w": "int8[8,4]"}, "", "beta is 2.0; supported: 1"),
    ({"x": "8,2"}, "y = Gemm <transA = 1> (x, w)", {"w": "int8[8,4]"}, "", "transA is 1; supported: 0"),
    (
        {"x": "2,8"},
        "y = Gemm (x, w, b)",
        {"w": "int8[8,4]", "b": "int32[1,4]"},
        "",
        "C has rank 2; supported: 1",
    ),
    ({"x": "2,8", "w": "8,4"}, "y = Gemm (x, w)", {}, "", "B must be a constant"),
    ({"x": "2,8"}, "y = MatMul (x, w)", {"w": "int8[8,4]"}, "", "yes"),
    ({"x": "2,3,8"}, "y = MatMul (x, w)", {"w": "int8[8,4]"}, "", "A has rank 3; supported: 2"),
    ({"x": "2,8"}, "y = Gemm (x, w)", {"w": "!int8[8,4]"}, "", "the zero point of B must be 0"),
    ({"x": "2,8", "w": "8,4"}, "y = MatMul (x, w)", {}, "", "B must be a constant"),
    ({"x": "2,8"}, "y = MatMul (x, w)", {"w": "!int8[8,4]"}, "", "the zero point of B must be 0"),
    (
        {"x": "2,8"},
        "y = MatMul (x, w)",
        {"w": "int8[8,4], float[8]"},
        "",
        "B has a scale for each channel",
    ),
    # ADD, SUB, MUL
    ({**X, "z": "1,8,20,20"}, "y = Add (x, z)", {}, "", "yes"),
    ({**X, "z": "1,8,1,1"}, "y = Mul (x, z)", {}, "", "yes"),
    ({**X, "z": ""}, "y = Sub (x, z)", {}, "", "yes"),
    ({"x": "1,8,1,20", "z": "1,8,20,1"}, "y = Add (x, z)", {}, "", SHAPES),
    ({"x": "2,8,20,20", "z": "1"}, "y = Add (x, z)", {}, "", BATCH),
    # activations
    (X, "y = HardSwish (x)", {}, "", "yes"),
    (X, "y = Tanh (x)", {}, "", "yes"),
    ({"x": "2,8,20,20"}, "y = Tanh (x)", {}, "", BATCH),
    (X, "y = Exp (x)", {}, "", "yes"),
    (X, "y = PRelu (x, w)", {"w": "int8[8,1,1]"}, "", "yes"),
    # a constant among activations is quantized as they are, a weight is not
    (X, "y = PRelu (x, w)", {"w": "!int8[8,1,1]"}, "", "yes"),
    (X, "y = Add (x, w)", {"w": "!int8[1,8,20,20]"}, "", "yes"),
    (X, "y = Concat <axis = 1> (x, w)", {"w": "!int8[1,8,20,20]"}, "", "yes"),
    (X, "y = Conv (x, w)", {"w": "!int8[4,8,3,3]"}, "", "the zero point of W must be 0"),
    ({"x": "2,8,20,20"}, "y = PRelu (x, w)", {"w": "int8[8,1,1]"}, "", BATCH),
    ({**X, "w": "8,1,1"}, "y = PRelu (x, w)", {}, "", "slope must be a constant"),
    (X, "y = Clip (x, low, high)", {}, "float low = {0}, float high = {6}", "yes"),
    (X, "y = Clip (x, low, high)", {}, "float low = {-1}, float high = {1}", "yes"),
    (X, "y = Clip (x, low)", {}, "float low = {0}", "yes"),
    (X, "y = Clip (x, low, high)", {}, "float low = {0}, float high = {5}", BOUNDS),
    (X, "y = Clip (x, , high)", {}, "float high = {6}", BOUNDS),
    ({"x": "2,8,20,20"}, "y = Clip (x, low)", {}, "float low = {0}", BATCH),
    (X, "y = Elu (x)", {}, "", "yes"),
    (X, "y = Acosh (x)", {}, "", "Acosh is not among the operators of ethos-u55"),
    (X, "y = Softmax <axis = 1> (x)", {}, "", "yes"),
    (X, "y = Softmax <axis = 3> (x)", {}, "", DEPTH),
    ({"x": "2,8"}, "y = Softmax <axis = -1> (x)", {}, "", "yes"),
    ({"x": "2,8,4"}, "y = Softmax <axis = 1> (x)", {}, "", DEPTH),
    # CONCATENATION, SPLIT, PAD
    ({**X, "z": "1,3,20,20"}, "y = Concat <axis = 1> (x, z)", {}, "", "yes"),
    ({"x": "2,8,2,2", "z": "2,3,2,2"}, "y = Concat <axis = 1> (x, z)", {}, "", BATCH),
    ({"x": "2,8,2,2"}, "y, z = Split <axis = 1> (x, k)", {}, "int64[2] k = {4, 4}", "yes"),
    (X, "y = Pad (x, p)", {}, "int64[8] p = {0, 0, 1, 2, 0, 0, 3, 4}", "yes"),
    (X, "y = Pad (x, p)", {}, "int64[8] p = {0, 1, 0, 0, 0, 0, 0, 0}", SIDES),
    (X, "y = Pad (x, p)", {}, "int64[8] p = {0, 0, -1, 0, 0, 0, 0, 0}", SIDES),
    (X, "y = Pad (x, p, v)", {}, "int64[8] p, float v = {1}", "an element of constant_value is 1.0"),
    (X, 'y = Pad <mode = "edge"> (x, p)', {}, "int64[8] p", "mode is edge; supported: constant"),
    # RESHAPE, SQUEEZE, EXPAND_DIMS, STRIDED_SLICE
    ({"x": "2,8,2,2"}, "y = Reshape (x, k)", {}, "int64[2] k = {2, 32}", "yes"),
    ({"x": "2,8,2,2"}, "y = Reshape (x, k)", {}, "int64[5] k = {2, 2, 4, 2, 2}", "yes"),
    ({"x": "2,8,1"}, "y = Squeeze (x, a)", {}, "int64[1] a = {2}", "yes"),
    ({"x": "2,8"}, "y = Unsqueeze (x, a)", {}, "int64[1] a = {2}", "yes"),
    ({"x": "2,8,2,2"}, "y = Unsqueeze (x, a)", {}, "int64[1] a = {2}", "yes"),
    (
        {"x": "2,8,9"},
        "y = Slice (x, s, e, a)",
        {},
        "int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {2}",
        "yes",
    ),
    (
        {"x": "2,8,9"},
        "y = Slice (x, s, e, a)",
        {},
        "int64[1] s = {3}, int64[1] e = {3}, int64[1] a = {2}",
        "dimension 2 of output is 0, at least 1 is supported",
    ),
    (
        {"x": "2,8,9"},
        "y = Slice (x, s, e, a, t)",
        {},
        "int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {2}, int64[1] t = {2}",
        "an element of steps is 2; supported: 1",
    ),
    # RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR
    (X, 'y = Resize <mode = "linear"> (x, , k)', {}, "float[4] k = {1, 1, 2, 2}", "yes"),
    (
        X,
        'y = Resize <mode = "linear"> (x, , k)',
        {},
        "float[4] k = {1, 1, 4, 4}",
        "with half_pixel, height and width must be scaled by 2",
    ),
    (X, ASYMMETRIC, {}, "float[4] k = {1, 1, 8, 8}", "yes"),
    (
        X,
        ASYMMETRIC,
        {},
        "float[4] k = {1, 1, 3, 3}",
        "height and width must be scaled by 2, 4 or 8, both alike",
    ),
    (
        X,
        ASYMMETRIC,
        {},
        "float[4] k = {1, 1, 2, 4}",
        "height and width must be scaled by 2, 4 or 8, both alike",
    ),
    (X, ASYMMETRIC, {}, "float[4] k = {1, 2, 2, 2}", "the channels must stay"),
    (
        X,
        ALIGNED,
        {},
        "int64[4] k = {1, 8, 39, 39}",
        "yes",
    ),
    (
        X,
        ALIGNED,
        {},
        "int64[4] k = {1, 8, 40, 40}",
        "height and width less one must be scaled by 2, 4 or 8",
    ),
    (
        X,
        ASYMMETRIC.replace('"linear"', '"nearest", nearest_mode = "floor"'),
        {},
        "float[4] k = {1, 1, 2, 2}",
        "yes",
    ),
    (
        X,
        ASYMMETRIC.replace('"linear"', '"nearest"'),
        {},
        "float[4] k = {1, 1, 2, 2}",
        "nearest needs asymmetric with floor",
    ),
    (
        X,
        'y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , k)',
        {},
        "float[4] k = {1, 1, 2, 2}",
        "coordinate_transformation_mode is pytorch_half_pixel",
    ),
    (X, 'y = Resize <mode = "cubic"> (x, , k)', {}, "float[4] k = {1, 1, 2, 2}", "mode is cubic"),
    # what Vela takes by way of TOSA
    (X, "y = Transpose (x)", {}, "", "yes"),
    ({"x": "1,2,4,20,20"}, "y = Transpose <perm = [0, 2, 1, 3, 4]> (x)", {}, "", "yes"),
    ({**X, "z": "1,8,20,20"}, "y = Sum (x, z, x)", {}, "", "yes"),
    (X, "y = Flatten (x)", {}, "", "yes"),
    (X, "y = Dropout (x)", {}, "", "yes"),
    (X, "y = Identity (x)", {}, "", "yes"),
]


@pytest.mark.parametrize(("shapes", "line", "weights", "constants", "expected"), CASES)
def test_a_documented_limit(
    shapes: dict[str, str], line: str, weights: dict[str, str], constants: str, expected: str
) -> None:
    told = verdict(FILE, qdq(shapes, line, weights, constants))
    assert (told == expected) if expected == "yes" else (expected in told), told


@pytest.mark.parametrize(("shapes", "line", "weights", "constants", "expected"), firsts(CASES))
def test_every_operator_is_held_to_the_general_limits(
    shapes: dict[str, str], line: str, weights: dict[str, str], constants: str, expected: str
) -> None:
    del expected
    wide = {name: f"65536,{shape.partition(',')[2]}".rstrip(",") for name, shape in shapes.items()}
    told = verdict(FILE, qdq(wide, line, weights, constants))
    assert "is 65536, at most 65535 is supported" in told


def test_feature_maps_are_int8() -> None:
    told = verdict(FILE, qdq({"x": "1,8"}, "y = Relu (x)", dtype="uint8"))
    assert "X is uint8 outside; supported: int8" in told


@pytest.mark.parametrize(
    ("line", "constants", "inputs", "expected"),
    [
        ("y, z = Split <axis = 1> (x, k)", "", "int64[2] k", "split must be a constant"),
        ("y = Pad (x, k)", "", "int64[8] k", "pads must be a constant"),
        ("y = Pad (x, p, k)", "int64[8] p", "float k", "constant_value must be a constant"),
        ("y = Reshape (x, k)", "", "int64[2] k", "shape must be a constant"),
        ("y = Squeeze (x, k)", "", "int64[1] k", "axes must be a constant"),
        ("y = Unsqueeze (x, k)", "", "int64[1] k", "axes must be a constant"),
        ("y = Slice (x, k, e)", "int64[1] e", "int64[1] k", "starts must be a constant"),
        ("y = Slice (x, s, k)", "int64[1] s", "int64[1] k", "ends must be a constant"),
        ("y = Slice (x, s, e, k)", "int64[1] s, int64[1] e", "int64[1] k", "axes must be a constant"),
        ("y = Slice (x, s, s, s, k)", "int64[1] s", "int64[1] k", "steps must be a constant"),
        ('y = Resize <mode = "linear"> (x, , k)', "", "float[4] k", "scales must be a constant"),
        ('y = Resize <mode = "linear"> (x, , , k)', "", "int64[4] k", "sizes must be a constant"),
    ],
)
def test_what_shapes_the_result_is_constant(
    line: str, constants: str, inputs: str, expected: str
) -> None:
    assert expected in verdict(FILE, qdq(X, line, constants=constants, inputs=inputs))


@pytest.mark.parametrize(
    ("constants", "inputs", "expected"),
    [
        ("int64[2] a = {2, 3}", "", "yes"),
        ("int64[2] a = {1, 2}", "", MEAN),
        ("", "int64[2] a", "axes must be a constant"),
    ],
)
def test_a_mean_whose_axes_are_an_input(constants: str, inputs: str, expected: str) -> None:
    model = qdq(X, "y = ReduceMean (x, a)", constants=constants, opset=18, inputs=inputs)
    assert expected in verdict(FILE, model)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = Relu (x)", "X has a scale for each channel, which is not supported"),
        (
            "y = MaxPool <kernel_shape = [2, 2]> (x)",
            "X has a scale for each channel, which is not supported",
        ),
    ],
)
def test_a_feature_map_has_one_scale(line: str, expected: str) -> None:
    model = plain(
        "int8[1,8,4,4] q",
        f"x = DequantizeLinear <axis = 1> (q, s, z)\n{line}\nout = QuantizeLinear (y, t, u)",
        "float[8] s, int8[8] z, float t = {1}, int8 u = {0}",
    )
    assert expected in verdict(FILE, model)


def test_a_quantized_convolution_and_its_activation_are_one_unit() -> None:
    model = qdq(X, "c = Conv (x, w)\ny = Relu (c)", W3)
    index = model.index
    rules = target(FILE)
    (unit,) = [
        unit for unit in group_units(index, rules.patterns, annotate_graph(index, rules)) if unit.verdict
    ]
    assert sorted(index.nodes[node].op_type for node in unit.nodes) == [
        *("Conv", "DequantizeLinear"),
        *("QuantizeLinear", "Relu"),
    ]


def test_a_float_operator_is_not_taken() -> None:
    found = mark(FILE, plain("float[1,8] x", "y = Relu (x)"))
    assert not found.accepts_plain  # which is what it would need to be taken outside of a QDQ group


@pytest.mark.parametrize("name", LIGHT)
def test_nothing_of_a_float_model_is_taken(name: str) -> None:
    index = zoo(name).index
    rules = target(FILE)
    units = group_units(index, rules.patterns, annotate_graph(index, rules))
    assert units
    assert not [unit for unit in units if unit.verdict]


def test_what_the_rules_say_of_resnet_and_squeezenet() -> None:
    yes, no = taken(FILE, "resnet50")
    assert yes == {
        **{"Relu": 49, "Sum": 16},  # if they stood in QDQ groups
        **{"AveragePool": 1, "MaxPool": 1, "Reshape": 1},
    }
    assert no == {"Conv": 53, "BatchNormalization": 53, "Gemm": 1, "Softmax": 1}
    yes, no = taken(FILE, "squeezenet")
    assert yes == {"Relu": 26, "MaxPool": 3, "Concat": 8, "GlobalAveragePool": 1, "Dropout": 1}
    assert no == {"Conv": 26, "Softmax": 1}
