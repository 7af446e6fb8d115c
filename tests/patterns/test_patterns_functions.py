"""Functions of composites: each instance calls one that matches it, and the model computes the same."""

import numpy as np
import onnx
import pytest
from helpers.cutting import planned
from helpers.ruling import make_target
from helpers.support import parse as onnx_text
from matching import match_at

from byoc.model import Composite, make_composite_functions, prepare_model
from byoc.patterns import parse_pattern
from byoc.placement.strategies import AllSupported
from byoc.samples import sample_inputs
from byoc.verification import run_plain


def instances(body: str, *patterns: str, opset: int = 17, domain: str = "acme") -> list[Composite]:
    """Return a composite for each node of a graph at which one of the patterns ends."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "{domain}" : 1]> g (float[8] a, float[8] b) => '
        f"(float[8] y) {{ {body} }}"
    )
    index = prepare_model(proto, "test").index
    free = set(range(len(index.nodes)))
    found = [match_at(parse_pattern("k", p), i, index, free) for p in patterns for i in sorted(free)]
    return [match.make_composite(index) for match in found if match is not None]


def shapes(composites: list[Composite]) -> list[tuple[str, list[str], list[str]]]:
    last = {f.name: f.node[-1] for f in make_composite_functions("t", composites)}
    return [(name, list(node.input), list(node.output)) for name, node in last.items()]


@pytest.mark.parametrize(
    ("body", "pattern", "inside"),
    [
        ("r = Relu(a) y = Sum(r)", "r = Relu(x)\ny = Sum(r, b?, c?)", ["r"]),
        ("r = Relu(a) y = Mean(r)", "r = Relu(x)\ny = *(r, b?, c?)", ["r"]),
        ("r = Relu(a) y = Max(r, b)", "r = Relu(x)\ny = Max(r, b?, c?)", ["r", "b"]),
        ("r = Relu(a) y = Clip(r)", "r = Relu(x)\ny = Clip(r, b?)", ["r"]),
    ],
)
def test_what_counts_its_operands_is_given_as_many(body: str, pattern: str, inside: list[str]) -> None:
    """onnxruntime ends the process on a Sum with an empty operand."""
    (shape,) = shapes(instances(body, pattern))
    assert shape[1] == inside


def test_instances_that_differ_in_what_is_counted_share_no_function() -> None:
    body = "r = Relu(a) s = Sum(r) q = Relu(s) y = Sum(q, b)"
    assert shapes(instances(body, "r = Relu(x)\ny = Sum(r, b?)")) == [
        ("k_y_in1", ["r"], ["y"]),
        ("k", ["r", "b"], ["y"]),
    ]


def test_an_operator_that_onnx_does_not_know_has_the_operands_that_it_has() -> None:
    body = "r = Relu(a) s = acme.F(r) q = Relu(s) y = acme.F(q, b)"
    assert shapes(instances(body, "r = Relu(x)\ny = acme.F(r, b?)")) == [
        ("k_y_in1", ["r"], ["y"]),
        ("k", ["r", "b"], ["y"]),
    ]


def test_outputs_that_nothing_reads_are_still_made() -> None:
    assert shapes(instances("r = Relu(a) y, i = acme.F(r)", "r = Relu(x)\ny = acme.F(r)")) == [
        ("k_y_out2", ["r"], ["y", "y_output_1"])
    ]
    body = "k = Constant <value_ints = [2]> () r = Relu(a) y, i = TopK(r, k)"
    assert shapes(instances(body, "r = Relu(x)\ny = TopK(r, k)")) == [
        ("k", ["r", "k"], ["y", "y_output_1"])
    ]


def test_functions_of_any_operator_have_names_of_their_own() -> None:
    body = "r = Relu(a) s = acme.Op(r) q = Relu(s) y = acme.OP(q)"
    assert [name for name, _, _ in shapes(instances(body, "r = Relu(x)\ny = *(r)"))] == [
        "k_acme__Op",
        "k_acme__OP",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s = Sum(p, q, ...)\ny = Sub(s, s_2)", "line 1: the name 's_2' is kept for a further operand"),
        ("a0 = Max(a0_1, ...)", "line 1: the name 'a0_1' is kept for a further operand"),
        ("p, _ = MaxPool(x)\ny = Add(p, p_output_1)", "line 1: the name 'p_output_1' is kept for"),
        ("s, s_output_1 = TopK(x, k)", "line 1: the name 's_output_1' is kept for an output of"),
    ],
)  # fmt: skip
def test_names_that_functions_need(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_pattern("p", text)
    assert message in str(caught.value)
    parse_pattern("p", "s = Sum(s_0, s_1, ...)\ny = Sub(s, s_02)")


@pytest.mark.parametrize(
    ("shape", "body", "text"),
    [
        ("8", "r = Relu(a)\n s = Sum(r)\n y = Neg(s)", "r = Relu(x)\ny = Sum(r, b?, c?)"),
        ("8", "r = Relu(a)\n s = Min(r)\n y = Neg(s)", "r = Relu(x)\ny = *(r, e?, f?)"),
        ("2", "r = Relu(a)\n y, i = TopK(r, k)", "r = Relu(x)\ny = TopK(r, k)"),
        (
            "1,2,3",
            "p = BatchNormalization(n, v, v, v, v)\n y = Abs(p)",
            "p = BatchNormalization(x, s, i, m, v)",
        ),
        (
            "1,2,3",
            "p, m, w = BatchNormalization <training_mode = 1> (n, v, v, v, v)\n y = Abs(p)",
            "p = BatchNormalization(x, s, i, m, v)\ny = Abs(p)",
        ),
        (
            "4",
            "p, q = Split <axis = 0> (a, h)\n c, d = Split <axis = 0, num_outputs = 2> (a)\n"
            " e = Add(p, q)\n f = Add(c, d)\n y = Sub(e, f)",
            "p, q = Split(x, s?)\ny = Add(p, q)",
        ),
    ],
)  # fmt: skip
def test_what_onnxruntime_makes_of_them(shape: str, body: str, text: str) -> None:
    proto = onnx_text(
        f"g (float[8] a, float[1,2,3] n) => (float[{shape}] y) "
        f"<int64[1] k = {{2}}, int64[2] h = {{4, 4}}, float[2] v = {{1, 2}}> {{ {body} }}",
        opset=18,
    )
    model = prepare_model(proto, "test")
    rules = {"target": "t", "cost_model": "dla", "dtype": "any", "ops": [{"op": "*"}]}
    target = make_target({**rules, "composites": [{"name": "k", "pattern": text}]})
    plan = planned(model, target, AllSupported())
    onnx.checker.check_model(plan.proto, full_check=True)
    assert any(function.name.startswith("k") for function in plan.proto.functions)
    inputs = sample_inputs(model.index, 0)
    expected, actual = run_plain(proto, model, inputs), run_plain(plan.proto, model, inputs)
    np.testing.assert_array_equal(actual["y"], expected["y"])
