"""Rules that speak of operators between DequantizeLinear and QuantizeLinear."""

import pytest
from helpers.ruling import lint, target
from helpers.support import parse

from byoc.model import prepare_model
from byoc.patterns import Mark
from byoc.rules import Annotator, annotate_graph

QDQ = """
g (uint8[1,2,4,4] x, float[1,2,4,4] f) => ({out}) <
  float s = {{{scale}}}, uint8 z = {{{zero}}}, int8[3,2,1,1] wq = {{1, 2, 3, 4, 5, 6}},
  {weights}, int32[3] bq = {{1, 2, 3}}, float[3] bs = {{1, 1, 1}}, int32[3] bz = {{0, 0, 0}}
> {{
  xd = DequantizeLinear (x, s, z)
  wd = DequantizeLinear <axis = 0> (wq, ws, wz)
  bd = DequantizeLinear <axis = 0> (bq, bs, bz)
  c = Conv ({data}, wd, bd)
  r = Relu (c)
  y = QuantizeLinear (r, s, z)
}}
"""
CHANNELS = "float[3] ws = {1, 1, 1}, int8[3] wz = {0, 0, 0}"
ONE = "float ws = {1}, int8 wz = {0}"
OUT = "uint8[1,3,4,4] y"


def said(  # noqa: PLR0917
    rule: str,
    weights: str = CHANNELS,
    scale: str = "0.5",
    zero: str = "3",
    data: str = "xd",
    out: str = OUT,
) -> list[Mark]:
    """Return what is said of Conv and Relu."""
    text = QDQ.format(weights=weights, scale=scale, zero=zero, data=data, out=out)
    index = prepare_model(parse(text), "test").index
    found = dict(
        zip((node.op_type for node in index.nodes), annotate_graph(index, target(rule)), strict=False)
    )
    return [found["Conv"], found["Relu"]]


def conv(tensors: str, **options: str) -> str:
    rule = f"ops: [{{op: Conv, quantized: true, dtype: [uint8, int8, int32], tensors: {{{tensors}}}}}]"
    return str(said(rule, **options)[0].verdict).removeprefix("Conv: ")


def test_the_dtypes_are_those_of_the_outer_side() -> None:
    rule = "ops: [{op: [Conv, Relu], quantized: true, dtype: uint8, tensors: {}}]"
    first, second = said(rule)
    assert (
        str(first.verdict)
        == "Conv: W is int8 outside; supported: uint8; B is int32 outside; supported: uint8"
    )
    assert second == Mark(second.verdict, "ops[0]", accepts_plain=False, accepts_quantized=True)
    assert conv("W: {dtype: int8}, B: {dtype: int32}") == "yes"
    assert conv("W: {dtype: uint8}") == "W is int8 outside; supported: uint8"


def test_floats_inside_a_composite_are_not_held_to_a_dtype() -> None:
    """Conv's output goes to Relu: whether a group forms around both is for the grouper to see."""
    rule = "ops: [{op: [Conv, Relu], quantized: true, dtype: [int8, uint8, int32]}]"
    assert all(mark.verdict and mark.accepts_quantized and not mark.accepts_plain for mark in said(rule))
    rule = "ops: [{op: Relu, quantized: true, dtype: int8}]"
    assert str(said(rule)[1].verdict) == "Relu: Y is uint8 outside; supported: int8"


def test_an_operator_may_be_taken_both_ways() -> None:
    rule = "ops: [{op: Conv}, {op: Conv, quantized: true, dtype: any, level: must}]"
    mark = said(rule)[0]
    assert (mark.rule, mark.is_required, mark.accepts_plain, mark.accepts_quantized) == (
        "ops[0]",
        False,
        True,
        True,
    )
    rule = "ops: [{op: Conv, quantized: true, dtype: any, standalone: false}, {op: Conv}]"
    mark = said(rule)[0]
    assert (mark.rule, mark.standalone, mark.accepts_plain, mark.accepts_quantized) == (
        "ops[0]",
        False,
        True,
        True,
    )
    mark = said("ops: [{op: Conv}]")[0]
    assert (mark.accepts_plain, mark.accepts_quantized) == (True, False)


