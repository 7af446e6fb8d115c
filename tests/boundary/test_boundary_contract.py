"""The contract of a boundary tensor: a wire to the wrong place shows before the hardware does."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cutting import CHAIN, cut
from support import Ran, parse, prepared

from byoc.boundary.contract import ContractError, check_contracts
from byoc.graph.index import GraphIndex, stated_types

HOST = """host (float[1, 4] x, float[N, 4] n, int64[1, 4] i) => (float[1, 8] y, float[M, 4] m) {
    a = Relu(x)
    y = Concat <axis = 1> (a, a)
    m = Relu(n)
}"""


def _check(region: str) -> None:
    check_contracts(parse(region), prepared(HOST).index)


@pytest.mark.parametrize(
    "region",
    [
        "r (float[1, 4] x) => (float[1, 4] a) { a = Relu(x) }",
        "r (float[1, 4] a) => (float[1, 8] y) { y = Concat <axis = 1> (a, a) }",
        "r (float[N, 4] n) => (float[M, 4] m) { m = Relu(n) }",
        "r (float[K, 4] n) => (float[L, 4] m) { m = Relu(n) }",
        "r (float[7, 4] n) => (float[7, 4] m) { m = Relu(n) }",
    ],
)
def test_sides_that_agree(region: str) -> None:
    _check(region)


@pytest.mark.parametrize(
    ("region", "sentence"),
    [
        (
            "r (float[1, 4] x) => (float[1, 8] a) { a = Concat <axis = 1> (x, x) }",
            "region r: the host has 'a' as float32[1, 4], the region as float32[1, 8]",
        ),
        (
            "r (float[1, 5] x) => (float[1, 5] a) { a = Relu(x) }",
            "region r: the host has 'x' as float32[1, 4], the region as float32[1, 5]",
        ),
        (
            "r (float[4] x) => (float[4] a) { a = Relu(x) }",
            "region r: the host has 'x' as float32[1, 4], the region as float32[4]",
        ),
        (
            "r (double[1, 4] x) => (double[1, 4] a) { a = Relu(x) }",
            "region r: the host has 'x' as float32[1, 4], the region as float64[1, 4]",
        ),
        (
            "r (float[1, 4] other) => (float[1, 4] a) { a = Relu(other) }",
            "region r: the host has 'other' as unknown, the region as float32[1, 4]",
        ),
    ],
)
def test_sides_that_do_not(region: str, sentence: str) -> None:
    with pytest.raises(ContractError) as caught:
        _check(region)
    assert str(caught.value) == sentence


def test_what_a_region_states_of_its_outputs_is_not_believed() -> None:
    with pytest.raises(ContractError, match=r"the region as float32\[1, 8\]"):
        _check("r (float[1, 4] x) => (float[1, 4] a) { a = Concat <axis = 1> (x, x) }")


def test_an_input_wired_to_the_wrong_place_shows(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    region = onnx.load(tmp_path / "b/dla_1.onnx")
    host = prepared("h (float[1, 4] x, float[9] b) => (float[1, 4] y) { y = Relu(x) }")
    with pytest.raises(ContractError, match=r"the host has 'b' as float32\[9\]"):
        check_contracts(region, host.index)


def test_the_region_is_not_changed() -> None:
    region = parse("r (float[1, 4] x) => (float[1, 4] a) { a = Relu(x) }")
    before = region.SerializeToString()
    check_contracts(region, prepared(HOST).index)
    assert region.SerializeToString() == before


def test_composites_are_seen_through(tmp_path: Path) -> None:
    text = """g (float[1, 2, 6, 6] x) => (float[1, 3, 4, 4] y) {
        w = Constant <value = float[3, 2, 3, 3] {
            1,2,3,4,5,6,7,8,9, 1,2,3,4,5,6,7,8,9, 1,2,3,4,5,6,7,8,9,
            1,2,3,4,5,6,7,8,9, 1,2,3,4,5,6,7,8,9, 1,2,3,4,5,6,7,8,9}> ()
        c = Conv(x, w)
        y = Relu(c)
    }"""
    cut(parse(text), tmp_path / "b")
    region = onnx.load(tmp_path / "b/dla_0.onnx")
    assert [node.op_type for node in region.graph.node if node.domain] == ["conv_relu"]
    wrong = parse(text.replace("float[1, 3, 4, 4] y", "float[1, 3, 4, 5] y"))
    host = GraphIndex(wrong, stated_types(wrong))
    with pytest.raises(ContractError, match=r"'y' as float32\[1, 3, 4, 5\], the region as .*4, 4\]"):
        check_contracts(region, host)


def test_a_broken_contract_is_a_defect_of_byoc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    def broken(region: object, host: object) -> None:
        raise ContractError("region dla_0: the host has 'a' as one thing, the region as another")

    monkeypatch.setattr("byoc.bundle.write.check_contracts", broken)
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    arguments = ("--rules", "dla", "--strategy", "all-supported", "-o", tmp_path / "b")
    ran = byoc("partition", tmp_path / "m.onnx", *arguments)
    assert ran.code == 3
    assert not (tmp_path / "b").exists()
