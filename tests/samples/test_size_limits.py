"""Sizes of open dimensions within what tables and masks of a model hold, against plain onnxruntime."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import original
from helpers.support import parse
from onnx import numpy_helper

from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.samples import explain_sizes
from byoc.zoo import load_model

# What models read of a table with a number of rows, at positions up to their length.
FORMS = {
    "a table cut to the length": "p = Slice(row_numbers, zero, length, one) t = Gather(table, p)",
    "rows cut to the length": "r = Slice(table, zero, length, zero) t = Unsqueeze(r, zero)",
    "counted positions": "c = Range(zero0, length0, one0) p = Unsqueeze(c, zero) t = Gather(table, p)",
    "positions behind an offset": """c = Range(zero0, length0, one0) d = Add(c, two0)
        p = Unsqueeze(d, zero) t = Gather(table, p)""",
    "positions that begin later": """past = Add(length0, two0) c = Range(two0, past, one0)
        p = Unsqueeze(c, zero) t = Gather(table, p)""",
    "positions of what is not left out": """f = Equal(ids, zero0) n = Not(f) i = Cast <to = 7> (n)
        c = CumSum(i, one0) m = Mul(c, i) p = Add(m, one0) t = Gather(table, p)""",
    "distances": """c = Range(zero0, length0, one0) row = Unsqueeze(c, zero) column = Unsqueeze(c, one)
        d = Sub(row, column) p = Add(d, two0) q = Max(p, zero0) u = Gather(table, q)
        t = ReduceSum <keepdims = 0> (u, zero)""",
    "a mask that is cut": """m = Slice(square, zero, length, zero) k = Slice(m, zero, length, one)
        l = Cast <to = 1> (ids) a = Unsqueeze(l, one) s = Add(a, k)
        v = ReduceMax <keepdims = 0, axes = [1]> (s)
        t = Unsqueeze(v, two)""",
    "no table": "l = Cast <to = 1> (ids) t = Unsqueeze(l, two)",
    "positions that are clipped": """c = Range(zero0, length0, one0) d = Min(c, two0)
        p = Unsqueeze(d, zero) t = Gather(table, p)""",
}


def make(form: str, rows: int) -> onnx.ModelProto:
    """Return a model of token ids that reads a table in one of the forms."""
    model = parse(f"""g (int64[batch, seq] ids) => (float[batch, n, d] y) {{
        length = Shape <start = 1, end = 2> (ids)
        length0 = Squeeze(length, zero)
        e = Gather(words, ids)
        {FORMS[form]}
        y = Add(e, t)
    }}""")
    constants: Mapping[str, Any] = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "zero0": np.array(0),
        "one0": np.array(1),
        "two0": np.array(2),
        "row_numbers": np.arange(rows)[None],
        "table": np.ones((rows, 4), np.float32),
        "square": np.ones((rows, rows), np.float32),
        "words": np.ones((9, 4), np.float32),
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in read
    )
    return model


def runs(model: onnx.ModelProto, length: int) -> bool:
    try:
        original(model, {"ids": np.ones((1, length), np.int64)})
    except InputError:
        return False
    return True


@pytest.mark.parametrize("rows", [20, 77, 128, 300])
@pytest.mark.parametrize("form", FORMS)
def test_a_length_is_the_usual_one_or_the_largest_that_runs(form: str, rows: int) -> None:
    model = make(form, rows)
    found = explain_sizes(prepare_model(model, "m").index)

    size = found.sizes["seq"]
    assert runs(model, size)
    assert size == 128 or (size < 128 and not runs(model, size + 1))
    reason = found.reasons["seq"]
    if size < 128:
        assert reason in {f"'{name}' has {rows} rows" for name in ("table", "row_numbers", "square")}
    elif runs(model, 400):
        assert reason == "a usual length"
    else:
        most, _, source = reason.removeprefix("a usual length, at most ").partition(": ")
        assert runs(model, int(most))
        assert not runs(model, int(most) + 1)
        assert source.endswith(f"has {rows} rows")


def test_positions_that_are_given_are_rows_of_their_table() -> None:
    model = parse("""g (int64[b, seq] ids, int64[b, seq] position_ids) =>
        (float[b, seq, 4] y) { p = Gather(table, position_ids) c = Cast <to = 1> (ids)
        u = Unsqueeze(c, two) y = Add(p, u) }""")
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones((50, 4), np.float32), "table"),
            numpy_helper.from_array(np.array([2]), "two"),
        ]
    )
    assert explain_sizes(prepare_model(model, "m").index).sizes == {"b": 1, "seq": 50}


@pytest.mark.parametrize(("patch", "side"), [(16, 128), (14, 224), (16, 224), (32, 384), (8, 64)])
def test_an_image_has_as_many_patches_as_there_are_rows(patch: int, side: int) -> None:
    count = (side // patch) ** 2 + 1
    model = parse(f"""g (float[batch, 3, height, width] x, float[1, 1, 4] first) =>
        (float[batch, n, 4] y) {{
        p = Conv <strides = [{patch}, {patch}]> (x, w)
        f = Reshape(p, shape)
        t = Transpose <perm = [0, 2, 1]> (f)
        s = Shape <start = 0, end = 1> (x)
        o = Concat <axis = 0> (s, one, one)
        class = Expand(first, o)
        j = Concat <axis = 1> (class, t)
        y = Add(j, pos)
    }}""")
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in {
            "w": np.ones((4, 3, patch, patch), np.float32),
            "shape": np.array([0, 4, -1]),
            "one": np.array([1]),
            "pos": np.ones((1, count, 4), np.float32),
        }.items()
    )
    found = explain_sizes(prepare_model(model, "m").index)
    assert found.sizes == {"batch": 1, "height": side, "width": side}
    if side != 224:
        assert found.reasons["height"] == f"'pos' has {count} rows"


@pytest.mark.parametrize("frames", [1500, 60, 50])
def test_frames_of_audio_are_as_many_as_positions_ask_for(frames: int) -> None:
    model = parse("""g (float[batch, 8, frames] x) => (float[batch, 4, n] y) {
        c = Conv <kernel_shape = [3], pads = [1, 1], strides = [2]> (x, w)
        y = Add(c, pos)
    }""")
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones((4, 8, 3), np.float32), "w"),
            numpy_helper.from_array(np.ones((4, frames), np.float32), "pos"),
        ]
    )
    assert explain_sizes(prepare_model(model, "m").index).sizes == {"batch": 1, "frames": 2 * frames}


def test_sizes_that_are_given_stay() -> None:
    model = make("counted positions", 77)
    index = prepare_model(model, "m").index
    assert explain_sizes(index, {"seq": 90}).sizes["seq"] == 90
    assert explain_sizes(index, {"batch": 3}).sizes == {"batch": 3, "seq": 77}
    ranged = load_model(model, {"seq": "10..20"})
    assert ranged.planned.sizes["seq"] == 15
    assert ranged.planned.describe() == "batch = 1"
    assert load_model(model).planned.describe() == "batch = 1, seq = 77 ('table' has 77 rows)"
