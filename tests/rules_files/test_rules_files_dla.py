"""annotations/dla.yaml: each limit on both sides; what is taken compiles with the codegen `dla`."""

import json
from pathlib import Path

import pytest
from helpers.support import LIGHT, sample_cases
from shipped_rules import plain, qdq, taken, target

from byoc.bundle import open_bundle
from byoc.model import Model
from byoc.pipeline import partition
from byoc.rules import Annotator

FILE = "dla"
X = "float[1,8,12,12] x"
W3 = "float[4,8,3,3] w"
FIXED = "is not fixed"
AS_WIDE = "the padding is as wide as the kernel"
WINDOW = "the padding is as wide as the window"
AXES = "operands of more than 4 axes differ in shape"
BIAS = "C is neither one number nor one for each column"
PAIRS = "B is neither a constant matrix nor one matrix for each of A"
LAST = "it is not over the last axis"
FIVE = "float[1,2,1,2,3] x"
NORMAL = "y = BatchNormalization (x, s, s, s, s)"


def conv(attributes: str) -> str:
    """Return the line of a convolution with some attributes."""
    return f"y = Conv <{attributes}> (x, w)"


def pool(attributes: str, operator: str = "MaxPool") -> str:
    """Return the line of a pooling with some attributes."""
    return f"y = {operator} <{attributes}> (x)"


def mean(attributes: str) -> str:
    """Return the line of an average pooling with some attributes."""
    return pool(attributes, "AveragePool")


