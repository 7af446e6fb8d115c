"""`quantization.same_scale`: what the annotator refuses, and what the linter does."""

import pytest
from helpers.ruling import lint, target
from helpers.support import parse

from byoc.model import prepare_model
from byoc.rules import annotate_graph

TEXT = """
g (int8[2] p, int8[2] q) => (int8[2] y, int8[4] k) <
  float s = {{0.5}}, int8 z = {{1}}, float s2 = {{{scale}}}, {kind} z2 = {{{point}}}, float s3 = {{0.5}}
> {{
  a = DequantizeLinear (p, s, z)
  b = DequantizeLinear ({source}, s2, z2)
  c = Add (a, b)
  y = QuantizeLinear (c, s3, z)
  d = Concat <axis = 0> (a, b)
  k = QuantizeLinear (d, s, z)
}}
"""
RULES = """
quantization: {{activations: {{dtype: [int8, uint8]}}, same_scale: {ops}}}
ops: [{{op: [Add, Concat], quantized: true}}]
"""


def said(op: str, ops: str, scale: str = "0.5", point: str = "1", kind: str = "int8") -> str:
    text = TEXT.format(scale=scale, point=point, kind=kind, source="q")
    if kind != "int8":
        text = text.replace("int8[2] q", f"{kind}[2] q")
    index = prepare_model(parse(text), "test").index
    marks = annotate_graph(index, target(RULES.format(ops=ops)))
    number = [node.op_type for node in index.nodes].index(op)
    return str(marks[number].verdict)


@pytest.mark.parametrize(
    ("op", "options", "expected"),
    [
        ("Add", {}, "yes"),  # another tensor of the same value is the same scale
        ("Add", {"scale": "0.25"}, "Add: A and B must have the same scale"),
        ("Add", {"point": "2"}, "Add: A and B must have the same zero point"),
        ("Concat", {"scale": "0.25"}, "Concat: 'a' and 'b' must have the same scale"),
        ("Concat", {"ops": "Add", "scale": "0.25"}, "yes"),
        (
            "Add",
            {"kind": "uint8"},
            "Add: A is int8 and B is uint8, and must be the same",
        ),
    ],
)
def test_different_scales_are_refused(op: str, options: dict[str, str], expected: str) -> None:
    assert said(op, options.pop("ops", "[Add, Concat]"), **options) == expected


def test_an_output_counts_as_well() -> None:
    text = TEXT.format(scale="0.5", point="1", kind="int8", source="q").replace("s3 = {0.5}", "s3 = {4}")
    index = prepare_model(parse(text), "test").index
    marks = annotate_graph(index, target(RULES.format(ops="Add")))
    assert str(marks[2].verdict) == "Add: A and C must have the same scale"


def test_a_scale_that_is_computed_is_not_known() -> None:
    text = TEXT.format(scale="0.5", point="1", kind="int8", source="q").replace(
        "b = Deq", "m = ReduceMax <keepdims = 0> (a)\n  b = Deq"
    )
    index = prepare_model(parse(text.replace("(q, s2, z2)", "(q, m, z2)")), "test").index
    marks = annotate_graph(index, target(RULES.format(ops="Add")))
    number = [node.op_type for node in index.nodes].index("Add")
    assert str(marks[number].verdict) == "Add: whether A and B have one scale is not known"


def test_what_is_no_operator() -> None:
    content = {
        "target": "t",
        "cost_model": "dla",
        "dtype": "int8",
        "quantization": {"same_scale": ["Ad", "*", "Add"]},
        "ops": [{"op": "Add", "quantized": True}],
    }
    assert lint(content) == [
        "quantization.same_scale[0]: ONNX has no operator 'Ad' (did you mean And?)",
        "quantization.same_scale[1]: name the operators, '*' is not one",
    ]
