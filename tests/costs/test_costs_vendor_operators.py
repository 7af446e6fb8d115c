"""Operators of vendors' own domains: shapes and work from an installed package, and none without it."""

from pathlib import Path

import onnx
import pytest
from counting import Sizes, count_work
from helpers.installing import register
from helpers.support import parse

import byoc
from byoc.errors import InputError
from byoc.model import prepare_model

SOURCE = '''
from byoc.codegen import TensorType


class Pool:
    """Halves the last axis, so many operations for each result."""

    def infer_types(self, inputs, attributes):
        (x, *_) = inputs
        if x is None or x.shape is None:
            return [None]
        *front, last = x.shape
        half = last // 2 if isinstance(last, int) else None
        return [TensorType(x.dtype, (*front, half)), TensorType("int64", (*front, half))]

    def count_operations(self, inputs, outputs, attributes):
        rows, half = outputs[0].shape
        return rows * half * attributes.get("each", 1)


class Lookup(Pool):
    def count_bytes_read(self, inputs, outputs, attributes):
        return [7, *[0] * (len(inputs) - 1)]


class Fails(Pool):
    def infer_types(self, inputs, attributes):
        raise ValueError("no such shape")


class Odd(Pool):
    def infer_types(self, inputs, attributes):
        return [("float32", (1, 2))]


class Below(Pool):
    def count_operations(self, inputs, outputs, attributes):
        return -1


class Few(Pool):
    def count_bytes_read(self, inputs, outputs, attributes):
        return []


class Lacks:
    def infer_types(self, inputs, attributes):
        return []
'''
RULES = """
target: acme
cost_model: dla
dtype: any
ops: [{op: '*'}]
"""


def make_model(operator: str, extents: str = "4,6") -> onnx.ModelProto:
    """Return a model of a Relu, an operator of acme's, and a Neg; nothing is stated between."""
    proto = parse(f"g (float[{extents}] x) => (float[a,b] y) {{ r = Relu(x) y = Neg(r) }}", opset=17)
    proto.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    odd = onnx.helper.make_node(operator, ["r"], ["p", ""], "odd", domain="acme", each=3)
    neg = proto.graph.node.pop()
    neg.input[0] = "p"
    proto.graph.node.extend([odd, neg])
    return proto


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with operators, as pip does."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "acme_operators_of_this_test.py").write_text(SOURCE, encoding="utf-8")
    names = ("Pool", "Lookup", "Fails", "Odd", "Below", "Few", "Lacks")
    entries = {f"acme.{name}": f"acme_operators_of_this_test:{name}" for name in names}
    register(site, "acme_operators", "1.2", {"byoc.operators": entries})
    monkeypatch.syspath_prepend(site)


def find_work(operator: str, extents: str = "4,6") -> tuple[object, float, float, bool]:
    """Return the shape behind a node of acme's, its operations, its bytes, whether they are a guess."""
    index = prepare_model(make_model(operator, extents), "m").index
    kind = index.types.get("p")
    (number,) = [n for n, node in enumerate(index.nodes) if node.domain == "acme"]
    work = count_work(index, Sizes(index.types), (number,))
    return kind and kind.shape, work.operations, work.bytes, work.estimated


@pytest.mark.usefixtures("installed")
def test_shapes_and_work_are_those_of_the_package() -> None:
    shape, operations, moved, estimated = find_work("Pool")

    assert shape == (4, 3)
    assert operations == 4 * 3 * 3
    assert moved == 4 * (24 + 12)  # float32 in and out
    assert not estimated


@pytest.mark.usefixtures("installed")
def test_open_dimensions_pass_through() -> None:
    index = prepare_model(make_model("Pool", "n,6"), "m").index

    assert index.types["p"].shape == index.types["y"].shape
    assert index.types["p"].shape[0] == index.types["x"].shape[0]
    assert index.types["p"].shape[1] == 3


@pytest.mark.usefixtures("installed")
def test_bytes_that_are_read_are_those_that_it_says() -> None:
    assert find_work("Lookup")[2] == 7 + 4 * 12


def test_without_the_package_the_work_is_a_guess() -> None:
    shape, _, _, estimated = find_work("Pool")

    assert shape is None or None in shape
    assert estimated


@pytest.mark.usefixtures("installed")
def test_a_plan_is_no_estimate_then(tmp_path: Path) -> None:
    rules = tmp_path / "acme.yaml"
    rules.write_text(RULES, encoding="utf-8")
    path = tmp_path / "m.onnx"
    onnx.save(make_model("Pool"), path)

    result = byoc.partition(path, rules, strategy="all-supported")

    assert result.report.predicted.estimated == 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("operator", "why"),
    [
        ("Fails", "operator 'acme.Fails' of acme_operators 1.2: infer_types failed: .*no such shape"),
        ("Odd", "operator 'acme.Odd' of acme_operators 1.2: infer_types returned .*, no list of types"),
        ("Below", "operator 'acme.Below' of acme_operators 1.2: count_operations returned -1, no count"),
        ("Few", "operator 'acme.Few' of acme_operators 1.2: count_bytes_read returned .*a number for"),
        ("Lacks", "operator 'acme.Lacks' of acme_operators 1.2 has no method count_operations"),
    ],
)
def test_a_plug_in_that_is_wrong_is_one_sentence(operator: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        find_work(operator)
