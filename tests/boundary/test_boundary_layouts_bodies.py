"""Layouts of tensors that regions in the bodies of If, Loop and Scan read from around them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from helpers.cutting import ramp
from helpers.support import prepared
from laying import arranged, border, call, put_in, same
from onnx import GraphProto, ModelProto

from byoc.model import GraphCuts, GraphIndex, OutlineGroup, RegionCut, outline, read_type

LOOP = """g (float[1, 2, 4, 3] x, int64 n) => (float[1, 2, 4, 3] y)
    <bool yes = {1}, float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = Loop (n, yes, x) <body = b (int64 i, bool go, float[1, 2, 4, 3] v)
            => (bool on, float[1, 2, 4, 3] o) {
        on = Identity(go)
        p = Conv(a, w)
        o = Add(p, v)
    }>
}"""
IF = """g (float[1, 2, 4, 3] x, bool c) => (float[1, 2, 4, 3] y)
    <float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = If (c) <
        then_branch = t () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Relu(t0) },
        else_branch = e () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Abs(t0) }
    >
}"""
# The branch is run many times, and what it reads is made outside of the loop.
DEEP = """g (float[1, 2, 4, 3] x, int64 n, bool c) => (float[1, 2, 4, 3] y)
    <bool yes = {1}, float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = Loop (n, yes, x) <body = b (int64 i, bool go, float[1, 2, 4, 3] v)
            => (bool on, float[1, 2, 4, 3] o) {
        on = Identity(go)
        o = If (c) <
            then_branch = t () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Add(t0, v) },
            else_branch = e () => (float[1, 2, 4, 3] s) { s = Neg(v) }
        >
    }>
}"""


def inner_cuts(index: GraphIndex, regions: Mapping[str, Sequence[int]], place: str = "") -> GraphCuts:
    """Return cuts of a graph and its bodies: places such as `body` or `body/then_branch` to nodes."""
    bodies = {
        number: [inner_cuts(b.index, regions, f"{place}/{b.attribute}".strip("/")) for b in inner]
        for number, inner in index.bodies.items()
    }
    name = f"npu_{list(regions).index(place)}" if place in regions else ""
    cuts = (
        (RegionCut(name, "byoc.npu", tuple(OutlineGroup((n,)) for n in regions[place])),) if name else ()
    )
    return GraphCuts(index, cuts, bodies=bodies)


def laid_inside(text: str, regions: Mapping[str, Sequence[int]], word: str = "NHWC") -> ModelProto:
    model = prepared(text)
    cuts = inner_cuts(model.index, regions)
    borders = [border(part.index, c.name, word) for part in cuts.walk() for c in part.cuts]
    result, _ = arranged(outline(cuts), borders)
    kinds = {value.name: read_type(value.type) for value in model.proto.graph.input}
    for n in (0, 1, 3):
        for c in (True, False):
            scalars = {"n": np.array(n), "c": np.array(c)}
            inputs = {"x": ramp(1, 2, 4, 3), **{k: v for k, v in scalars.items() if k in kinds}}
            same(model.proto, result, inputs)
    return result


def body(model: ModelProto, *names: str) -> GraphProto:
    graph = model.graph
    for name in names:
        attributes = (a for node in graph.node for a in node.attribute if a.HasField("g"))
        graph = next(a.g for a in attributes if a.name == name)
    return graph


@pytest.mark.parametrize("word", ["NHWC", "NCHW4c"])
def test_a_tensor_from_around_a_loop_is_converted_before_it(word: str) -> None:
    model = laid_inside(LOOP, {"body": [1, 2]}, word)

    assert put_in(model.graph.node)[-1].startswith(f"a_{word} = ")
    inside = put_in(body(model, "body").node)
    assert not any(f"a_{word} = " in line for line in inside)
    assert list(call(model, "npu_0").input)[:2] == [f"a_{word}", f"v_{word}"]


def test_a_tensor_from_around_an_if_is_converted_in_the_branches() -> None:
    model = laid_inside(IF, {"then_branch": [0, 1], "else_branch": [0, 1]})

    assert put_in(model.graph.node) == []
    assert put_in(body(model, "then_branch").node) == [
        "a_NHWC = Transpose(a)",
        "u = Transpose(u_NHWC)",
    ]
    # A name is given once in a model, though branches may have the same names.
    assert put_in(body(model, "else_branch").node) == [
        "a_NHWC_1 = Transpose(a)",
        "u = Transpose(u_NHWC_1)",
    ]


def test_what_a_region_outside_gives_out_is_read_in_its_layout_inside() -> None:
    model = laid_inside(IF, {"": [0], "then_branch": [0, 1], "else_branch": [0, 1]})

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)"]
    assert put_in(body(model, "then_branch").node) == ["u = Transpose(u_NHWC)"]
    assert call(model, "npu_1").input[0] == call(model, "npu_0").output[0] == "a_NHWC"


def test_a_branch_in_a_loop_reads_what_was_converted_before_the_loop() -> None:
    model = laid_inside(DEEP, {"body/then_branch": [0, 1]})

    assert put_in(model.graph.node) == ["a_NHWC = Transpose(a)"]
    assert put_in(body(model, "body").node) == []
    assert put_in(body(model, "body", "then_branch").node) == [
        "v_NHWC = Transpose(v)",
        "u = Transpose(u_NHWC)",
    ]