@pytest.mark.parametrize(
    ("tensors", "options", "expected"),
    [
        ("W: {quantized: {per_channel: true}}", {}, "yes"),
        (
            "W: {quantized: {per_channel: false}}",
            {},
            "W has a scale for each channel, which is not supported",
        ),
        ("W: {quantized: {per_channel: false}}", {"weights": ONE}, "yes"),
        (
            "W: {quantized: {per_channel: true}}",
            {"weights": ONE},
            "W has one scale for all channels, which is not supported",
        ),
        ("W: {quantized: {symmetric: true}}", {}, "yes"),
        ("W: {quantized: {symmetric: false}}", {}, "the zero point of W must not be 0"),
        ("X: {quantized: {symmetric: true}}", {}, "the zero point of X must be 0"),
        ("X: {quantized: {symmetric: true}}", {"zero": "0"}, "yes"),
        ("X: {quantized: {power_of_two: true}}", {}, "yes"),
        (
            "X: {quantized: {power_of_two: true}}",
            {"scale": "0.3"},
            "the scale of X must be a power of two",
        ),
        ("X: {quantized: {power_of_two: false}}", {}, "the scale of X must not be a power of two"),
        ("Y: {quantized: {power_of_two: true}}", {"scale": "0.3"}, "yes"),
        ("X: {quantized: {power_of_two: true}}", {"data": "f"}, "yes"),
        ("X: {quantized: {}}", {}, "yes"),
        ("W: {quantized: {axis: 0}}", {}, "yes"),
        ("W: {quantized: {axis: [-4, 3]}}", {}, "yes"),
        ("W: {quantized: {axis: 1}}", {}, "W has its scales along axis 0; supported: 1"),
        ("W: {quantized: {axis: 1}}", {"weights": ONE}, "yes"),
        ("X: {quantized: {same_as: X}}", {}, "yes"),
        (
            "X: {quantized: {same_as: W}}",
            {"weights": ONE, "scale": "1"},
            "W is int8 and X is uint8, and must be the same; W and X must have the same zero point",
        ),
        (
            "X: {quantized: {same_as: Y}}",
            {},
            "X must have the scale of Y, which is not quantized",
        ),
    ],
)
def test_quantization(tensors: str, options: dict[str, str], expected: str) -> None:
    assert conv(tensors, **options) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("X.quantized.scale == [0.5] && X.quantized.zero_point == [3]", "yes"),
        ("X.quantized.scale == [0.25]", "differs"),
        ("W.quantized.axis == 0 && size(W.quantized.scale) == 3", "yes"),
        ("X.quantized.axis == 0", "X.quantized.axis is not known"),  # one scale lies along none
        ("size(X.quantized.scale) == 1 || X.quantized.axis == 1", "yes"),
        ("X.quantized.scale == W.quantized.scale", "differs"),
    ],
)
def test_conditions_read_scales(condition: str, expected: str) -> None:
    where = f"[{{expr: '{condition}', reason: differs}}]"
    rule = f"ops: [{{op: Conv, quantized: true, dtype: any, where: {where}}}]"
    assert expected in str(said(rule)[0].verdict)


def test_the_tensor_of_the_same_scale_is_one_of_the_operator() -> None:
    content = {
        "target": "t",
        "cost_model": "dla",
        "dtype": "int8",
        "ops": [{"op": "Relu", "quantized": True, "tensors": {"Y": {"quantized": {"same_as": "x"}}}}],
    }
    assert lint(content) == [
        "ops[0].tensors.Y.quantized.same_as: Relu has no input or output 'x' (did you mean X?)"
    ]


def test_an_output_that_is_not_quantized_alone() -> None:
    """Relu's output is given out in floating point, too: it is a float like any other."""
    rule = "ops: [{op: Relu, quantized: true, dtype: int8}]"
    mark = said(rule, out="uint8[1,3,4,4] y, float[1,3,4,4] r")[1]
    assert mark.verdict
    assert mark.accepts_quantized


def test_a_constant_that_is_not_quantized() -> None:
    text = """
        g (int8[2] x) => (int8[2] y) <float s = {1}, int8 z = {0}, float[2] w = {1, 2}> {
          d = DequantizeLinear (x, s, z)
          a = Add (d, w)
          y = QuantizeLinear (a, s, z)
        }"""
    rule = target("ops: [{op: Add, quantized: true, dtype: int8, tensors: {B: {quantized: {}}}}]")
    index = prepare_model(parse(text), "test").index
    assert str(annotate_graph(index, rule)[1].verdict) == "Add: B is not quantized"


