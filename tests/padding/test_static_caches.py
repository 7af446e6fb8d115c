"""Caches that a Concat makes longer get one length: the same results, or a reason why not."""

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse

from byoc.errors import InputError
from byoc.model import Dimensions, Model, prepare_model
from byoc.onnxrt import open_session, run_session
from byoc.padding import (
    CACHE_LENGTH,
    PaddingRule,
    cut_outputs,
    decide_padding,
    find_growing_dims,
    find_unpadded_sizes,
    gather_rows_by_place,
    make_static,
    pad_inputs,
)

HEADS, WIDTH = 2, 4


def decoder(rows: int = 1, mask: str = "", biased: str = "a = Identity(s)", new: str = "") -> str:
    """Return a layer of attention as text, with a cache of keys that are its values, too."""
    return f"""g (float[1, {HEADS}, {rows}, {WIDTH}] x, float[1, {HEADS}, past, {WIDTH}] past_key{mask})
        => (float[1, {HEADS}, {rows}, {WIDTH}] y, float[1, {HEADS}, total, {WIDTH}] present_key)
        <float[{WIDTH}] w = {{1, 1, 1, 1}}, int64[1] two = {{2}}, int64 zero = {{0}},
        int64 one = {{1}}> {{
        v = LayerNormalization(x, w)
        {new or "present_key = Concat <axis = 2> (past_key, v)"}
        t = Transpose <perm = [0, 1, 3, 2]> (present_key)
        s = MatMul(v, t)
        {biased}
        p = Softmax(a)
        y = MatMul(p, present_key)
    }}"""


# A distance to each key, from the length of the past: as T5 has it.
DISTANCES = """
    e = Shape(past_key)
    n = Gather(e, two)
    f = Shape(present_key)
    g = Gather(f, two)
    m = Squeeze(g)
    j = Range(zero, m, one)
    d = Sub(j, n)
    r = Cast <to = 1> (d)
    a = Add(s, r)
"""
# Rows of a table of biases, cut from the length of the past on: as GPT-2 had it.
TABLE = """
    e = Shape(past_key)
    n = Gather(e, two)
    f = Shape(present_key)
    m = Gather(f, two)
    z = Constant <value = int64[1] {0}> ()
    o = Constant <value = int64[1] {1}> ()
    r = Slice(table, n, m, z)
    c = Slice(r, z, m, o)
    a = Add(s, c)
"""


# Keys and queries that are turned by an angle for each position, and what is compared of them.
ROTARY = """
    u = Cast <to = 1> (positions)
    f = Constant <value = float[1, 2] {1.0, 0.1}> ()
    b = MatMul(u, f)
    h = Concat <axis = -1> (b, b)
    c = Cos(h)
    n = Sin(h)
    halves, others = Split <axis = 3, num_outputs = 2> (v)
    opposite = Neg(others)
    turned = Concat <axis = 3> (opposite, halves)
    straight = Mul(v, c)
    aside = Mul(turned, n)
    rotated = Add(straight, aside)
    present_key = Concat <axis = 2> (past_key, rotated)
"""


# A factor that depends on whether there is a past at all.
NO_PAST = """
    e = Shape(past_key)
    n = Gather(e, two)
    o = Constant <value = int64[1] {1}> ()
    q = Max(n, o)
    r = Cast <to = 1> (q)
    k = Mul(v, r)
    a = Add(s, k)
"""


# A mask for each head, of which elements are taken by their numbers: as torch's older exporter has it.
FLAT = """
    c = Cast <to = 9> (mask)
    f = Flatten <axis = 2> (c)
    e = Shape(present_key)
    n = Gather(e, two)
    m = Squeeze(n)
    places = Range(zero, m, one)
    heads = Constant <value = int64[2, 1, 1] {0, 1}> ()
    outer = Constant <value = int64[2] {0, 1}> ()
    j = Unsqueeze(places, outer)
    h = Shape(c)
    o = Constant <value = int64[1] {1}> ()
    l = Gather(h, o)
    k = Mul(heads, l)
    i = Add(j, k)
    g = Gather(f, i)
    last = Constant <value = int64[1] {-1}> ()
    r = Reshape(g, last)
    z = Concat <axis = 0> (two, o, n)
    q = Reshape(r, z)
    low = Constant <value = float {-1e9}> ()
    a = Where(q, s, low)
"""


def make_unread(text: str) -> str:
    """Return a decoder with a further cache, which nothing reads."""
    text = text.replace("past_key)", f"past_key, float[1, {HEADS}, past, {WIDTH}] past_value)", 1)
    text = text.replace(
        "_key)\n        <", f"_key, float[1, {HEADS}, total, {WIDTH}] present_value)\n <"
    )
    return text.replace("t = Tr", "present_value = Concat <axis = 2> (past_value, v) t = Tr")


