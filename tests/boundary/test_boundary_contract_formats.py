"""Contracts of regions that compute in another float type, or convert boundary tensors themselves."""

import numpy as np
import pytest
from contract_views import ContractError
from onnx import numpy_helper
from test_boundary_contract import DOMAIN, QDQ, Bounded, _ours

from byoc.boundary.contracts import check_contracts

TWO = """g (float[2, 3] x, float[2, 3] u) => (float[2, 3] y, float[2, 3] z) {
    a = Neg(x)
    b = Abs(u)
    c = Sub(a, b)
    d = Relu(a)
    y = Neg(c)
    z = Neg(d)
}"""


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
@pytest.mark.parametrize("convert", ["host", "device"])
def test_who_casts_stands_in_the_contract(convert: str, compute: str) -> None:
    """The tensors have the users' names and types, and at the boundary those that cross it."""
    contracts = Bounded(TWO, (2, 3), compute=compute, convert=convert).check()["dla_0"]
    crossing = compute if convert == "host" else "float32"
    for found, names in ((contracts.inputs, "ab"), (contracts.outputs, "cd")):
        assert [each.tensor for each in found] == list(names)
        for each in found:
            assert (str(each.type), str(each.logical)) == (f"{crossing}[2, 3]", "float32[2, 3]")
            assert each.inner == f"{each.tensor}_{compute}"
            assert each.name == (each.inner if convert == "host" else each.tensor)
            assert each.converts == {"cast": convert}


@pytest.mark.parametrize("convert", ["host", "device"])
@pytest.mark.parametrize("compute", ["", "float16"])
def test_wires_that_are_crossed_show_by_the_users_names(compute: str, convert: str) -> None:
    for wires, sentence in (
        ("input", "the host has 'b' where the region has 'a'"),
        ("output", "the host has 'd' where the region has 'c'"),
    ):
        bounded = Bounded(TWO, (2, 3), compute=compute or None, convert=convert)
        names = getattr(bounded.call(), wires)
        names[:] = list(names)[::-1]
        assert bounded.refusal() == f"region dla_0: {sentence}"


def test_a_region_that_quantizes_itself_takes_floats_in_its_layout() -> None:
    contracts = Bounded(_ours(QDQ), (1, 2, 3), layout="NHWC", convert="device").check()["dla_0"]
    for found, tensor in ((contracts.inputs, "x"), (contracts.outputs, "p")):
        (each,) = found
        assert str(each) == "float32[2, 6, 8, 3] in NHWC"
        assert (each.tensor, str(each.logical)) == (tensor, "float32[2, 3, 6, 8]")
        assert each.converts == {"layout": "host", "quantize": "device"}


def test_scales_that_differ_are_the_users_matter_whatever_else_reads_the_tensor() -> None:
    text = QDQ.replace("d = DequantizeLinear(q, s, z)", "d = DequantizeLinear(q, t, z)")
    more = "k2 = MaxPool <kernel_shape = [1, 1]> (q)\n    d = "
    for model in (text, text.replace("d = ", more, 1)):
        nodes = (1, 2, 3) if model is text else (2, 3, 4)
        (given,) = Bounded(model, nodes).check()["dla_0"].inputs
        assert (given.scale, given.zero_point) == ((0.25,), (3,))


def test_without_the_users_model_names_are_those_of_the_host() -> None:
    bounded = Bounded(QDQ, (1, 2, 3), layout="NHWC")
    found = check_contracts(bounded.proto, {DOMAIN})["dla_0"].contracts
    assert [each.tensor for each in (*found.inputs, *found.outputs)] == ["q", "u"]
    ours = check_contracts(Bounded(_ours(QDQ), (1, 2, 3), layout="NHWC").proto, {DOMAIN})
    found = ours["dla_0"].contracts
    assert [each.tensor for each in (*found.inputs, *found.outputs)] == ["x", "v"]
    planted = numpy_helper.from_array(np.float32(0.75), "planted")
    bounded.proto.graph.initializer.append(planted)
    bounded.node("QuantizeLinear").input[1] = "planted"
    with pytest.raises(ContractError, match=r"scale 0\.75 zero point 3, the region as .* scale 0\.5 "):
        check_contracts(bounded.proto, {DOMAIN})
