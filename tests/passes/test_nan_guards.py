"""Guards against NaN go where no run makes NaN, and stay everywhere else; plain onnxruntime agrees."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import original
from helpers.support import examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from byoc.model import prepare_model
from byoc.model.ranges import FiniteValues
from byoc.passes import clean_model, list_clean_passes

INF, NAN = np.float32(np.inf), np.float32(np.nan)
# What is added to the scores, and whether each row of it shows a number.
MASKS = {
    "none": ("s = Identity(q)", True),
    "causal": ("m = LessOrEqual(column, line) n = Where(m, nothing, low) s = Add(q, n)", True),
    "causal, the other way around": (
        "m = GreaterOrEqual(line, column) n = Where(m, nothing, low) s = Add(n, q)",
        True,
    ),
    "causal, repeated": (
        """m = LessOrEqual(column, line) k = Unsqueeze(m, zero)
        to = Concat <axis = 0> (b, length, length)
        e = Expand(k, to) n = Where(e, nothing, low) s = Add(q, n)""",
        True,
    ),
    "all that is there": ("m = GreaterOrEqual(line, i0) n = Where(m, nothing, low) s = Add(q, n)", True),
    "a number, not minus infinity": (
        "m = Less(line, column) n = Where(m, far, nothing) s = Add(q, n)",
        True,
    ),
    "what is behind": (
        "m = GreaterOrEqual(column, line) n = Where(m, nothing, low) s = Add(q, n)",
        False,
    ),
    "strictly causal": ("m = Less(column, line) n = Where(m, nothing, low) s = Add(q, n)", False),
    "from 2 on": (
        """two = Add(c, i2) at = Unsqueeze(two, zero) m = LessOrEqual(at, line)
        n = Where(m, nothing, low) s = Add(q, n)""",
        False,
    ),
    "infinity": ("m = LessOrEqual(column, line) n = Where(m, nothing, high) s = Add(q, n)", False),
    "NaN": ("m = LessOrEqual(column, line) n = Where(m, nothing, nan) s = Add(q, n)", False),
    "along rows": ("m = LessOrEqual(line, column) n = Where(m, nothing, low) s = Add(q, n)", False),
    "of ids": ("m = Cast <to = 9> (ids) n = Where(m, nothing, low) s = Add(q, n)", False),
}


def make(mask: str, layer: str = "x = LayerNormalization(w, scale)", **more: Any) -> onnx.ModelProto:
    """Return an attention over token ids, with a guard as PyTorch's exporter writes it."""
    model = parse(f"""g (int64[batch, seq] ids) => (float[batch, seq, seq] y) {{
        w = Gather(words, ids)
        {layer}
        t = Transpose <perm = [0, 2, 1]> (x)
        q = MatMul(x, t)
        length = Shape <start = 1, end = 2> (ids)
        b = Shape <start = 0, end = 1> (ids)
        l0 = Squeeze(length)
        c = Range(i0, l0, i1)
        column = Unsqueeze(c, zero)
        line = Unsqueeze(c, one)
        {MASKS[mask][0]}
        p = Softmax <axis = -1> (s)
        i = IsNaN(p)
        y = Where(i, nothing, p)
    }}""")
    rng = np.random.default_rng(0)
    stored: Mapping[str, Any] = {
        "words": rng.standard_normal((9, 8), np.float32),
        "scale": np.ones(8, np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "i0": np.array(0),
        "i1": np.array(1),
        "i2": np.array(2),
        "nothing": np.float32(0),
        "low": -INF,
        "high": INF,
        "nan": NAN,
        "far": np.float32(-1e9),
        **more,
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in stored.items()
        if name in read
    )
    return model


def clean(model: onnx.ModelProto) -> onnx.ModelProto:
    (guards,) = (each for each in list_clean_passes(False, False) if each.name == "drop-nan-guards")
    return clean_model(prepare_model(model, "m"), [guards]).model.proto


def count_guards(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "IsNaN" for node in model.graph.node)


def check_same(model: onnx.ModelProto, cleaned: onnx.ModelProto) -> None:
    """Compare both on ids of several lengths."""
    for length in (1, 2, 5):
        ids = {"ids": np.random.default_rng(length).integers(0, 9, (2, length))}
        np.testing.assert_array_equal(original(model, ids)["y"], original(cleaned, ids)["y"])


@pytest.mark.parametrize("mask", MASKS)
def test_a_guard_goes_where_each_row_of_the_mask_shows_a_number(mask: str) -> None:
    model = make(mask)
    cleaned = clean(model)

    assert (count_guards(cleaned) == 0) == MASKS[mask][1]
    if "of ids" not in mask:
        check_same(model, cleaned)


@pytest.mark.parametrize(
    ("layer", "more", "goes"),
    [
        ("x = Identity(w)", {}, True),
        ("e = Exp(w) x = Log(e)", {}, False),  # nothing is known of a Log
        ("e = Exp(w) x = Sqrt(e)", {}, True),
        ("x = Sqrt(w)", {}, False),
        ("x = Div(w, w)", {}, False),
        ("e = Exp(w) f = Add(e, unit) x = Div(w, f)", {"unit": np.float32(1)}, True),
        ("x = Pow(w, power)", {"power": np.float32(2)}, True),
        ("x = Pow(w, power)", {"power": np.float32(0.5)}, False),
        ("x = Mul(w, large)", {"large": np.float32(1e30)}, False),  # its square is infinite
        ("v = Mul(w, large) x = LayerNormalization(v, scale)", {"large": np.float32(1e30)}, False),
        ("v = Mul(w, large) x = LayerNormalization(v, scale)", {"large": np.float32(1e9)}, True),
        ("x = Identity(w)", {"words": np.full((9, 8), NAN)}, False),
        ("x = Identity(w)", {"words": np.full((9, 8), INF)}, False),
        ("x = LayerNormalization(w, scale)", {"scale": np.full(8, INF)}, False),
        (
            "v = MatMul(w, square) a = Tanh(v) x = Add(a, w)",
            {"square": np.ones((8, 8), np.float32)},
            True,
        ),
        ("x = Cast <to = 10> (w)", {"words": np.full((9, 8), np.float32(1e6))}, False),
    ],
)
def test_numbers_are_followed_through_layers(layer: str, more: Mapping[str, Any], goes: bool) -> None:
    if "to = 10" in layer:
        layer += " z = Cast <to = 1> (x)"
        layer = layer.replace("x = Cast", "h = Cast").replace("(x)", "(h)").replace("z =", "x =")
    model = make("causal", layer, **more)
    cleaned = clean(model)
    assert (count_guards(cleaned) == 0) == goes
    check_same(model, cleaned)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("y = ReduceMean <axes = [1]> (w)", 8),
        ("y = ReduceMean <keepdims = 0> (w)", 64),
        ("y = ReduceMean <axes = [-1, 0]> (w)", 64),
        ("y = ReduceSum (w)", 64),
        ("y = Mean(w, w, w)", 3),
        ("y = Gelu(w)", 2),
        ("y = LayerNormalization(w, scale)", 0),
        ("y = ReduceMax <axes = [1]> (w)", 1),
        ("y = Relu(w)", 1),
        ("y = Max(w, w, w)", 1),
        ("y = Sum(w, w)", 2),
    ],
)
def test_what_is_computed_on_the_way_is_finite_as_well(line: str, times: int, dtype: type) -> None:
    """A result is small and its sum is not: then nothing is proven, and just below it is."""
    kind = "float" if dtype is np.float32 else "float16"
    model = parse(f"g (int64[8] ids) => ({kind} y) {{ w = Gather(words, ids) {line} }}")
    model.opset_import[0].version = 20 if "Gelu" in line else 17
    most = float(np.finfo(dtype).max)
    stored = {"scale": np.ones(8, dtype)}
    stored = {name: value for name, value in stored.items() if name in line}
    for share, is_finite in ((0.9, True), (1.1, False)):
        largest = share * most / times if times else sqrt(share * most / (4 * 8))
        words = np.full((8, 8), min(largest, 0.9 * most), dtype)
        each = onnx.ModelProto()
        each.CopyFrom(model)
        each.graph.initializer.extend(
            numpy_helper.from_array(value, name) for name, value in {**stored, "words": words}.items()
        )
        assert FiniteValues(prepare_model(each, "m").index).is_finite("y") == (is_finite or times == 1)