def make_form(text: str, length: int) -> tuple[Model, PaddingRule]:
    """Return the static form of a model with caches of a length, and its rule."""
    proto = parse(text, opset=18)
    if "table" in text:
        table = np.random.default_rng(7).normal(size=(64, 64)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    model = prepare_model(proto, "m")
    past, total, _ = find_growing_dims(model)
    if total:
        model = prepare_model(proto, "m", None, Dimensions({total: "past + 1"}))
    static = make_static(gather_rows_by_place(model), past, total, length)
    decision = decide_padding(static.load, {CACHE_LENGTH: length})
    assert decision.rule is not None, decision.refusals
    return static.load({CACHE_LENGTH: length}), static.complete_rule(decision.rule)


CASES = {
    "one row": decoder(),
    "three rows": decoder(rows=3),
    "a mask": decoder(mask=", float[total] mask", biased="a = Add(s, mask)"),
    "a flat mask": decoder(mask=f", int64[{HEADS}, total] mask", biased=FLAT),
    "distances": decoder(biased=DISTANCES),
    "a table": decoder(biased=TABLE),
    "rotary positions": decoder(rows=2, mask=", int64[1, 1, 2, 1] positions", new=ROTARY),
    "a cache that nothing reads": make_unread(decoder()),
}


@pytest.mark.parametrize("case", CASES)
def test_the_static_form_computes_what_the_model_does_at_each_length(case: str) -> None:
    text, length = CASES[case], 9
    form, rule = make_form(text, length)
    rows = {"three rows": 3, "rotary positions": 2}.get(case, 1)
    assert rule.dims == {"past": length - rows}
    assert rule.is_static
    proto = parse(text, opset=18)
    proto.graph.initializer.extend(t for t in form.proto.graph.initializer if t.name == "table")
    plain, static = open_session(proto), open_session(form.proto)
    generator = np.random.default_rng(3)
    for past in range(length - rows + 1):
        inputs: dict[str, Any] = {
            "x": generator.normal(size=(1, HEADS, rows, WIDTH)).astype(np.float32),
            "past_key": generator.normal(size=(1, HEADS, past, WIDTH)).astype(np.float32),
        }
        if "past_value" in text:
            inputs["past_value"] = -inputs["past_key"]
        if case == "a mask":
            inputs["mask"] = generator.normal(size=past + 1).astype(np.float32)
        if case == "a flat mask":
            inputs["mask"] = generator.integers(0, 2, (HEADS, past + 1))
        if case == "rotary positions":
            inputs["positions"] = past + np.arange(rows).reshape(1, 1, rows, 1)
        sizes = find_unpadded_sizes(rule, inputs)
        assert sizes == {"past": past}
        padded = pad_inputs(rule, inputs, sizes)
        assert padded["past_key"].shape == (1, HEADS, length, WIDTH)
        found = cut_outputs(rule, run_session(static, padded), sizes)
        for name, expected in run_session(plain, inputs).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


def test_no_past_is_as_long_as_a_full_cache() -> None:
    _, rule = make_form(CASES["one row"], 9)
    inputs = {"x": np.zeros((1, 2, 1, 4)), "past_key": np.zeros((1, 2, 9, 4))}
    with pytest.raises(InputError, match="past is 9, and may be 0 to 8"):
        find_unpadded_sizes(rule, inputs)


REFUSED = {
    "in front": (
        decoder(new="present_key = Concat <axis = 2> (v, past_key)"),
        "'present_key' is not made by a Concat behind 'past_key'",
    ),
    "a square": (
        decoder(biased=DISTANCES.replace("d = Sub(j, n)", "q = Mul(n, n) d = Sub(j, q)")),
        "does not grow evenly with past",
    ),
    "no past": (decoder(biased=NO_PAST), r"max\(1, past\) does not grow evenly with past"),
    "steps": (
        decoder(biased="e = Shape(past_key) n = Gather(e, two) i = Squeeze(n) "
        "k = Range(i, one, one) u = Cast <to = 1> (k) r = ReduceSum <keepdims = 0> (u) a = Add(s, r)"),
        "it starts at past",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_with_the_reason(case: str) -> None:
    text, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason):
        make_form(text, 9)


def test_a_mean_over_the_cache_is_not_proven() -> None:
    text = decoder(biased="h = ReduceMean <keepdims = 1> (s) a = Add(s, h)")
    model = prepare_model(parse(text, opset=18), "m")
    static = make_static(model, "past", "", 9)
    decision = decide_padding(static.load, {CACHE_LENGTH: 9})
    assert decision.rule is None
    assert "ReduceMean" in decision.refusals[CACHE_LENGTH]
