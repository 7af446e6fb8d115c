"""annotations/tensorrt-dla.yaml: each published limit on both sides; what is taken of the zoo."""

import pytest
from helpers.support import LIGHT
from shipped_rules import firsts, plain, stretched, taken, target, verdict

FILE = "tensorrt-dla"
X = "float[1,8,40,40] x"


def conv(attributes: str = "kernel_shape = [3, 3]") -> str:
    """Return the line of a convolution with some attributes."""
    return f"y = Conv <{attributes}> (x, w)"


W3 = "float[8,8,3,3] w"
PADDED = "the padding must be less than the kernel"
SAME = "the padding of a dilated kernel under auto_pad may exceed the limit of 31"
WHOLE = "batch and channels must stay, height and width be scaled by a whole number from 1 to 32"
MODES = "nearest needs asymmetric with floor, or half_pixel with round_prefer_floor or _ceil"
ALONG = "more than 1024 along the axis need all other dimensions but the batch to be 1"
LARGE = "at most 32, or 64, 96 or 128 in one dimension and 1 in the other"
IMAGES = "float[1,2,5,5]"
RESIZE = (
    'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", '
    'nearest_mode = "floor"> (x, , k)'
)
LINEAR = 'y = Resize <mode = "linear"> (x, , k)'

CASES = [
    # general: batch, other dimensions, elements, rank, fixed dimensions, dtype
    ("float[4096,2,3,3] x", "y = Relu (x)", "", "yes"),
    ("float[4097,2,3,3] x", "y = Relu (x)", "", "dimension 0 of X is 4097, at most 4096 is supported"),
    ("float[1,8192,3,3] x", "y = Relu (x)", "", "yes"),
    ("float[1,8193,3,3] x", "y = Relu (x)", "", "dimension 1 of X is 8193, at most 8192 is supported"),
    ("float[1,2,3,8193] x", "y = Relu (x)", "", "dimension 3 of X is 8193, at most 8192 is supported"),
    ("float[1,31,8192,8192] x", "y = Relu (x)", "", "yes"),
    ("float[1,32,8192,8192] x", "y = Relu (x)", "", "at most 2147483647 is supported"),
    ("float[1,2,3] x", "y = Relu (x)", "", "X has rank 3; supported: 4"),
    ("float[N,2,3,3] x", "y = Relu (x)", "", "dimension 0 of X is not fixed"),
    ("float16[1,2,3,3] x", "y = Relu (x)", "", "yes"),
    ("double[1,2,3,3] x", "y = Relu (x)", "", "X is float64; supported: float16, float32"),
    # convolution
    (X, conv("kernel_shape = [32, 1]"), "float[8,8,32,1] w", "yes"),
    (X, conv("kernel_shape = [33, 1]"), "float[8,8,33,1] w", "kernel_shape[0] is 33, at most 32"),
    (X, conv("strides = [8, 8]"), W3, "yes"),
    (X, conv("strides = [1, 9]"), W3, "strides[1] is 9, at most 8 is supported"),
    (X, conv("pads = [31, 0, 31, 0]"), "float[8,8,32,1] w", "yes"),
    (X, conv("pads = [32, 0, 0, 0]"), "float[8,8,32,1] w", "pads[0] is 32, at most 31 is supported"),
    (X, conv("pads = [2, 2, 2, 2]"), W3, "yes"),
    (X, conv("pads = [2, 2, 2, 3]"), W3, PADDED),
    (X, conv("pads = [3, 2, 2, 2]"), W3, PADDED),
    (X, conv("dilations = [1, 32]"), "float[8,8,1,2] w", "yes"),
    (X, conv("dilations = [1, 33]"), "float[8,8,1,2] w", "dilations[1] is 33, at most 32 is supported"),
    (X, conv('auto_pad = "SAME_UPPER"'), W3, "yes"),
    (X, conv('dilations = [2, 2], auto_pad = "SAME_UPPER"'), W3, SAME),
    (X, conv('dilations = [2, 2], auto_pad = "VALID"'), W3, "yes"),
    ("float[1,1,2,2] x", conv("group = 1"), "float[8192,1,1,1] w", "yes"),
    (
        "float[1,1,2,2] x",
        conv("group = 1"),
        "float[8193,1,1,1] w",
        "dimension 0 of W is 8193, at most 8192",
    ),
    ("float[1,8,2,2] x", conv("group = 8"), "float[8,1,1,1] w", "yes"),
    ("float[1,8193,2,2] x", conv("group = 8193"), "float[8193,1,1,1] w", "group is 8193, at most 8192"),
    ("float[1,8,9] x", conv("group = 1"), "float[8,8,3] w", "X has rank 3; supported: 4"),
    (f"{X}, {W3}", conv(), "", "W must be a constant"),
    (f"{X}, float[8] b", "y = Conv (x, w, b)", W3, "B must be a constant"),
    # fully connected
    ("float[4,8192] x", "y = Gemm (x, w)", "float[8192,2] w", "yes"),
    ("float[4,8193] x", "y = Gemm (x, w)", "float[8193,2] w", "dimension 1 of A is 8193, at most 8192"),
    ("float[4,2] x", "y = Gemm (x, w)", "float[2,8193] w", "dimension 1 of Y is 8193, at most 8192"),
    ("float[4097,2] x", "y = Gemm (x, w)", "float[2,2] w", "dimension 0 of A is 4097, at most 4096"),
    ("float[4,2] x, float[2,2] w", "y = Gemm (x, w)", "", "B must be a constant"),
    ("float[4,2] x", "y = MatMul (x, w)", "float[2,8] w", "yes"),
    ("float[4,2] x, float[2,8] w", "y = MatMul (x, w)", "", "B must be a constant"),
    ("float[4,3,2] x", "y = MatMul (x, w)", "float[2,8] w", "A has rank 3; supported: 2"),
    # deconvolution
    ("float[1,2,5,5] x", "y = ConvTranspose (x, w)", "float[2,8192,2,2] w", "yes"),
    ("float[1,2,5,5] x", "y = ConvTranspose (x, w)", "float[2,8193,2,2] w", "dimension 1 of W is 8193"),
    (
        f"{IMAGES} x",
        "y = ConvTranspose <group = 2> (x, w)",
        "float[2,3,2,2] w",
        "group is 2; supported: 1",
    ),
    (
        f"{IMAGES} x",
        "y = ConvTranspose <dilations = [1, 2]> (x, w)",
        "float[2,3,2,2] w",
        "dilations[1] is 2; supported: 1",
    ),
    (
        f"{IMAGES} x",
        "y = ConvTranspose <pads = [0, 0, 1, 0]> (x, w)",
        "float[2,3,2,2] w",
        "pads[2] is 1; supported: 0",
    ),
    (
        f"{IMAGES} x",
        'y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w)',
        "float[2,3,2,2] w",
        "auto_pad is SAME_UPPER; supported: NOTSET, VALID",
    ),
    (
        f"{IMAGES} x",
        "y = ConvTranspose <output_shape = [9, 9]> (x, w)",
        "float[2,3,2,2] w",
        "output_shape must be absent",
    ),
    (f"{IMAGES} x, float[2,3,2,2] w", "y = ConvTranspose (x, w)", "", "W must be a constant"),
    (f"{IMAGES} x", "y = ConvTranspose (x, w)", "float[2,3,32,32] w", "yes"),
    (f"{IMAGES} x", "y = ConvTranspose (x, w)", "float[2,3,33,1] w", f"the kernel must be {LARGE}"),
    (f"{IMAGES} x", "y = ConvTranspose (x, w)", "float[2,3,1,96] w", "yes"),
    (f"{IMAGES} x", "y = ConvTranspose (x, w)", "float[2,3,64,2] w", f"the kernel must be {LARGE}"),
    (f"{IMAGES} x", "y = ConvTranspose <strides = [32, 3]> (x, w)", "float[2,3,2,2] w", "yes"),
    (f"{IMAGES} x", "y = ConvTranspose <strides = [1, 128]> (x, w)", "float[2,3,2,2] w", "yes"),
    (
        f"{IMAGES} x",
        "y = ConvTranspose <strides = [33, 1]> (x, w)",
        "float[2,3,2,2] w",
        f"the stride must be {LARGE}",
    ),
    ("float[1,2,9] x", "y = ConvTranspose (x, w)", "float[2,3,2] w", "X has rank 3; supported: 4"),
    (
        f"{IMAGES} x, float[3] b",
        "y = ConvTranspose (x, w, b)",
        "float[2,3,2,2] w",
        "B must be a constant",
    ),
    # pooling
    (X, "y = MaxPool <kernel_shape = [8, 1]> (x)", "", "yes"),
    (X, "y = MaxPool <kernel_shape = [9, 1]> (x)", "", "kernel_shape[0] is 9, at most 8 is supported"),
    (X, "y = AveragePool <kernel_shape = [2, 8]> (x)", "", "yes"),
    (X, "y = AveragePool <kernel_shape = [2, 9]> (x)", "", "kernel_shape[1] is 9, at most 8"),
    (X, "y = MaxPool <kernel_shape = [2, 2], strides = [16, 1]> (x)", "", "yes"),
    (
        X,
        "y = MaxPool <kernel_shape = [2, 2], strides = [17, 1]> (x)",
        "",
        "strides[0] is 17, at most 16",
    ),
    (X, "y = MaxPool <kernel_shape = [8, 8], pads = [7, 7, 7, 7]> (x)", "", "yes"),
    (X, "y = MaxPool <kernel_shape = [8, 8], pads = [7, 7, 8, 7]> (x)", "", "pads[2] is 8, at most 7"),
    (X, "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 1]> (x)", "", "a pool has no dilation"),
    ("float[1,8,40] x", "y = MaxPool <kernel_shape = [2]> (x)", "", "X has rank 3; supported: 4"),
    # activations and element-wise
    (X, "y = LeakyRelu (x)", "", "yes"),
    (X, "y = Sigmoid (x)", "", "yes"),
    (X, "y = Tanh (x)", "", "yes"),
    ("float[1,8] x", "y = Tanh (x)", "", "input has rank 2; supported: 4"),
    (X, "y = Abs (x)", "", "yes"),
    (X, "y = Exp (x)", "", "Exp is not among the operators of tensorrt-dla"),
    (X, "y = Clip (x, low, high)", "float low = {0}, float high = {6}", "yes"),
    (f"{X}, float high", "y = Clip (x, low, high)", "float low = {0}", "max must be a constant"),
    (f"{X}, float low", "y = Clip (x, low)", "", "min must be a constant"),
    (X, "y = PRelu (x, w)", "float[8,1,1] w", "yes"),
    (f"{X}, float[8,1,1] w", "y = PRelu (x, w)", "", "slope must be a constant"),
    (f"{X}, float[1,8,40,40] z", "y = Add (x, z)", "", "yes"),
    (f"{X}, float[1,8,40,40] z", "y = Div (x, z)", "", "yes"),
    ("float[8] x, float[8] z", "y = Sub (x, z)", "", "C has rank 1; supported: 4"),
    (f"{X}, float[1,8,40,40] z", "y = Pow (x, z)", "", "Pow is not among the operators"),
    (f"{X}, float[1,8,40,40] z", "y = Sum (x, z)", "", "yes"),
    (f"{X}, float[1,8,40,40] z", "y = Max (x, z)", "", "yes"),
    (f"{X}, float[1,8,40,40] z", "y = Min (x, z)", "", "yes"),
    ("float[8] x, float[8] z", "y = Min (x, z)", "", "min has rank 1; supported: 4"),
    ("float[8] x, float[8] z", "y = Max (x, z)", "", "max has rank 1; supported: 4"),
    ("float[8] x, float[8] z", "y = Sum (x, z)", "", "sum has rank 1; supported: 4"),
    # batch normalization
    (
        X,
        "y = BatchNormalization (x, s, b, m, v)",
        "float[8] s, float[8] b, float[8] m, float[8] v",
        "yes",
    ),
    (
        f"{X}, float[8] s",
        "y = BatchNormalization (x, s, b, m, v)",
        "float[8] b, float[8] m, float[8] v",
        "scale must be a constant",
    ),
    (
        f"{X}, float[8] b",
        "y = BatchNormalization (x, s, b, m, v)",
        "float[8] s, float[8] m, float[8] v",
        "B must be a constant",
    ),
    (
        X,
        "y, p, q = BatchNormalization <training_mode = 1> (x, s, b, m, v)",
        "float[8] s, float[8] b, float[8] m, float[8] v",
        "training_mode is 1; supported: 0",
    ),
    # concatenation
    (f"{X}, float[1,3,40,40] z", "y = Concat <axis = 1> (x, z)", "", "yes"),
    (f"{X}, float[1,3,40,40] z", "y = Concat <axis = -3> (x, z)", "", "yes"),
    (f"{X}, float[1,8,40,3] z", "y = Concat <axis = 3> (x, z)", "", "axis is 3; supported: 1, -3"),
    (X, "y = Concat <axis = 1> (x)", "", "a concatenation needs two inputs"),
    # local response normalization
    (X, "y = LRN <size = 9> (x)", "", "yes"),
    (X, "y = LRN <size = 11> (x)", "", "size is 11; supported: 3, 5, 7, 9"),
    (X, "y = LRN <size = 1> (x)", "", "size is 1; supported: 3, 5, 7, 9"),
    # softmax
    ("float[2,8192,1,1] x", "y = Softmax <axis = 1> (x)", "", "yes"),
    ("float[2,1024,3,1] x", "y = Softmax <axis = -3> (x)", "", "yes"),
    ("float[2,1025,3,1] x", "y = Softmax <axis = -3> (x)", "", ALONG),
    ("float[2,3,1,1025] x", "y = Softmax <axis = 3> (x)", "", ALONG),
    ("float[2,8,3,3] x", "y = Softmax <axis = 0> (x)", "", "axis is 0; supported: 1, 2, 3"),
    # slices
    (X, "y = Slice (x, s, e, a)", "int64[1] s = {0}, int64[1] e = {3}, int64[1] a = {1}", "yes"),
    (
        X,
        "y = Slice (x, s, e, a)",
        "int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}",
        "an element of axes is 0",
    ),
    (X, "y = Slice (x, s, e)", "int64[1] s = {0}, int64[1] e = {1}", "axes is absent"),
    (
        X,
        "y = Slice (x, s, e, a, t)",
        "int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {3}, int64[1] t = {2}",
        "an element of steps is 2; supported: 1",
    ),
    (
        f"{X}, int64[1] s",
        "y = Slice (x, s, e, a)",
        "int64[1] e = {9}, int64[1] a = {3}",
        "starts must be a constant",
    ),
    (
        f"{X}, int64[1] e",
        "y = Slice (x, s, e, a)",
        "int64[1] s = {9}, int64[1] a = {3}",
        "ends must be a constant",
    ),
    (
        "float[1,8,9] x",
        "y = Slice (x, s, e, a)",
        "int64[1] s = {0}, int64[1] e = {3}, int64[1] a = {1}",
        "data has rank 3",
    ),
    (
        f"{X}, int64[1] a",
        "y = Slice (x, s, e, a)",
        "int64[1] s = {0}, int64[1] e = {3}",
        "axes must be a constant",
    ),
    (
        f"{X}, int64[1] t",
        "y = Slice (x, s, e, a, t)",
        "int64[1] s = {0}, int64[1] e = {3}, int64[1] a = {1}",
        "steps must be a constant",
    ),
    (f"{X}, int64[2] k", "y, z = Split <axis = 1> (x, k)", "", "split must be a constant"),
    # resize
    (
        f"{X}, float[8] r",
        RESIZE.replace("(x, , k)", "(x, r, k)"),
        "float[4] k = {1, 1, 2, 2}",
        "roi must be",
    ),
    (X, RESIZE.replace("(x, , k)", "(x, , , k)"), "int64[4] k = {1, 8, 80, 80}", "scales is absent"),
    (X, RESIZE, "float[4] k = {1, 1, 32, 1}", "yes"),
    (X, RESIZE, "float[4] k = {1, 1, 33, 1}", WHOLE),
    (X, RESIZE, "float[4] k = {1, 1, 1.5, 1}", WHOLE),
    (X, RESIZE, "float[4] k = {1, 2, 2, 2}", WHOLE),
    (f"{X}, float[4] k", RESIZE, "", "scales must be a constant"),
    (
        X,
        RESIZE.replace("(x, , k)", "(x, , , k)"),
        "int64[4] k = {1, 8, 80, 80}",
        "sizes is given, but must be absent",
    ),
    (X, RESIZE.replace("floor", "ceil"), "float[4] k = {1, 1, 2, 2}", MODES),
    (X, RESIZE.replace("asymmetric", "align_corners"), "float[4] k = {1, 1, 2, 2}", MODES),
    (
        X,
        RESIZE.replace("asymmetric", "half_pixel").replace("floor", "round_prefer_ceil"),
        "float[4] k = {1, 1, 2, 2}",
        "yes",
    ),
    (X, LINEAR, "float[4] k = {1, 1, 4, 2}", "yes"),
    (X, LINEAR, "float[4] k = {1, 1, 5, 2}", "linear scales by at most 4"),
    (
        X,
        'y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , k)',
        "float[4] k = {1, 1, 4, 2}",
        "linear needs half_pixel or pytorch_half_pixel",
    ),
    (X, 'y = Resize <mode = "cubic"> (x, , k)', "float[4] k = {1, 1, 2, 2}", "mode is cubic"),
    # shuffles
    ("float[2,8,3,3] x", "y = Reshape (x, k)", "int64[2] k = {2, 72}", "yes"),
    (
        "float[2,8,3,3] x",
        "y = Reshape (x, k)",
        "int64[2] k = {1, 144}",
        "and data[0] is 2; they must be equal",
    ),
    ("float[2,8,3,3] x", "y = Reshape (x, k)", "int64[5] k = {2, 2, 4, 3, 3}", "reshaped has rank 5"),
    ("float[2,8,3,3] x, int64[2] k", "y = Reshape (x, k)", "", "shape must be a constant"),
    ("float[2,8,3,3] x", "y = Transpose <perm = [0, 2, 3, 1]> (x)", "", "yes"),
    (
        "float[2,8,3,3] x",
        "y = Transpose <perm = [1, 0, 2, 3]> (x)",
        "",
        "the batch must stay where it is",
    ),
    ("float[2,8,3,3] x", "y = Flatten (x)", "", "Flatten is not among the operators"),
]


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), CASES)
def test_a_published_limit(inputs: str, line: str, constants: str, expected: str) -> None:
    told = verdict(FILE, plain(inputs, line, constants))
    assert (told == expected) if expected == "yes" else (expected in told), told


