"""Plausible sizes of open dimensions: by name, by place, and by what operators ask for."""

import pytest
from helpers.support import parse, prepared

from byoc.model import prepare_model
from byoc.samples import explain_sizes, sample_inputs


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Relu(x) }",
            {"N": 1, "H": 224, "W": 224},
        ),
        (
            "g (float[batch, height, width, 3] x) => (float[a, b, c, 3] y) { y = Relu(x) }",
            {"batch": 1, "height": 224, "width": 224},
        ),
        (
            "g (float[n, 64, h, w] x) => (float[n, 64, h, w] y) { y = Relu(x) }",
            {"n": 1, "h": 32, "w": 32},
        ),
        (
            "g (int64[batch, seq] ids) => (int64[batch, seq] y) { y = Neg(ids) }",
            {"batch": 1, "seq": 128},
        ),
        ("g (float[?, ?, ?, ?] x) => (float[?, ?, ?, ?] y) { y = Relu(x) }", None),
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", {}),
    ],
)
def test_names_and_places_say_what_a_dimension_counts(text: str, sizes: dict[str, int] | None) -> None:
    unnamed = {"x[0]": 1, "x[1]": 3, "x[2]": 224, "x[3]": 224}
    assert explain_sizes(prepared(text).index).sizes == (unnamed if sizes is None else sizes)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "g (float[a, b] x) => (float[a, 4] y) <float[6, 4] w> { y = MatMul(x, w) }",
            {"a": 1, "b": 6},
        ),
        (
            "g (float[?, ?, ?, ?] x, float[8, 5, 3, 3] w) => (float[?, 8, ?, ?] y) { y = Conv(x, w) }",
            {"x[0]": 1, "x[1]": 5, "x[2]": 224, "x[3]": 224},
        ),
        (
            "g (float[a, p] x, float[a, q] z) => (float[a, r] y) { s = Add(x, z) y = Relu(s) }",
            {"a": 1, "p": 8, "q": 8},
        ),
        (
            """g (float[n, len] x) => (float[m, 6] y) <int64[2] to = {-1, 6}>
            { y = Reshape(x, to) }""",
            {"n": 1, "len": 132},
        ),
    ],
)
def test_operators_say_which_extents_are_equal_or_multiples(text: str, sizes: dict[str, int]) -> None:
    text = text.replace("<float[6, 4] w>", "").replace("float[a, b] x)", "float[a, b] x, float[6, 4] w)")
    assert explain_sizes(prepared(text).index).sizes == sizes


def test_a_total_is_the_past_and_the_sequence() -> None:
    text = """g (int64[batch, seq] input_ids, int64[batch, total_seq] attention_mask,
        float[batch, 2, past, 8] past_key) => (float[batch, 2, past, 8] y) { y = Relu(past_key) }"""
    index = prepared(text).index
    assert explain_sizes(index).sizes == {"batch": 1, "seq": 1, "total_seq": 17, "past": 16}
    made = sample_inputs(index)
    assert made["attention_mask"].tolist() == [[1] * 17]


def test_an_expression_is_calculated_from_its_names() -> None:
    proto = parse("""g (int64[b, seq] input_ids, int64[b, whole] attention_mask,
        float[b, 2, past, 8] past_key) => (float[b, 2, past, 8] y) { y = Relu(past_key) }""")
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    made = sample_inputs(prepare_model(proto, "g").index)
    assert {name: array.shape for name, array in made.items()} == {
        "input_ids": (1, 1),
        "attention_mask": (1, 17),
        "past_key": (1, 2, 16, 8),
    }
