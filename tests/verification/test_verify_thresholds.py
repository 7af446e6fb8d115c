"""Tolerances by dtype, and the integers that represent real numbers."""

from typing import Any

import numpy as np
import pytest
from helpers.support import parse
from onnx import TensorProto, helper, parser

from byoc.errors import InputError
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    OutputError,
    Thresholds,
    compare_tensors,
    find_quantized_tensors,
    read_thresholds,
)

I8 = np.array([-128, 0, 127, 5], np.int8)


def one(
    expected: Any, actual: Any, allowed: Thresholds = DEFAULT_THRESHOLDS, quantized: bool = False
) -> OutputError:
    (error,) = compare_tensors({"y": expected}, {"y": actual}, allowed, {"y"} if quantized else ())
    return error


def test_one_unit_of_a_quantized_integer() -> None:
    off = np.array([-127, 0, 126, 5], np.int8)
    error = one(I8, off, quantized=True)
    assert (error.measure, error.absolute, error.tolerance, error.differing) == ("units", 1, 1, 0.5)
    assert error.within
    assert not one(I8, off).within, "without a scale it is an index"
    two = np.array([-126, 0, 127, 5], np.int8)
    assert not one(I8, two, quantized=True).within
    assert one(I8, two, quantized=True).error_phrase == "by 2 units, at most 1 is allowed for int8"
    assert one(I8, two, read_thresholds({"quantized": "2"}), quantized=True).within


def test_integers_do_not_wrap_around() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert one(low, high, quantized=True).absolute == 255


@pytest.mark.parametrize("kind", [np.bool_, np.int64])
def test_what_stands_for_no_real_number_is_equal(kind: Any) -> None:
    wanted, got = np.array([0, 1], kind), np.array([1, 1], kind)
    assert not one(wanted, got).within
    assert one(wanted, got).differing == 0.5
    assert one(wanted, wanted).within


def test_a_threshold_for_each_dtype() -> None:
    wanted = np.array([0, 1], np.float32)
    got = wanted + np.float32(5e-4)
    assert not one(wanted, got).within
    assert one(wanted, got, read_thresholds({"float32": "1e-3"})).within
    assert not one(wanted, got, read_thresholds({"float16": "1e-3"})).within


def test_a_signal_to_noise_ratio_instead() -> None:
    wanted = np.array([3, 4], np.float32)
    got = np.array([3, 4.05], np.float32)  # 25 over 0.0025: 40 dB
    assert one(wanted, got, read_thresholds({}, 39.9)).within
    error = one(wanted, got, read_thresholds({}, 40.1))
    assert not error.within
    assert error.error_phrase == "by a noise of 40.0 dB, no less than 40.1 dB is allowed for float32"
    assert one(wanted, wanted, read_thresholds({}, 400)).within
    assert not one(wanted, np.array([3, np.nan], np.float32), read_thresholds({}, -400)).within
    assert not one(I8, I8 + np.int8(1), read_thresholds({}, 1)).within, "integers are as they were"


