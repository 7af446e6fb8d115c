"""Values of inputs fit together and to what reads them; plain onnxruntime decides on sizes."""

import sys
from typing import Any

import numpy as np
import pytest
from support import prepared

from byoc.model import Model, prepare_model
from byoc.onnxrt import open_session, run_session
from byoc.samples import NoSampleError, list_samples, model_samples, sample_inputs


def _make(text: str, seed: int = 0) -> dict[str, Any]:
    """Return the inputs of a model, on which it runs."""
    model = prepared(text)
    made = dict(model_samples(model, seed))
    assert run_session(open_session(model.proto), made)
    return made


def test_ids_are_below_the_rows_of_their_table() -> None:
    text = """g (int64[b, seq] ids, int32[b, seq] kinds, float[7, 3] table, float[2, 3] small)
        => (float[b, seq, 3] y) { c = Cast<to = 7>(kinds) r = Gather(table, ids)
        k = Gather(small, c) y = Add(r, k) }"""
    made = _make(text)
    drawn = [_make(text, seed) for seed in range(8)]
    assert {int(value) for each in drawn for value in each["ids"].ravel()} == set(range(7))
    assert {int(value) for each in drawn for value in each["kinds"].ravel()} == {0, 1}
    assert made["ids"].shape == made["kinds"].shape == (1, 16)


def test_indices_are_below_an_open_extent() -> None:
    made = _make("g (float[2, n] x, int64[50] i) => (float[2, 50] y) { y = Gather<axis = 1>(x, i) }")
    assert made["i"].max() == made["x"].shape[1] - 1
    assert made["i"].min() == 0


def test_positions_count_from_the_past() -> None:
    text = """g (int64[b, seq] input_ids, int64[b, seq] position_ids, int64[b, total_len] attention_mask,
        int32[b] seqlens_k, int32[1] total_seq_len, int64[1] past_seq_len, float[b, 2, past, 4] past_key)
        => (int64[b, seq] y) { y = Add(input_ids, position_ids) }"""
    samples = list_samples(prepared(text))
    assert [sample.sizes["past"] for sample in samples] == [16, 0, 16]
    assert [sample.sizes["b"] for sample in samples] == [1, 1, 2]
    step, prefill = samples[0].inputs, samples[1].inputs
    assert step["position_ids"].tolist() == [[16]]
    assert prefill["position_ids"].tolist() == [list(range(12))]
    for made, past, total in ((step, 16, 17), (prefill, 0, 12)):
        assert made["attention_mask"].tolist() == [[1] * total]
        assert made["seqlens_k"].tolist() == [total - 1]
        assert made["total_seq_len"].tolist() == [total]
        assert made["past_seq_len"].tolist() == [past]
        assert made["past_key"].shape == (1, 2, past, 4)


def test_a_mask_that_is_added_is_zero() -> None:
    made = _make("g (float[1, 4] x, float[1, 4] attn_mask) => (float[1, 4] y) { y = Add(x, attn_mask) }")
    assert made["attn_mask"].tolist() == [[0, 0, 0, 0]]


def test_a_number_that_is_compared_is_one_of_those_it_is_compared_with() -> None:
    text = """g (float[1, n] x, int64 sr) => (float[1, n] y) {
        k = Constant<value_int = 16000>() c = Equal(sr, k)
        y = If (c) <then_branch = a () => (float[1, n] p) { p = Neg(x) },
        else_branch = b () => (float[1, n] q) { q = Abs(x) }> }"""
    samples = list_samples(prepared(text))
    assert [int(sample.inputs["sr"]) for sample in samples] == [16000, 16001, 16000]
    assert len({sample.inputs["x"].shape for sample in samples}) == 2


def test_both_values_of_a_condition() -> None:
    text = """g (float[1, 2] x, bool c) => (float[1, 2] y) {
        y = If (c) <then_branch = a () => (float[1, 2] p) { p = Neg(x) },
        else_branch = b () => (float[1, 2] q) { q = Abs(x) }> }"""
    assert [bool(sample.inputs["c"]) for sample in list_samples(prepared(text))] == [True, False]


def test_lengths_and_image_sizes_are_those_of_the_other_inputs() -> None:
    made = _make("""g (float[n, 3, h, w] image, float[n, 2] im_shape, float[n, 2] scale_factor,
        float[n, 5, t] audio_features, int64[n] lengths) => (float[n, 2] y)
        { y = Mul(im_shape, scale_factor) }""")
    assert made["im_shape"].tolist() == [[224, 224]]
    assert made["scale_factor"].tolist() == [[1, 1]]
    assert made["lengths"].tolist() == [224]


@pytest.mark.parametrize(
    ("op", "low", "high"), [("Log", 1e-3, np.inf), ("Sqrt", 0, np.inf), ("Acos", -1, 1), ("Neg", -9, 9)]
)
def test_floats_lie_in_the_domain_of_their_reader(op: str, low: float, high: float) -> None:
    x = _make(f"g (float[500] x) => (float[500] y) {{ y = {op}(x) }}")["x"]
    assert low <= x.min()
    assert x.max() <= high
    assert (x.min() < 0) == (low < 0)


def test_a_divisor_is_not_zero() -> None:
    made = _make(
        "g (float[40] a, float[40] b, int64[4] i, int64[4] j) => (float[40] y, int64[4] z) "
        "{ y = Div(a, b) z = Div(i, j) }"
    )
    assert made["b"].min() > 0
    assert len(set(made["b"].tolist())) == 40
    assert made["j"].tolist() == [2, 2, 2, 2]


def test_sizes_grow_until_the_model_runs() -> None:
    text = """g (float[1, 4, n] x) => (float[1, 4, m] y) {
        y = AveragePool<kernel_shape = [50], strides = [20]>(x) }"""
    first, second = (sample.sizes["n"] for sample in list_samples(prepared(text)))
    assert first != second
    assert min(first, second) >= 50


def test_a_model_that_runs_on_nothing_is_said_to() -> None:
    with pytest.raises(NoSampleError, match="no inputs were found that it runs on: onnxruntime"):
        model_samples(_make_impossible())


def test_without_onnxruntime_the_plausible_sizes_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = _make_impossible()
    made, again = model_samples(model), sample_inputs(model.index)
    assert all(np.array_equal(made[name], again[name]) for name in made)


def _make_impossible() -> Model:
    """Return a model whose Reshape fits no size of its input."""
    text = """g (int64[n] x) => (int64[2] y) {
        s = Shape(x) two = Constant<value_ints = [2]>() odd = Mul(s, two)
        one = Constant<value_ints = [1]>() to = Add(odd, one) y = Reshape(x, to) }"""
    return prepare_model(prepared(text).proto, "impossible")
