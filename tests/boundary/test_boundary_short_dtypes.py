"""Types of what a node makes in short floats, and which integers are computed from extents alone."""

from collections.abc import Mapping

import pytest
from helpers.support import parse
from onnx import helper

from byoc.boundary.convert._short_dtypes import (
    OperatorSchemas,
    _inference_inputs,
    find_extent_arithmetic,
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
