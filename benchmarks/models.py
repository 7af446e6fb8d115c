"""Generated models to plan: a chain, random graphs, decoders of equal layers."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from byoc.zoo import DecoderShape, DecoderSize, make_decoder

_SHAPE = (1, 16, 8, 8)
_CHANNELS = _SHAPE[1]
_WEIGHTS = 8
_WIDTH = 64
# dla takes all but Softmax, Tanh and Erf.
_UNARY = ("Conv", "Conv", "Relu", "Relu", "Sigmoid", "Clip", "Softmax", "Tanh", "Erf")
_BINARY = ("Add", "Add", "Mul", "Sub")


def make_chain(nodes: int = 1000, every: int = 5) -> onnx.ModelProto:
    """Make a chain of Relu in which one node of `every` is a Softmax, which `dla` does not support."""
    made = [
        helper.make_node("Relu" if (i + 1) % every else "Softmax", [f"t{i}"], [f"t{i + 1}"], f"n{i}")
        for i in range(nodes)
    ]
    return _make_model(made, [f"t{nodes}"], "t0", [])


def make_random_graph(nodes: int = 10_000, seed: int = 0) -> onnx.ModelProto:
    """Make layers of 64 nodes that each read one or two results of the four layers before."""
    chance = np.random.default_rng(seed)
    weights = [
        helper.make_tensor(
            f"w{i}",
            TensorProto.FLOAT,
            (_CHANNELS, _CHANNELS, 1, 1),
            chance.standard_normal(_CHANNELS**2).astype(np.float32).tobytes(),
            raw=True,
        )
        for i in range(_WEIGHTS)
    ]
    made, read = [], set()
    for i in range(nodes):
        layer = i // _WIDTH
        back = chance.integers(1, 5, 2)
        column = chance.integers(0, _WIDTH, 2)
        sources = [
            f"t{(layer - steps) * _WIDTH + place}" if layer >= steps else "x"
            for steps, place in zip(back.tolist(), column.tolist(), strict=True)
        ]
        if chance.random() < 0.5:
            op, inputs = str(chance.choice(_UNARY)), sources[:1]
            if op == "Conv":
                inputs = [*inputs, f"w{chance.integers(_WEIGHTS)}"]
        else:
            op, inputs = str(chance.choice(_BINARY)), sources
        read.update(inputs)
        made.append(helper.make_node(op, inputs, [f"t{i}"], f"n{i}"))
    unread = [f"t{i}" for i in range(nodes) if f"t{i}" not in read]
    return _make_model(made, unread, "x", weights)


def make_layers(layers: int) -> onnx.ModelProto:
    """Make a decoder of equal layers, float16, 64 tokens, as the zoo's `decoder_fp16_prefill`."""
    shape = DecoderShape(batch=1, sequence=64, past=0, total=64, present=64)
    return make_decoder("float16", shape, DecoderSize(layers=layers), fused=False)


def make_int4_layers(layers: int) -> onnx.ModelProto:
    """Make a decoder of equal layers, int4, 64 tokens; 80 layers have 1.1 billion weights."""
    shape = DecoderShape(batch=1, sequence=64, past=0, total=64, present=64)
    size = DecoderSize(layers, hidden=1024, heads=16, kv_heads=4, wide=3584, vocabulary=32_000)
    return make_decoder("int4", shape, size)


def _make_model(
    nodes: list[onnx.NodeProto], outputs: list[str], given: str, weights: list[TensorProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "generated",
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, _SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SHAPE) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
