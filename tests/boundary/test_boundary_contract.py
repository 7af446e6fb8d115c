"""Contracts at borders: both sides are read, and a wire to the wrong place shows before the hardware."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import CHAIN, cut
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper, numpy_helper
from support import Ran, parse

from byoc.boundary.border import Border, Wants
from byoc.boundary.bound import bound
from byoc.boundary.check import Checked, Known, check_model
from byoc.boundary.contract import Contract, ContractError, Side
from byoc.boundary.inside import Contracts
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.layout import parse_layout
from byoc.graph.marks import QUANTIZE, mark
from byoc.graph.outline import Cut, GraphCuts, Group, outline
from byoc.graph.spatial import images
from byoc.graph.types import TensorType

DOMAIN = "byoc.dla"


class Bounded:
    """A model with one region or several, its borders in a layout, and what its user's model was."""

    def __init__(self, text: str, *regions: tuple[int, ...], layout: str = "", opset: int = 17) -> None:
        typed = onnx.shape_inference.infer_shapes(parse(text, ir=10, opset=opset))
        for node in typed.graph.node:  # what quantization put in bears its mark
            if node.name.startswith("ours"):
                mark(node, QUANTIZE)
        users = GraphIndex(typed, stated_types(typed), typed.graph)
        cuts = tuple(
            Cut(f"dla_{i}", DOMAIN, tuple(Group((node,)) for node in nodes))
            for i, nodes in enumerate(regions)
        )
        outlined = outline(GraphCuts(users, cuts))
        wants = Wants(parse_layout(layout) if layout else None)
        spatial, types = images(users), users.values
        result = bound(outlined, [Border(c.name, DOMAIN, wants, spatial, types) for c in cuts])
        self.proto = result.proto
        known = Known(users, result.values, parse_layout("OHWI") if layout else None)
        self.known = {c.name: known for c in cuts}

    def check(self) -> Mapping[str, Contracts]:
        return {
            name: region.contracts
            for name, region in check_model(self.proto, {DOMAIN}, self.known).items()
        }

    def refusal(self) -> str:
        with pytest.raises(ContractError) as caught:
            self.check()
        return str(caught.value)

    def call(self, name: str = "dla_0") -> NodeProto:
        return next(node for node in self.proto.graph.node if node.op_type == name)

    def function(self, name: str = "dla_0") -> FunctionProto:
        return next(function for function in self.proto.functions if function.name == name)

    def node(self, op: str, where: str = "") -> NodeProto:
        nodes = self.function(where).node if where else self.proto.graph.node
        return next(node for node in nodes if node.op_type == op)


PLAIN = """g (float[2, 4] x, float[N, 4] n) => (float[2, 8] y, float[M, 4] m) {
    a = Relu(x)
    b = Concat <axis = 1> (a, a)
    y = Neg(b)
    c = Relu(n)
    m = Neg(c)
}"""
CONV = """g (float[2, 3, 6, 8] x, float[4, 3, 1, 1] unused) => (float[2, 4, 6, 8] y)
    <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
    a = Neg(x)
    c = Conv(a, w)
    r = Relu(c)
    y = Abs(r)
}"""
QDQ = """g (float[2, 3, 6, 8] x) => (float[2, 3, 6, 8] y)
    <float s = {0.5}, int8 z = {3}, float t = {0.25}, int8 k = {-7}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    p = MaxPool <kernel_shape = [1, 1]> (d)
    u = QuantizeLinear(p, t, k)
    v = DequantizeLinear(u, t, k)
    y = Neg(v)
}"""
OURS = QDQ.replace("{\n    q =", "{\n    [ours0] q =")


def _ours(text: str) -> str:
    """Return a text in which all that quantizes is byoc's."""
    lines = []
    for i, line in enumerate(text.splitlines()):
        lines.append(line.replace("    ", f"    [ours{i}] ", 1) if "quantize" in line.lower() else line)
    return "\n".join(lines)


