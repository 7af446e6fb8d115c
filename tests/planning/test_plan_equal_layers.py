"""What nodes have in common is found once, and plans are what they are without that."""

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.model import GraphIndex, NodeRecords, prepare_model
from byoc.model._inference import _settling
from byoc.model._inference._scopes import InferenceContext
from byoc.zoo._decoders import OPEN, DecoderShape, DecoderSize, make_decoder

_CHANNELS, _SIZE = 4, 6
# The nodes of a part of a block by operator: inputs, outputs and attributes, of which `x` and `y` are
# the part's, `w` its weight and `in` what the block reads.
_PARTS: dict[str, list[tuple[str, list[str], list[str], dict[str, Any]]]] = {
    "conv": [("Conv", ["x", "w"], ["y"], {})],
    "relu": [("Relu", ["x"], ["y"], {})],
    "softmax": [("Softmax", ["x"], ["y"], {"axis": 1})],
    "residual": [("Add", ["x", "in"], ["y"], {})],
    "doubled": [("Mul", ["x", "x"], ["y"], {})],
    "pool": [
        ("MaxPool", ["x"], ["y", ""], {"kernel_shape": [3, 3], "pads": [1] * 4, "ceil_mode": 1}),
    ],
    "reshape": [
        ("Shape", ["x"], ["s"], {}),
        ("Gather", ["s", "zero"], ["n"], {"axis": 0}),
        ("Concat", ["n", "rest"], ["flat"], {"axis": 0}),
        ("Reshape", ["x", "flat"], ["f"], {}),
        ("Reshape", ["f", "s"], ["y"], {}),
    ],
}


def make_blocks(parts: list[str], count: int, kept: int) -> onnx.ModelProto:
    """Make equal blocks of some parts; the last block has the first `kept` parts alone."""
    chance = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.array([-1]), "rest"),
    ]
    nodes, last = [], "input"
    for block in range(count):
        first = last
        for number, part in enumerate(parts[: kept if block == count - 1 else None]):
            prefix = f"b{block}_{number}_"
            names = {"x": last, "in": first, "": "", "zero": "zero", "rest": "rest"}
            for op, inputs, outputs, attributes in _PARTS[part]:
                own = [[names.get(n, prefix + n) for n in side] for side in (inputs, outputs)]
                nodes.append(helper.make_node(op, *own, f"{prefix}{op}_{len(nodes)}", **attributes))
            if part == "conv":
                weight = chance.standard_normal((_CHANNELS, _CHANNELS, 1, 1)).astype(np.float32)
                stored.append(numpy_helper.from_array(weight, f"{prefix}w"))
            last = f"{prefix}y"
    shape = ["N", _CHANNELS, _SIZE, _SIZE]
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class Forgetful(dict[Any, Any]):
    """A mapping that keeps nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        """Do nothing."""


def describe_plan(model: onnx.ModelProto) -> tuple[str, bytes]:
    """Return the report of a model's plan, and the partitioned model."""
    result = byoc.partition(model, rules="dla")
    return str(result.report.to_json()), result.model.SerializeToString(deterministic=True)


def describe_plan_without_reuse(model: onnx.ModelProto) -> tuple[str, bytes]:
    """Return the plan that is made when each node is inferred by itself, and read for each index."""
    read = InferenceContext.read.__func__  # type: ignore[attr-defined]

    def forget(cls: type[InferenceContext], *given: object) -> InferenceContext:
        found: InferenceContext = read(cls, *given)
        found.attributes, found.inferred, found.merged = Forgetful(), Forgetful(), Forgetful()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InferenceContext, "read", classmethod(forget))
        patch.setattr(GraphIndex, "records", property(lambda index: NodeRecords.read(index.nodes)))
        return describe_plan(model)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(sorted(_PARTS)), min_size=1, max_size=6), st.integers(1, 4), st.data())
def test_a_plan_is_what_it_is_without_reuse(parts: list[str], count: int, data: st.DataObject) -> None:
    model = make_blocks(parts, count, data.draw(st.integers(1, len(parts))))
    assert describe_plan(model) == describe_plan_without_reuse(model)


def test_a_decoder_is_what_it_is_without_reuse() -> None:
    model = make_decoder("float16", OPEN, DecoderSize(layers=2), fused=False)
    assert describe_plan(model) == describe_plan_without_reuse(model)


def test_equal_layers_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    infer = _settling._infer

    def count(scope: Any, number: int, *given: Any) -> Any:
        asked.append(scope.kinds[number].operator)
        return infer(scope, number, *given)

    monkeypatch.setattr(_settling, "_infer", count)
    shape = DecoderShape(batch=1, sequence=4, past=0, total=4, present=4)
    counts = []
    for layers in (2, 5):
        asked.clear()
        # Weights of normalization are more than 1 KiB: values of smaller ones may matter to types.
        prepare_model(make_decoder("float16", shape, DecoderSize(layers, 640), fused=False), "m")
        counts.append(len(asked))
    assert 0 < counts[1] == counts[0]
