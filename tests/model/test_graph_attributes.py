"""Attributes in effect: written, the schema's default, or the documented one."""

from typing import Any

import pytest
from helpers.support import prepared

from byoc.model import Model, get_stated_attributes


def attributes(model: Model, number: int = 0) -> dict[str, Any]:
    node = model.index.nodes[number]
    assert model.index.get_schema(node) is not None
    return model.index.get_attributes(node)


def conv(given: str = "", shape: str = "4,2,3,5", opset: int = 17) -> Model:
    text = f"g (float[1,4,9,9] x, float[{shape}] w) => (float y) {{ y = Conv {given} (x, w) }}"
    return prepared(text, opset=opset)


def test_documented_defaults_of_a_convolution() -> None:
    assert attributes(conv("<group = 2>")) == {
        "auto_pad": "NOTSET",
        "group": 2,
        "kernel_shape": [3, 5],
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads": [0, 0, 0, 0],
    }


def test_written_ones_win() -> None:
    given = (
        "<group = 2, kernel_shape = [3, 5], strides = [2, 1], dilations = [1, 2], pads = [1, 0, 1, 2]>"
    )
    model = conv(given)
    found = attributes(model)
    assert found == {**get_stated_attributes(model.index.nodes[0]), "auto_pad": "NOTSET"}
    assert (found["strides"], found["dilations"], found["pads"]) == ([2, 1], [1, 2], [1, 0, 1, 2])


def test_automatic_padding_leaves_pads_open() -> None:
    found = attributes(conv('<group = 2, auto_pad = "SAME_UPPER">'))
    assert found["auto_pad"] == "SAME_UPPER"
    assert "pads" not in found


def test_a_weight_of_unknown_extent_gives_no_defaults() -> None:
    found = attributes(conv("<group = 2>", shape="4,2,K,5"))
    assert found == {"auto_pad": "NOTSET", "group": 2}


def test_the_weight_of_a_quantized_convolution_is_its_fourth_input() -> None:
    model = prepared("""
        g (uint8[1,2,9,9] x, float s, uint8 z, uint8[4,2,3,5] w) => (uint8[1,4,7,5] y) {
          y = QLinearConv (x, s, z, w, s, z, s, z)
        }""")
    found = attributes(model)
    assert found["kernel_shape"] == [3, 5]
    assert found["strides"] == found["dilations"] == [1, 1]
    assert found["pads"] == [0, 0, 0, 0]


def test_pools_of_one_axis() -> None:
    model = prepared(
        "g (float[1,2,9] x) => (float[1,2,7] y) { y = AveragePool <kernel_shape = [3]> (x) }", opset=19
    )
    assert attributes(model) == {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "count_include_pad": 0,
        "dilations": [1],
        "kernel_shape": [3],
        "pads": [0, 0],
        "strides": [1],
    }


def test_defaults_are_those_of_the_operator_set() -> None:
    """AveragePool has `ceil_mode` from 10 and `dilations` from 19 on; Softmax's axis was 1 until 12."""
    pool = "g (float[1,2,9] x) => (float[1,2,7] y) { y = AveragePool <kernel_shape = [3]> (x) }"
    assert "dilations" not in attributes(prepared(pool, opset=18))
    assert "ceil_mode" not in attributes(prepared(pool, opset=9))
    softmax = "g (float[2,3] x) => (float[2,3] y) { y = Softmax (x) }"
    assert attributes(prepared(softmax, opset=12)) == {"axis": 1}
    assert attributes(prepared(softmax, opset=13)) == {"axis": -1}


def test_what_has_no_default_is_left_out() -> None:
    text = "g (float[2,3] x) => (float[3,2] y) { y = Transpose (x) }"
    assert attributes(prepared(text)) == {}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("y = LeakyRelu (x)", "alpha", 0.01),
        ("y = LeakyRelu <alpha = 0.1> (x)", "alpha", 0.1),
        ("y = LeakyRelu <alpha = 0.3333333333> (x)", "alpha", 0.33333334),
        ("y = Elu <alpha = 16777216.0> (x)", "alpha", 16777216.0),
    ],
)
def test_a_float_is_the_number_that_was_written(text: str, name: str, value: float) -> None:
    """ONNX stores it as float32; 0.1 there is 0.10000000149 as float64."""
    found = attributes(prepared(f"g (float[2] x) => (float[2] y) {{ {text} }}"))
    assert found[name] == value


def test_lists_of_floats_and_texts() -> None:
    model = prepared("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    node = prepared(
        "g (float[2] x) => (float[2] y) { k = Constant <value_floats = [0.1, 1e30]> ()\n y = Relu (x)\n"
        's = Constant <value_strings = ["a", "ü"]> () }'
    ).index.nodes
    assert get_stated_attributes(node[0]) == {"value_floats": [0.1, 1e30]}
    assert get_stated_attributes(node[2]) == {"value_strings": ["a", "ü"]}
    assert get_stated_attributes(model.index.nodes[0]) == {}