def scheme(quantization: str, rule: str = "", **options: str) -> str:
    """Return what is said of Conv by a rule for it when quantized, under a scheme."""
    text = f"quantization: {{{quantization}}}\nops: [{{op: Conv, quantized: true{rule}}}]"
    return str(said(text, **options)[0].verdict).removeprefix("Conv: ")


TYPES = "activations: {dtype: uint8}, weights: {dtype: int8}, bias: {dtype: int32}"
ASYMMETRIC = "float ws = {1}, int8 wz = {7}"


@pytest.mark.parametrize(
    ("quantization", "options", "expected"),
    [
        (TYPES, {}, "yes"),
        ("", {}, "X is uint8 outside; supported: float32; W is int8 outside; supported: float32; "
         "B is int32 outside; supported: float32"),
        (TYPES.replace("uint8", "int8"), {}, "X is uint8 outside; supported: int8"),
        (TYPES.replace(": int8", ": int16"), {}, "W is int8 outside; supported: int16"),
        (TYPES.replace("int32", "int16"), {}, "B is int32 outside; supported: int16"),
        (f"{TYPES}, scales: any", {"scale": "0.3"}, "yes"),
        (f"{TYPES}, scales: power_of_two", {}, "yes"),
        (f"{TYPES}, scales: power_of_two", {"scale": "0.3"}, "the scale of X must be a power of two"),
        (TYPES.replace("uint8", "uint8, symmetric: true"), {}, "the zero point of X must be 0"),
        (TYPES.replace("uint8", "uint8, symmetric: true"), {"zero": "0"}, "yes"),
        (TYPES.replace("uint8", "uint8, symmetric: false"), {"zero": "0"}, "yes"),
        (TYPES.replace(": int8", ": int8, symmetric: true"), {}, "yes"),
        (TYPES.replace(": int8", ": int8, symmetric: true"), {"weights": ASYMMETRIC},
         "the zero point of W must be 0"),
        (TYPES.replace(": int8", ": int8, per_channel: true"), {"weights": ONE}, "yes"),
        (TYPES.replace(": int8", ": int8, per_channel: false"), {},
         "W has a scale for each channel, which is not supported"),
    ],
)  # fmt: skip
def test_the_scheme_holds(quantization: str, options: dict[str, str], expected: str) -> None:
    assert scheme(quantization, **options) == expected


def test_a_rule_goes_before_the_scheme() -> None:
    wrong = TYPES.replace("uint8", "int8, symmetric: true") + ", scales: power_of_two"
    own = ", tensors: {X: {dtype: uint8, quantized: {symmetric: null}}}"
    assert scheme(wrong, own) == "yes"
    assert scheme(wrong, own, scale="0.3") == "the scale of X must be a power of two"
    assert scheme(wrong, ", dtype: any, tensors: {X: {quantized: {symmetric: false}}}") == "yes"


def test_the_scheme_does_not_hold_in_rules_for_floats() -> None:
    wrong = TYPES.replace("int8", "int16")
    assert said(f"quantization: {{{wrong}}}\nops: [{{op: Conv}}]")[0].verdict


def test_the_scheme_says_where_it_stands() -> None:
    text = QDQ.format(weights=CHANNELS, scale="0.3", zero="3", data="xd", out=OUT)
    index = prepare_model(parse(text), "test").index
    rule = target(
        "quantization: {activations: {dtype: int8, symmetric: true}, weights: {per_channel: false}, "
        "scales: power_of_two}\nops: [{op: Conv, quantized: true, tensors: {W: {dtype: int8}, "
        "B: {dtype: int32}}}]"
    )
    (attempt,) = Annotator(rule, index).list_attempts([n.op_type for n in index.nodes].index("Conv"))
    assert [objection.location for objection in attempt.objections] == [
        "quantization.activations.dtype",
        "quantization.activations.symmetric",
        "quantization.scales",
        "quantization.weights.per_channel",
    ]


