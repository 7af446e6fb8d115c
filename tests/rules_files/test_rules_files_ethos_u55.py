"""The rule files of Ethos-U: a limit of each kind holds, in QDQ form and only there."""

import pytest
from helpers.support import LIGHT, sample_cases
from shipped_rules import mark, plain, qdq, taken, target, verdict, zoo

from byoc.patterns import group_units
from byoc.rules import annotate_graph

FILE = "ethos-u55"
X = {"x": "1,8,20,20"}
W3 = {"w": "int8[4,8,3,3]"}
DEEP = {"w": "int8[8,1,3,3]"}
STEPS = "strides above 3 must come without dilation"

CASES = [
    (X, "y = Relu (x)", {}, "", "yes"),
    ({"x": "2,8,20,20"}, "y = Relu (x)", {}, "", "yes"),
    ({"x": "1,N"}, "y = Relu (x)", {}, "", "(--dim N=SIZE)"),
    (X, "y = Conv (x, w)", W3, "", "yes"),
    (X, "y = Conv (x, w)", {}, "float[4,8,3,3] w", "W is not quantized"),
    ({**X, "w": "4,8,3,3"}, "y = Conv (x, w)", {}, "", "W must be a constant"),
    (X, "y = Conv (x, w)", {"w": "!int8[4,8,3,3]"}, "", "the zero point of W must be 0"),
    (X, "y = Conv <strides = [4, 4]> (x, w)", W3, "", "yes"),
    (X, "y = Conv <strides = [4, 4], dilations = [2, 2]> (x, w)", W3, "", STEPS),
    (X, "y = Conv <group = 8> (x, w)", DEEP, "", "yes"),
    (X, "y = Conv <group = 8, strides = [1, 4]> (x, w)", DEEP, "", "depthwise"),
    (X, "y = ConvTranspose <strides = [3, 3]> (x, w)", {"w": "int8[8,4,3,3]"}, "", "1x1 or 2x2"),
    (X, "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", {}, "", "dilations[0] is 2"),
    ({"x": "1,3,257,256"}, "y = GlobalAveragePool (x)", {}, "", "at most 65536 elements"),
    ({"x": "8,2"}, "y = Gemm <transA = 1> (x, w)", {"w": "int8[8,4]"}, "", "transA is 1"),
    ({**X, "z": "1,8,1,1"}, "y = Mul (x, z)", {}, "", "yes"),
    (X, "y = Acosh (x)", {}, "", "Acosh is not among the operators of ethos-u55"),
    ({"x": "1,32769"}, "y = Softmax <axis = 1> (x)", {}, "", "at most 32768 elements"),
]


@pytest.mark.parametrize(("shapes", "line", "weights", "constants", "expected"), CASES)
def test_a_documented_limit(
    shapes: dict[str, str], line: str, weights: dict[str, str], constants: str, expected: str
) -> None:
    told = verdict(FILE, qdq(shapes, line, weights, constants))
    assert (told == expected) if expected == "yes" else (expected in told), told


@pytest.mark.parametrize(
    ("line", "weights", "refused"),
    [
        ("y = Conv <strides = [4, 4], dilations = [2, 2]> (x, w)", W3, STEPS),
        ("y = Conv <group = 8, strides = [1, 4]> (x, w)", DEEP, "depthwise"),
        ("y = ConvTranspose <strides = [3, 3]> (x, w)", {"w": "int8[8,4,3,3]"}, "1x1 or 2x2"),
        ("y = AveragePool <kernel_shape = [9, 9], strides = [4, 4]> (x)", {}, "at most 3"),
    ],
)
def test_any_stride_is_for_the_u85_alone(line: str, weights: dict[str, str], refused: str) -> None:
    model = qdq({"x": "2,8,20,20"}, line, weights, "")
    assert refused in verdict("ethos-u55", model)
    assert refused in verdict("ethos-u65", model)
    assert verdict("ethos-u85", model) == "yes"


@pytest.mark.parametrize(
    ("line", "weights", "constants"),
    [
        ("y = Conv (x, w)", W3, ""),
        ("y = ConvTranspose (x, w)", {"w": "int8[8,4,3,3]"}, ""),
        ("y = MaxPool <kernel_shape = [2, 2]> (x)", {}, ""),
        ("y = AveragePool <kernel_shape = [2, 2]> (x)", {}, ""),
        ("y = BatchNormalization (x, s, b, m, v)", {}, "float[8] s, float[8] b, float[8] m, float[8] v"),
    ],
)
def test_operators_of_images_are_held_to_the_longest_axis(
    line: str, weights: dict[str, str], constants: str
) -> None:
    at, above = (
        verdict(FILE, qdq({"x": f"{batch},8,4,4"}, line, weights, constants)) for batch in (65536, 65537)
    )
    assert at == "yes"
    assert "dimension 0 of X is 65537, at most 65536 is supported" in above


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
        ("int64[2] a = {1, 2}", "", "yes"),
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


@pytest.mark.parametrize("name", sample_cases(LIGHT, "shufflenet", "squeezenet"))
def test_nothing_of_a_float_model_is_taken(name: str) -> None:
    index = zoo(name).index
    rules = target(FILE)
    units = group_units(index, rules.patterns, annotate_graph(index, rules))
    assert units
    assert not [unit for unit in units if unit.verdict]


def test_what_the_rules_say_of_resnet_and_squeezenet() -> None:
    yes, no = taken(FILE, "resnet50")
    assert yes == {  # if they stood in QDQ groups
        **{"BatchNormalization": 53, "Relu": 49, "Sum": 16},
        **{"AveragePool": 1, "MaxPool": 1, "Reshape": 1, "Softmax": 1},
    }
    assert no == {"Conv": 53, "Gemm": 1}  # whose weights are no integers
    yes, no = taken(FILE, "squeezenet")
    assert yes == {
        **{"Relu": 26, "MaxPool": 3, "Concat": 8, "GlobalAveragePool": 1, "Dropout": 1, "Softmax": 1}
    }
    assert no == {"Conv": 26}
