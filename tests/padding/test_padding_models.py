"""Padding of models of the zoo: the batch of a convolutional network, the length of an encoder."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from decoding import plain
from onnx import helper, numpy_helper

from byoc.model import Dimensions, prepare_model
from byoc.padding import PaddingRule, cut_outputs, decide_padding, find_unpadded_sizes, pad_inputs
from byoc.zoo import load_model


def open_inputs(name: str, *dims: str) -> onnx.ModelProto:
    """Return a model of the zoo whose inputs begin with open dimensions."""
    model = onnx.ModelProto()
    model.CopyFrom(load_model(f"zoo:{name}").proto)
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        for dim, own in zip(value.type.tensor_type.shape.dim, dims, strict=False):
            if value.name not in stored:
                dim.dim_param = own
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def open_bert() -> onnx.ModelProto:
    """Return the zoo's bert with an open batch and length: its export has both in constants."""
    model = open_inputs("bert", "batch", "length")
    constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Reshape" and "attention/self" in node.name:
            tensor = constants[node.input[1]].attribute[0].t
            wanted = numpy_helper.to_array(tensor).copy()
            wanted[:2] = 0  # as they are
            tensor.CopyFrom(numpy_helper.from_array(wanted))
        if node.output[0] == "/model/embeddings/Constant_1_output_0":  # positions
            nodes += [
                helper.make_node("Shape", ["input_ids"], ["extent"], start=1, end=2),
                helper.make_node("Squeeze", ["extent"], ["count"]),
                helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
                helper.make_node("Unsqueeze", ["numbers", "first"], [node.output[0]]),
            ]
        elif node.output[0] == "/model/Expand_output_0":  # the mask, for heads and queries
            nodes.append(
                helper.make_node("Unsqueeze", ["/model/Cast_output_0", "inner"], [node.output[0]])
            )
        else:
            nodes.append(node)
    reads: set[str] = {output.name for output in model.graph.output}
    kept = []
    for node in reversed(nodes):
        if not reads.isdisjoint(node.output):
            kept.append(node)
            reads.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    for name, value in (("zero", 0), ("one", 1), ("first", [0]), ("inner", [1, 2])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return model


def decide(model: onnx.ModelProto, **sizes: int) -> PaddingRule:
    found = decide_padding(lambda fixed: prepare_model(model, "m", None, Dimensions(dict(fixed))), sizes)
    assert found.rule is not None, found.refusals
    return found.rule


def compare(model: onnx.ModelProto, rule: PaddingRule, inputs: Mapping[str, Any]) -> None:
    """Compare the cut outputs on padded inputs with those without padding."""
    run = plain(model)
    expected = run(dict(inputs))
    sizes = find_unpadded_sizes(rule, inputs)
    actual = cut_outputs(rule, run(pad_inputs(rule, inputs, sizes)), sizes)
    for name, value in expected.items():
        assert actual[name].shape == value.shape
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-4)


def test_the_batch_of_a_convolutional_network() -> None:
    model = open_inputs("squeezenet", "batch")
    rule = decide(model, batch=4)
    assert rule.dims == {"batch": 4}
    assert not rule.reads_values
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    compare(model, rule, {"data_0": image})


@pytest.mark.thorough
def test_the_batch_and_the_length_of_an_encoder() -> None:
    model = open_bert()
    rule = decide(model, batch=3, length=24)
    assert rule.dims == {"batch": 3, "length": 24}
    mask = rule.inputs["attention_mask"]
    assert mask.value == 0
    assert mask.first is not None
    assert rule.outputs["pooler_output"] == ("batch", 384)
    for batch, length in ((1, 1), (2, 9), (3, 23)):
        ids = np.random.default_rng(length).integers(0, 30_000, (batch, length))
        ones = np.ones_like(ids)
        ones[:, length // 2 + 1 :] = 0  # a mask of the caller's own
        given = {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ids)}
        compare(model, rule, given)
