"""Nodes whose whole numbers may leave what a target promises: refused, or taken if they are assumed."""

from dataclasses import replace

import pytest
from helpers.ruling import target
from helpers.support import parse

from byoc.errors import Verdict
from byoc.model import Dimensions, prepare_model
from byoc.patterns import Mark
from byoc.rules import Annotator, annotate_graph, list_conditions

RULES = """
dtype: any
ops: [{op: '*'}]
arithmetic:
  - {dtype: [int32, int64, uint32], exact_below: 16777216}
  - {op: [Add, Sub, Mul], dtype: [uint8, int8], overflow: any}
  - {op: Sub, dtype: int8, overflow: saturates}
  - {op: Neg, exact_below: 100}
"""
EXACT = "and dla computes whole numbers exactly up to 16,777,216 alone"


def judge(text: str, **options: int) -> Verdict:
    """Return what is said of the node that makes `y`."""
    index = prepare_model(parse(text, **options), "test").index
    return annotate_graph(index, target(RULES))[index.producers["y"]].verdict


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (int64[4] x, int64[4] z) => (bool[4] y) { y = Equal(x, z) }",
            f"Equal: 'x' may be any int64, {EXACT}",
        ),
        (
            "g (int32[4] x) => (bool[4] y) <int32 a = {16777217}> { l = Clip(x, a, a) y = Less(l, l) }",
            f"Less: 'l' may be 16,777,217, {EXACT}",
        ),
        (
            "g (int8[4, 9000] x, int8[9000, 2] w) => (int32[4, 2] y) { y = MatMulInteger(x, w) }",
            f"MatMulInteger: 'y' may be 147,456,000, {EXACT}",
        ),
        (
            "g (bool[20000000] x) => (int32[1] y) { w = Cast <to = 6> (x) y = ReduceSum(w) }",
            f"ReduceSum: 'y' may be 20,000,000, {EXACT}",
        ),
        (
            "g (int32[2] x) => (int32[1] y) <int32 a = {-9000000}, int32 b = {9000000}, int32 o = {0}> "
            "{ c = Clip(x, a, b) s = CumSum(c, o) y = ReduceMax(s) }",
            f"ReduceMax: 's' may be 18,000,000, {EXACT}",
        ),
        (
            "g (uint8[4] x) => (uint8[4] y) { y = Add(x, x) }",
            "Add: 'y' may leave uint8, and on dla it may become anything instead of wrapping",
        ),
        (
            "g (int8[4] x) => (int8[4] y) { z = Identity(x) y = Sub(x, z) }",
            "Sub: 'y' may leave int8, and on dla it saturates instead of wrapping",
        ),
        (
            "g (int8[4] x) => (int8[4] y) { y = Neg(x) }",
            "Neg: 'x' may be any int8, and dla computes whole numbers exactly up to 100 alone",
        ),
    ],
)
def test_what_is_not_shown_to_be_exact_is_refused(text: str, reason: str) -> None:
    assert judge(text).reasons == (reason,)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4, 8] x, float[4, 8] z) => (bool[4, 1] y) "
        "{ a = ArgMax <axis = 1> (x) b = ArgMin <axis = 1> (z) y = Equal(a, b) }",
        "g (int64[8] x, float[100, 4] t) => (float[8, 4] z, bool[8] y) "
        "{ z = Gather(t, x) y = Less(x, x) }",
        "g (float[N, 4] x) => (int64[2] y) { s = Shape(x) y = Identity(s) }",
        "g (int8[4, 900] x, int8[900, 2] w) => (int32[4, 2] y) { y = MatMulInteger(x, w) }",
        "g (uint8[4] x) => (uint8[4] y) <uint8 a = {127}> { z = Min(x, a) y = Add(z, z) }",
        "g (float[4] x) => (int8[4] y) { b = IsNaN(x) c = Cast <to = 3> (b) y = Sub(c, c) }",
        "g (float[8] x) => (float[4] y) <int64[1] s = {0}, int64[1] e = {9223372036854775807}, "
        "int64[1] t = {2}> { y = Slice(x, s, e, s, t) }",
    ],
)
def test_what_is_shown_to_stay_inside_is_taken(text: str) -> None:
    assert judge(text)


def test_an_open_extent_is_as_long_as_the_user_says() -> None:
    text = "g (float[N, 16] x) => (int64[1] y) { s = Shape(x) y = ReduceProd(s) }"
    assert not judge(text)
    model = prepare_model(parse(text), "test", given=Dimensions({"N": "1..4096"}))
    assert annotate_graph(model.index, target(RULES))[1].verdict


TWINS = """
g (int64[4] x, float[4, 8] f) => (bool[4] y, bool[4] z) {
  a = ArgMax <axis = 1, keepdims = 0> (f)
  b = Identity(x)
  z = Equal(a, a)
  y = Equal(b, b)
}
"""


def test_nodes_that_differ_in_their_values_alone_get_marks_of_their_own() -> None:
    index = prepare_model(parse(TWINS), "test").index
    for order in ((2, 3), (3, 2)):
        annotator = Annotator(target(RULES), index)
        found: dict[int, Mark] = {number: annotator.annotate_node(number) for number in order}
        assert found[2].verdict
        assert not found[3].verdict


def test_what_is_assumed_is_taken_on_a_condition() -> None:
    index = prepare_model(parse(TWINS), "test").index
    assumed = replace(target(RULES), values="assumed")
    assert all(mark.verdict for mark in annotate_graph(index, assumed))
    conditions = {number: found.text for number, found in list_conditions(index, assumed, range(4))}
    assert conditions == {
        1: "'x' stays from -16,777,216 to 16,777,216",
        3: "'b' stays from -16,777,216 to 16,777,216",
    }


def test_an_attempt_names_the_clause() -> None:
    index = prepare_model(parse(TWINS), "test").index
    annotator = Annotator(target(RULES), index)
    assert annotator.list_attempts(2)[0].objections == ()
    (objection,) = annotator.list_attempts(3)[0].objections
    assert objection.location == "arithmetic[0].exact_below"


def test_a_target_that_promises_what_onnx_defines_asks_for_no_ranges() -> None:
    index = prepare_model(parse(TWINS), "test").index
    annotate_graph(index, target("{dtype: any, ops: [{op: '*'}], arithmetic: {nan: any}}"))
    assert "value_ranges" not in vars(index)


def test_bodies_are_judged_by_what_their_node_gives_them() -> None:
    text = """
g (int64[1] x) => (int64[1] y) <int64 n = {7}, bool c = {1}, int64[1] zero = {0}> {
  y, z = Loop (n, c, zero) <body = b (int64 i, bool d, int64[1] s) =>
    (bool d2, int64[1] s2, bool[1] t) { d2 = Identity(d) t = Less(s, i) u = Add(s, i) s2 = Min(s, u) }>
}
"""
    index = prepare_model(parse(text), "test").index
    body = index.bodies[index.producers["y"]][0].index
    assert all(mark.verdict for mark in annotate_graph(body, target(RULES)))
