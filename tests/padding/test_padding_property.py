"""Padding by the rule gives what no padding gives, on random models; the rest is refused."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_graphs import LARGE, make_random_model

from byoc.errors import InputError
from byoc.model import Dimensions, prepare_model
from byoc.padding import PaddingDecision, cut_outputs, decide_padding, find_unpadded_sizes, pad_inputs

_TRIALS = 4


def decide(proto: onnx.ModelProto) -> PaddingDecision:
    return decide_padding(lambda fixed: prepare_model(proto, "m", None, Dimensions(dict(fixed))), LARGE)


def make_inputs(proto: onnx.ModelProto, sizes: dict[str, int], trial: int) -> dict[str, Any]:
    """Return inputs of some sizes; masks of ones first, then of any ones and zeros."""
    rng = np.random.default_rng(trial)
    found = {}
    for value in proto.graph.input:
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        if value.name == "x":
            found["x"] = rng.normal(size=shape, scale=10 ** (trial % 2)).astype(np.float32)
        elif value.name == "mask":
            found["mask"] = np.ones(shape, np.int64) if trial < 2 else rng.integers(0, 2, shape)
        else:
            found[value.name] = rng.integers(0, 4, shape)
    return found


def open_session(proto: onnx.ModelProto) -> Any:
    """Return the model on plain onnxruntime without optimizations, None where it is not valid."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        return onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # the error types of onnxruntime have no common base
        return None


def watch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all its tensors as outputs."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    del found.graph.output[:]
    names = (name for node in proto.graph.node for name in node.output)
    found.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return found


def compare(proto: onnx.ModelProto, decision: PaddingDecision) -> Iterator[tuple[Any, Any]]:
    """Yield the outputs without padding beside the cut ones with it, at several sizes."""
    rule, session, watched = decision.rule, open_session(proto), open_session(watch(proto))
    if rule is None or session is None:
        return
    names = [output.name for output in session.get_outputs()]
    rng = np.random.default_rng(0)
    for trial in range(_TRIALS):
        sizes = {n: int(rng.integers(1, s + 1)) if n in rule.dims else s for n, s in LARGE.items()}
        inputs = make_inputs(proto, sizes, trial)
        try:
            found = find_unpadded_sizes(rule, inputs)
        except InputError:  # a mask that does not begin with a one
            assert any(each.first for each in rule.inputs.values())
            continue
        try:
            expected = session.run(None, inputs)
            inner = watched.run(None, inputs)
        except Exception:  # an index beyond an axis of this size
            continue
        if any(each.dtype.kind == "f" and np.isnan(each).any() for each in inner):
            continue  # nothing is promised: a ReduceMax of NaN depends on where it stands
        padded = dict(zip(names, session.run(None, pad_inputs(rule, inputs, found)), strict=True))
        yield from zip(expected, cut_outputs(rule, padded, found).values(), strict=True)


def check(random: Random) -> str:
    proto = make_random_model(random)
    decision = decide(proto)
    for expected, actual in compare(proto, decision):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    if decision.rule is None:
        assert all(decision.refusals.values())
        return "refused"
    return "by values" if decision.rule.reads_values else "by structure"


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_padded_outputs_are_those_without_padding(random: Random) -> None:
    check(random)


@pytest.mark.thorough
def test_of_500_models_none_is_wrong_and_most_are_padded() -> None:
    found = Counter(check(Random(seed)) for seed in range(500))
    assert found["by structure"] > 200
    assert found["by values"] > 50
    assert found["refused"] > 10