def test_constants_of_one_dimension_are_a_bias_only_beside_a_weight() -> None:
    def role(line: str) -> str:
        text = f"""
            g (int8[4,4] x) => (int8[4,4] y)
            <float s = {{1}}, int8 z = {{0}}, int8[4,4] w = {{{"1," * 15}1}}, int8[4] b = {{1,2,3,4}}> {{
              d = DequantizeLinear (x, s, z)
              wd = DequantizeLinear (w, s, z)
              bd = DequantizeLinear (b, s, z)
              a = {line}
              y = QuantizeLinear (a, s, z)
            }}"""
        model = prepare_model(parse(text), "test").index
        op = line.partition(" ")[0]
        kinds = "activations: {dtype: int8}, weights: {dtype: int4}, bias: {dtype: int2}"
        ops = target(f"quantization: {{{kinds}}}\nops: [{{op: {op}, quantized: true}}]")
        number = [node.op_type for node in model.nodes].index(op)
        return str(annotate_graph(model, ops)[number].verdict)

    assert role("Gemm (d, wd, bd)") == (
        "Gemm: B is int8 outside; supported: int4; C is int8 outside; supported: int2"
    )
    assert role("Add (d, bd)") == "Add: B is int8 outside; supported: int4"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("is_constant", [False, True])
def test_what_a_quantized_tensor_is_to_its_node(dtype: str, rank: int, is_constant: bool) -> None:
    """A constant of int32 is a bias whatever its rank, and one of one dimension beside a weight."""
    shape = ",".join(["4"] * rank)
    text = f"""
        g (int8[4,4] x, {dtype}[{shape}] given) => (int8[4,4] y)
        <float s = {{1}}, int8 z = {{0}}, {dtype} bz = {{0}}, int8[4,4] w = {{{"1," * 15}1}},
         {dtype}[{shape}] stored = {{{",".join(["1"] * 4**rank)}}}> {{
          d = DequantizeLinear (x, s, z)
          wd = DequantizeLinear (w, s, z)
          bd = DequantizeLinear ({"stored" if is_constant else "given"}, s, bz)
          a = Gemm (d, wd, bd)
          y = QuantizeLinear (a, s, z)
        }}"""
    index = prepare_model(parse(text, opset=21), "test").index
    number = [node.op_type for node in index.nodes].index("Gemm")
    nothing_fits = "".join(f" {role}: {{dtype: uint16}}," for role in ("activations", "weights", "bias"))
    rule = target(f"quantization: {{{nothing_fits}}}\nops: [{{op: Gemm, quantized: true}}]")
    (attempt,) = Annotator(rule, index).list_attempts(number)
    roles = {each.text.split()[0]: each.location.split(".")[1] for each in attempt.objections}
    bias = "bias" if rank == 1 or dtype == "int32" else "weights"
    expected = bias if is_constant else "activations"
    assert roles == {"A": "activations", "B": "weights", "C": expected, "Y": "activations"}


def test_bytes_are_those_of_the_outer_side() -> None:
    assert conv("W: {bytes: {max: 6}}, X: {bytes: {max: 32}}") == "yes"
    assert conv("W: {bytes: {max: 5}}") == "the size of W in bytes is 6, at most 5 is supported"
    assert str(said("ops: [{op: Conv, tensors: {W: {bytes: {max: 23}}}}]")[0].verdict) == (
        "Conv: the size of W in bytes is 24, at most 23 is supported"
    )


def test_expressions_see_the_outer_side() -> None:
    where = "W.quantized.dtype == 'int8' && W.quantized.bytes == 6 && W.bytes == 24"
    assert said(f'ops: [{{op: Conv, where: "{where} && !has(Y.quantized)"}}]')[0].verdict
    assert said("ops: [{op: Relu, where: \"Y.quantized.dtype == 'uint8'\"}]")[1].verdict


FLOAT_AND_INT8 = """
g (float[2,2] f, int8[2] x) => (float[2,2] g, int8[2] y) <float s = {1}, int8 z = {0}> {
  g = Relu (f)
  d = DequantizeLinear (x, s, z)
  r = Relu (d)
  y = QuantizeLinear (r, s, z)
}
"""


def test_the_kind_of_rule_that_fits_comes_first() -> None:
    index = prepare_model(parse(FLOAT_AND_INT8), "test").index
    rule = target(
        "ops: [{op: Relu, tensors: {X: {rank: 3, static: false}}}, "
        "{op: Relu, quantized: true, dtype: any}]"
    )
    annotator = Annotator(rule, index)
    assert [(a.rule, a.fits) for a in annotator.list_attempts(0)] == [
        ("ops[0]", True),
        ("ops[1]", False),
    ]
    assert [(a.rule, a.fits) for a in annotator.list_attempts(2)] == [
        ("ops[1]", True),
        ("ops[0]", False),
    ]
    rule = target(
        "ops: [{op: Relu, tensors: {X: {rank: 3, static: false}}}, "
        "{op: Relu, quantized: true, dtype: any, tensors: {X: {rank: 4}}}]"
    )
    first, _, second, _ = annotate_graph(index, rule)
    assert str(first.verdict) == "Relu: X has rank 2; supported: 3; every dimension of X is fixed"
    assert str(second.verdict) == "Relu: X has rank 1; supported: 4"


