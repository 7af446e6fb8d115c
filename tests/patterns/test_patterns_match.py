"""The matcher: what it finds and refuses, and the tensors bound to names."""

import pytest
from helpers.support import prepared
from matching import match_at

from byoc.model import GraphIndex
from byoc.patterns import Match, parse_pattern

CONV_RELU = "c = Conv(x, w, b?)\ny = Relu(c)"
HEAD = "g (float[1,1,4,4] x, float[1,1,1,1] w, float[1] b, float[1,1,4,4] z) => (float[1,1,4,4] out)"


def index_of(body: str, head: str = HEAD) -> GraphIndex:
    return prepared(f"{head} {{\n{body}\n}}").index


def match(body: str, pattern: str, head: str = HEAD, free: set[int] | None = None) -> Match | None:
    """Match a pattern at the last node; all nodes are free unless told otherwise."""
    index = index_of(body, head)
    everything = set(range(len(index.nodes)))
    return match_at(
        parse_pattern("p", pattern), len(index.nodes) - 1, index, everything if free is None else free
    )


def tensors(body: str, pattern: str, head: str = HEAD) -> dict[str, str]:
    found = match(body, pattern, head)
    assert found is not None
    return dict(found.tensors)


def test_an_optional_operand_there_and_not() -> None:
    assert tensors("c0 = Conv (x, w, b)\n out = Relu (c0)", CONV_RELU) == {
        "c": "c0",
        "y": "out",
        "x": "x",
        "w": "w",
        "b": "b",
    }
    found = match("c0 = Conv (x, w)\n out = Relu (c0)", CONV_RELU)
    assert found is not None
    assert (found.tensors["b"], found.nodes) == ("", {"c": 0, "y": 1})
    assert found.make_composite(index_of("c0 = Conv (x, w)\n out = Relu (c0)")).inputs == {
        "x": "x",
        "w": "w",
        "b": "",
    }


def test_an_operand_that_must_be_there() -> None:
    assert match("c0 = Conv (x, w)\n out = Relu (c0)", "c = Conv(x, w, b)\ny = Relu(c)") is None
    assert match("c0 = Conv (x, w, b)\n out = Relu (c0)", "c = Conv(x, w, b)\ny = Relu(c)") is not None


def test_more_inputs_than_the_pattern_gives() -> None:
    assert match("c0 = Conv (x, w, b)\n out = Relu (c0)", "c = Conv(x, w)\ny = Relu(c)") is None


def test_an_optional_operand_in_the_middle() -> None:
    head = "g (float[2] x, float m, float n) => (float[2] out)"
    clip = "y = Clip(x, low?, high?)"
    assert tensors("out = Clip (x, , n)", clip, head) == {"y": "out", "x": "x", "low": "", "high": "n"}
    assert tensors("out = Clip (x, m)", clip, head) == {"y": "out", "x": "x", "low": "m", "high": ""}
    assert match("out = Clip (x, , n)", "y = Clip(x, low, high)", head) is None


