"""Random small models with open dimensions, each valid at some sizes of these, from a seed.

Six families: images through convolutions and pools, token encoders, decoders with a past, sequences
through recurrent layers, plain matrices, and detections. Dimensions have names that say something, names
that do not, or none.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Dims = Sequence[int | str | None]


class Builder:
    """A graph in the making; `random` draws what it is made of."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.style = self.random.choice(("named", "letters", "unnamed", "same"))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def dim(self, name: str) -> str | None:
        """Return the name of a dimension in the style of this model."""
        return {"named": name, "letters": f"d_{name[0]}{len(name)}", "unnamed": None, "same": "?"}[
            self.style
        ]

    def input(self, name: str, dtype: int, shape: Dims) -> str:
        """Add an input; open extents are texts."""
        dims = [dim if isinstance(dim, int) else self.dim(dim or "") for dim in shape]
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights."""
        return self.constant(self.numbers.standard_normal(shape).astype(np.float32) * 0.3)

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Add a stored tensor."""
        value: NDArray[Any] = np.asarray(array, dtype)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return its first output."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0]

    def finish(self, *outputs: str) -> onnx.ModelProto:
        """Return the model with some outputs."""
        graph = helper.make_graph(
            self.nodes,
            "g",
            self.inputs,
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)  # outputs must state a shape


def make_image_model(b: Builder) -> onnx.ModelProto:
    """Return convolutions, pools, resizes and slices over an image; skips that need even extents."""
    channels = b.random.choice((1, 3, 3, 8))
    last = b.random.random() < 0.2 and channels == 3
    shape = ["batch", "height", "width", channels] if last else ["batch", channels, "height", "width"]
    x = b.input("image", FLOAT, shape)
    if last:
        x = b.node("Transpose", x, perm=[0, 3, 1, 2])
    skips, width = [], channels
    for _ in range(b.random.randint(1, 4)):
        kind = b.random.choice(("conv", "pool", "average", "slice", "down"))
        size = b.random.choice((2, 3, 5, 7))
        if kind == "conv":
            out = b.random.choice((4, 8))
            x = b.node("Relu", b.node("Conv", x, b.weight(out, width, size, size), strides=[2, 2]))
            width = out
        elif kind == "slice":
            ends = b.constant([-1, -1], np.int64)
            x = b.node("Slice", x, b.constant([1, 1], np.int64), ends, b.constant([2, 3], np.int64))
        elif kind == "down":
            skips.append((x, width))
            x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
            up = b.node("Resize", x, "", b.constant([1, 1, 2, 2], np.float32), mode="nearest")
            if len(skips) == 1 and b.nodes[0].op_type in ("MaxPool", "Transpose"):
                x = b.node("Concat", up, skips.pop()[0], axis=1)  # only even extents fit
                width *= 2
        else:
            op = "MaxPool" if kind == "pool" else "AveragePool"
            x = b.node(op, x, kernel_shape=[size, size], strides=[b.random.choice((1, 2, 4))] * 2)
    if b.random.random() < 0.5:
        pooled = b.node("Flatten", b.node("GlobalAveragePool", x))
        return b.finish(b.node("Gemm", pooled, b.weight(width, 5)))
    return b.finish(b.node("Reshape", x, b.constant([0, width, -1], np.int64)))


def _attend(b: Builder, q: str, k: str, v: str, bias: str) -> str:
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    if bias:
        scores = b.node("Add", scores, bias)
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    return b.node("Transpose", mixed, perm=[0, 2, 1, 3])


def _make_bias(b: Builder, mask: str) -> str:
    wide = b.node("Unsqueeze", b.node("Cast", mask, to=FLOAT), b.constant([1, 2], np.int64))
    return b.node("Mul", b.node("Sub", b.constant(1.0, np.float32), wide), b.constant(-1e4, np.float32))


def _split_heads(b: Builder, x: str, heads: int, size: int) -> str:
    shaped = b.node("Reshape", x, b.constant([0, -1, heads, size], np.int64))
    return b.node("Transpose", shaped, perm=[0, 2, 1, 3])


def make_encoder(b: Builder) -> onnx.ModelProto:
    """Return embeddings of tokens, positions and types, and attention under a mask."""
    dtype = b.random.choice((INT64, INT32))
    heads, size, rows = 2, 4, b.random.choice((30, 1000))
    width = heads * size
    x = b.node("Gather", b.weight(rows, width), b.input("input_ids", dtype, ["batch", "sequence"]))
    if b.random.random() < 0.5:
        ids = b.input("position_ids", dtype, ["batch", "sequence"])
        x = b.node("Add", x, b.node("Gather", b.weight(b.random.choice((20, 64)), width), ids))
    if b.random.random() < 0.5:
        kinds = b.input("token_type_ids", dtype, ["batch", "sequence"])
        x = b.node("Add", x, b.node("Gather", b.weight(2, width), kinds))
    bias = ""
    if b.random.random() < 0.7:
        bias = _make_bias(b, b.input("attention_mask", dtype, ["batch", "sequence"]))
    q, k, v = (_split_heads(b, b.node("MatMul", x, b.weight(width, width)), heads, size) for _ in "qkv")
    mixed = b.node("Reshape", _attend(b, q, k, v, bias), b.constant([0, -1, width], np.int64))
    return b.finish(b.node("MatMul", mixed, b.weight(width, 7)))