@pytest.mark.parametrize(
    ("ends", "most"), [("min = 1.0e30", 1e30), ("max = -1.0e30", 1e30), ("min = -9.0, max = 0.5", 1.0)]
)
def test_an_early_clip_has_its_ends_as_attributes(ends: str, most: float) -> None:
    model = parse(
        f"g (int64[8] ids) => (float[8, 8] y) {{ w = Gather(words, ids) y = Clip <{ends}> (w) }}"
    )
    model.opset_import[0].version = 10
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "words"))
    found = FiniteValues(prepare_model(model, "m").index).find("y")
    assert most <= found <= 1.01 * most


def test_of_a_float_input_nothing_is_known() -> None:
    model = parse("""g (float[n, 4] x) => (float[n, 4] y) {
        p = Softmax <axis = -1> (x) i = IsNaN(p) y = Where(i, nothing, p)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nothing"))
    cleaned = clean(model)

    assert count_guards(cleaned) == 1
    inputs = {"x": np.array([[1, 2, 3, 4], [1, NAN, 3, 4]], np.float32)}
    assert not np.isnan(original(cleaned, inputs)["y"]).any()


@pytest.mark.parametrize(
    "guard",
    [
        "i = IsNaN(q) y = Where(i, nothing, p)",  # of another tensor
        "i = IsNaN(p) y = Where(i, p, nothing)",  # only what is NaN is kept
        "i = IsInf(p) y = Where(i, nothing, p)",
    ],
)
def test_what_is_no_guard_stays(guard: str) -> None:
    text = "i = IsNaN(p)\ny = Where(i, nothing, p)"
    model = make("none")
    del model.graph.node[-2:]
    lines = [line.strip() for line in guard.replace(" y =", "\ny =").splitlines()]
    assert len(lines) == len(text.splitlines())
    added = parse("g (float[n] p, float[n] q, float nothing) => (float[n] y) { " + guard + " }")
    model.graph.node.extend(added.graph.node)
    model.graph.initializer.extend(
        []
        if any(each.name == "nothing" for each in model.graph.initializer)
        else [numpy_helper.from_array(np.float32(0), "nothing")]
    )
    assert len(clean(model).graph.node) == len(model.graph.node)


def test_a_guard_the_other_way_around_goes() -> None:
    model = make("causal")
    del model.graph.node[-1]
    added = parse(
        "g (bool[n] i, float[n] p, float nothing) => (float[n] y) "
        "{ o = Not(i) y = Where(o, p, nothing) }"
    )
    model.graph.node.extend(added.graph.node)
    cleaned = clean(model)
    assert count_guards(cleaned) == 0
    check_same(model, cleaned)


STEPS = (
    *("Relu", "Gelu", "HardSwish", "Neg", "Abs", "Floor", "Tanh", "Sigmoid", "Erf", "Softsign", "Exp"),
    *("Reciprocal", "Sqrt", "LeakyRelu", "Elu", "HardSigmoid", "Identity", "Mish", "Sin", "Round"),
    *("Ceil", "Sign", "Cos"),
)
PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "MatMul", "Pow")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS + PAIRS), st.integers(0, 3)), min_size=1, max_size=8))
def test_numbers_are_within_what_is_proven(steps: list[tuple[str, int]]) -> None:
    """Whatever is computed of ids and weights is finite, and as small as its bound, where it has one."""
    lines, names = [], ["w", "v"]
    for number, (operator, place) in enumerate(steps):
        second = f", {names[-1 - place % len(names)]}" if operator in PAIRS else ""
        lines.append(f"a{number} = {operator} ({names[-1]}{second})")
        names.append(f"a{number}")
    outputs = ", ".join(f"float[8, 8] {name}" for name in names[2:])
    model = parse(
        f"g (int64[8] ids) => ({outputs}) {{ w = Gather(words, ids) v = Cast <to = 1> (words) "
        + " ".join(lines)
        + " }"
    )
    model.opset_import[0].version = 22
    words = np.random.default_rng(1).standard_normal((8, 8), np.float32) * 3
    model.graph.initializer.append(numpy_helper.from_array(words, "words"))
    values = FiniteValues(prepare_model(model, "m").index)
    for seed in range(2):
        found = original(model, {"ids": np.random.default_rng(seed).integers(0, 8, 8)})
        for name in names[2:]:
            if values.is_finite(name):
                assert np.isfinite(found[name]).all(), name
                assert np.abs(found[name]).max() <= values.find(name), name
