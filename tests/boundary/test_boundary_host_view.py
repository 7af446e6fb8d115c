"""The host's views of boundary tensors, in numbers: what the nodes around a call say of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import pytest
from contract_views import AxisTerms, HostGraph, HostView, TensorView
from helpers.support import parse
from onnx import helper

from byoc.boundary.contracts import RegionContext, RegionContracts, TensorContract
from byoc.model import (
    CAST,
    LAYOUT,
    LAYOUT_KEY,
    QUANTIZE,
    GraphIndex,
    TensorType,
    get_stated_types,
    mark_inserted,
    set_metadata,
)

NHWC = "Transpose <perm = [0, 2, 3, 1]>"
NCHW = "Transpose <perm = [0, 3, 1, 2]>"
PLAIN, TURNED, BYTES = "float[1,3,4,5]", "float[1,4,5,3]", "int8[1,3,4,5]"
SCALES = "float s = {0.5}, int8 z = {3}, float[3] k = {1, 2, 4}, int8[3] l = {0, 0, 0}"

# The user's model: r is the region's; t is a transposed form of a.
USERS = f"""g ({PLAIN} x) => ({PLAIN} y, {TURNED} t, {PLAIN} o, {BYTES} q) <{SCALES}> {{
    a = Relu(x)
    b = Abs(x)
    q = QuantizeLinear <axis = 1> (a, k, l)
    t = {NHWC} (a)
    r = Neg(a)
    y = Tanh(r)
    o = Neg(b)
}}"""


def indexed(text: str) -> GraphIndex:
    proto = onnx.shape_inference.infer_shapes(parse(text, ir=10, opset=21))
    return GraphIndex(proto, get_stated_types(proto), proto.graph)


def around(
    head: str,
    nodes: str,
    purposes: Mapping[str, str],
    contracts: Mapping[str, RegionContracts] | None = None,
    **context: object,
) -> HostGraph:
    """The graph around a call: its inputs, outputs and types, and the nodes, of which some are byoc's.

    A purpose with a colon is that of a node, and behind it the layout that the node is for.
    """
    index = indexed(f"g {head} {{ {nodes} }}")
    for node in (*index.nodes, *(node for body in index.walk() for node in body.nodes)):
        purpose, _, layout = purposes.get(node.output[0], "").partition(":")
        if purpose:
            mark_inserted(node, purpose)
        if layout:
            set_metadata(node, LAYOUT_KEY, layout)
    known = RegionContext(**{"user_index": indexed(USERS), **context})  # type: ignore[arg-type]
    return HostGraph(index, contracts or {}, known, None)


def described(view: HostView) -> tuple[str, str, bool, bool, bool]:
    text = view.view.describe(TensorView()) + (" unknown layout" if view.view.layout is None else "")
    return text, view.tensor, view.cast, view.is_own, view.is_connected


HEAD = f"({PLAIN} x) => ({PLAIN} y) <{SCALES}, {PLAIN} a, {PLAIN} b, {TURNED} n, {TURNED} t>"
QUANTIZED = HEAD[:-1] + f", {BYTES} q, int8[1,4,5,3] m, {PLAIN} d>"
NHWC_TYPE, NCHW_TYPE = "float32[1, 4, 5, 3]", "float32[1, 3, 4, 5]"
CHANNELS = "scale 1, 2, 4 zero point 0, 0, 0 axis"


@pytest.mark.parametrize(
    ("name", "head", "nodes", "purposes", "expected"),
    [
        ("a", HEAD, "a = Relu(x)", {}, (NCHW_TYPE, "a", False, True, True)),
        ("x", HEAD, "", {}, (NCHW_TYPE, "x", False, True, False)),  # the region has a
        ("b", HEAD, "b = Abs(x)", {}, (NCHW_TYPE, "b", False, True, False)),
        (
            *("n", HEAD, f"a = Relu(x) n = {NHWC} (a)", {"n": LAYOUT}),
            (f"{NHWC_TYPE} in NHWC", "a", False, True, True),
        ),
        (  # a node that byoc runs in another layout makes the user's tensor
            *("n", HEAD, f"n0 = {NHWC} (x) n = Relu(n0)", {"n0": LAYOUT, "n": ":NHWC"}),
            (f"{NHWC_TYPE} in NHWC", "n", False, True, True),
        ),
        (  # another operator, whatever it makes
            *("w", HEAD[:-1] + f", {PLAIN} w>", "a = Relu(x) w = Trilu(a)", {}),
            (NCHW_TYPE, "w", False, True, True),
        ),
        (  # the user's own form, of which the region has the other
            *("t", HEAD, f"a = Relu(x) t = {NHWC} (a)", {}),
            (f"{NHWC_TYPE} in NHWC", "t", False, True, True),
        ),
        (
            *(
                "h",
                HEAD[:-1] + ", float16[1,3,4,5] h>",
                "a = Relu(x) h = Cast <to = 10> (a)",
                {"h": CAST},
            ),
            ("float16[1, 3, 4, 5]", "a", True, True, True),
        ),
        (  # the user's Cast is an operator
            *("h", HEAD[:-1] + ", float16[1,3,4,5] h>", "a = Relu(x) h = Cast <to = 10> (a)", {}),
            ("float16[1, 3, 4, 5]", "h", False, True, True),
        ),
        (
            *("q", QUANTIZED, "a = Relu(x) q = QuantizeLinear(a, s, z)", {}),
            ("int8[1, 3, 4, 5] scale 0.5 zero point 3", "q", False, False, False),
        ),
        (
            *("q", QUANTIZED, "a = Relu(x) q = QuantizeLinear(a, s, z)", {"q": QUANTIZE}),
            ("int8[1, 3, 4, 5] scale 0.5 zero point 3", "a", False, True, True),
        ),
        (  # the axis is that of the user's tensor, wherever the node stands
            *("m", QUANTIZED, f"a = Relu(x) n = {NHWC} (a) m = QuantizeLinear <axis = 3> (n, k, l)"),
            *({"n": LAYOUT, "m": QUANTIZE},),
            (f"int8[1, 4, 5, 3] in NHWC {CHANNELS} 1", "a", False, True, True),
        ),
        (
            *("m", QUANTIZED, f"a = Relu(x) q = QuantizeLinear <axis = 1> (a, k, l) m = {NHWC} (q)"),
            *({"q": QUANTIZE, "m": LAYOUT},),
            (f"int8[1, 4, 5, 3] in NHWC {CHANNELS} 1", "a", False, True, True),
        ),
        (  # what byoc made a float again has no scales
            *("d", QUANTIZED, "a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)"),
            *({"q": QUANTIZE, "d": QUANTIZE},),
            (NCHW_TYPE, "a", False, True, True),
        ),
        (  # but the user's DequantizeLinear is an operator
            *("d", QUANTIZED, "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)", {}),
            (NCHW_TYPE, "d", False, True, True),
        ),
    ],
)
def test_an_input_is_followed_to_the_users_tensor(
    name: str,
    head: str,
    nodes: str,
    purposes: Mapping[str, str],
    expected: tuple[str, str, bool, bool, bool],
) -> None:
    host = around(head, nodes + " y = Tanh(x)", purposes)
    assert described(host.view_input(name, "a")) == expected


def contract(tensor: str, name: str, kind: TensorType, **fields: object) -> TensorContract:
    logical = TensorType("float32", (1, 3, 4, 5))
    return TensorContract(tensor, name, tensor, kind, logical, **fields)  # type: ignore[arg-type]


INT = TensorType("int8", (1, 4, 5, 3))
NEIGHBOURS = {
    "dla_7": RegionContracts(
        (
            contract("r", "i0", INT, layout="NHWC", scale=(0.5,), zero_point=(3,)),
            contract("b", "i1", TensorType("float32", (1, 3, 4, 5))),
        ),
        (
            contract("b", "o0", TensorType("float32", (1, 3, 4, 5))),
            contract("a", "o1", INT, layout="NHWC", scale=(0.5,), zero_point=(3,)),
        ),
    )
}
CALL_HEAD = (
    f"(int8[1,4,5,3] i, {PLAIN} b) => ({PLAIN} y) <int8[1,4,5,3] m, {PLAIN} p, {BYTES} w, float c>"
)


def called(graph: HostGraph, **domains: str) -> HostGraph:
    """Make the node `Call` of a graph a call of the region dla_7."""
    for node in graph.index.nodes:
        if node.op_type == "Call":
            node.op_type, node.domain = "dla_7", domains.get("domain", "byoc.dla")
    return graph


def test_an_input_that_another_region_makes_is_as_its_contract_says() -> None:
    nodes = f"p, m = Call(i, b) w = {NCHW} (m) y = Tanh(p)"
    host = called(around(CALL_HEAD, nodes, {"w": LAYOUT}, NEIGHBOURS))
    scales = "scale 0.5 zero point 3"
    assert described(host.view_input("m", "a")) == (
        *(f"int8[1, 4, 5, 3] in NHWC {scales}", "a"),
        *(False, True, True),
    )
    assert described(host.view_input("w", "a")) == (f"int8[1, 3, 4, 5] {scales}", "a", False, True, True)
    assert described(host.view_input("p", "a")) == (NCHW_TYPE, "b", False, True, False)
    other = called(around(CALL_HEAD, nodes, {}, NEIGHBOURS), domain="vendor")
    assert described(other.view_input("m", "a")) == ("int8[1, 4, 5, 3]", "m", False, True, True)


def test_an_output_that_another_region_reads_is_as_its_contract_says() -> None:
    nodes = f"w = {NHWC} (r) p, m = Call(w, c, e) y = Tanh(p)"
    head = f"({BYTES} r, {PLAIN} e) => ({PLAIN} y) <int8[1,4,5,3] w, float c = {{1}}, {PLAIN} p>"
    host = called(around(head, nodes, {"w": LAYOUT}, NEIGHBOURS))
    (view,) = host.view_output("r", "r")
    assert described(view) == ("int8[1, 3, 4, 5] scale 0.5 zero point 3", "r", False, True, True)
    (view,) = host.view_output("e", "r")
    assert described(view) == (NCHW_TYPE, "b", False, True, False)


MADE = {"r": PLAIN, "n": TURNED, "q": BYTES, "m": "int8[1,4,5,3]", "h": "float16[1,3,4,5]", "e": "float"}


@pytest.mark.parametrize(
    ("name", "nodes", "purposes", "expected"),
    [
        ("r", "y = Tanh(r)", {}, [(NCHW_TYPE, "r", False, True, True)]),
        (
            *("n", f"r = {NCHW} (n) y = Tanh(r)", {"r": LAYOUT}),
            [(f"{NHWC_TYPE} in NHWC", "r", False, True, True)],
        ),
        (  # every reader has its say: this one reads it as it is
            *("n", f"r = {NCHW} (n) y = Tanh(r) o = Neg(n)", {"r": LAYOUT}),
            [
                (f"{NHWC_TYPE} in NHWC", "r", False, True, True),
                (NHWC_TYPE, "n", False, True, True),
            ],
        ),
        (
            *("h", "r = Cast <to = 1> (h) y = Tanh(r)", {"r": CAST}),
            [("float16[1, 3, 4, 5]", "r", True, True, True)],
        ),
        (
            *("q", "r = DequantizeLinear(q, s, z) y = Tanh(r)", {"r": QUANTIZE}),
            [("int8[1, 3, 4, 5] scale 0.5 zero point 3", "r", False, True, True)],
        ),
        (
            *("q", "d = DequantizeLinear(q, s, z) y = Tanh(d)", {}),
            [("int8[1, 3, 4, 5] scale 0.5 zero point 3", "q", False, False, False)],
        ),
        (  # scales of channels, whose axis is that of the user's tensor
            *("m", f"d = DequantizeLinear <axis = 3> (m, k, l) r = {NCHW} (d) y = Tanh(r)"),
            *({"d": QUANTIZE, "r": LAYOUT},),
            [(f"int8[1, 4, 5, 3] in NHWC {CHANNELS} 1", "r", False, True, True)],
        ),
        (
            *("m", f"q = {NCHW} (m) r = DequantizeLinear <axis = 1> (q, k, l) y = Tanh(r)"),
            *({"q": LAYOUT, "r": QUANTIZE},),
            [(f"int8[1, 4, 5, 3] in NHWC {CHANNELS} 1", "r", False, True, True)],
        ),
        (  # a scale that the region makes is no quantized tensor
            *("e", "d = DequantizeLinear(z, e) y = Tanh(d)", {}),
            [("float32[]", "e", False, True, True)],
        ),
        ("y", "", {}, [(NCHW_TYPE, "y", False, True, False)]),  # an output of the graph
        ("unread", "y = Tanh(r)", {}, []),
    ],
)
def test_an_output_is_followed_to_each_reader(
    name: str,
    nodes: str,
    purposes: Mapping[str, str],
    expected: Sequence[tuple[str, str, bool, bool, bool]],
) -> None:
    given = [f"{kind} {made}" for made, kind in MADE.items() if not re.search(rf"\b{made} = ", nodes)]
    host = around(f"({', '.join(given)}) => ({PLAIN} y) <{SCALES}>", nodes, purposes)
    assert [described(view) for view in host.view_output(name, "r")] == expected


def test_readers_inside_bodies_have_their_say() -> None:
    branch = f"() => ({PLAIN} o) {{ c = {NCHW} (n) o = Neg(c) }}"
    nodes = f"y = If(k) <then_branch = t {branch}, else_branch = e {branch.replace('(n)', '(other)')}>"
    head = f"(bool k, {TURNED} n, {TURNED} other) => ({PLAIN} y)"
    host = around(head, nodes + " z = Neg(n)", {"c": LAYOUT})
    assert [described(view)[:2] for view in host.view_output("n", "r")] == [
        (f"{NHWC_TYPE} in NHWC", "c"),
        (NHWC_TYPE, "n"),
    ]


def test_an_input_inside_a_body_is_followed_out_of_it() -> None:
    branch = f"() => ({TURNED} o) {{ o = Neg(n) }}"
    nodes = f"a = Relu(x) n = {NHWC} (a) y = If(k) <then_branch = t {branch}, else_branch = e {branch}>"
    host = around(f"(bool k, {PLAIN} x) => ({TURNED} y) <{PLAIN} a, {TURNED} n>", nodes, {"n": LAYOUT})
    inside = replace(host, index=host.index.bodies[2][0].index)
    assert described(inside.view_input("n", "a"))[1:] == ("a", False, True, True)
    assert inside.view_input("n", "a").view.layout == "NHWC"


def test_a_user_who_knows_no_shape_has_no_other_one() -> None:
    users = indexed(USERS)
    unknown = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    bare = GraphIndex(users.proto, {**users.type_protos, "r": unknown})
    head = f"({TURNED} n) => ({PLAIN} y) <{PLAIN} r>"
    host = around(head, f"r = {NCHW} (n) y = Tanh(r)", {"r": LAYOUT}, user_index=bare)
    assert [described(view)[0] for view in host.view_output("n", "r")] == [f"{NHWC_TYPE} in NHWC"]


@pytest.mark.parametrize(
    ("mark", "layouts", "terms"),
    [
        ("NHWC", [], "NHWC"),
        ("NHWC", ["NCHW4c", "CHWN"], "NHWC"),
        ("NCHW", ["NHWC"], "NWCH"),  # plain to the node, so NHWC to the user: where its axes are
        ("NCHW", ["NHWC", "", "NHWC"], "NWCH"),
        ("NCHW", ["NHWC", "CHWN"], None),
        ("NCHW", ["NCHW4c"], None),
        ("NCHW", [], None),
    ],
)
def test_a_node_in_the_plain_layout_has_the_users_tensor_in_that_of_the_regions(
    mark: str, layouts: Sequence[str], terms: str | None
) -> None:
    kind = TensorType("float32", (1, 3, 4, 5))
    found = [contract("a", "a", kind, layout=layout) for layout in layouts]
    contracts = {"dla_7": RegionContracts(tuple(found[:1]), tuple(found[1:]))}
    host = around(HEAD, "y = Tanh(x)", {}, contracts)
    assert host._node_layout(mark, 4) == (terms and AxisTerms.parse(terms, 4))
