"""The inputs of a model that take what outputs gave in the last call, found by operators and names."""

import onnx
import pytest
from helpers.support import parse

from byoc import zoo
from byoc.model import StatePair, find_state_pairs

CACHE = """
cache (float[1, past, 4] old, float[1, 1, 4] x) => (float[1, total, 4] new, float[1, 1, 4] y)
  <int64[1] axes = {1}> {
  new = Concat <axis = 1> (old, x)
  y = ReduceSum <keepdims = 1> (new, axes)
}
"""
FIXED = "fixed (float[1, 2] a, float[1, 3] b) => (float[1, 5] c) { c = Concat <axis = 1> (a, b) }"
ATTENTION = """
attention (float[1, 2, 1, 8] q, float[1, 2, p, 8] pk, float[1, 2, p, 8] pv)
  => (float[1, 2, 1, 8] y, float[1, 2, t, 8] nk, float[1, 2, t, 8] nv) {
  y, nk, nv = Attention (q, q, q, "", pk, pv)
}
"""
SCATTER = """
scatter (float[1, 2, 16, 8] cache, float[1, 2, 1, 8] x, int64[1] at) => (float[1, 2, 16, 8] next) {
  next = TensorScatter (cache, x, at)
}
"""
NAMES = """
names (float[2, n] past_key_values_0, float[2, n] past_a, float[2, n] past_b, float[2] past_c)
  => (float[2, m] present_0, float[2, m] present_a, float16[2, m] present_b, float[3, 2] present_c)
  <int64[2] shape = {3, 2}> {
  present_0 = Relu (past_key_values_0)
  present_a = Relu (past_a)
  present_b = Cast <to = 10> (past_b)
  present_c = Expand (past_c, shape)
}
"""


def test_a_concat_that_appends_to_an_open_extent() -> None:
    assert find_state_pairs(parse(CACHE)) == (StatePair("old", "new", "Concat"),)


def test_a_concat_of_fixed_extents_is_no_cache() -> None:
    assert find_state_pairs(parse(FIXED)) == ()


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (ATTENTION, [StatePair("pk", "nk", "Attention"), StatePair("pv", "nv", "Attention")]),
        (SCATTER, [StatePair("cache", "next", "TensorScatter")]),
    ],
)
def test_operators_whose_schemas_name_past_and_present(text: str, pairs: list[StatePair]) -> None:
    assert find_state_pairs(parse(text, opset=24)) == tuple(pairs)


def test_names_count_where_dtype_and_rank_agree() -> None:
    found = find_state_pairs(parse(NAMES))
    assert found == (
        StatePair("past_key_values_0", "present_0"),
        StatePair("past_a", "present_a"),
    )


def test_one_buffer_will_do_where_attention_alone_reads_the_past() -> None:
    model = zoo.load("decoder_int4")
    pairs = find_state_pairs(model)
    assert [(pair.past, pair.present) for pair in pairs] == [
        (f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}")
        for layer in range(3)
        for kind in ("key", "value")
    ]
    assert all(pair.in_place and pair.maker == "GroupQueryAttention" for pair in pairs)
    more = onnx.ModelProto.FromString(model.SerializeToString())
    more.graph.node.append(onnx.helper.make_node("Shape", [pairs[0].past], ["extra"]))
    assert [pair.in_place for pair in find_state_pairs(more)] == [False] + [True] * 5
