"""Values of inputs fit together and to what reads them; plain onnxruntime decides on sizes."""

import sys
from typing import Any

import numpy as np
import pytest
from helpers.support import parse, prepared

from byoc.model import Model, prepare_model
from byoc.onnxrt import open_session, run_session
from byoc.samples import NoSampleError, list_samples, model_samples, sample_inputs


def _make(text: str, seed: int = 0, opset: int = 17) -> dict[str, Any]:
    """Return the inputs of a model, on which it runs."""
    model = prepared(text, opset=opset)
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
    assert made["ids"].shape == made["kinds"].shape == (1, 128)


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
    ("image", "sides"), [("1, 3, 8, 4", [8, 4]), ("1, 8, 5, 3", [8, 5]), ("1, 1, 8, 1", [8, 1])]
)
def test_an_image_has_its_channels_first_if_it_may(image: str, sides: list[int]) -> None:
    made = _make(f"""g (float[{image}] image, float[1, 2] im_shape) => (float[1, 2] y) {{
        y = Neg(im_shape) }}""")
    assert made["im_shape"].tolist() == [sides]


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        *(("Log", 1e-3, np.inf), ("Sqrt", 0, np.inf), ("Acos", -1, 1), ("Neg", -9, 9)),
        ("Bernoulli", 0, 1),
    ],
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


def test_scalars_lie_in_the_domain_of_their_reader() -> None:
    for seed in range(20):
        made = _make(
            """g (float[9] x, float ratio, bool training, float low, float high, int64[9] n, int64 least,
                int64 most) => (float[9] y, int64[9] m) {
                a = Dropout(x, ratio, training)
                y = Clip(a, low, high)
                m = Clip(n, least, most)
            }""",
            seed,
        )
        assert 0 <= made["ratio"] < 1
        assert not made["training"], "Dropout draws in training"
        assert made["low"] < made["high"]
        assert made["least"] < made["most"]


def test_parts_sizes_and_grids_are_those_of_the_tensor_that_they_are_for() -> None:
    made = _make(
        """g (float[n,7] x, int64[3] parts, float[1,1,4,6] image, int64[4] size, int64[2] some,
            float[2,2,3] theta, int64[4] grid, float[1,5,1] s, int64[1] axes)
            => (float[n,a] p, float[n,b] q, float[n,c] t, float[1,1,d,e] u, float[1,1,f,g] v,
                float[h,i,j,2] w, float[k,l] z) <float[0] none = {}> {
            p, q, t = Split <axis = 1> (x, parts)
            u = Resize(image, none, none, size)
            v = Resize <axes = [2, 3]> (image, none, none, some)
            w = AffineGrid(theta, grid)
            z = Squeeze(s, axes)
        }""",
        opset=21,
    )
    assert made["parts"].tolist() == [2, 2, 3]
    assert made["size"].tolist() == [1, 1, 8, 12]
    assert made["some"].tolist() == [8, 12]
    assert made["grid"].tolist() == [2, 1, 3, 4]
    assert made["axes"].tolist() == [0]


def test_what_is_no_array_of_numbers_is_made_as_what_it_is() -> None:
    model = parse(
        """g (seq(float[2, n]) parts, optional(int64[3]) o,
            map(string, float) words, map(int64, float) ids,
            string[4] labels, string scalar) => (float[1, 2] a, float[1, 3] b, float[4] c) {
            a = ai.onnx.ml.DictVectorizer <string_vocabulary = ["u", "v"]> (words)
            b = ai.onnx.ml.DictVectorizer <int64_vocabulary = [4, 7, 9]> (ids)
            c = ai.onnx.ml.LabelEncoder <keys_strings = ["p", "q"], values_floats = [1.0, 2.0]> (labels)
        }""",
        opset=21,
        ir=10,
    )
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    made = sample_inputs(prepare_model(model, "test").index)
    assert [(each.dtype, each.ndim) for each in made["parts"]] == [(np.float32, 2)] * 3
    assert (made["o"].dtype, made["o"].shape) == (np.int64, (3,))
    assert made["words"].keys() == {"u", "v"}
    assert len({*made["words"].values()}) == 2
    assert made["ids"].keys() == {4, 7, 9}
    assert {*made["labels"].tolist()} <= {"p", "q"}
    assert made["labels"].shape == (4,)
    assert isinstance(made["scalar"][()], str)
    run_session(open_session(prepare_model(model, "test").proto), made)