OPEN = """
g (int8[4,2] x, float t, float[n] ts, int8 v, float[2,2] bs, int8[] unranked) => (int8[4,2] y)
<float s = {{1}}, int8 z = {{0}}, float[2] two = {{1, 1}}> {{
  d = DequantizeLinear {given}
  a = Clip (d)
  y = QuantizeLinear (a, s, z)
}}"""


UNRANKED = "the rank of input 'unranked' is not known (--shape unranked=EXTENTS)"


@pytest.mark.parametrize(
    ("given", "rule", "expected"),
    [
        ("(x, s, v)", "symmetric: true", "the zero point of input is not known"),
        ("(x, s, v)", "symmetric: false", "the zero point of input is not known"),
        ("(x, s)", "symmetric: true", "yes"),  # none is 0
        ("(x, s)", "symmetric: false", "the zero point of input must not be 0"),
        ("(x, t, z)", "power_of_two: true", "the scale of input is not known"),
        ("(x, t, z)", "per_channel: false", "yes"),
        ("<axis = 0> (x, ts)", "per_channel: true", "the number of scales of input is not known"),
        ("<axis = 0> (x, ts)", "axis: 0", "the number of scales of input is not known"),
        ("<axis = 1> (x, two)", "axis: 1", "yes"),
        ("<axis = 1> (x, two)", "axis: -1", "yes"),
        ("<axis = 1> (x, two)", "axis: 0", "input has its scales along axis 1; supported: 0"),
        (
            "<axis = 0, block_size = 2> (x, bs)",
            "axis: 0",
            "input has scales for blocks, which are not supported",
        ),
        ("(x, s, z)", "axis: 0", "yes"),
        ("<axis = 1> (unranked, two)", "axis: 1", UNRANKED),
        ("<axis = 1> (unranked, two)", "axis: -1", UNRANKED),
        ("(x, s, z)", "same_as: min", "input must have the scale of min, which is absent"),
        ("(x, s, z)", "same_as: output", "yes"),
        ("(x, t, z)", "same_as: output", "whether output and input have one scale is not known"),
        ("(x, s, v)", "same_as: output", "whether output and input have one zero point is not known"),
        ("(x, s)", "same_as: output", "yes"),
    ],
)
def test_scales_that_are_open(given: str, rule: str, expected: str) -> None:
    index = prepare_model(parse(OPEN.format(given=given), opset=21), "test").index
    tensors = f"input: {{quantized: {{{rule}}}}}"
    found = annotate_graph(
        index, target(f"ops: [{{op: Clip, quantized: true, dtype: int8, tensors: {{{tensors}}}}}]")
    )
    assert str(found[1].verdict).removeprefix("Clip: ") == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("(a, s, z)", "yes"),
        ("(a, t, z)", "whether output and input have one scale is not known"),
        ("(a, s, v)", "whether output and input have one zero point is not known"),
        (
            "(a, t, v)",
            "whether output and input have one scale is not known; "
            "whether output and input have one zero point is not known",
        ),
        ("(a, half, z)", "output and input must have the same scale"),
    ],
)
def test_scales_of_the_other_tensor_that_are_open(made: str, expected: str) -> None:
    text = OPEN.format(given="(x, s, z)").replace("(a, s, z)", made)
    text = text.replace("int8 z = {0},", "int8 z = {0}, float half = {0.5},")
    index = prepare_model(parse(text, opset=21), "test").index
    tensors = "input: {quantized: {same_as: output}}"
    found = annotate_graph(
        index, target(f"ops: [{{op: Clip, quantized: true, dtype: int8, tensors: {{{tensors}}}}}]")
    )
    assert str(found[1].verdict).removeprefix("Clip: ") == expected


def test_shapes_that_have_to_be_known_are_refused_with_their_place() -> None:
    index = prepare_model(parse("g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"), "test").index
    for shapes, places in (("any", []), ("ranked", []), ("static", ["shapes"])):
        (attempt,) = Annotator(target(f"shapes: {shapes}\nops: [{{op: Relu}}]"), index).list_attempts(0)
        assert [each.location for each in attempt.objections] == places
