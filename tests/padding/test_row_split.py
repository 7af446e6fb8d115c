"""A batch is split into rows only where plain onnxruntime computes the same of each row alone."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import parse
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.padding import RowSplit, find_row_split
from byoc.zoo import load_model

# Steps from a [n, 4, 6] to b of the same shape.
ALIKE = (
    *("b = Relu(a)", "b = Add(a, c6)", "b = MatMul(a, w66)", "b = Softmax <axis = 2> (a)"),
    *("b = Softmax <axis = 1> (a)", "t = Transpose <perm = [0, 2, 1]> (a) b = Reshape(t, shape)"),
    "m = ReduceMean <axes = [1], keepdims = 1> (a) b = Sub(a, m)",
    "s = Reshape(a, flat) u = MatMul(s, w24) b = Reshape(u, shape)",
    "h, l = Split <axis = 1> (a) b = Concat <axis = 1> (l, h)",
    "k = Slice(a, zero, two, one) b = Concat <axis = 1> (k, k)",
    "g = Gather <axis = 1> (a, order) b = Neg(g)",
    "t = Transpose <perm = [1, 0, 2]> (a) v = Relu(t) b = Transpose <perm = [1, 0, 2]> (v)",
    "b = LayerNormalization <axis = 1> (a, c46)",
    "t = Transpose <perm = [0, 2, 1]> (a) q = MatMul(a, t) b = MatMul(q, a)",
    "e = Shape(a) o = ConstantOfShape(e) p = Cos(o) b = Add(a, p)",
    *("b = CumSum(a, last)", "b = CumSum <reverse = 1> (a, last)"),
    "h, l = TopK <axis = 1> (a, two) m = ReduceSum <keepdims = 1> (h, one) b = Add(a, m)",
    "k = ArgMax <axis = 2> (a) f = Cast <to = 1> (k) b = Mul(a, f)",
    "t = Transpose <perm = [1, 0, 2]> (a) h, k, l = LSTM <hidden_size = 6> (t, wl, rl) "
    "s = Squeeze(h, one) b = Transpose <perm = [1, 0, 2]> (s)",
    "t = Transpose <perm = [1, 0, 2]> (a) h, k = GRU <hidden_size = 6> (t, wg, rg) "
    "s = Squeeze(h, one) b = Transpose <perm = [1, 0, 2]> (s)",
)
# These need the whole batch, or the place of a row in it.
MIXED = (
    *("b = Softmax <axis = 0> (a)", "b = CumSum(a, place)", "b = CumSum <reverse = 1> (a, place)"),
    *("m = ReduceMean <axes = [0], keepdims = 1> (a) b = Sub(a, m)",),
    "m = ReduceMax <axes = [0], keepdims = 1> (a) b = Sub(a, m)",
    "m = ReduceSum <keepdims = 1> (a, zero) b = Sub(a, m)",
    "f = Gather <axis = 0> (a, zero) b = Sub(a, f)",
    "f = Slice(a, zero, one, zero) b = Sub(a, f)",
    "s = Shape <start = 0, end = 1> (a) v = Squeeze(s) r = Range(i0, v, i1) f = Cast <to = 1> (r) "
    "u = Reshape(f, column) b = Add(a, u)",
    "s = Shape <start = 0, end = 1> (a) f = Cast <to = 1> (s) b = Div(a, f)",
    "t = Transpose <perm = [1, 0, 2]> (a) b = Reshape(t, shape)",
    "t = Transpose <perm = [2, 1, 0]> (a) q = CumSum(t, two) b = Transpose <perm = [2, 1, 0]> (q)",
    "s = Reshape(a, row) v = CumSum(s, one) b = Reshape(v, shape)",
    "x0 = Slice(table, zero, n1, zero) b = Add(a, x0)",
    "m = ReduceL1 <axes = [0], keepdims = 1> (a) b = Sub(a, m)",
    "t = Transpose <perm = [1, 2, 0]> (a) v = Transpose <perm = [1, 0, 2]> (a) q = MatMul(t, v) "
    "p = ReduceMean <axes = [0], keepdims = 1> (q) b = MatMul(a, p)",
    'q = Einsum <equation = "bij,bkj->ik"> (a, a) b = MatMul(q, a)',
    "q, z, p = DynamicQuantizeLinear(a) b = DequantizeLinear(q, z, p)",
    "b = MeanVarianceNormalization <axes = [0]> (a)",
    *("b = LpNormalization <axis = 0> (a)", "b = Hardmax <axis = 0> (a)"),
    "h, l = TopK <axis = 0> (a, one) b = Sub(a, h)",
    "k = ArgMax <axis = 0> (a) f = Cast <to = 1> (k) b = Mul(a, f)",
    "h, k, l = LSTM <hidden_size = 6> (a, wl, rl) s = Squeeze(h, one) b = Neg(s)",
    "z = NonZero(a) f = Cast <to = 1> (z) m = ReduceMax <keepdims = 0> (f) b = Add(a, m)",
)
STORED: Mapping[str, Any] = {
    "c6": np.linspace(-1, 1, 6, dtype=np.float32),
    "c46": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6),
    "w66": np.sin(np.arange(36, dtype=np.float32)).reshape(6, 6),
    "w24": np.cos(np.arange(576, dtype=np.float32)).reshape(24, 24) / 4,
    "shape": np.array([-1, 4, 6]),
    "flat": np.array([0, -1]),
    "row": np.array([1, -1]),
    "column": np.array([-1, 1, 1]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "order": np.array([3, 1, 0, 2]),
    "last": np.array(2),
    "wl": np.sin(np.arange(144, dtype=np.float32)).reshape(1, 24, 6) / 2,
    "rl": np.cos(np.arange(144, dtype=np.float32)).reshape(1, 24, 6) / 2,
    "wg": np.sin(np.arange(108, dtype=np.float32)).reshape(1, 18, 6) / 2,
    "rg": np.cos(np.arange(108, dtype=np.float32)).reshape(1, 18, 6) / 2,
    "place": np.array(0),
    "i0": np.array(0),
    "i1": np.array(1),
    "table": np.arange(300 * 24, dtype=np.float32).reshape(300, 4, 6),
}
SIZED = "n1 = Shape <start = 0, end = 1> (x) "


def chain(steps: list[str]) -> onnx.ModelProto:
    """Return a model of some steps, each of which reads what the one before makes."""
    text, now = SIZED + "a0 = Identity(x) ", "a0"
    for number, step in enumerate(steps):
        names = {name: f"{name}{number}" for name in "defghklmopqrstuv"}
        names |= {"x0": f"x{number}_0", "a": now, "b": f"a{number + 1}"}
        text += re.sub(r"\b[a-z]0?\b", lambda word, names=names: names.get(word[0], word[0]), step) + " "
        now = names["b"]
    model = parse("g (float[n, 4, 6] x) => (float[n, 4, 6] y) { " + text + f"y = Abs({now}) }}")
    used = {name for node in model.graph.node for name in node.input}
    for name, value in STORED.items():
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def decide(model: onnx.ModelProto) -> RowSplit | str:
    return find_row_split(lambda dims: load_model(model, dims), "n")


def is_right(model: onnx.ModelProto, split: RowSplit) -> bool:
    """Return whether rows by themselves give what plain onnxruntime gives for the batch."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (2, 3, 7):
        x = np.random.default_rng(size).standard_normal((size, 4, 6), np.float32)
        (expected,) = session.run(None, {"x": x})
        for each in (split, replace(split, size=2)):
            rows = [{"y": session.run(None, row)[0]} for row in each.list_rows({"x": x})]
            if not np.allclose(each.join(rows, size)["y"], expected, rtol=1e-3, atol=1e-4):
                return False
    return True