@pytest.mark.parametrize("operands", ["c0, z", "z, c0"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_operands_in_either_order(operands: str, op: str) -> None:
    body = f"c0 = Conv (x, w)\n out = {op} ({operands})"
    assert tensors(body, f"c = Conv(x, w)\ny = {op}(c, r)")["r"] == "z"
    assert tensors(body, f"c = Conv(x, w)\ny = {op}(r, c)")["r"] == "z"


def test_operands_whose_order_matters() -> None:
    pattern = "c = Conv(x, w)\ny = Sub(c, r)"
    assert match("c0 = Conv (x, w)\n out = Sub (c0, z)", pattern) is not None
    assert match("c0 = Conv (x, w)\n out = Sub (z, c0)", pattern) is None


def test_going_back_on_a_choice() -> None:
    """Either operand of the Add may be the Conv; only with the second is there a Relu on the other."""
    body = "a0 = Conv (x, w)\n b0 = Conv (z, w)\n r0 = Relu (b0)\n out = Add (a0, r0)"
    pattern = "a = Conv(x, w)\nr = Relu(a)\ny = Add(r, q)"
    assert tensors(body, pattern)["q"] == "a0"
    both = "a = Conv(x, w)\nb = Conv(z, w)\nr = Relu(a)\ny = Add(r, b)"
    assert tensors(body, both) == {
        "y": "out",
        "r": "r0",
        "a": "b0",
        "x": "z",
        "w": "w",
        "b": "a0",
        "z": "x",
    }


def test_alternatives() -> None:
    pattern = "c = Conv(x, w)\na = Add|Sum(c, r)\ny = Relu|Sigmoid(a)"
    for inner, outer, name in (
        ("Add", "Relu", "p"),
        ("Sum", "Relu", "p_sum_relu"),
        ("Add", "Sigmoid", "p_add_sigmoid"),
        ("Sum", "Sigmoid", "p_sum_sigmoid"),
    ):
        body = f"c0 = Conv (x, w)\n a0 = {inner} (c0, z)\n out = {outer} (a0)"
        found = match(body, pattern)
        assert found is not None
        assert found.make_composite(index_of(body)).function_name == name
    assert match("c0 = Conv (x, w)\n a0 = Mul (c0, z)\n out = Relu (a0)", pattern) is None
    assert match("c0 = Conv (x, w)\n a0 = Add (c0, z)\n out = Tanh (a0)", pattern) is None


def test_the_name_tells_which_of_two_lines_differs() -> None:
    """One function serves one name: these two compute different things."""
    pattern = "a = Add|Mul(x, z)\ny = Add|Mul(a, q)"
    names = set()
    for first, second in (("Add", "Add"), ("Add", "Mul"), ("Mul", "Add"), ("Mul", "Mul")):
        body = f"a0 = {first} (x, z)\n out = {second} (a0, z)"
        found = match(body, pattern)
        assert found is not None
        names.add(found.make_composite(index_of(body)).function_name)
    assert names == {"p", "p_add_mul", "p_mul_add", "p_mul_mul"}


def test_what_is_used_outside_may_not_be_inside() -> None:
    body = "c0 = Conv (x, w)\n other = Neg (c0)\n out = Relu (c0)"
    assert match(body, CONV_RELU) is None
    assert match("c0 = Conv (x, w)\n out = Relu (c0)", CONV_RELU) is not None


def test_a_graph_output_may_not_be_inside() -> None:
    head = HEAD.replace("out)", "out, float[1,1,4,4] c0)")
    assert match("c0 = Conv (x, w)\n out = Relu (c0)", CONV_RELU, head) is None


def test_what_a_body_captures_may_not_be_inside() -> None:
    head = HEAD.replace("float[1] b,", "bool q,").replace("out)", "out, float[1,1,4,4] o)")
    branch = """
        o = If <then_branch = t () => (float[1,1,4,4] u) {{ u = Neg ({0}) }},
                else_branch = e () => (float[1,1,4,4] v) {{ v = Neg (z) }}> (q)
        out = Relu (c0)"""
    assert match("c0 = Conv (x, w)\n" + branch.format("c0"), CONV_RELU, head) is None
    assert match("c0 = Conv (x, w)\n" + branch.format("x"), CONV_RELU, head) is not None


def test_the_output_may_be_used_by_many() -> None:
    index = index_of("c0 = Conv (x, w)\n r = Relu (c0)\n s = Neg (r)\n out = Add (r, s)")
    assert match_at(parse_pattern("p", CONV_RELU), 1, index, {0, 1, 2, 3}) is not None


def test_two_lines_never_bind_one_node() -> None:
    pattern = "a = Conv(x, w)\nb = Conv(x2, w2)\ny = Add(a, b)"
    assert match("c0 = Conv (x, w)\n out = Add (c0, c0)", pattern) is None
    assert match("c0 = Conv (x, w)\n c1 = Conv (z, w)\n out = Add (c0, c1)", pattern) is not None


def test_an_input_is_never_what_is_made_inside() -> None:
    """c + c: the second operand cannot come in from outside, since it is made inside."""
    pattern = "c = Conv(x, w, b?)\na = Add(c, z)\ny = Relu(a)"
    assert match("c0 = Conv (x, w)\n a0 = Add (c0, c0)\n out = Relu (a0)", pattern) is None
    assert match("c0 = Conv (x, w)\n a0 = Add (c0, z)\n out = Relu (a0)", pattern) is not None


def test_x_times_sigmoid_of_x() -> None:
    pattern = "s = Sigmoid(x)\ny = Mul(x, s)"
    for operands in ("x, s0", "s0, x"):
        assert tensors(f"s0 = Sigmoid (x)\n out = Mul ({operands})", pattern) == {
            "y": "out",
            "x": "x",
            "s": "s0",
        }
    assert match("s0 = Sigmoid (x)\n out = Mul (z, s0)", pattern) is None
    assert match("s0 = Sigmoid (x)\n out = Mul (s0, s0)", pattern) is None


def test_a_diamond_over_an_inner_value() -> None:
    pattern = "c = Conv(x, w)\ns = Sigmoid(c)\ny = Mul(c, s)"
    assert tensors("c0 = Conv (x, w)\n s0 = Sigmoid (c0)\n out = Mul (s0, c0)", pattern)["c"] == "c0"
    other = "c0 = Conv (x, w)\n c1 = Conv (z, w)\n s0 = Sigmoid (c0)\n out = Mul (s0, c1)"
    assert match(other, pattern) is None


def test_a_name_stands_for_one_tensor() -> None:
    pattern = "a = Neg(x)\ny = Sub(a, x)"
    assert match("n = Neg (x)\n out = Sub (n, x)", pattern) is not None
    assert match("n = Neg (x)\n out = Sub (n, z)", pattern) is None


def test_an_optional_name_is_there_in_both_places_or_in_neither() -> None:
    pattern = "a = Conv(x, w, b?)\ny = Conv(a, w, b?)"
    assert match("c0 = Conv (x, w, b)\n out = Conv (c0, w, b)", pattern) is not None
    assert match("c0 = Conv (x, w)\n out = Conv (c0, w)", pattern) is not None
    assert match("c0 = Conv (x, w)\n out = Conv (c0, w, b)", pattern) is None
    assert match("c0 = Conv (x, w, b)\n out = Conv (c0, w)", pattern) is None


def test_only_free_nodes() -> None:
    body = "c0 = Conv (x, w)\n out = Relu (c0)"
    assert match(body, CONV_RELU, free={0, 1}) is not None
    assert match(body, CONV_RELU, free={0}) is None
    assert match(body, CONV_RELU, free={1}) is None


def test_a_second_output_that_is_read() -> None:
    head = "g (float[1,1,4,4] x) => (float[1,1,2,2] out{})"
    pool = "{} = MaxPool <kernel_shape = [3, 3]> (x)"
    both = head.format(", int64[1,1,2,2] i")
    assert match(pool.format("out"), "y = MaxPool(x)", head.format("")) is not None
    assert match(pool.format("out, i"), "y = MaxPool(x)", head.format("")) is not None
    assert match(pool.format("out, i"), "y = MaxPool(x)", both) is None


def test_only_the_first_output_goes_on() -> None:
    body = "p, i = MaxPool <kernel_shape = [1, 1]> (x)\n c = Cast <to = 1> (i)\n out = Relu (c)"
    assert match(body, "p = MaxPool(x)\nc = Cast(p)\ny = Relu(c)") is None


def test_operators_of_other_domains() -> None:
    model = prepared("g (float[2] x) => (float[2] out) { out = Relu (x) }").proto
    model.graph.node[0].domain = "acme"
    index = GraphIndex(model, {})
    assert match_at(parse_pattern("p", "y = Relu(x)"), 0, index, {0}) is None
    model.graph.node[0].domain = "ai.onnx"
    assert match_at(parse_pattern("p", "y = Relu(x)"), 0, GraphIndex(model, {}), {0}) is not None


def test_what_a_match_becomes() -> None:
    body = "c0 = Conv (x, w)\n a0 = Sum (z, c0)\n out = Relu (a0)"
    found = match(body, "c = Conv(x, w, b?)\na = Add|Sum(c, r)\ny = Relu(a)")
    assert found is not None
    composite = found.make_composite(index_of(body))
    assert composite.function_name == "p_sum"
    assert dict(composite.inputs) == {"x": "x", "w": "w", "b": "", "r": "z"}
    assert [(line.output, line.op, line.node) for line in composite.lines] == [
        ("c", "Conv", 0),
        ("a", "Sum", 1),
        ("y", "Relu", 2),
    ]


def test_an_output_without_a_name_binds_nothing() -> None:
    head = "g (float[4] x, int64[1] n) => (int64[n] out)"
    found = tensors("v, i = TopK (x, n)\n out = Neg (i)", "_, j = TopK(a, k)\ny = Neg(j)", head)
    assert found == {"a": "x", "k": "n", "j": "i", "y": "out"}
