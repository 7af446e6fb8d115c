"""Values that are found as types are settled: the same as those of the settled types alone."""

import numpy as np
import pytest
from helpers.support import parse
from onnx.parser import parse_model

from byoc.model import KnownValues, Model, prepare_model

SHAPES = """g (float[2,3] x, int64[N] n) => (float[A,B] y) <int64[1] one = {1}> {
    s = Shape (x)
    product = ReduceProd <keepdims = 1> (s)
    more = Add (product, one)
    length = Shape (n)
    both = Concat <axis = 0> (length, one)
    to = Concat <axis = 0> (one, product)
    y = Reshape (x, to)
}"""
BRANCH = """g (float[2,3] x) => (float[A] y) <int64 zero = {0}, float[1] f = {0.5}, bool yes = {1}> {
    rows = Shape (x)
    size = If (yes) <
        then_branch = one () => (int64[K] a) { a = Identity (rows) },
        else_branch = two () => (int64[L] b) { b = Concat <axis = 0> (rows, rows) }
    >
    first = Gather (size, zero)
    other = Gather (rows, zero)
    axes = Constant <value_ints = [0]> ()
    to = Unsqueeze (first, axes)
    y = Expand (f, to)
}"""
LARGE = """g (float[2] x) => (int64[A,B] y, int64[K] s) <int64[2] many = {2, 400}> {
    ones = ConstantOfShape <value = int64[1] {1}> (many)
    y = NonZero (ones)
    t = Transpose (y)
    s = Shape (t)
}"""
CALL = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[2,3] x) => (float[A,B] y) {
    to = own.Turn (x)
    again = Identity (to)
    y = Reshape (x, again)
}
<domain: "own", opset_import: ["" : 17]>
Turn (x) => (to) {
    s = Shape (x)
    to = Identity (s)
}"""


def read(text: str) -> Model:
    return prepare_model(parse_model(text) if text is CALL else parse(text, 8), "test")


@pytest.mark.parametrize("text", [SHAPES, BRANCH, LARGE, CALL])
def test_found_as_types_were_settled(text: str) -> None:
    model = read(text)
    graph, known = model.inference.typed_graph, model.inference.known
    assert graph is not None
    assert known is not None
    alone = KnownValues.of_graph(graph, model.proto, model.index.opsets)
    names = [*model.index.initializers, *(name for node in graph.node for name in node.output)]
    for name in (*model.index.inputs, *names):
        value, expected = known.find(name), alone.find(name)
        assert (value is None) == (expected is None), name
        if value is not None and expected is not None:
            np.testing.assert_array_equal(value, expected, strict=True)
        assert known.find_shape(name) == alone.find_shape(name), name


def test_values_of_shapes() -> None:
    known = read(SHAPES).inference.known
    assert known is not None
    found = {name: known.find(name) for name in ("s", "more", "both", "to", "n")}
    assert {n: None if v is None else v.tolist() for n, v in found.items()} == {
        "s": [2, 3],
        "more": [7],
        "both": None,
        "to": [1, 6],
        "n": None,
    }


@pytest.mark.parametrize(
    ("text", "inside", "known_names"),
    [(BRANCH, ["size", "first", "to"], ["rows", "other"]), (CALL, ["to", "again"], [])],
)
def test_what_bodies_and_functions_give_is_left_out(
    text: str, inside: list[str], known_names: list[str]
) -> None:
    known = read(text).inference.known
    assert known is not None
    assert [known.find(name) for name in inside] == [None] * len(inside)
    assert all(known.find(name) is not None for name in known_names)