@pytest.mark.parametrize(
    ("inputs", "line", "constants", "opset", "expected"),
    [
        ("float[2,8192,1,1] x", "y = Softmax <axis = 1> (x)", "", 12, "yes"),
        (
            "float[2,8,3,1] x",
            "y = Softmax <axis = 1> (x)",
            "",
            12,
            "dimension 2 of input is 3; supported: 1",
        ),
        (
            "float[2,8,1,3] x",
            "y = Softmax <axis = 1> (x)",
            "",
            12,
            "dimension 3 of input is 3; supported: 1",
        ),
        ("float[2,8193,1,1] x", "y = Softmax <axis = 1> (x)", "", 12, "dimension 1 of input is 8193"),
        ("float[2,8,1,1] x", "y = Softmax <axis = 2> (x)", "", 12, "axis is 2; supported: 1, -3"),
        (
            f"{X}, float[4] k",
            'y = Upsample <mode = "nearest"> (x, k)',
            "",
            9,
            "scales must be a constant",
        ),
        (X, "y = Slice <starts = [0], ends = [3], axes = [1]> (x)", "", 9, "yes"),
        (X, "y = Slice <starts = [0], ends = [1], axes = [0]> (x)", "", 9, "axes[0] is 0"),
        (X, "y = Slice <starts = [0], ends = [1]> (x)", "", 9, "axes must be given"),
        (X, 'y = Upsample <mode = "nearest"> (x, k)', "float[4] k = {1, 1, 2, 2}", 9, "yes"),
        (X, 'y = Upsample <mode = "linear"> (x, k)', "float[4] k = {1, 1, 2, 2}", 9, "mode is linear"),
        (X, 'y = Upsample <mode = "nearest"> (x, k)', "float[4] k = {1, 1, 33, 2}", 9, WHOLE),
        (
            X,
            "y = BatchNormalization <training_mode = 0> (x, s, b, m, v)",
            "float[8] s, float[8] b, float[8] m, float[8] v",
            15,
            "yes",
        ),
    ],
)
def test_a_published_limit_of_older_operators(
    inputs: str, line: str, constants: str, opset: int, expected: str
) -> None:
    told = verdict(FILE, plain(inputs, line, constants, opset))
    assert (told == expected) if expected == "yes" else (expected in told), told


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), firsts(CASES))
def test_every_operator_is_held_to_the_general_limits(
    inputs: str, line: str, constants: str, expected: str
) -> None:
    del expected
    told = verdict(FILE, plain(stretched(inputs, 4097), line, constants))
    assert "is 4097, at most 4096 is supported" in told