def test_lower_precision_allows_more_but_for_what_the_user_asked() -> None:
    assert DEFAULT_THRESHOLDS.for_computation_in("float16").relative["float32"] == 1e-2
    assert DEFAULT_THRESHOLDS.for_computation_in("bfloat16").relative["float16"] == 5e-2
    assert DEFAULT_THRESHOLDS.for_computation_in("int8") == DEFAULT_THRESHOLDS
    asked = read_thresholds({"float32": "1e-6"})
    assert asked.for_computation_in("float16").relative == {
        **DEFAULT_THRESHOLDS.relative,
        "float32": 1e-6,
        "float64": 1e-2,
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_four_roundings_of_the_magnitude_are_allowed_where_there_is_next_to_no_range(dtype: str) -> None:
    unit = np.finfo(dtype).eps
    wanted = np.array([1, 1 + unit], dtype)
    assert one(wanted, np.array([1, 1 + 5 * unit], dtype)).within
    assert not one(wanted, np.array([1, 1 + 6 * unit], dtype)).within
    assert not one(wanted, np.array([0.99, 1], dtype)).within, "one percent"
    far = np.array([0, 1], dtype), np.array([0, 1 - 0.0101], dtype)
    assert not one(*far).within, "the range is as large as the magnitude"
    assert one(wanted, wanted).relative == 0


def test_a_constant_output_that_is_wrong_by_a_percent_is_wrong() -> None:
    wanted = np.full(3, 0.5, np.float32)
    assert one(wanted, wanted * np.float32(1.01)).relative == pytest.approx(0.01, rel=1e-3)
    nearly = wanted + np.float32([0, 1e-7, 0])
    assert one(nearly, nearly + np.float32(1e-7)).within
    assert not one(nearly, nearly * np.float32(1.01)).within
    assert not one(nearly, nearly + np.float32(5e-7)).within, "a millionth"


def test_the_least_range_is_that_of_what_was_computed_in() -> None:
    wanted, got = np.float32([0.5, 0.5000001]), np.float32([0.5, 0.501])
    assert not one(wanted, got).within
    assert one(wanted, got, DEFAULT_THRESHOLDS.for_computation_in("float16")).within
    assert not one(
        wanted, wanted * np.float32(1.01), DEFAULT_THRESHOLDS.for_computation_in("float16")
    ).within


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"float23": "1"},
            r"^threshold float23: no such dtype \(did you mean float32\?\); there are float64,",
        ),
        ({"float32": "much"}, "^threshold float32: 'much' is not a number of at least 0$"),
        ({"float32": "-1"}, "^threshold float32: '-1' is not a number of at least 0$"),
        ({"quantized": "nan"}, "^threshold quantized: 'nan' is not a number of at least 0$"),
    ],
)
def test_what_is_no_threshold(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_thresholds(given)


def test_which_tensors_are_quantized() -> None:
    model = parse("""
    g (float[1, 4] x, uint8[1, 4] pixels, int64[2] shape) => (int8[4, 1] out, uint8[1, 4] same)
    <float s = {0.1}, int8 z = {0}> {
      q = QuantizeLinear(x, s, z)
      t = Transpose(q)
      out = Reshape(t, shape)
      same = Identity(pixels)
      i = ArgMax(x)
    }""")
    assert find_quantized_tensors(model) == {"q", "t", "out"}


def test_what_operators_of_integers_make_is_quantized_when_it_is_resized() -> None:
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (uint8[1, 1, 4, 4] x, float s, uint8 z, uint8[1, 1, 1, 1] w, float[4] sizes,
       uint8[1, 1, 4, 4] labels)
      => (uint8[1, 1, 8, 8] large, uint8[1, 1, 4, 4] sum, uint8[1, 1, 8, 8] same) {
      made = QLinearConv(x, s, z, w, s, z, s, z)
      large = Resize <mode = "nearest"> (made, , sizes)
      sum = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)
      same = Resize <mode = "nearest"> (labels, , sizes)
    }""")
    assert find_quantized_tensors(model) == {"made", "large", "sum"}


def test_which_tensors_are_quantized_behind_a_function() -> None:
    """The input of a DequantizeLinear in a composite is quantized outside, and before a view."""
    body = [
        helper.make_node("DequantizeLinear", ["a", "b", "c"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("QuantizeLinear", ["e", "b", "c"], ["f"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("byoc.npu", 1)]
    function = helper.make_function("byoc.npu", "relu", ["a", "b", "c"], ["f"], body, opsets[:1])
    nodes = [
        helper.make_node("Flatten", ["x"], ["v"]),
        helper.make_node("relu", ["v", "s", "z"], ["y"], domain="byoc.npu"),
    ]
    i8 = TensorProto.INT8
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", i8, [1, 4])],
        [helper.make_tensor_value_info("y", i8, [1, 4])],
        [helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]), helper.make_tensor("z", i8, [], [0])],
    )
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    assert {"x", "v", "y"} <= find_quantized_tensors(model)
    assert not {"s", "z"} & find_quantized_tensors(model)