def make_decoder(b: Builder) -> onnx.ModelProto:
    """Return a step of a decoder that reads a past, and gives the past with the step."""
    heads, size, width = 2, 4, 8
    total = b.random.choice(("past_sequence + sequence", "total_sequence"))
    x = b.node("Gather", b.weight(50, width), b.input("input_ids", INT64, ["batch", "sequence"]))
    past = ["batch", heads, "past_sequence", size]
    keys, values = (b.input(f"past_key_values.0.{part}", FLOAT, past) for part in ("key", "value"))
    bias = ""
    if b.random.random() < 0.8:
        bias = _make_bias(b, b.input("attention_mask", INT64, ["batch", total]))
    if b.random.random() < 0.5:
        ids = b.input("position_ids", INT64, ["batch", "sequence"])
        x = b.node("Add", x, b.node("Gather", b.weight(40, width), ids))
    q, k, v = (_split_heads(b, b.node("MatMul", x, b.weight(width, width)), heads, size) for _ in "qkv")
    k, v = b.node("Concat", keys, k, axis=2), b.node("Concat", values, v, axis=2)
    mixed = b.node("Reshape", _attend(b, q, k, v, bias), b.constant([0, -1, width], np.int64))
    return b.finish(b.node("MatMul", mixed, b.weight(width, 50)), k, v)


def make_sequence_model(b: Builder) -> onnx.ModelProto:
    """Return a recurrent layer with lengths, or a convolution, over features by time."""
    width, hidden = b.random.choice((4, 6)), 3
    if b.random.random() < 0.5:
        x = b.input("x", FLOAT, ["frames", "batch", width])
        lengths = b.input("lengths", INT32, ["batch"]) if b.random.random() < 0.5 else ""
        weights, recurrent = b.weight(1, 4 * hidden, width), b.weight(1, 4 * hidden, hidden)
        state = b.input("h0", FLOAT, [1, "batch", hidden]) if b.random.random() < 0.5 else ""
        cell = b.input("c0", FLOAT, [1, "batch", hidden]) if state else ""
        names = [x, weights, recurrent, "", lengths, state, cell]
        return b.finish(b.node("LSTM", *names, hidden_size=hidden))
    x = b.input("features", FLOAT, ["batch", width, "time"])
    size = b.random.choice((3, 9, 25))
    x = b.node("Conv", x, b.weight(4, width, size), strides=[b.random.choice((1, 2))])
    if b.random.random() < 0.5:
        x = b.node("Concat", x, b.input("tail", FLOAT, ["batch", 4, "more"]), axis=2)
    return b.finish(b.node("Sqrt", b.node("Abs", x)))


def make_matrix_model(b: Builder) -> onnx.ModelProto:
    """Return sums, products, reshapes, gathers and a choice by a number."""
    inner, groups = b.random.choice((4, 6, 10)), b.random.choice((2, 3, 7))
    x = b.input("x", FLOAT, ["rows", "columns"])
    kind = b.random.choice(("product", "reshape", "log", "gather", "choice", "sum"))
    if kind == "product":
        x = b.node("Relu", b.node("MatMul", x, b.weight(inner, 4)))
    elif kind == "reshape":
        x = b.node("Reshape", x, b.constant([-1, groups], np.int64))
    elif kind == "log":
        x = b.node("Log", x)
    elif kind == "gather":
        x = b.node("Gather", x, b.input("index", INT64, ["picked"]), axis=b.random.choice((0, 1)))
    elif kind == "sum":
        x = b.node("Mul", b.node("Add", x, b.input("y", FLOAT, ["rows", "other"])), b.weight(1, inner))
    else:
        rate = b.node("Equal", b.input("sr", INT64, []), b.constant(16000, np.int64))
        branches = {}
        for name, op in (("then_branch", "Neg"), ("else_branch", "Exp")):
            node = helper.make_node(op, [x], [name])
            value = helper.make_tensor_value_info(name, FLOAT, [None, None])
            branches[name] = helper.make_graph([node], name, [], [value])
        x = b.node("If", rate, **branches)
    return b.finish(x)


def make_detection_model(b: Builder) -> onnx.ModelProto:
    """Return boxes scaled by the image's size, and the best of them."""
    boxes = b.input("boxes", FLOAT, ["batch", "count", 4])
    scores = b.input("scores", FLOAT, ["batch", "classes", "count"])
    size = b.input("im_shape", FLOAT, ["batch", 2])
    scale = b.node("Unsqueeze", b.node("Concat", size, size, axis=1), b.constant([1], np.int64))
    scaled = b.node("Mul", boxes, scale)
    if b.random.random() < 0.5:
        limit = b.input("max_boxes", INT64, [1])
        found = b.node("NonMaxSuppression", scaled, scores, limit)
        return b.finish(scaled, b.node("Cast", found, to=FLOAT))
    best = b.node("TopK", scores, b.input("k", INT64, [1]), outputs=2)
    return b.finish(scaled, best)


FAMILIES: Sequence[Callable[[Builder], onnx.ModelProto]] = (
    make_image_model,
    make_encoder,
    make_decoder,
    make_sequence_model,
    make_matrix_model,
    make_detection_model,
)


def make_open_model(seed: int) -> onnx.ModelProto:
    """Return the model of a seed."""
    return FAMILIES[seed % len(FAMILIES)](Builder(seed))
