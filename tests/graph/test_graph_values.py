"""The values of small constants: stored, written in Constant nodes, computed from these."""

import numpy as np
import pytest
from support import prepared

from byoc.graph.facts import attribute_facts, node_facts, tensor_facts
from byoc.graph.values import constant_value

FORMS = {
    "value_float = 0.1": np.array(0.1, np.float32),
    "value_floats = [0.1, 2.0]": np.array([0.1, 2], np.float32),
    "value_int = 3": np.array(3, np.int64),
    "value_ints = [3, -4]": np.array([3, -4], np.int64),
    "value = int8[2] {1, 2}": np.array([1, 2], np.int8),
    'value_strings = ["a", "b"]': np.array(["a", "b"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_constant_nodes(form: str) -> None:
    text = f"g (float[2] x) => (float[2] y) {{ k = Constant <{form}> ()\n y = Relu (x) }}"
    value = constant_value(prepared(text).index, "k")
    assert value is not None
    assert value.shape == FORMS[form].shape
    assert value.dtype.kind in ("OU" if "string" in form else FORMS[form].dtype.kind)
    assert value.tolist() == FORMS[form].tolist()


def test_what_is_large_or_not_constant() -> None:
    numbers = ", ".join(["1.0"] * 1025)
    lines = f"k = Constant <value_floats = [{numbers}]> ()\n y = Relu (x)"
    index = prepared(f"g (float[2] x) => (float[2] y) {{ {lines} }}").index
    assert constant_value(index, "k") is None
    assert constant_value(index, "x") is None
    assert constant_value(index, "nosuch") is None


def test_facts() -> None:
    text = "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"
    index = prepared(text).index
    assert tensor_facts(index, "") == {"given": False}
    assert tensor_facts(index, "x") == {
        "given": True,
        "name": "x",
        "constant": False,
        "dtype": "float32",
        "shape": [None, 2],
        "rank": 2,
    }
    assert tensor_facts(index, "w") == {
        "given": True,
        "name": "w",
        "constant": True,
        "dtype": "float32",
        "shape": [2],
        "rank": 1,
        "elements": 2,
        "bytes": 8,
        "value": [1.0, 2.0],
    }
    assert attribute_facts(index, index.nodes[0]) == {}
    assert node_facts(index, index.nodes[0])["op"] == "Mul"