def test_a_plain_border() -> None:
    contracts = Bounded(PLAIN, (0, 1), (3,)).check()
    assert contracts["dla_0"].inputs == (
        Contract("x", "x", "x", TensorType("float32", (2, 4)), TensorType("float32", (2, 4))),
    )
    assert contracts["dla_0"].outputs == (
        Contract("b", "b", "b", TensorType("float32", (2, 8)), TensorType("float32", (2, 8))),
    )
    assert contracts["dla_0"].constants == ()
    assert [str(c) for c in contracts["dla_1"].inputs] == ["float32[N, 4]"]


def test_a_border_in_a_layout() -> None:
    contracts = Bounded(CONV, (1, 2), layout="NHWC").check()["dla_0"]
    nchw, nhwc = TensorType("float32", (2, 3, 6, 8)), TensorType("float32", (2, 6, 8, 3))
    assert contracts.inputs == (
        Contract("a", "a_NHWC", "a", nhwc, nchw, "NHWC", converts={"layout": "host"}),
    )
    (given,) = contracts.outputs
    assert (given.tensor, given.name, given.inner, given.layout) == ("r", "r_NHWC", "r", "NHWC")
    assert (str(given.type), str(given.logical)) == ("float32[2, 6, 8, 4]", "float32[2, 4, 6, 8]")
    (weight,) = contracts.constants
    assert (weight.name, weight.layout, str(weight.type)) == ("w", "OHWI", "float32[4, 1, 1, 3]")
    assert str(weight.logical) == "float32[4, 3, 1, 1]"


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("NCHW16c", (2, 1, 6, 8, 16)), ("NHWC2c", (2, 6, 8, 2, 2)), ("CHWN", (3, 6, 8, 2))],
)
def test_layouts_with_blocks_are_read_off_the_nodes(layout: str, shape: tuple[int, ...]) -> None:
    (given,) = Bounded(CONV, (1, 2), layout=layout).check()["dla_0"].inputs
    assert (given.layout, given.type.shape, given.inner) == (layout, shape, "a")


def test_a_quantized_border_of_the_users_own() -> None:
    contracts = Bounded(QDQ, (1, 2, 3), layout="NHWC").check()["dla_0"]
    (given,), (made,) = contracts.inputs, contracts.outputs
    assert (given.tensor, given.inner, given.layout) == ("q", "q", "NHWC")
    assert str(given) == "int8[2, 6, 8, 3] in NHWC scale 0.5 zero point 3"
    assert given.converts == {"layout": "host", "quantize": "model"}
    assert str(given.logical) == "int8[2, 3, 6, 8]"
    assert str(made) == "int8[2, 6, 8, 3] in NHWC scale 0.25 zero point -7"
    assert made.tensor == "u"


def test_a_quantized_border_of_byocs() -> None:
    contracts = Bounded(_ours(QDQ), (1, 2, 3), layout="NHWC").check()["dla_0"]
    (given,), (made,) = contracts.inputs, contracts.outputs
    assert (given.tensor, str(given.logical)) == ("x", "float32[2, 3, 6, 8]")
    assert str(given) == "int8[2, 6, 8, 3] in NHWC scale 0.5 zero point 3"
    assert given.converts == {"layout": "host", "quantize": "host"}
    assert (made.tensor, str(made.logical)) == ("p", "float32[2, 3, 6, 8]")


def test_two_regions_agree_with_each_other() -> None:
    text = QDQ.replace("y = Neg(v)", "w = MaxPool <kernel_shape = [1, 1]> (v)\n    y = Neg(w)")
    contracts = Bounded(text, (1, 2, 3), (4, 5), layout="NHWC").check()
    (made,), (given,) = contracts["dla_0"].outputs, contracts["dla_1"].inputs
    assert made.name == given.name
    assert str(made) == str(given) == "int8[2, 6, 8, 3] in NHWC scale 0.25 zero point -7"