@pytest.mark.parametrize("step", ALIKE)
def test_rows_that_are_alike_are_split(step: str) -> None:
    model = chain([step])
    split = decide(model)
    assert isinstance(split, RowSplit), split
    assert (split.dim, split.inputs, split.outputs) == ("n", {"x": 0}, {"y": 0})
    assert is_right(model, split)


@pytest.mark.parametrize("step", MIXED)
def test_a_batch_that_is_mixed_is_not(step: str) -> None:
    model = chain([step])
    assert not is_right(model, RowSplit("n", 9, {"x": 0}, {"y": 0}))  # it is planted
    assert isinstance(decide(model), str)


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_are_never_split_wrongly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [str(step) for step in rng.choice(ALIKE, rng.integers(1, 5))]
    if seed % 2:
        steps.insert(rng.integers(len(steps) + 1), str(rng.choice(MIXED)))
    model = chain(steps)
    split = decide(model)
    assert isinstance(split, str) == bool(seed % 2), split
    assert isinstance(split, str) or is_right(model, split)


def test_rows_are_counted_and_joined() -> None:
    split = RowSplit("n", 8, {"x": 1, "z": 0}, {"y": 1})
    x, z = np.arange(6).reshape(2, 3), np.arange(3)
    assert split.count_rows({"x": x, "z": z}) == 3
    assert split.count_rows({"x": x, "z": z[:2]}) == 0
    assert split.count_rows({"x": x, "z": np.float32(1)}) == 0
    rows = [*split.list_rows({"x": x, "z": z, "k": 5})]
    assert [row["z"].tolist() for row in rows] == [[0], [1], [2]]
    assert {row["k"] for row in rows} == {5}
    np.testing.assert_array_equal(split.join([{"y": row["x"]} for row in rows], 3)["y"], x)
    with pytest.raises(InputError, match="not one row on axis 1"):
        split.join([{"y": x}], 3)


def test_calls_of_several_rows_are_filled_and_cut() -> None:
    split = RowSplit("n", 8, {"x": 1, "z": 0}, {"y": 1}, 2)
    x, z = np.arange(6).reshape(2, 3), np.arange(3)
    calls = [*split.list_rows({"x": x, "z": z, "k": 5})]
    assert [call["z"].tolist() for call in calls] == [[0, 1], [2, 2]]
    np.testing.assert_array_equal(split.join([{"y": call["x"]} for call in calls], 3)["y"], x)
    with pytest.raises(InputError, match="not 2 rows on axis 1"):
        split.join([{"y": x}], 3)
    assert split.describe() == "n 3 to 8 in calls of 2"
    assert replace(split, size=1).describe() == "n 2 to 8 row by row"
