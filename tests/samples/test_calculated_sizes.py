"""Extents of inputs that are calculated from others are not 0 where other sizes can help it."""

import pytest
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.model import Model, prepare_model
from byoc.samples import explain_sizes, list_samples

ROWS = """rows (float[p, 8] x, float[q, 8] z, float[derived, 8] s)
    => (float[p, 8] a, float[q, 8] b, float total) {
    a = Relu(x)
    b = Relu(z)
    total = ReduceSum <keepdims = 0> (s)
}"""
TOKENS = """tokens (int64[batch, seq] ids, float[batch, derived, 8] x)
    => (int64[batch, seq] y, float total) {
    y = Neg(ids)
    total = ReduceSum <keepdims = 0> (x)
}"""
DECODER = """decoder (int64[batch, seq] input_ids, float[batch, 2, past, 8] past_key,
    float[batch, 2, seq, 8] new_key, float[batch, derived, 8] extra)
    => (float[batch, 2, all, 8] key, float total, int64[batch, seq] z) {
    key = Concat <axis = 2> (past_key, new_key)
    total = ReduceSum <keepdims = 0> (extra)
    z = Neg(input_ids)
}"""


def write_dims(text: str, meanings: dict[str, str]) -> Model:
    """Return a model of which extents are expressions."""
    proto = parse(text)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in meanings:
                dim.dim_param = meanings[dim.dim_param]
    return prepare_model(proto, "test")


@pytest.mark.parametrize(
    ("text", "expression", "sizes"),
    [
        (TOKENS, "seq // 2", {"batch": 1, "seq": 128}),
        (TOKENS, "seq // 256", {"batch": 1, "seq": 256}),
        (TOKENS, "(seq - 7) // 256", {"batch": 1, "seq": 263}),
        (TOKENS, "batch * seq // 192", {"batch": 1, "seq": 192}),
        (TOKENS, "batch // 3", {"batch": 3, "seq": 128}),
        (TOKENS, "5 - seq", {"batch": 1, "seq": 4}),
        (TOKENS, "batch - 2", {"batch": 3, "seq": 128}),
        (ROWS, "p - q", {"p": 2, "q": 1}),
        (ROWS, "(p // 32) * (q // 20)", {"p": 32, "q": 32}),
    ],
)
def test_plausible_sizes_grow_by_the_least_that_gives_every_input_elements(
    text: str, expression: str, sizes: dict[str, int]
) -> None:
    assert explain_sizes(write_dims(text, {"derived": expression}).index).sizes == sizes


def test_an_extent_that_nothing_helps_stays_0() -> None:
    model = write_dims(TOKENS, {"derived": "seq // 9999999"})
    assert explain_sizes(model.index).sizes == {"batch": 1, "seq": 128}
    contrary = TOKENS.replace("int64[batch, seq] ids", "int64[batch, other] ids")
    model = write_dims(contrary, {"derived": "n - m", "other": "m - n"})
    assert explain_sizes(model.index).sizes == {"batch": 1, "m": 129, "n": 128}  # one of two is not 0


def test_given_sizes_stay_and_others_give_way() -> None:
    halves = write_dims(TOKENS, {"derived": "seq // 32"}).index
    assert explain_sizes(halves, {"seq": 10}).sizes == {"batch": 1, "seq": 10}
    difference = write_dims(ROWS, {"derived": "p - q"}).index
    assert explain_sizes(difference, {"p": 4, "q": 4}).sizes == {"p": 4, "q": 4}
    assert explain_sizes(difference, {"q": 4}).sizes == {"p": 5, "q": 4}
    assert explain_sizes(difference, {"p": 4}).sizes == {"p": 4, "q": 1}
    assert explain_sizes(difference, {"p": 1}).sizes == {"p": 1, "q": 1}  # no q is less than 1


def test_a_name_that_stands_for_an_expression_counts_as_one() -> None:
    text = """joined (float[batch, seq, 4] x, float[batch, few, 8] a, float[batch, part, 8] b)
        => (float[batch, seq, 4] y, float[batch, few, 16] z) {
        y = Relu(x)
        z = Concat <axis = 2> (a, b)
    }"""
    sizes = explain_sizes(write_dims(text, {"part": "seq // 256"}).index).sizes
    assert sizes == {"batch": 1, "seq": 256, "few": 1}


def test_every_sample_has_elements() -> None:
    samples = list_samples(write_dims(TOKENS, {"derived": "seq // 256"}))
    assert [dict(sample.sizes) for sample in samples] == [
        {"batch": 1, "seq": 256},
        {"batch": 2, "seq": 256},
    ]
    assert [sample.inputs["x"].shape for sample in samples] == [(1, 1, 8), (2, 1, 8)]


def test_a_past_of_zero_stays_a_sample() -> None:
    samples = list_samples(write_dims(DECODER, {"derived": "(past + 3) // 4"}))
    assert [sample.inputs["past_key"].shape[2] for sample in samples] == [16, 0, 16]
    assert [sample.inputs["extra"].shape[1] for sample in samples] == [4, 0, 4]


def test_a_past_that_is_a_difference_is_zero_in_one_sample() -> None:
    text = DECODER.replace("float[batch, derived, 8] extra", "int64[batch, whole] attention_mask")
    text = text.replace("float total", "int64 total").replace("(extra)", "(attention_mask)")
    samples = list_samples(write_dims(text, {"past": "whole - seq"}))
    assert [sample.sizes["whole"] for sample in samples] == [16, 12, 16]
    assert [sample.sizes["seq"] for sample in samples] == [1, 12, 1]
    assert [sample.inputs["past_key"].shape[2] for sample in samples] == [15, 0, 15]


@given(
    st.integers(1, 400), st.integers(0, 30), st.sampled_from(["seq // {0} - {1}", "(seq - {1}) // {0}"])
)
def test_the_growth_of_one_name_is_the_least(divisor: int, less: int, form: str) -> None:
    expression = form.format(divisor, less)
    size = explain_sizes(write_dims(TOKENS, {"derived": expression}).index).sizes["seq"]
    least = next(
        seq
        for seq in range(128, 20_000)
        if eval(expression, {"seq": seq}) >= 1  # noqa: S307
    )
    assert size == least


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12))
def test_two_names_give_elements_where_any_sizes_do(one: int, other: int, less: int) -> None:
    expression = f"(p // {one}) * (q // {other}) - {less}"
    sizes = explain_sizes(write_dims(ROWS, {"derived": expression}).index).sizes
    assert (sizes["p"] // one) * (sizes["q"] // other) - less >= 1
    assert (sizes == {"p": 1, "q": 1}) == (one == other == 1 and less == 0)
