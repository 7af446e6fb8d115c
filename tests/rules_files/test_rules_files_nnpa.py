"""annotations/nnpa.yaml: each documented limit holds on both sides; the zoo is taken plausibly."""

import pytest
from helpers.support import LIGHT, sample_cases
from shipped_rules import firsts, plain, stretched, taken, verdict

FILE = "nnpa"
X = "float[1,8,20,20] x"
W3 = "float[4,8,3,3] w"
PADDED = "the padding must be what VALID or SAME_UPPER would be"
NOT_SAME = "supported: none"
MEAN = "only a mean over axes 2 and 3 is supported"
DIMS = "dimensions must be 2 by 2, 3 by 2, or 3 by 3 of the same batch"
LSTM = "float[1,16,3] w, float[1,16,4] r"
GRU = "float[1,12,3] w, float[1,12,4] r"

CASES = [
    # dimensions, elements, rank, dtype
    ("float[32768] x", "y = Relu (x)", "", "yes"),
    ("float[2,32769] x", "y = Relu (x)", "", "dimension 1 of X is 32769, at most 32768 is supported"),
    ("float[2,32768,32768] x", "y = Relu (x)", "", "yes"),
    ("float[3,32768,32768] x", "y = Relu (x)", "", "at most 2147483648 is supported"),
    ("float[1,2,3,4,5] x", "y = Relu (x)", "", "X has rank 5; supported: 1, 2, 3, 4"),
    ("float x", "y = Sigmoid (x)", "", "X has rank 0; supported: 1, 2, 3, 4"),
    ("float16[2,3] x", "y = Tanh (x)", "", "yes"),
    ("double[2,3] x", "y = Tanh (x)", "", "input is float64; supported: float16, float32"),
    ("float[2,3] x", "y = Softplus (x)", "", "yes"),
    ("float[2,3] x", "y = LeakyRelu (x)", "", "LeakyRelu is not among the operators of nnpa"),
    ("float[2,3] x", "y = Sqrt (x)", "", "Sqrt is not among the operators of nnpa"),
    ("float[1,2,3,4] x", "y = Exp (x)", "", "yes"),
    ("float[2,3,4] x", "y = Log (x)", "", "input has rank 3; supported: 4"),
    # element-wise
    ("float[2,3] x, float[2,3] z", "y = Add (x, z)", "", "yes"),
    ("float[2,3] x, float[1,3] z", "y = Add (x, z)", "", NOT_SAME),
    ("float[2,3] x, float[2,1] z", "y = Div (x, z)", "", NOT_SAME),
    ("float[2,3] x", "y = Mul (x, w)", "float[3] w", "yes"),
    ("float[2,3] x, float[2,3] z", "y = Sub (x, z)", "", "yes"),
    ("float[2,3] x", "y = Sub (w, x)", "float[2,1] w", "yes"),
    ("float[2,1] x", "y = Sub (w, x)", "float[3] w", NOT_SAME),
    ("float[2,3] x, float[2,3] z", "y = Sum (x, z)", "", "yes"),
    ("float[2,3] x, float[3] z", "y = Sum (x, z)", "", NOT_SAME),
    ("float[2,3] x", "y = Sum (x)", "", "a sum of one tensor is not supported"),
    ("float[2,3] x, float[2,3] z", "y = Max (x, z)", "", "yes"),
    ("float[2,3] x, float[2,3] z", "y = Min (x, z, x)", "", "exactly two inputs are supported"),
    ("float[2,3] x, float[3] z", "y = Max (x, z)", "", NOT_SAME),
    ("float[2,3] x", "y = Pow (x, n)", "float n = {64}", "yes"),
    (
        "float[2,3] x",
        "y = Pow (x, n)",
        "float n = {65}",
        "an element of Y is 65.0, at most 64 is supported",
    ),
    ("float[2,3] x", "y = Pow (x, n)", "float n = {2.5}", "the exponent must be a whole number"),
    ("float[2,3] x", "y = Pow (x, n)", "float[3] n = {2, 2, 3}", "Y must have exactly one element"),
    ("float[2,3] x, float n", "y = Pow (x, n)", "", "Y must be a constant"),
    ("float[2,3] x, float[2,1] z", "y = Sub (z, x)", "", NOT_SAME),
    ("float[1,2,3,4,5] x", "y = Add (x, x)", "", "A has rank 5; supported: 1, 2, 3, 4"),
    # softmax
    ("float[2,3] x", "y = Softmax <axis = 1> (x)", "", "yes"),
    ("float[2,3,4] x", "y = LogSoftmax <axis = -1> (x)", "", "yes"),
    ("float[2,3,4] x", "y = Softmax <axis = 1> (x)", "", "the axis must be the last one"),
    ("float[1,2,3,4] x", "y = Softmax <axis = 3> (x)", "", "input has rank 4; supported: 2, 3"),
    # matrices
    ("float[2,3] x, float[3,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[5,2,3] x, float[5,3,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[5,2,3] x, float[3,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[5,2,3] x, float[1,3,4] z", "y = MatMul (x, z)", "", DIMS),
    ("float[2,3] x, float[5,3,4] z", "y = MatMul (x, z)", "", DIMS),
    ("float[1,5,2,3] x, float[1,5,3,4] z", "y = MatMul (x, z)", "", DIMS),
    ("float[2,3] x, float[3,4] z, float[4] c", "y = Gemm (x, z, c)", "", "yes"),
    ("float[2,3] x, float[3,4] z", "y = Gemm (x, z)", "", "yes"),
    ("float16[2,3] x, float16[3,4] z", "y = Gemm (x, z)", "", "A is float16; supported: float32"),
    ("float[2,3] x, float[3,4] z", "y = Gemm <alpha = 0.5> (x, z)", "", "alpha is 0.5; supported: 1"),
    ("float[2,3] x, float[3,4] z", "y = Gemm <beta = 2.0> (x, z)", "", "beta is 2.0; supported: 1"),
    (
        "float[2,3] x, float[3,4] z, float[1] c",
        "y = Gemm (x, z, c)",
        "",
        "must be as long as the result is wide",
    ),
    ("float[2,3] x, float[3,4] z, float c", "y = Gemm (x, z, c)", "", "C has rank 0; supported: 1, 2"),
    # convolution
    (X, "y = Conv (x, w)", W3, "yes"),
    (X, "y = Conv <group = 2> (x, w)", "float[4,4,3,3] w", "group is 2; supported: 1"),
    (X, "y = Conv <dilations = [2, 1]> (x, w)", W3, "dilations[0] is 2; supported: 1"),
    (X, "y = Conv <strides = [13, 13]> (x, w)", W3, "yes"),
    (X, "y = Conv <strides = [14, 1]> (x, w)", W3, "strides[0] is 14, at most 13 is supported"),
    ("float[1,8,70,20] x", "y = Conv (x, w)", "float[4,8,64,3] w", "yes"),
    ("float[1,8,70,20] x", "y = Conv (x, w)", "float[4,8,65,3] w", "kernel_shape[0] is 65, at most 64"),
    (X, "y = Conv <pads = [1, 1, 1, 1]> (x, w)", W3, "yes"),
    (X, "y = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (x, w)", W3, "yes"),
    (X, "y = Conv <strides = [2, 2], pads = [1, 1, 0, 0]> (x, w)", W3, PADDED),
    (X, "y = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)", W3, PADDED),
    (X, "y = Conv <pads = [1, 0, 1, 0]> (x, w)", W3, PADDED),
    (X, 'y = Conv <auto_pad = "SAME_UPPER"> (x, w)', W3, "yes"),
    (X, 'y = Conv <auto_pad = "SAME_LOWER"> (x, w)', W3, "auto_pad is SAME_LOWER"),
    ("float[1,8,9] x", "y = Conv (x, w)", "float[4,8,3] w", "X has rank 3; supported: 4"),
    ("float[1,8,H,20] x", "y = Conv (x, w)", W3, "dimension 2 of X is not known"),
    (X, "y = ConvTranspose (x, w)", "float[8,4,3,3] w", "yes"),
    (X, "y = ConvTranspose <dilations = [2, 2]> (x, w)", "float[8,4,3,3] w", "dilations[0] is 2"),
    (X, "y = ConvTranspose <group = 2> (x, w)", "float[8,4,3,3] w", "group is 2; supported: 1"),
    (X, "y = ConvTranspose (x, w)", "float[8,4,65,3] w", "kernel_shape[0] is 65, at most 64"),
    ("float[1,8,9] x", "y = ConvTranspose (x, w)", "float[8,4,3] w", "X has rank 3; supported: 4"),
    # pools
    ("float[1,2,70,70] x", "y = MaxPool <kernel_shape = [64, 64]> (x)", "", "yes"),
    ("float[1,2,70,70] x", "y = MaxPool <kernel_shape = [64, 65]> (x)", "", "kernel_shape[1] is 65"),
    ("float[1,2,1024,9] x", "y = AveragePool <kernel_shape = [2, 2]> (x)", "", "yes"),
    (
        "float[1,2,1025,9] x",
        "y = AveragePool <kernel_shape = [2, 2]> (x)",
        "",
        "dimension 2 of X is 1025",
    ),
    (X, "y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)", "", "ceil_mode is 1; supported: 0"),
    (X, "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", "", "dilations[0] is 2"),
    (X, "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)", "", "yes"),
    (X, "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)", "", PADDED),
    (X, "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 0, 0]> (x)", "", PADDED),
    (
        X,
        "y = AveragePool <kernel_shape = [3, 3], count_include_pad = 1> (x)",
        "",
        "count_include_pad is 1",
    ),
    (
        X,
        "y = AveragePool <kernel_shape = [3, 3], ceil_mode = 1> (x)",
        "",
        "ceil_mode is 1; supported: 0",
    ),
    (X, "y, indices = MaxPool <kernel_shape = [2, 2]> (x)", "", "Indices is given, but must be absent"),
    (
        X,
        'y = MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (x)',
        "",
        "auto_pad is SAME_LOWER",
    ),
    (
        X,
        'y = AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER"> (x)',
        "",
        "auto_pad is SAME_LOWER",
    ),
    ("float[1,2,70,70] x", "y = AveragePool <kernel_shape = [65, 2]> (x)", "", "kernel_shape[0] is 65"),
    ("float[1,2,9] x", "y = MaxPool <kernel_shape = [2]> (x)", "", "X has rank 3; supported: 4"),
    ("float[1,2,1024,1024] x", "y = GlobalAveragePool (x)", "", "yes"),
    (
        "float[1,2,1024,1025] x",
        "y = GlobalAveragePool (x)",
        "",
        "dimension 3 of X is 1025, at most 1024",
    ),
    ("float[1,2,H,9] x", "y = GlobalAveragePool (x)", "", "dimension 2 of X is not known"),
    (X, "y = ReduceMean <axes = [2, 3]> (x)", "", "yes"),
    (X, "y = ReduceMean <axes = [1, 2]> (x)", "", MEAN),
    (X, "y = ReduceMean (x)", "", "axes must be given"),
    (X, "y = ReduceMean <axes = [2, 3], keepdims = 0> (x)", "", "keepdims is 0; supported: 1"),
    ("float[1,2,9,1025] x", "y = ReduceMean <axes = [2, 3]> (x)", "", "dimension 3 of data is 1025"),
    (
        X,
        "y = BatchNormalization (x, s, b, m, v)",
        "float[8] s, float[8] b, float[8] m, float[8] v",
        "yes",
    ),
    (
        "float[1,8] x",
        "y = BatchNormalization (x, s, b, m, v)",
        "float[8] s, float[8] b, float[8] m, float[8] v",
        "X has rank 2; supported: 4",
    ),
    (
        X,
        "y, p, q = BatchNormalization <training_mode = 1> (x, s, b, m, v)",
        "float[8] s, float[8] b, float[8] m, float[8] v",
        "training_mode is 1; supported: 0",
    ),
    # recurrent
    ("float[5,1,3] x", "y = LSTM <hidden_size = 4> (x, w, r)", LSTM, "yes"),
    (
        "float[5,1,3] x",
        'y = LSTM <hidden_size = 4, activations = ["Sigmoid", "Tanh", "Tanh"]> (x, w, r)',
        LSTM,
        "yes",
    ),
    (
        "float[5,1,3] x",
        'y = LSTM <hidden_size = 4, activations = ["Sigmoid", "Tanh", "Relu"]> (x, w, r)',
        LSTM,
        "the activations must be Sigmoid, Tanh, Tanh",
    ),
    ("float[5,1,3] x", "y = LSTM <hidden_size = 4, clip = 1.0> (x, w, r)", LSTM, "clip must be absent"),
    (
        "float[1,5,3] x",
        "y = LSTM <hidden_size = 4, layout = 1> (x, w, r)",
        LSTM,
        "layout is 1; supported: 0",
    ),
    (
        "float[5,1,3] x",
        "y = LSTM <hidden_size = 4, input_forget = 1> (x, w, r)",
        LSTM,
        "input_forget is 1",
    ),
    (
        "float[5,1,3] x",
        "y = LSTM <hidden_size = 4, activation_alpha = [1.0]> (x, w, r)",
        LSTM,
        "activation_alpha must be absent",
    ),
    (
        "float[5,1,3] x",
        "y = LSTM <hidden_size = 4, activation_beta = [1.0]> (x, w, r)",
        LSTM,
        "activation_beta must be absent",
    ),
    (
        "float[5,1,3] x, int32[1] n",
        "y = LSTM <hidden_size = 4> (x, w, r, , n)",
        LSTM,
        "sequence_lens is given, but must be absent",
    ),
    (
        "float[5,1,3] x, float[1,12] p",
        "y = LSTM <hidden_size = 4> (x, w, r, , , , , p)",
        LSTM,
        "P is given, but must be absent",
    ),
    (
        "float[5,1,3] x, float[1,N,3] w, float[1,16,4] r",
        "y = LSTM <hidden_size = 4> (x, w, r)",
        "",
        "dimension 1 of W is not fixed",
    ),
    (
        "float[5,1,3] x, float[1,32768,3] w, float[1,32768,8192] r",
        "y = LSTM <hidden_size = 8192> (x, w, r)",
        "",
        "yes",
    ),
    (
        "float[5,1,3] x, float[1,32772,3] w, float[1,32772,8193] r",
        "y = LSTM <hidden_size = 8193> (x, w, r)",
        "",
        "dimension 2 of R is 8193, at most 8192",
    ),
    ("float[5,1,3] x", "y = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r)", GRU, "yes"),
    (
        "float[5,1,3] x",
        "y = GRU <hidden_size = 4> (x, w, r)",
        GRU,
        "linear_before_reset is 0; supported: 1",
    ),
    (
        "float[5,1,3] x, float[1,32640,3] w, float[1,32640,10880] r",
        "y = GRU <hidden_size = 10880, linear_before_reset = 1> (x, w, r)",
        "",
        "yes",
    ),
    (
        "float[5,1,3] x, float[1,32643,3] w, float[1,32643,10881] r",
        "y = GRU <hidden_size = 10881, linear_before_reset = 1> (x, w, r)",
        "",
        "dimension 2 of R is 10881, at most 10880",
    ),
    (
        "float[5,1,3] x, int32[1] n",
        "y = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, , n)",
        GRU,
        "yes",
    ),
    (
        "float[5,1,3] x, int32[1] n",
        'y = GRU <hidden_size = 4, linear_before_reset = 1, direction = "bidirectional"> (x, w, r, , n)',
        "float[2,12,3] w, float[2,12,4] r",
        "a bidirectional GRU must not have sequence_lens",
    ),
    (
        "float[5,1,3] x",
        "y = GRU <hidden_size = 4, linear_before_reset = 1, clip = 1.0> (x, w, r)",
        GRU,
        "clip must be absent",
    ),
    (
        "float[5,1,3] x",
        'y = GRU <hidden_size = 4, linear_before_reset = 1, activations = ["Tanh", "Tanh"]> (x, w, r)',
        GRU,
        "the activations must be Sigmoid, Tanh, Tanh",
    ),
    (
        "float[5,1,3] x",
        "y = GRU <hidden_size = 4, linear_before_reset = 1, activation_alpha = [1.0]> (x, w, r)",
        GRU,
        "activation_alpha must be absent",
    ),
    (
        "float[5,1,3] x",
        "y = GRU <hidden_size = 4, linear_before_reset = 1, activation_beta = [1.0]> (x, w, r)",
        GRU,
        "activation_beta must be absent",
    ),
    (
        "float[1,5,3] x",
        "y = GRU <hidden_size = 4, linear_before_reset = 1, layout = 1> (x, w, r)",
        GRU,
        "layout is 1; supported: 0",
    ),
    (
        "float[5,1,3] x, float[1,M] b",
        "y = LSTM <hidden_size = 4> (x, w, r, b)",
        LSTM,
        "dimension 1 of B is not fixed",
    ),
    (
        "float[5,1,3] x, float[1,B,4] h",
        "y = LSTM <hidden_size = 4> (x, w, r, , , h)",
        LSTM,
        "dimension 1 of initial_h is not fixed",
    ),
    (
        "float[5,1,3] x, float[1,B,4] c",
        "y = LSTM <hidden_size = 4> (x, w, r, , , , c)",
        LSTM,
        "dimension 1 of initial_c is not fixed",
    ),
    (
        "float[5,1,3] x, float[1,B,4] h",
        "y = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, , , h)",
        GRU,
        "dimension 1 of initial_h is not fixed",
    ),
    # left out
    (X, "y = Concat <axis = 1> (x)", "", "Concat is not among the operators of nnpa"),
    (X, "y = Gelu (x)", "", "Gelu is not among the operators of nnpa"),
]


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), CASES)
def test_a_documented_limit(inputs: str, line: str, constants: str, expected: str) -> None:
    told = verdict(FILE, plain(inputs, line, constants, 20 if "Gelu" in line else 17))
    assert (told == expected) if expected == "yes" else (expected in told), told


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), firsts(CASES))
def test_every_operator_is_held_to_the_general_limits(
    inputs: str, line: str, constants: str, expected: str
) -> None:
    del expected
    told = verdict(FILE, plain(stretched(inputs, 32769), line, constants))
    assert "is 32769, at most 32768 is supported" in told


