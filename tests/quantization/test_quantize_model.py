"""A quantized model: its numbers against formulas and against floating point."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.helper import make_node
from quantizing import (
    built,
    form,
    groups,
    network,
    node,
    quantize,
    ranges,
    samples,
    snr,
    stored,
    target,
    values,
    weights,
)

from byoc.errors import InputError
from byoc.quantization import GivenQuantization, Range
from byoc.verification import run_plain


def test_a_network_keeps_its_numbers() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model))
    onnx.checker.check_model(found.model.proto, full_check=True)
    inputs = samples(model)[0]
    expected = run_plain(model.proto, model, inputs)["y"]
    actual = run_plain(found.model.proto, found.model, inputs)["y"]
    assert actual.dtype == np.float32
    assert 30 < snr(expected, actual) < 60
    assert found.notes == ()


def test_sixteen_bits_are_nearer() -> None:
    model = network()
    inputs = samples(model)[0]
    expected = run_plain(model.proto, model, inputs)["y"]
    wide = target(weights={"dtype": "int16", "symmetric": True, "per_channel": True})
    found = quantize(model, [wide], ranges(model), dtype="int16")
    assert found.model.index.opsets[""] == 21
    assert form(found.model, "r0")[2] == "int16"
    assert snr(expected, run_plain(found.model.proto, found.model, inputs)["y"]) > 75


def test_the_groups_are_the_units() -> None:
    model, to = network(), target()
    found = quantize(model, [to], ranges(model))
    assert {name: set(nodes) for name, nodes in found.units.items()} == {
        "relu0": {"conv0", "relu0"},
        "relu1": {"conv1", "relu1"},
        "relu2": {"conv2", "add2", "relu2"},
        **{name: {name} for name in ("conv3", "conv4", "concat", "pool", "flatten", "gemm")},
    }
    assert groups(found.model, to) == {name: set(nodes) for name, nodes in found.units.items()}


def test_weights_are_what_the_formula_says() -> None:
    model = network()
    known = ranges(model)
    found = quantize(model, [target()], known).model
    for conv, axes, float_name, source in (
        ("conv1", (1, 2, 3), "w1", "r0"),
        ("gemm", (1,), "w5", "f"),
    ):
        made = next(n for n in found.index.nodes if n.name == conv)
        dequantize = node(found, made.input[1])
        floats = stored(model, float_name)
        scale = (np.abs(floats).max(axis=axes) / 127.0).astype(np.float32)
        np.testing.assert_allclose(stored(found, dequantize.input[1]), scale, rtol=2e-7)
        each = scale.reshape(-1, *[1] * len(axes)).astype(np.float64)
        expected = np.rint(floats / each).clip(-128, 127)
        np.testing.assert_array_equal(stored(found, dequantize.input[0]), expected)
        bias = node(found, made.input[2])
        product = np.float32(form(found, source)[0]) * stored(found, dequantize.input[1])
        np.testing.assert_array_equal(stored(found, bias.input[1]), product)
        assert stored(found, bias.input[0]).dtype == np.int32
        was = stored(model, model.index.nodes[[n.name for n in model.index.nodes].index(conv)].input[2])
        np.testing.assert_array_equal(stored(found, bias.input[0]), np.rint(was / product.astype(float)))
        np.testing.assert_array_equal(stored(found, float_name), floats)
        told = {entry.key: entry.value for entry in dequantize.metadata_props}
        assert told == {"byoc.boundary": "quantize", "byoc.float": float_name}


def test_activations_are_what_the_formula_says() -> None:
    model = network()
    known = ranges(model)
    found = quantize(model, [target()], known).model
    one = known.tensors["r1"]
    assert isinstance(one, Range)
    assert one.low == 0.0
    assert form(found, "r1") == (float(np.float32(one.high / 255)), -128, "int8")
    parts = [known.tensors[name] for name in ("c3", "c4", "k", "p", "f")]
    low = min(p.low for p in parts if isinstance(p, Range))
    high = max(p.high for p in parts if isinstance(p, Range))
    scale = float(np.float32((high - low) / 255))
    expected = (scale, round(-128 - low / scale), "int8")
    assert {form(found, name) for name in ("c3", "c4", "k", "p", "f")} == {expected}


def test_power_of_two_symmetric_per_tensor() -> None:
    model = network()
    to = target(
        activations={"dtype": "int8", "symmetric": True},
        weights={"dtype": "int8", "symmetric": True, "per_channel": False},
        scales="power_of_two",
    )
    found = quantize(model, [to], ranges(model))
    assert len(found.units) == 9
    scales = [
        stored(found.model, n.input[1])
        for n in found.model.index.nodes
        if n.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert all((np.frexp(scale)[0] == 0.5).all() for scale in scales)
    per_tensor = [
        n for n in found.model.index.nodes if n.op_type == "DequantizeLinear" and n.input[0] == "w1_q"
    ]
    assert stored(found.model, per_tensor[0].input[1]).shape == ()
    assert all(form(found.model, name)[1] == 0 for name in ("x", "r0", "k"))


def test_more_channels_than_small_constants_have() -> None:
    """The scales of 1,500 channels are known to be powers of two, and their zero points to be 0."""
    nodes = [make_node("Gemm", ["x", "w", "b"], ["y"], "gemm")]
    tensors = {"w": weights(1, 3, 1500), "b": weights(2, 1500)}
    model = built(nodes, {"x": [1, 3]}, {"y": [1, 1500]}, tensors)
    found = quantize(model, [target(scales="power_of_two")], ranges(model))
    assert list(found.units) == ["gemm"]
    assert stored(found.model, node(found.model, "w_dq").input[1]).shape == (1500,)


def test_uint8_activations() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model), dtype="uint8").model
    assert form(found, "r0")[1:] == (0, "uint8")
    with pytest.raises(InputError, match=r"t.yaml: quantization.activations.dtype: int4 is not supp"):
        quantize(model, [target()], ranges(model), dtype="int4")


@pytest.mark.parametrize(("opset", "ir"), [(8, 3), (9, 4), (11, 6)])
def test_old_operator_sets(opset: int, ir: int) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(network().proto)
    proto.opset_import[0].version, proto.ir_version = opset, ir
    if ir == 3:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    from byoc.model import prepare_model  # noqa: PLC0415

    model = prepare_model(proto, "old")
    inputs = samples(model)[0]
    found = quantize(model, [target()], ranges(model))
    assert len(found.units) == 9
    assert found.model.index.opsets[""] == 13
    assert list(found.model.index.inputs) == ["x"]
    expected = run_plain(model.proto, model, inputs)["y"]
    floats = run_plain(found.floats.proto, found.floats, inputs)["y"]
    np.testing.assert_allclose(floats, expected, rtol=0, atol=1e-6)
    assert snr(expected, run_plain(found.model.proto, found.model, inputs)["y"]) > 30


def test_a_bias_that_no_int32_holds_widens_the_weights() -> None:
    tensors = {"w": np.float32([[1e-12, 2e-12], [1.0, 2.0]]), "b": np.float32([1.0, 1.0])}
    nodes = [make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=1)]
    model = built(nodes, {"x": [1, 2]}, {"y": [1, 2]}, tensors)
    inputs = {"x": np.float32([[1, -1]])}
    found = quantize(model, [target()], ranges(model, [inputs]))
    bias = stored(found.model, "b_q")
    assert 2**30 < bias[0] < 2**31 - 2 * 255 * 128, "two products of 8 bits are added"
    expected = run_plain(model.proto, model, inputs)["y"]
    np.testing.assert_allclose(
        run_plain(found.model.proto, found.model, inputs)["y"], expected, atol=0.02
    )
    scales = GivenQuantization((1e-14, 0.02), (0, 0), "int8", 0)
    kept = quantize(model, [target()], ranges(model, [inputs], w=scales))
    assert kept.units == {}
    assert kept.notes == (
        "not quantized: gemm: the bias 'b' is too large for an int32 in steps of the scales given",
    )


def test_transposed_convolutions_have_channels_on_axis_1() -> None:
    nodes = [make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", group=2, strides=[2, 2])]
    tensors = {"w": weights(1, 4, 3, 2, 2) * np.float32([1, 10, 100]).reshape(1, 3, 1, 1)}
    tensors["b"] = weights(2, 6)
    model = built(nodes, {"x": [1, 4, 4, 4]}, {"y": [1, 6, 8, 8]}, tensors)
    found = quantize(model, [target()], ranges(model)).model
    scale = stored(found, node(found, "w_dq").input[1])
    np.testing.assert_allclose(scale, np.abs(tensors["w"]).max(axis=(0, 2, 3)) / 127, rtol=1e-6)
    product = np.float32(form(found, "x")[0]) * np.tile(scale, 2)
    np.testing.assert_array_equal(stored(found, node(found, "b_dq").input[1]), product)
    inputs = samples(model)[0]
    expected = run_plain(model.proto, model, inputs)["y"]
    assert snr(expected, run_plain(found.proto, found, inputs)["y"]) > 30


def test_weights_that_are_computed() -> None:
    """Exporters leave a Transpose of the weights, or a Constant node, in the file."""
    nodes = [
        make_node("Transpose", ["w"], ["wt"], "t", perm=[1, 0]),
        make_node("MatMul", ["x", "wt"], ["y"], "product"),
    ]
    model = built(nodes, {"x": [2, 3]}, {"y": [2, 4]}, {"w": weights(1, 4, 3)})
    found = quantize(model, [target()], ranges(model)).model
    scale = stored(found, node(found, "wt_dq").input[1])
    np.testing.assert_allclose(scale, np.abs(weights(1, 4, 3)).max(axis=1) / 127, rtol=1e-6)


def test_parameters_are_no_operands() -> None:
    """The bounds of a Clip are floats that it is told, not numbers that it computes with."""
    nodes = [make_node("Clip", ["x", "low", "high"], ["y"], "clip")]
    tensors = {"low": np.float32(0), "high": np.float32(6)}
    model = built(nodes, {"x": [4]}, {"y": [4]}, tensors)
    found = quantize(model, [target(ops=["Clip"])], ranges(model))
    assert list(found.units) == ["clip"]
    assert list(node(found.model, "y_float").input[1:]) == ["low", "high"]


def test_a_model_that_is_quantized_already_is_left() -> None:
    nodes = [
        make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        make_node("Relu", ["d"], ["y"], "relu"),
    ]
    tensors = {"s": np.float32(0.5), "z": np.int8(0)}
    model = built(nodes, {"x": [4]}, {"y": [4]}, tensors)
    found = quantize(model, [target()], ranges(model))
    assert found.units == {}
    assert len(found.model.index.nodes) == 3


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
def test_batch_normalization_is_folded(op: str) -> None:
    shape = {"Conv": (6, 4, 3, 3), "ConvTranspose": (4, 3, 3, 3), "Gemm": (6, 4)}[op]
    spatial = [6, 6] if op != "Gemm" else []
    more = {"Gemm": {"transB": 1}, "ConvTranspose": {"group": 2}}.get(op, {})
    nodes = [
        make_node(op, ["x", "w", *(["b"] if op != "Conv" else [])], ["c"], "linear", **more),
        make_node("BatchNormalization", ["c", "s", "m", "e", "v"], ["n"], "norm", epsilon=0.01),
        make_node("Relu", ["n"], ["y"], "relu"),
    ]
    tensors = {"w": weights(1, *shape), "b": weights(2, 6), "s": weights(3, 6), "m": weights(4, 6)}
    tensors |= {"e": weights(5, 6), "v": np.abs(weights(6, 6)) + np.float32(0.5)}
    if op == "Conv":
        del tensors["b"]
    size = {"Conv": [4, 4], "ConvTranspose": [8, 8], "Gemm": []}[op]
    model = built(nodes, {"x": [2, 4, *spatial]}, {"y": [2, 6, *size]}, tensors)
    found = quantize(model, [target()], ranges(model))
    assert [n.op_type for n in found.floats.index.nodes] == [op, "Relu"]
    assert sorted(found.floats.index.initializers) == ["n_bias", "w_folded"]
    inputs = samples(model)[0]
    expected = run_plain(model.proto, model, inputs)["y"]
    np.testing.assert_allclose(
        run_plain(found.floats.proto, found.floats, inputs)["y"], expected, atol=1e-5
    )
    assert snr(expected, run_plain(found.model.proto, found.model, inputs)["y"]) > 30


def test_two_who_read_keep_batch_normalization_apart() -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], "conv"),
        make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"], "norm"),
        make_node("Add", ["n", "c"], ["y"], "add"),
    ]
    tensors = {"w": weights(1, 2, 2, 1, 1), "s": np.float32([1, 2])}
    model = built(nodes, {"x": [1, 2, 2, 2]}, {"y": [1, 2, 2, 2]}, tensors)
    found = quantize(model, [target()], ranges(model))
    assert [n.op_type for n in found.floats.index.nodes] == ["Conv", "BatchNormalization", "Add"]
    assert set(found.units) == {"conv", "add"}


def test_types_of_what_is_new_are_known() -> None:
    """They are written, not inferred: ONNX's inference must find the same."""
    model = network()
    found = quantize(model, [target()], ranges(model)).model
    inferred = onnx.shape_inference.infer_shapes(found.proto)
    known = {v.name: v.type for v in inferred.graph.value_info}
    assert len(known) > 30
    for name, kind in known.items():
        assert found.inference.type_protos[name] == kind, name


