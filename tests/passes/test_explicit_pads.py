"""What `auto_pad` stands for becomes pads: the same bits, and nodes that targets of pads take."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import examples, prepared
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

import byoc
from byoc.model import get_stated_attributes, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import clean_model, list_clean_passes
from byoc.reporting import format_effect

PASSES = list_clean_passes(reshape=False, batchnorm=False)
sizes = st.lists(st.integers(1, 9), min_size=2, max_size=2)
few = st.lists(st.integers(1, 3), min_size=2, max_size=2)


def make_window(op: str, size: list[int], **attributes: object) -> onnx.ModelProto:
    """Return a model of one convolution or pool of an image of two channels."""
    window = attributes["kernel_shape"]
    weights = [helper.make_tensor("w", 1, [2, 1, *window], np.arange(2 * np.prod(window)) * 0.1)]
    if op != "Conv":
        weights = []
    node = helper.make_node(op, ["x", *(each.name for each in weights)], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "window",
        [helper.make_tensor_value_info("x", 1, [1, 2, *size])],
        [helper.make_tensor_value_info("y", 1, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def run(model: onnx.ModelProto, value: np.ndarray) -> np.ndarray:
    with without_optimizations():
        return run_session(open_session(model), {"x": value})["y"]


windows = st.fixed_dictionaries(
    {
        "kernel_shape": few,
        "strides": few,
        "auto_pad": st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    }
)


@settings(max_examples=examples(600), deadline=None)
@given(
    op=st.sampled_from(["Conv", "MaxPool", "AveragePool", "LpPool"]),
    size=sizes,
    window=windows,
    more=st.integers(0, 1),
)
def test_pads_give_the_same_bits(op: str, size: list[int], window: dict[str, Any], more: int) -> None:
    kernel, strides, auto = window["kernel_shape"], window["strides"], window["auto_pad"]
    attributes = {**window, **({"group": 2} if op == "Conv" else {"ceil_mode": more})}
    if op == "AveragePool":
        attributes["count_include_pad"] = more
    skips = any(stride > extent for stride, extent in zip(strides, kernel, strict=True))
    assume(auto != "VALID" or all(one >= other for one, other in zip(size, kernel, strict=True)))
    assume(op != "MaxPool" or auto == "VALID" or not skips)  # onnxruntime refuses some of these
    model = make_window(op, size, **attributes)
    cleaned = clean_model(prepare_model(model, "window"), PASSES).model.proto
    stated = get_stated_attributes(cleaned.graph.node[0])
    kept = op != "Conv" and (more == 1 or (auto != "VALID" and skips))
    assert ("pads" in stated) == ("auto_pad" not in stated) == (not kept)
    value = np.linspace(-1, 1, 2 * size[0] * size[1], dtype=np.float32).reshape(1, 2, *size)
    np.testing.assert_array_equal(run(cleaned, value), run(model, value), strict=True)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("extent", "stays"), [(6, False), (5, True), (4, True), (3, False)])
def test_a_convolution_that_skips_much_keeps_auto_pad(auto: str, extent: int, stays: bool) -> None:
    """onnxruntime cuts three of 4 columns under SAME_UPPER, and computes with the second one."""
    window = {"kernel_shape": [1, 1], "strides": [1, 5], "auto_pad": auto}
    model = make_window("Conv", [2, extent], group=2, **window)
    cleaned = clean_model(prepare_model(model, "window"), PASSES).model.proto
    assert ("auto_pad" in get_stated_attributes(cleaned.graph.node[0])) == stays
    value = np.linspace(-1, 1, 4 * extent, dtype=np.float32).reshape(1, 2, 2, extent)
    np.testing.assert_array_equal(run(cleaned, value), run(model, value), strict=True)


def test_dilations_keep_auto_pad() -> None:
    model = make_window("Conv", [9, 9], group=2, kernel_shape=[3, 3], dilations=[2, 1], auto_pad="VALID")
    loaded = prepare_model(model, "window")
    assert clean_model(loaded, PASSES).model is loaded


def test_an_image_of_open_size_keeps_same_and_loses_valid() -> None:
    text = """m (float[1, 2, H, W] x, float[2, 2, 3, 3] w) => (float[1, 2, A, B] y) {
      a = Conv <auto_pad = "VALID"> (x, w)
      y = Conv <auto_pad = "SAME_UPPER"> (a, w)
    }"""
    nodes = clean_model(prepared(text), PASSES).model.proto.graph.node
    assert get_stated_attributes(nodes[0]) == {"pads": [0, 0, 0, 0]}
    assert get_stated_attributes(nodes[1]) == {"auto_pad": "SAME_UPPER"}


def test_a_target_of_pads_takes_what_tensorflow_exports(tmp_path: Path) -> None:
    model = make_window(
        "Conv", [9, 8], group=2, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"
    )
    result = byoc.partition(model, rules="dla", strategy="all-supported", output=tmp_path / "m.byoc")
    assert result.report.verification is not None
    assert result.report.verification.passed
    assert len(result.report.regions) == 1
    assert [format_effect(each) for each in result.report.passes] == [
        "Pass explicit-pads: 1 of 1 nodes changed"
    ]
    plain = byoc.partition(model, rules="dla", strategy="all-supported", no_passes=["explicit-pads"])
    assert plain.report.regions == ()
