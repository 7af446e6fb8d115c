"""Contracts at borders: both sides are read, and a wire to the wrong place shows before the hardware."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract_views import ContractError
from helpers.cutting import CHAIN, cut
from helpers.support import VANILLA, Ran, parse
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.boundary.contracts import RegionContext, RegionContracts, TensorContract, check_contracts
from byoc.boundary.convert import BoundaryFormat, RegionBoundary, TransposeShares, convert_boundary
from byoc.bundle import open_bundle
from byoc.model import (
    QUANTIZE,
    GraphCuts,
    GraphIndex,
    OutlineGroup,
    RegionCut,
    TensorType,
    find_boundary,
    find_images,
    get_stated_types,
    mark_inserted,
    outline,
    parse_layout,
)

DOMAIN = "byoc.dla"


class Bounded:
    """A model with one region or several, its borders in a layout, and what its user's model was."""

    def __init__(
        self,
        text: str,
        *regions: tuple[int, ...],
        layout: str = "",
        opset: int = 17,
        shares: TransposeShares | None = None,
        **wanted: Any,
    ) -> None:
        typed = onnx.shape_inference.infer_shapes(parse(text, ir=10, opset=opset))
        for node in typed.graph.node:  # what quantization put in bears its mark
            if node.name.startswith("ours"):
                mark_inserted(node, QUANTIZE)
        users = GraphIndex(typed, get_stated_types(typed), typed.graph)
        cuts = tuple(
            RegionCut(f"dla_{i}", DOMAIN, tuple(OutlineGroup((node,)) for node in nodes))
            for i, nodes in enumerate(regions)
        )
        outlined = outline(GraphCuts(users, cuts))
        wants = BoundaryFormat(parse_layout(layout) if layout else None, **wanted)
        spatial, types = find_images(users), users.type_protos
        given = {} if shares is None else dict.fromkeys(types, shares)
        result = convert_boundary(
            outlined, [RegionBoundary(c.name, wants, spatial, types, given) for c in cuts]
        )
        self.proto = result.proto
        weights = parse_layout("OHWI") if layout else None
        self.known = {
            c.name: RegionContext(
                users, find_boundary(users, c.nodes), result.values, result.origins, weights
            )
            for c in cuts
        }

    def check(self) -> Mapping[str, RegionContracts]:
        return {
            name: region.contracts
            for name, region in check_contracts(self.proto, {DOMAIN}, self.known).items()
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


def _ours(text: str) -> str:
    """Return a text in which all that quantizes is byoc's."""
    lines = []
    for i, line in enumerate(text.splitlines()):
        lines.append(line.replace("    ", f"    [ours{i}] ", 1) if "quantize" in line.lower() else line)
    return "\n".join(lines)


def test_a_plain_border() -> None:
    contracts = Bounded(PLAIN, (0, 1), (3,)).check()
    assert contracts["dla_0"].inputs == (
        TensorContract("x", "x", "x", TensorType("float32", (2, 4)), TensorType("float32", (2, 4))),
    )
    assert contracts["dla_0"].outputs == (
        TensorContract("b", "b", "b", TensorType("float32", (2, 8)), TensorType("float32", (2, 8))),
    )
    assert contracts["dla_0"].constants == ()
    assert [str(c) for c in contracts["dla_1"].inputs] == ["float32[N, 4]"]


def test_a_border_in_a_layout() -> None:
    contracts = Bounded(CONV, (1, 2), layout="NHWC").check()["dla_0"]
    nchw, nhwc = TensorType("float32", (2, 3, 6, 8)), TensorType("float32", (2, 6, 8, 3))
    assert contracts.inputs == (
        TensorContract("a", "a_NHWC", "a", nhwc, nchw, "NHWC", converts={"layout": "host"}),
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


def _stored(bounded: Bounded, value: object) -> str:
    """Return the name of a new constant of the main graph."""
    tensor = numpy_helper.from_array(np.asarray(value), "planted")
    bounded.proto.graph.initializer.append(tensor)
    return "planted"


def _plant(op: str, position: int, value: object) -> Callable[[Bounded], None]:
    def plant(bounded: Bounded) -> None:
        bounded.node(op).input[position] = _stored(bounded, value)

    return plant


def _turn(where: str, *order: int) -> Callable[[Bounded], None]:
    def plant(bounded: Bounded) -> None:
        del bounded.node("Transpose", where).attribute[:]
        bounded.node("Transpose", where).attribute.append(helper.make_attribute("perm", order))

    return plant


def _drop_on_the_host(bounded: Bounded) -> None:
    transpose = bounded.node("Transpose")
    bounded.call().input[0] = transpose.input[0]
    bounded.proto.graph.node.remove(transpose)


def _drop_in_the_region(bounded: Bounded) -> None:
    transpose = bounded.node("Transpose", "dla_0")
    bounded.node("Conv", "dla_0").input[0] = transpose.input[0]
    bounded.function().node.remove(transpose)


def _drop_behind_the_region(bounded: Bounded) -> None:
    bounded.node("Abs").input[0] = bounded.call().output[0]


def _wire(bounded: Bounded) -> None:
    bounded.call().input[0] = "x"


def _wire_the_transpose(bounded: Bounded) -> None:
    bounded.node("Transpose").input[0] = "x"


CUBE = CONV.replace("2, 3, 6, 8", "3, 3, 3, 3").replace("2, 4, 6, 8", "3, 4, 3, 3")
Q = "int8[2, 3, 6, 8]"


@pytest.mark.parametrize(
    ("text", "layout", "plant", "sentence"),
    [
        (
            *(QDQ, "", _plant("QuantizeLinear", 2, np.uint8(3))),
            f"the host has 'q' as u{Q} scale 0.5 zero point 3, the region as {Q} scale 0.5 zero point 3",
        ),
        (
            *(QDQ, "", _plant("QuantizeLinear", 1, np.float32(0.75))),
            f"the host has 'q' as {Q} scale 0.75 zero point 3, the region as {Q} scale 0.5 zero point 3",
        ),
        (
            *(QDQ, "", _plant("QuantizeLinear", 2, np.int8(4))),
            f"the host has 'q' as {Q} scale 0.5 zero point 4, the region as {Q} scale 0.5 zero point 3",
        ),
        (
            *(QDQ, "", _plant("DequantizeLinear", 2, np.int8(7))),
            f"the host has 'u' as {Q} scale 0.25 zero point 7, "
            f"the region as {Q} scale 0.25 zero point -7",
        ),
        (
            *(CONV, "NHWC", _drop_on_the_host),
            "the host has 'a_NHWC' as float32[2, 3, 6, 8], the region as float32[2, 6, 8, 3] in NHWC",
        ),
        (
            *(CUBE, "NHWC", _drop_on_the_host),
            "the host has 'a_NHWC' as float32[3, 3, 3, 3], the region as float32[3, 3, 3, 3] in NHWC",
        ),
        (
            *(CUBE, "NHWC", _drop_in_the_region),
            "the host has 'a_NHWC' as float32[3, 3, 3, 3] in NHWC, the region as float32[3, 3, 3, 3]",
        ),
        (
            *(CUBE, "NHWC", _drop_behind_the_region),
            "the host has 'r_NHWC' as float32[3, 3, 3, 4], the region as float32[3, 3, 3, 4] in NHWC",
        ),
        (
            *(CONV, "NHWC", _turn("", 0, 3, 2, 1)),
            "the host has 'a_NHWC' as float32[2, 8, 6, 3] in NWHC, "
            "the region as float32[2, 6, 8, 3] in NHWC",
        ),
        (
            *(CUBE, "NHWC", _turn("dla_0", 0, 1, 3, 2)),
            "the host has 'a_NHWC' as float32[3, 3, 3, 3] in NHWC, "
            "the region as float32[3, 3, 3, 3] in NCWH",
        ),
        (CONV, "", _wire, "the host has 'x' where the region has 'a'"),
        (CONV, "NHWC", _wire_the_transpose, "the host has 'x' where the region has 'a'"),
    ],
)
def test_what_is_planted_at_a_border_is_found(
    text: str, layout: str, plant: Callable[[Bounded], None], sentence: str
) -> None:
    bounded = Bounded(text, (1, 2, 3) if text == QDQ else (1, 2), layout=layout)
    bounded.check()
    plant(bounded)
    assert bounded.refusal() == f"region dla_0: {sentence}"


CHANNELS = QDQ.replace("float s = {0.5}, int8 z = {3}", "float[3] s = {1, 2, 4}, int8[3] z = {0, 0, 0}")


def _other_axis(bounded: Bounded) -> None:
    bounded.node("QuantizeLinear").attribute.append(helper.make_attribute("axis", 0))


def test_scales_of_channels_have_an_axis() -> None:
    bounded = Bounded(CHANNELS.replace("2, 3, 6, 8", "3, 3, 6, 8"), (1, 2, 3), layout="NHWC")
    (given,) = bounded.check()["dla_0"].inputs
    assert str(given) == "int8[3, 6, 8, 3] in NHWC scale 1, 2, 4 zero point 0, 0, 0 axis 1"
    _other_axis(bounded)
    assert bounded.refusal() == (
        "region dla_0: the host has 'q_NHWC' as int8[3, 6, 8, 3] in NHWC "
        "scale 1, 2, 4 zero point 0, 0, 0 axis 0, "
        "the region as int8[3, 6, 8, 3] in NHWC scale 1, 2, 4 zero point 0, 0, 0 axis 1"
    )


def test_a_model_that_quantizes_by_one_scale_and_dequantizes_by_another_is_the_users_matter() -> None:
    text = QDQ.replace("d = DequantizeLinear(q, s, z)", "d = DequantizeLinear(q, t, z)")
    (given,) = Bounded(text, (1, 2, 3)).check()["dla_0"].inputs
    assert given.scale == (0.25,)


@pytest.mark.parametrize("order", ["", "inner first"])
def test_two_regions_that_disagree(order: str) -> None:
    text = QDQ.replace("y = Neg(v)", "w = MaxPool <kernel_shape = [1, 1]> (v)\n    y = Neg(w)")
    bounded = Bounded(text, (1, 2, 3), (4, 5), layout="NHWC")
    where = "dla_1" if not order else "dla_0"
    _turn(where, 0, 1, 3, 2)(bounded)
    assert "in NCWH" in bounded.refusal()


def test_what_a_region_states_of_its_outputs_is_not_believed() -> None:
    bounded = Bounded(PLAIN, (0, 1))
    bounded.node("Concat", "dla_0").attribute[0].i = 0
    assert bounded.refusal() == (
        "region dla_0: the host has 'b' as float32[2, 8], the region as float32[4, 4]"
    )


def test_a_node_inside_that_makes_something_else_shows() -> None:
    bounded = Bounded(PLAIN, (0, 1, 2))
    node = NodeProto(op_type="Transpose", input=["a"], output=["b"])
    bounded.node("Concat", "dla_0").CopyFrom(node)
    bounded.node("Neg", "dla_0").CopyFrom(helper.make_node("Concat", ["b", "b"], ["y"], axis=1))
    assert bounded.refusal() == (
        "region dla_0: the host has 'y' as float32[2, 8], the region as float32[4, 4]"
    )


def test_a_tensor_inside_that_is_not_what_the_users_model_has_shows() -> None:
    bounded = Bounded(PLAIN, (0, 1, 2))
    turn = helper.make_node("Transpose", ["wide"], ["b"], perm=[1, 0])
    bounded.node("Neg", "dla_0").CopyFrom(helper.make_node("Transpose", ["b"], ["y"], perm=[1, 0]))
    bounded.node("Concat", "dla_0").output[0] = "wide"
    bounded.function().node.insert(2, turn)
    assert bounded.refusal() == (
        "region dla_0: 'b' is float32[8, 2], but float32[2, 8] in the user's model"
    )


def test_so_does_a_tensor_on_the_host() -> None:
    bounded = Bounded(PLAIN, (3,))
    bounded.node("Concat").output[0] = "wide"
    bounded.node("Neg").CopyFrom(helper.make_node("Transpose", ["b"], ["y"], perm=[1, 0]))
    bounded.proto.graph.node.insert(2, helper.make_node("Transpose", ["wide"], ["b"], perm=[1, 0]))
    for value in bounded.proto.graph.value_info:
        value.type.tensor_type.ClearField("shape")
    assert bounded.refusal() == ("the host: 'b' is float32[8, 2], but float32[2, 8] in the user's model")


def test_a_region_that_returns_another_dtype_shows() -> None:
    bounded = Bounded(PLAIN, (0, 1))
    bounded.node("Concat", "dla_0").output[0] = "wide"
    bounded.function().node.append(helper.make_node("Cast", ["wide"], ["b"], to=TensorProto.INT8))
    assert bounded.refusal() == (
        "region dla_0: the host has 'b' as float32[2, 8], the region as int8[2, 8]"
    )


def test_the_model_is_not_changed() -> None:
    bounded = Bounded(QDQ, (1, 2, 3), layout="NHWC")
    before = bounded.proto.SerializeToString(deterministic=True)
    bounded.check()
    assert bounded.proto.SerializeToString(deterministic=True) == before


def test_weights_of_each_convolution_are_packed_in_their_order(tmp_path: Path) -> None:
    text = """g (float[1, 3, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[5, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
         float[5, 2, 1, 1] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, float[1] b = {3}> {
        c = Conv(x, w)
        d = ConvTranspose(c, v)
        y = Add(d, b)
    }"""
    constants = {c.name: c for c in Bounded(text, (0, 1, 2), layout="NHWC").check()["dla_0"].constants}
    assert str(constants["w"]) == "float32[5, 1, 1, 3] in OHWI"
    assert str(constants["v"]) == "float32[2, 1, 1, 5] in OHWI"  # a ConvTranspose has IOHW
    assert str(constants["b"]) == "float32[1]"


def test_composites_are_seen_through(tmp_path: Path) -> None:
    text = """g (float[1, 2, 6, 6] x) => (float[1, 3, 4, 4] y) {
        c = Conv(x, w)
        y = Relu(c)
    }"""
    model = parse(text)
    weight = np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    result = cut(model, tmp_path / "b")
    assert result.report.regions[0].composites == {"conv_relu": 1}
    (_, region, _) = open_bundle(tmp_path / "b").regions()[0]
    assert [str(c) for c in region.constants] == ["float32[3, 3, 3, 2] in OHWI"]
    np.testing.assert_array_equal(region.constant("w"), weight.transpose(0, 2, 3, 1))


def test_a_broken_contract_is_a_defect_of_byoc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    def broken(*arguments: object) -> Mapping[str, object]:
        raise ContractError("region dla_0: the host has 'a' as one thing, the region as another")

    monkeypatch.setattr("byoc.bundle._writing.check_contracts", broken)
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    arguments = ("--rules", VANILLA, "--strategy", "all-supported", "-o", tmp_path / "b")
    ran = byoc("partition", tmp_path / "m.onnx", *arguments)
    assert ran.code == 3
    assert not (tmp_path / "b").exists()
