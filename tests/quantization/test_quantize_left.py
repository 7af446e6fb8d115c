"""What a user gives is kept, and what cannot be quantized stays in floating point and says why."""

import numpy as np
import pytest
from helpers.support import VANILLA
from onnx.helper import make_node
from quantizing import built, form, groups, network, node, quantize, ranges, stored, target, weights

from byoc.errors import InputError
from byoc.quantization import GivenQuantization, Ranges
from byoc.rules import load_rules


def test_what_the_user_gave_is_kept_exactly() -> None:
    model = network()
    mine = GivenQuantization((0.0625,), (3,), "int8")
    channels = GivenQuantization(tuple(0.01 * (i + 1) for i in range(16)), (0,) * 16, "int8", 0)
    found = quantize(model, [target()], ranges(model, c3=mine, w1=channels)).model
    assert {form(found, name) for name in ("c3", "c4", "k", "p", "f")} == {(0.0625, 3, "int8")}
    scales = stored(found, node(found, "w1_dq").input[1])
    np.testing.assert_array_equal(scales, np.float32(channels.scale))
    other = GivenQuantization((0.125,), (0,), "int8")
    with pytest.raises(InputError, match="'c3' and 'k' must have one scale and zero point, and diff"):
        quantize(model, [target()], ranges(model, c3=mine, k=other))


def test_a_given_scale_that_the_target_does_not_take_leaves_the_unit_alone() -> None:
    model = network()
    to = target(activations={"dtype": "int8", "symmetric": True})
    found = quantize(model, [to], ranges(model, r1=GivenQuantization((0.1,), (5,), "int8")))
    assert {"relu1", "conv2"}.isdisjoint(found.units)
    assert {"relu0", "conv1", "add2", "relu2", "conv3"} <= set(found.units)
    assert found.notes == (
        "not quantized: relu1: Relu: the zero point of Y must be 0 (Y is 'r1', whose scale was given)",
        "not quantized: conv2: Conv: the zero point of X must be 0 (X is 'r1', whose scale was given)",
    )


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (
            GivenQuantization((0.1,) * 3, (0,) * 3, "int8", 1),
            "X has a scale for each channel, which is not supported",
        ),
        (GivenQuantization((0.1,), (128,), "uint8"), "X is uint8 outside; supported: int8"),
    ],
)
def test_a_target_with_rules_for_floats_says_why_it_refuses_a_given_scale(
    mine: GivenQuantization, reason: str
) -> None:
    nodes = [make_node("Conv", ["x", "w"], ["c"], "conv"), make_node("Relu", ["c"], ["y"], "relu")]
    model = built(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 4, 4, 4]}, {"w": weights(0, 4, 3, 1, 1)})
    found = quantize(model, [load_rules(str(VANILLA))], ranges(model, x=mine))
    assert set(found.units) == {"relu"}
    assert found.notes == (f"not quantized: conv: Conv: {reason} (X is 'x', whose scale was given)",)


def test_without_a_range_a_unit_stays() -> None:
    model = network()
    known = ranges(model)
    fewer = Ranges("", 1, "", {name: r for name, r in known.tensors.items() if name != "r1"})
    found = quantize(model, [target()], fewer)
    assert not {"relu0", "conv0"} - set(found.units) - {"conv0"}
    assert {"relu1", "relu2", "conv1", "conv2"}.isdisjoint(found.units)
    assert "not quantized: relu1, relu2: 'r1' has no range" in found.notes[0]


def test_what_is_excluded_stays() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model), exclude=["relu1", "gemm"])
    assert {"relu1", "conv1", "gemm"}.isdisjoint(found.units)
    assert "relu2" in found.units
    names = [n.name for n in found.model.index.nodes if n.op_type == "Gemm"]
    assert names == ["gemm"]
    with pytest.raises(InputError, match=r"exclude: there is no unit and no node 'relu' \(did you mean"):
        quantize(model, [target()], ranges(model), exclude=["relu"])


def test_what_a_rule_refuses_stays_and_the_rest_of_its_unit_does_not() -> None:
    model = network()
    conv = {"op": "Conv", "quantized": True, "attributes": {"group": {"max": 1}}}
    relu = {"op": "Relu", "quantized": True, "tensors": {"X": {"dims": {"1": 99}}}}
    to = target(ops=[conv, relu, "Add", "Concat", "MaxPool", "Flatten", "Gemm"])
    found = quantize(model, [to], ranges(model))
    assert {"conv0", "conv1", "conv2", "conv4", "add2"} <= set(found.units)
    assert {"conv3", "relu0", "relu1", "relu2"}.isdisjoint(found.units)
    assert groups(found.model, to) == {name: set(nodes) for name, nodes in found.units.items()}
    assert "not quantized: conv3: Conv: group is 16, at most 1 is supported" in found.notes