@pytest.mark.parametrize(
    ("axis", "extents", "expected"),
    [(1, "4, 4", "yes"), (0, "1, 1", "Split: axis is 0; supported: 1, 2, 3, -1, -2, -3")],
)
def test_a_split_is_not_along_the_batch(axis: int, extents: str, expected: str) -> None:
    line = f"y, z = Split <axis = {axis}> (x, k)"
    model = plain("float[2,8,3,3] x", line, f"int64[2] k = {{{extents}}}")
    assert verdict(FILE, model) == expected


def test_a_core_holds_sixteen_loadables() -> None:
    assert target(FILE).rules.limits.regions == 16


SHARES = {
    "bvlc_alexnet": (0.7, 0.8),
    "densenet121": (0.7, 0.8),
    "inception_v1": (0.95, 1.0),
    "inception_v2": (0.7, 0.8),
    "resnet50": (0.98, 1.0),
    "shufflenet": (0.7, 0.8),
    "squeezenet": (0.95, 1.0),
    "vgg19": (0.8, 0.9),
    "zfnet512": (0.7, 0.8),
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_model_is_taken_for_the_most_part(name: str) -> None:
    yes, no = taken(FILE, name)
    least, most = SHARES[name]
    assert least < yes.total() / (yes.total() + no.total()) < most


def test_resnet_and_alexnet_exactly() -> None:
    yes, no = taken(FILE, "resnet50")
    assert yes == {
        **{"Conv": 53, "BatchNormalization": 53, "Relu": 49, "Sum": 16},
        **{"MaxPool": 1, "AveragePool": 1, "Reshape": 1, "Gemm": 1},
    }
    assert no == {"Softmax": 1}  # of a matrix, not of an image
    yes, no = taken(FILE, "bvlc_alexnet")
    assert yes == {"Conv": 5, "Relu": 5, "LRN": 2, "MaxPool": 3, "Gemm": 2}
    # 9,216 channels are too many for the first Gemm; behind it there are matrices.
    assert no == {"Reshape": 1, "Gemm": 1, "Relu": 2, "Dropout": 2, "Softmax": 1}