CASES = [
    # convolution
    (X, "y = Conv (x, w)", W3, "yes"),
    (X, "y = Conv <group = 2> (x, w)", "float[4,4,3,3] w", "yes"),
    (X, "y = Conv (x, w, b)", f"{W3}, float[4] b", "yes"),
    (f"{X}, {W3}", "y = Conv (x, w)", "", "W must be a constant"),
    (f"{X}, float[4] b", "y = Conv (x, w, b)", W3, "B must be a constant"),
    ("float[2,8,12] x", "y = Conv (x, w)", "float[4,8,3] w", "X has rank 3; supported: 4"),
    ("float[N,8,12,12] x", "y = Conv (x, w)", W3, f"dimension 0 of X {FIXED}"),
    ("float[1,8,N,12] x", "y = Conv (x, w)", W3, f"dimension 2 of X {FIXED}"),
    (X, conv("kernel_shape = [11, 1]"), "float[4,8,11,1] w", "yes"),
    (X, conv("kernel_shape = [1, 12]"), "float[4,8,1,12] w", "kernel_shape[1] is 12, at most 11"),
    (X, conv("strides = [8, 8]"), W3, "yes"),
    (X, conv("strides = [1, 9]"), W3, "strides[1] is 9, at most 8 is supported"),
    (X, conv("dilations = [4, 4]"), W3, "yes"),
    (X, conv("dilations = [5, 1]"), W3, "dilations[0] is 5, at most 4 is supported"),
    (X, conv("dilations = [2, 2], pads = [15, 0, 15, 0]"), "float[4,8,9,1] w", "yes"),
    (
        X,
        conv("dilations = [2, 2], pads = [16, 0, 0, 0]"),
        "float[4,8,9,1] w",
        "pads[0] is 16, at most 15",
    ),
    (X, conv("pads = [2, 2, 2, 2]"), W3, "yes"),
    (X, conv("pads = [3, 2, 2, 2]"), W3, AS_WIDE),
    (X, conv("pads = [2, 2, 2, 3]"), W3, AS_WIDE),
    (X, conv('auto_pad = "SAME_UPPER"'), W3, "auto_pad is SAME_UPPER; supported: NOTSET"),
    # pooling
    (X, pool("kernel_shape = [12, 12]"), "", "yes"),
    ("float[1,2,20,20] x", pool("kernel_shape = [16, 16]"), "", "yes"),
    ("float[1,2,20,20] x", pool("kernel_shape = [1, 17]"), "", "kernel_shape[1] is 17, at most 16"),
    ("float[1,2,20,20] x", mean("kernel_shape = [17, 1]"), "", "kernel_shape[0] is 17, at most 16"),
    (X, pool("kernel_shape = [2, 2], strides = [8, 8]"), "", "yes"),
    (X, pool("kernel_shape = [2, 2], strides = [9, 1]"), "", "strides[0] is 9, at most 8"),
    (X, mean("kernel_shape = [2, 2], strides = [1, 9]"), "", "strides[1] is 9, at most 8"),
    (X, pool("kernel_shape = [2, 2], dilations = [2, 1]"), "", "dilations[0] is 2, at most 1"),
    (X, pool("kernel_shape = [16, 1], pads = [15, 0, 15, 0]"), "", "yes"),
    (X, pool("kernel_shape = [3, 3], pads = [2, 2, 2, 2]"), "", "yes"),
    (X, pool("kernel_shape = [3, 3], pads = [0, 3, 0, 0]"), "", WINDOW),
    (X, mean("kernel_shape = [3, 3], pads = [2, 2, 2, 2], count_include_pad = 1"), "", "yes"),
    (X, mean("kernel_shape = [3, 3], pads = [0, 0, 3, 0]"), "", WINDOW),
    (X, pool("kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"), "", "yes"),
    (X, pool('kernel_shape = [3, 3], auto_pad = "VALID"'), "", "auto_pad is VALID; supported: NOTSET"),
    (X, "y, indices = MaxPool <kernel_shape = [2, 2]> (x)", "", "Indices is given, but must be absent"),
    ("float[1,8,12] x", pool("kernel_shape = [2]"), "", "X has rank 3; supported: 4"),
    ("float[1,8,12] x", mean("kernel_shape = [2]"), "", "X has rank 3; supported: 4"),
    ("float[N,8,12,12] x", pool("kernel_shape = [2, 2]"), "", FIXED),
    ("float[N,8,12,12] x", mean("kernel_shape = [2, 2]"), "", FIXED),
    (X, "y = GlobalAveragePool (x)", "", "yes"),
    ("float[1,8,12] x", "y = GlobalAveragePool (x)", "", "X has rank 3; supported: 4"),
    ("float[1,8,N,N] x", "y = GlobalAveragePool (x)", "", FIXED),
    # fully connected
    ("float[2,8] x", "y = Gemm (x, w)", "float[8,4] w", "yes"),
    ("float[2,8] x", "y = Gemm <transB = 1> (x, w, c)", "float[4,8] w, float[4] c", "yes"),
    ("float[2,8] x", "y = Gemm (x, w, c)", "float[8,4] w, float c", "yes"),
    ("float[2,8] x", "y = Gemm (x, w, c)", "float[8,4] w, float[2,1] c", BIAS),
    ("float[8,2] x", "y = Gemm <transA = 1> (x, w)", "float[8,4] w", "transA is 1; supported: 0"),
    ("float[2,8] x, float[8,4] w", "y = Gemm (x, w)", "", "B must be a constant"),
    ("float[2,8] x, float[4] c", "y = Gemm (x, w, c)", "float[8,4] w", "C must be a constant"),
    ("float[N,8] x", "y = Gemm (x, w)", "float[8,4] w", f"dimension 0 of A {FIXED}"),
    ("float[2,8] x", "y = MatMul (x, w)", "float[8,4] w", "yes"),
    ("float[3,2,8] x", "y = MatMul (x, w)", "float[8,4] w", "yes"),
    ("float[1,3,2,8] x", "y = MatMul (x, w)", "float[8,4] w", "yes"),
    ("float[1,3,2,8,8] x", "y = MatMul (x, w)", "float[8,4] w", "A has rank 5; supported: 2, 3, 4"),
    ("float[3,2,8] x", "y = MatMul (x, w)", "float[3,8,4] w", "yes"),
    ("float[3,2,8] x", "y = MatMul (x, w)", "float[1,8,4] w", PAIRS),
    ("float[2,8] x, float[8,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[3,2,8] x, float[3,8,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[2,3,5,8] x, float[2,3,8,4] z", "y = MatMul (x, z)", "", "yes"),
    ("float[2,3,5,8] x, float[2,1,8,4] z", "y = MatMul (x, z)", "", PAIRS),
    ("float[3,5,8] x, float[8,4] z", "y = MatMul (x, z)", "", PAIRS),
    ("float[N,8] x", "y = MatMul (x, w)", "float[8,4] w", f"dimension 0 of A {FIXED}"),
    # normalization
    (X, NORMAL, "float[8] s", "yes"),
    (f"{X}, float[8] s", NORMAL, "", "scale must be a constant"),
    ("float[2,8] x", NORMAL, "float[8] s", "X has rank 2; supported: 4"),
    ("float[1,8,N,12] x", NORMAL, "float[8] s", FIXED),
    ("float[2,3,4] x", "y = Softmax (x)", "", "yes"),
    ("float[2,3,4] x", "y = Softmax <axis = 2> (x)", "", "yes"),
    ("float[2,3,4] x", "y = Softmax <axis = 1> (x)", "", LAST),
    ("float[N,4] x", "y = Softmax (x)", "", f"dimension 0 of input {FIXED}"),
    ("float[2,3,4] x", "y = LayerNormalization (x, s, s)", "float[4] s", "yes"),
    ("float[2,3,4] x", "y = LayerNormalization <axis = 2> (x, s)", "float[4] s", "yes"),
    ("float[2,3,4] x", "y = LayerNormalization <axis = 1> (x, s)", "float[3,4] s", LAST),
    ("float[2,3,4] x", "y = LayerNormalization (x, s)", "float[1] s", "not one number for each channel"),
    ("float[2,4] x, float[4] s", "y = LayerNormalization (x, s)", "", "Scale must be a constant"),
    (
        "float[2,4] x",
        "y, m = LayerNormalization (x, s)",
        "float[4] s",
        "Mean is given, but must be absent",
    ),
    # sums and products
    ("float[2,4] x", "y = Div (x, k)", "float[4] k = {1,2,3,4}", "yes"),
    ("float[2,4] x, float[4] k", "y = Div (x, k)", "", "yes"),
    ("float[2,4] x, float[4] k", "y = Sub (x, k)", "", "yes"),
    ("float[2,4] x", "y = Exp (x)", "", "yes"),
    ("float[2,4] x", "y = ReduceMean <axes = [-1], keepdims = 1> (x)", "", "yes"),
    ("float[2,4] x", "y = ReduceMean <axes = [1], keepdims = 0> (x)", "", "yes"),
    ("float[2,4] x", "y = ReduceMean <axes = [0]> (x)", "", LAST),
    ("float[2,4] x", "y = ReduceMean <axes = [0, 1]> (x)", "", LAST),
    ("float[2,4] x", "y = Pow (x, k)", "float k = {3}", "yes"),
    ("float[2,4] x", "y = Pow (x, k)", "float k = {4}", "an element of Y is 4"),
    ("float[2,4] x", "y = Pow (x, k)", "float[4] k = {2,2,2,2}", "Y must have exactly one element"),
    ("float[2,4] x", "y, z = Split (x)", "", "yes"),
    ("float[2,4] x, int64[2] k", "y, z = Split (x, k)", "", "split must be a constant"),
    ("float[2,4] x", "y = Gather <axis = 1> (x, k)", "int64 k = {-2}", "yes"),
    ("float[2,4] x", "y = Gather (x, k)", "int64[2] k = {0, 1}", "exactly one element"),
    ("float[2,4] x", "y = Cast <to = 1> (x)", "", "yes"),
    ("float[2,4] x", "y = Cast <to = 7> (x)", "", "to is 7; supported: 1"),
    (FIVE, "y = Div (x, k)", "float[3] k = {1,2,3}", AXES),
    (f"{X}, float[1,8,1,1] z", "y = Add (x, z)", "", "yes"),
    (X, "y = Mul (x, k)", "float[12] k = {1,2,3,4,5,6,7,8,9,10,11,12}", "yes"),
    (f"{FIVE}, float[1,2,1,2,3] z", "y = Mul (x, z)", "", "yes"),
    (f"{FIVE}, float[3] z", "y = Mul (x, z)", "", AXES),
    (f"{FIVE}, float[3] z", "y = Add (x, z)", "", AXES),
    (f"{X}, {X.replace('x', 'z')}", "y = Sum (x, z, x)", "", "yes"),
    (f"{FIVE}, float[3] z", "y = Sum (x, z)", "", AXES),
    ("float[N,4] x", "y = Add (x, x)", "", f"dimension 0 of A {FIXED}"),
    ("float[N,4] x", "y = Sum (x, x)", "", FIXED),
    # clamps and functions
    ("float[2,3,4,5,6] x", "y = Relu (x)", "", "yes"),
    ("float[2,4] x", "y = Sigmoid (x)", "", "yes"),
    ("float[2,4] x", "y = HardSigmoid (x)", "", "yes"),
    ("float[2,4] x", "y = HardSwish (x)", "", "yes"),
    ("float[2,4] x", "y = LeakyRelu <alpha = 0.2> (x)", "", "yes"),
    ("float[2,4] x", "y = Elu (x)", "", "yes"),
    ("float[2,4] x", "y = Tanh (x)", "", "yes"),
    ("float[2,4] x", "y = Erf (x)", "", "yes"),
    ("float[2,4] x", "y = Clip (x, low, high)", "float low, float high = {6}", "yes"),
    ("float[2,4] x, float low", "y = Clip (x, low)", "", "min must be a constant"),
    ("float[2,4] x, float high", "y = Clip (x, , high)", "", "max must be a constant"),
    *(
        ("float[N,4] x", f"y = {operator} (x)", "", f"dimension 0 of {name} {FIXED}")
        for name, operators in {
            "X": ("Relu", "Sigmoid", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu"),
            "input": ("Clip", "Tanh", "Erf", "Flatten"),
            "data": ("Dropout", "Transpose"),
        }.items()
        for operator in operators
    ),
    # joining, and other shapes for the same numbers
    ("float[2,4,3,3] x", "y = Concat <axis = 1> (x, x)", "", "yes"),
    (FIVE, "y = Concat <axis = 1> (x, x)", "", "concat_result has rank 5; supported: 1, 2, 3, 4"),
    ("float[N,4] x", "y = Concat <axis = 1> (x, x)", "", FIXED),
    ("float[2,6] x", "y = Reshape (x, k)", "int64[3] k = {2, 2, 3}", "yes"),
    ("float[2,6] x, int64[3] k", "y = Reshape (x, k)", "", "shape must be a constant"),
    ("float[N,6] x", "y = Reshape (x, k)", "int64[1] k = {-1}", f"dimension 0 of data {FIXED}"),
    ("float[2,4,3,3] x", "y = Flatten (x)", "", "yes"),
    ("float[2,6] x", "y = Transpose (x)", "", "yes"),
    (X, "y = Transpose <perm = [0, 2, 3, 1]> (x)", "", "yes"),
    (FIVE, "y = Transpose (x)", "", "yes"),
    ("float[2,1,6] x", "y = Squeeze (x, k)", "int64[1] k = {1}", "yes"),
    ("float[2,6] x", "y = Unsqueeze (x, k)", "int64[2] k = {0, -1}", "yes"),
    ("float[2,6] x", "y = Dropout (x)", "", "yes"),
    ("float[2,6] x", "y = Dropout (x, , t)", "bool t = {1}", "an element of training_mode is True"),
    ("float[2,6] x", "y, mask = Dropout (x)", "", "mask is given, but must be absent"),
    # left out
    ("float16[2,4] x", "y = Relu (x)", "", "X is float16; supported: float32"),
    ("float[2,4] x", "y = Ceil (x)", "", "Ceil is not among the operators of dla"),
    ("float[2,4] x", "y = LogSoftmax (x)", "", "LogSoftmax is not among the operators of dla"),
]
Q = {"x": "1,8,12,12"}
QW = {"w": "int8[4,8,3,3]"}
QUANTIZED = [
    (Q, "y = Conv (x, w)", QW, "", "yes"),
    (Q, "y = Conv (x, w, b)", {"w": "int8[4,8,3,3], float[4]", "b": "int32[4], float[4]"}, "", "yes"),
    (Q, "y = Conv (x, w)", {"w": "!int8[4,8,3,3]"}, "", "the zero point of W must be 0"),
    (Q, "y = Conv (x, w)", {"w": "uint8[4,8,3,3]"}, "", "W is uint8 outside; supported: int8"),
    (Q, "y = Conv (x, w)", {}, W3, "W is not quantized"),
    (Q, "y = Conv (x, w, b)", {**QW, "b": "int8[4]"}, "", "B is int8 outside; supported: int32"),
    (Q, conv("pads = [3, 2, 2, 2]"), QW, "", AS_WIDE),
    (Q, conv("strides = [1, 9]"), QW, "", "strides[1] is 9, at most 8 is supported"),
    ({"x": "N,8,12,12"}, "y = Conv (x, w)", QW, "", f"dimension 0 of X {FIXED}"),
    (Q, pool("kernel_shape = [3, 3], strides = [2, 2]"), {}, "", "yes"),
    (Q, pool("kernel_shape = [1, 17]"), {}, "", "kernel_shape[1] is 17, at most 16"),
    (Q, mean("kernel_shape = [3, 3], strides = [2, 2]"), {}, "", "yes"),
    (Q, mean("kernel_shape = [3, 3], pads = [0, 0, 3, 0]"), {}, "", WINDOW),
    (Q, "y = GlobalAveragePool (x)", {}, "", "yes"),
    ({"x": "1,8,N,N"}, "y = GlobalAveragePool (x)", {}, "", FIXED),
    ({"x": "2,8"}, "y = Gemm (x, w, c)", {"w": "int8[8,4]", "c": "int32[4]"}, "", "yes"),
    ({"x": "2,8"}, "y = Gemm (x, w, c)", {"w": "int8[8,4]", "c": "int32[2,1]"}, "", BIAS),
    ({"x": "2,8"}, "y = Gemm (x, w)", {"w": "!int8[8,4]"}, "", "the zero point of B must be 0"),
    ({"x": "2,3,8"}, "y = MatMul (x, w)", {"w": "int8[8,4]"}, "", "yes"),
    ({"x": "1,2,3,8"}, "y = MatMul (x, w)", {"w": "int8[8,4]"}, "", "yes"),
    ({"x": "2,3,8", "z": "2,8,5"}, "y = MatMul (x, z)", {}, "", "yes"),
    ({"x": "2,3,8", "z": "1,8,5"}, "y = MatMul (x, z)", {}, "", PAIRS),
    ({"x": "2,3,8"}, "y = MatMul (x, w)", {"w": "!int8[8,4]"}, "", "the zero point of B must be 0"),
    ({"x": "2,3,8"}, "y = MatMul (x, w)", {"w": "uint8[8,4]"}, "", PAIRS),
    ({**Q, "z": "1,8,1,1"}, "y = Add (x, z)", {}, "", "yes"),
    ({**Q, "z": "1,8,12,12"}, "y = Mul (x, z)", {}, "", "yes"),
    ({"x": "1,2,1,2,3", "z": "3"}, "y = Add (x, z)", {}, "", AXES),
    ({**Q, "z": "1,8,12,12"}, "y = Sum (x, z)", {}, "", "yes"),
    ({**Q, "z": "1,8,12,12"}, "y = Sum (x, z, z)", {}, "", "a quantized Sum is of two operands"),
    (Q, "y = Relu (x)", {}, "", "yes"),
    (Q, "y = Sigmoid (x)", {}, "", "yes"),
    (Q, "y = HardSigmoid (x)", {}, "", "yes"),
    (Q, "y = HardSwish (x)", {}, "", "yes"),
    (Q, "y = LeakyRelu (x)", {}, "", "yes"),
    (Q, "y = Elu (x)", {}, "", "yes"),
    (Q, "y = Tanh (x)", {}, "", "yes"),
    (Q, "y = Erf (x)", {}, "", "yes"),
    (Q, "y = Transpose <perm = [0, 2, 3, 1]> (x)", {}, "", "yes"),
    (Q, "y = Clip (x, low, high)", {}, "float low, float high = {6}", "yes"),
    ({"x": "N,8"}, "y = Tanh (x)", {}, "", FIXED),
    ({**Q, "z": "1,4,12,12"}, "y = Concat <axis = 1> (x, z)", {}, "", "yes"),
    ({"x": "1,2,1,2,3"}, "y = Concat <axis = 1> (x, x)", {}, "", "concat_result has rank 5"),
    (Q, "y = Reshape (x, k)", {}, "int64[2] k = {8, 144}", "yes"),
    (Q, "y = Flatten (x)", {}, "", "yes"),
    (Q, "y = Dropout (x)", {}, "", "yes"),
    (Q, "y = LogSoftmax (x)", {}, "", "LogSoftmax is not among the operators of dla"),
]


def said(model: Model) -> str:
    """Return `yes`, or the objections of the nearest rule that is for such a node."""
    (number,) = [
        number
        for number, node in enumerate(model.index.nodes)
        if node.op_type not in {"DequantizeLinear", "QuantizeLinear"}
    ]
    attempts = [a for a in Annotator(target(FILE), model.index).list_attempts(number) if a.fits]
    return min(("; ".join(each.text for each in a.objections) for a in attempts), key=bool) or "yes"


def compiles(model: Model, folder: Path) -> None:
    """Assert that all of a model becomes one region, which is compiled and computes the same."""
    options = {"strategy": "all-supported", "strict": True, "no_passes": ["all"]}  # Dropout stays
    result = partition(model.proto, FILE, output=folder / "b", what_if=False, **options)
    assert len(result.plan.regions) == 1
    assert not result.plan.host_units
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize(("inputs", "line", "constants", "expected"), CASES)
def test_a_limit(inputs: str, line: str, constants: str, expected: str, tmp_path: Path) -> None:
    model = plain(inputs, line, constants)
    if expected == "yes":
        assert said(model) == "yes"
        compiles(model, tmp_path)
    else:
        assert expected in said(model)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shapes", "line", "weights", "constants", "expected"), QUANTIZED)
def test_a_limit_in_integers(  # noqa: PLR0917 - a case's parts
    shapes: dict[str, str],
    line: str,
    weights: dict[str, str],
    constants: str,
    expected: str,
    dtype: str,
    tmp_path: Path,
) -> None:
    model = qdq(shapes, line, weights, constants, dtype=dtype)
    if expected == "yes":
        assert said(model) == "yes"
        compiles(model, tmp_path)
    else:
        assert expected in said(model)


PRODUCT = ({"x": "2,3,8", "z": "2,8,5"}, "y = MatMul (x, z)", {}, "", "A is int16 outside")
SIXTEEN = [PRODUCT if case[1] == PRODUCT[1] else case for case in QUANTIZED if case[-1] == "yes"]


@pytest.mark.parametrize(("shapes", "line", "weights", "constants", "expected"), SIXTEEN)
def test_integers_of_16_bits(  # noqa: PLR0917 - a case's parts
    shapes: dict[str, str],
    line: str,
    weights: dict[str, str],
    constants: str,
    expected: str,
    tmp_path: Path,
) -> None:
    model = qdq(shapes, line, weights, constants, dtype="int16", opset=21)
    assert expected in said(model)
    if expected == "yes":
        compiles(model, tmp_path)


@pytest.mark.parametrize(
    ("opset", "line", "constants"),
    [
        (13, NORMAL, "float[8] s"),
        (11, "y = Dropout (x)", ""),
        (6, "y = Clip <min = 0.0, max = 6.0> (x)", ""),
        (12, "y = Clip (x)", ""),
    ],
)
def test_older_operators(opset: int, line: str, constants: str, tmp_path: Path) -> None:
    model = plain(X, line, constants, opset)
    assert said(model) == "yes"
    compiles(model, tmp_path)


def test_a_normalization_that_trains() -> None:
    line = "y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s)"
    assert "training_mode is 1; supported: 0" in said(plain(X, line, "float[8] s"))


@pytest.mark.parametrize(
    ("name", "line", "constants", "layer"),
    [
        ("bn_relu", "n = BatchNormalization (x, s, s, s, s)", "float[8] s", "CONV"),
        ("add_relu", "n = Add (x, x)", "", "ELTWISE"),
        ("add_relu_sum", "n = Sum (x, x)", "", "ELTWISE"),
    ],
)
def test_a_composite_is_one_layer(
    name: str, line: str, constants: str, layer: str, tmp_path: Path
) -> None:
    model = plain(X, f"{line}\ny = Relu (n)", constants).proto
    partition(model, FILE, strategy="all-supported", output=tmp_path / "b", verify=False)
    ((_, region, artifact),) = open_bundle(tmp_path / "b").regions()
    assert region.composites == (name,)
    # Images that lie in ONNX's order of axes are moved, before the layer and behind it.
    layers = json.loads(artifact.files["interface.json"])["layers"]
    assert [each["operation"] for each in layers if each["operation"] != "MOVE"] == [layer]


LEFT = {
    "bvlc_alexnet": {"LRN": 2},
    "inception_v1": {"LRN": 2},
    "squeezenet": {"Softmax": 1},  # of an image
    "zfnet512": {"LRN": 2},
}


SMALL = [name for name in LIGHT if name not in {"vgg19", "zfnet512"}]
"""The light models whose weights do not take longer than all the others together."""


@pytest.mark.parametrize("name", sample_cases(LIGHT, *SMALL))
def test_what_is_left_of_a_light_model(name: str) -> None:
    assert taken(FILE, name)[1] == LEFT.get(name, {})
