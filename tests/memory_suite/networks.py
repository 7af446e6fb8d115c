"""The twelve networks of ONNC's study: nine of the zoo, and three built from them."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

sys.path[:0] = [str(Path(__file__).parents[1])]

from helpers.support import LIGHT  # noqa: E402 - needs the path

from byoc import zoo  # noqa: E402

_CLASSES = 200


def twelve() -> dict[str, Callable[[], ModelProto]]:
    """Return for each network what makes it; each may be run, with seeded random weights."""
    made: dict[str, Callable[[], ModelProto]] = {name: partial(zoo.load, name) for name in LIGHT}
    made |= {"caffenet": caffenet, "rcnn": rcnn, "googlenet": googlenet}
    return dict(sorted(made.items()))


def caffenet() -> ModelProto:
    """Return alexnet with each pooling in front of the normalization that it followed."""
    model = zoo.load("bvlc_alexnet")
    nodes = model.graph.node
    for number in range(len(nodes) - 1):
        norm, pool = nodes[number], nodes[number + 1]
        if norm.op_type == "LRN" and pool.op_type == "MaxPool" and pool.input[0] == norm.output[0]:
            _swap(norm, pool)
    return _named(model, "caffenet")


def rcnn() -> ModelProto:
    """Return caffenet with 200 outputs, and no Softmax behind them."""
    model = caffenet()
    graph = model.graph
    softmax, last = graph.node.pop(), graph.node[-1]
    if (softmax.op_type, last.op_type) != ("Softmax", "Gemm"):
        raise ValueError(f"caffenet ends in {last.op_type} and {softmax.op_type}, not Gemm and Softmax")
    for tensor in graph.initializer:
        if tensor.name in last.input[1:]:  # with transB both have a row for each output
            fewer = np.ascontiguousarray(numpy_helper.to_array(tensor)[:_CLASSES])
            tensor.CopyFrom(numpy_helper.from_array(fewer, tensor.name))
    last.output[0] = graph.output[0].name
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = _CLASSES
    return _named(model, "rcnn")


def googlenet() -> ModelProto:
    """Return inception_v1 under another name: googlenet has its structure."""
    return _named(zoo.load("inception_v1"), "googlenet")


def _swap(one: NodeProto, other: NodeProto) -> None:
    """Have two nodes, the second of which reads the first alone, run in the other order."""
    first, second = NodeProto(), NodeProto()
    first.CopyFrom(other)
    second.CopyFrom(one)
    first.input[0], first.output[0] = one.input[0], one.output[0]
    second.input[0], second.output[0] = one.output[0], other.output[0]
    one.CopyFrom(first)
    other.CopyFrom(second)


def _named(model: ModelProto, name: str) -> ModelProto:
    model.graph.name = name
    onnx.checker.check_model(model)
    return model