MEANS = [
    (X, "y = ReduceMean (x, a)", "int64[2] a = {2, 3}", "yes"),
    (X, "y = ReduceMean (x, a)", "int64[2] a = {1, 2}", MEAN),
    (X, "y = ReduceMean <keepdims = 0> (x, a)", "int64[2] a = {2, 3}", "keepdims is 0; supported: 1"),
    (X, "y = ReduceMean (x)", "", "axes is absent"),
    (f"{X}, int64[2] a", "y = ReduceMean (x, a)", "", "axes must be a constant"),
]


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), MEANS)
def test_a_mean_whose_axes_are_an_input(inputs: str, line: str, constants: str, expected: str) -> None:
    told = verdict(FILE, plain(inputs, line, constants, 18))
    assert (told == expected) if expected == "yes" else (expected in told), told


SHARES = {
    "bvlc_alexnet": (0.6, 0.75),
    "densenet121": (0.6, 0.75),
    "inception_v1": (0.8, 0.95),
    "inception_v2": (0.6, 0.75),
    "resnet50": (0.9, 1.0),
    "shufflenet": (0.4, 0.55),
    "squeezenet": (0.8, 0.9),
    "vgg19": (0.9, 1.0),
    "zfnet512": (0.8, 0.9),
}


@pytest.mark.parametrize("name", sample_cases(LIGHT, "inception_v1", "shufflenet", "squeezenet"))
def test_a_light_model_is_taken_for_the_most_part(name: str) -> None:
    yes, no = taken(FILE, name)
    least, most = SHARES[name]
    assert least < yes.total() / (yes.total() + no.total()) < most


def test_resnet_and_squeezenet_exactly() -> None:
    yes, no = taken(FILE, "resnet50")
    assert yes == {
        **{"Conv": 49, "BatchNormalization": 53, "Relu": 49, "Sum": 16},
        **{"AveragePool": 1, "Gemm": 1, "Softmax": 1},
    }
    # Its convolutions of stride 2 pad evenly, as does the pool: SAME_UPPER pads the far side.
    assert no == {"Conv": 4, "MaxPool": 1, "Reshape": 1}
    yes, no = taken(FILE, "squeezenet")
    assert yes == {"Conv": 26, "Relu": 26, "MaxPool": 3, "GlobalAveragePool": 1}
    assert no == {"Concat": 8, "Dropout": 1, "Softmax": 1}  # the softmax is of four dimensions
