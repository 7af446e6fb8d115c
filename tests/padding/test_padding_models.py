"""Padding of models of the zoo: the batch of a convolutional network, the length of an encoder."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.decoding import plain
from helpers.open_size_models import open_bert, open_inputs

from byoc.model import Dimensions, prepare_model
from byoc.padding import PaddingRule, cut_outputs, decide_padding, find_unpadded_sizes, pad_inputs


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
