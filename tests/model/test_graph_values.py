"""The values of small constants: stored, written in Constant nodes, computed from these."""

import tracemalloc

import numpy as np
import pytest
from helpers.support import prepared

from byoc.model import (
    collect_attribute_facts,
    collect_node_facts,
    collect_tensor_facts,
    get_constant_value,
)

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
    value = get_constant_value(prepared(text).index, "k")
    assert value is not None
    assert value.shape == FORMS[form].shape
    assert value.dtype.kind in ("OU" if "string" in form else FORMS[form].dtype.kind)
    assert value.tolist() == FORMS[form].tolist()


def test_what_is_large_or_not_constant() -> None:
    numbers = ", ".join(["1.0"] * 1025)
    lines = f"k = Constant <value_floats = [{numbers}]> ()\n y = Relu (x)"
    index = prepared(f"g (float[2] x) => (float[2] y) {{ {lines} }}").index
    assert get_constant_value(index, "k") is None
    assert get_constant_value(index, "x") is None
    assert get_constant_value(index, "nosuch") is None


def test_facts() -> None:
    text = "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"
    index = prepared(text).index
    assert collect_tensor_facts(index, "") == {"given": False}
    assert collect_tensor_facts(index, "x") == {
        "given": True,
        "name": "x",
        "constant": False,
        "dtype": "float32",
        "shape": [None, 2],
        "rank": 2,
    }
    assert collect_tensor_facts(index, "w") == {
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
    assert collect_attribute_facts(index, index.nodes[0]) == {}
    assert collect_node_facts(index, index.nodes[0])["op"] == "Mul"


LARGE = "<int64[2] s = {50000, 40000}, int64[1] e = {4000000000}, int64 n = {4000000000}>"


@pytest.mark.parametrize(
    "lines",
    [
        "c = ConstantOfShape (s)\n k = ReduceSum <keepdims = 0> (c)",
        "o = Constant <value_ints = [1]> ()\n c = Expand (o, e)\n k = ReduceMax <keepdims = 0> (c)",
        "o = Constant <value_ints = [1]> ()\n c = Tile (o, e)\n k = ReduceMax <keepdims = 0> (c)",
        "o = Constant <value_int = 0> ()\n i = Constant <value_int = 1> ()\n c = Range (o, n, i)\n"
        " k = ReduceMax <keepdims = 0> (c)",
        "a = Constant <value_ints = [1024, 1, 1]> ()\n b = Constant <value_ints = [1, 1024, 1]> ()\n"
        " d = Constant <value_ints = [1, 1, 1024]> ()\n f = ConstantOfShape (a)\n"
        " g = ConstantOfShape (b)\n h = ConstantOfShape (d)\n c = Sum (f, g, h)\n"
        " k = ReduceMax <keepdims = 0> (c)",
        "o = Constant <value_float = 0.5> ()\n a = Constant <value_ints = [1, 1, 1]> ()\n"
        " f = ConstantOfShape (a)\n c = AveragePool <kernel_shape = [1000000000], "
        "pads = [999999999, 0]> (f)\n k = ReduceMax <keepdims = 0> (c)",
    ],
)
def test_what_is_large_in_between_is_not_made(lines: str) -> None:
    """A file of 150 bytes took 8 GB and 22 seconds."""
    index = prepared(f"g (float[2] x) => (float[2] y) {LARGE} {{ {lines}\n y = Relu (x) }}").index
    tracemalloc.start()
    try:
        assert get_constant_value(index, "k") is None
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_what_exporters_leave_to_be_computed() -> None:
    lines = """ o = ConstantOfShape <value = int64[1] {1}> (t)
 n = NonZero (o)
 r = Transpose (n)
 a, b = Split <axis = 0> (r)
 c = Concat <axis = 0> (b, a)
 k = Squeeze (c)
 y = Relu (x)"""
    index = prepared(f"g (float[2] x) => (float[2] y) <int64[1] t = {{4}}> {{ {lines} }}").index
    value = get_constant_value(index, "k")
    assert value is not None
    assert value.tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("size", "step", "count"), [("7", "1.0", 7), ("7", "0.75", 10), ("7", "2.0", 4), ("h", "1.0", "h")]
)
def test_positions_counted_in_floats(size: str, step: str, count: int | str) -> None:
    """Detectors count the cells of a grid so; the number of cells was not known."""
    text = f"""g (float[1, {size}] x) => (float[n] y) {{
      s = Shape (x)
      i = Constant <value_int = 1> ()
      e = Gather (s, i)
      limit = Cast <to = 1> (e)
      start = Constant <value_float = 0.0> ()
      step = Constant <value_float = {step}> ()
      y = Range (start, limit, step)
    }}"""
    assert prepared(text).index.types["y"].shape == (count,)