def test_every_tensor_is_near_what_it_was() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model)).model
    inputs = samples(model)[0]
    before, after = values(model, inputs), values(found, inputs)
    for name in ("r0", "r1", "r2", "k", "y"):
        assert snr(before[name], after[name]) > 30, name


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_model_like_another_is_what_it_would_be_by_itself(dtype: str) -> None:
    """Ranges, biases and weights are the new ones; the units are those that were decided on."""
    model, to = network(), [target()]
    first = quantize(model, to, ranges(model, samples(model)[:1]), dtype)
    wider = replace(
        ranges(model), shifts={"c0": np.full(16, 0.01)}, weights={"w1": 0.9 * stored(model, "w1")}
    )
    alone = quantize(model, to, wider, dtype)
    again = quantize(model, to, wider, dtype, like=first)
    assert again.model.proto == alone.model.proto
    assert (again.units, again.notes) == (alone.units, alone.notes)
    assert again.model.proto != first.model.proto


def test_a_model_unlike_another_is_decided_on_anew() -> None:
    model, to = network(), [target()]
    first = quantize(model, to, ranges(model), "int8")
    some = ranges(model)
    known = {name: each for name, each in some.tensors.items() if name != "r0"}
    fewer = replace(some, tensors=known)
    found = quantize(model, to, fewer, "int8", like=first)
    assert found.units.keys() < first.units.keys()
    assert any("'r0' has no range" in note for note in found.notes)
    assert first.notes == ()
