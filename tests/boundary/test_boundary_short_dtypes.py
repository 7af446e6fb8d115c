"""Short floats: rounding to them, types of what a node makes, integers computed from extents alone."""

from collections.abc import Mapping

import numpy as np
import pytest
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from byoc.boundary.convert._short_dtypes import (
    OperatorSchemas,
    _inference_inputs,
    find_extent_arithmetic,
    round_values,
)

SCHEMAS = OperatorSchemas({"": 17})


@pytest.mark.parametrize(
    ("op", "inputs", "known", "made"),
    [
        ("Relu", ["x"], {"x": "float16"}, "float16"),
        ("Relu", ["x"], {}, None),
        ("Add", ["x", "y"], {"y": "float16"}, "float16"),
        ("Shape", ["x"], {"x": "float16"}, "int64"),  # fixed by the operator
        ("Shape", ["x"], {}, None),
        ("Greater", ["x", "y"], {"x": "float16", "y": "float16"}, "bool"),
        ("Clip", ["x", "", "high"], {"x": "float16"}, "float16"),
        ("Resize", ["x", "", "scales"], {"x": "bfloat16", "scales": "float32"}, "bfloat16"),
        ("Own", ["a", "x"], {"x": "float16"}, "float16"),  # of no schema: that of what it reads
        ("Own", ["a"], {}, None),
    ],
)
def test_what_a_node_makes(op: str, inputs: list[str], known: Mapping[str, str], made: str) -> None:
    node = helper.make_node(op, inputs, ["z"], domain="acme" if op == "Own" else "")
    assert SCHEMAS.infer_output(node, 0, known) == made
    shown = _inference_inputs(node, {**known, "other": "int8"})
    assert shown == {name: dtype for name, dtype in known.items() if name in inputs}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_a_cast_makes_is_what_it_says(dtype: str) -> None:
    number = {"float32": 1, "float16": 10, "bfloat16": 16}[dtype]
    node = helper.make_node("Cast", ["x"], ["z"], to=number)
    assert SCHEMAS.infer_output(node, 0, {"x": "int64"}) == dtype


EXTENTS = """g (float[2,3] x, float[4] v) => (float[2,3] y) <int64 one = {1}, int64[1] half = {2}> {
    shape = Shape(x)
    first = Gather(shape, one)
    more = Add(first, one)
    both = Mul(more, half)
    fixed = Add(one, one)
    count = Size(v)
    cast = Cast <to = 1> (more)
    mixed = Mul(cast, v)
    y = Identity(x)
}"""


@pytest.mark.parametrize(
    ("small", "expected"),
    [
        ({"first", "more", "both", "cast"}, {"first", "more", "both", "cast"}),
        ({"first", "more", "both", "fixed", "count", "shape"}, {"first", "more", "both"}),
        ({"first", "both"}, {"first"}),  # what is between is not small
        ({"more"}, set[str]()),
        ({"mixed", "y", "v", "fixed"}, set[str]()),
        (set[str](), set[str]()),
    ],
)
def test_integers_that_are_computed_from_extents(small: set[str], expected: set[str]) -> None:
    nodes = list(parse(EXTENTS).graph.node)
    assert find_extent_arithmetic(nodes, {"one", "half"}, small) == expected


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_float16_is_rounded_as_numpy_does_but_for_what_is_beyond(values: list[float]) -> None:
    x = np.array(values, np.float32)
    bits, beyond = round_values(x, "float16")
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    lost = np.isinf(expected) & np.isfinite(x)
    expected[lost] = np.copysign(np.float16(65504), np.sign(x[lost]).astype(np.float16))
    np.testing.assert_array_equal(bits.view(np.float16), expected)
    assert beyond == lost.sum()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_of_its_neighbours_even_ones_in_a_tie(value: float) -> None:
    def meant(bits: int) -> float:
        return float(np.array([bits << 16], np.uint32).view(np.float32)[0])

    bits, beyond = round_values(np.array([value], np.float32), "bfloat16")
    (found,) = bits.tolist()
    largest = meant(0x7F7F)
    if abs(value) > largest:
        assert abs(meant(found)) == largest
        assert np.sign(meant(found)) == np.sign(value)
        assert beyond == (abs(value) >= largest + (largest - meant(0x7F7E)) / 2)
        return
    magnitude = found & 0x7FFF
    error = abs(meant(found) - value)
    for other in (magnitude - 1, magnitude + 1):
        if 0 <= other <= 0x7F7F:
            away = abs(meant(other) - abs(value))
            assert error < away or (error == away and magnitude % 2 == 0)
    assert beyond == 0


def test_bfloat16_keeps_what_is_no_number() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    bits, beyond = round_values(x, "bfloat16")
    back = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back[:4], x[:4])
    assert np.signbit(back[3])
    assert back[4] == pytest.approx(1e-40, rel=2**-6)  # a subnormal number
    assert beyond == 0
