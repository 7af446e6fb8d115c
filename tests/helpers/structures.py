"""Light structures as exporters and optimizers write them: what is typical of each, and no more.

None states types of the tensors between its nodes. Weights are seeded; inputs go with the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from byoc.zoo._decoders import GraphWriter

_FLOAT, _INT32, _INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


@dataclass(frozen=True, eq=False)
class Structure:
    """A model, inputs that it runs with, and the sizes of its named dimensions in them."""

    model: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    dims: Mapping[str, int]


class _Writer(GraphWriter):
    """A writer that names nodes by their operators and number."""

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output, and return its name."""
        return self.add_many(operator, inputs, 1, **attributes)[0]

    def add_many(
        self, operator: str, inputs: tuple[str, ...], outputs: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node of several outputs, and return their names."""
        name = f"{operator.rpartition('.')[2]}_{len(self.graph.node)}"
        made = tuple(f"{name}:{i}" for i in range(outputs))
        self.add_node(operator, name, inputs, made, **attributes)
        return made

    def weight(self, *shape: int, centre: float = 0.0) -> str:
        """Store a seeded weight, and return its name."""
        name = f"weight_{len(self.graph.initializer)}"
        deviation = 0.1 if centre else max(int(np.prod(shape[1:])), shape[0]) ** -0.5
        return self.store(name, self.draw(name, shape, deviation, centre))

    def integers(self, *values: int) -> str:
        """Store a list of int64, and return its name."""
        return self.store(f"integers_{len(self.graph.initializer)}", np.array(values, np.int64))

    def finish(self, tensor: str, rank: int) -> None:
        """Make a tensor the output `y` of the graph, of which only the rank is stated."""
        self.add_node("Identity", "finish", (tensor,), ("y",))
        self.add_output("y", _FLOAT, (None,) * rank)


def make_fused_bert() -> Structure:
    """Make an encoder of two layers as onnxruntime's transformer optimizer fuses it."""
    w = _Writer("bert", {"": 17, "com.microsoft": 1}, "bert")
    hidden, heads, batch, length = 64, 4, 2, 24
    for name in ("input_ids", "segment_ids", "mask"):
        w.add_input(name, _INT32, ("batch", "sequence"))
    tables = [w.weight(rows, hidden) for rows in (300, 48, 2)]
    gamma, beta = w.weight(hidden, centre=1.0), w.weight(hidden)
    inputs = ("input_ids", "segment_ids", *tables, gamma, beta, "mask")
    x, mask = w.add_many("com.microsoft.EmbedLayerNormalization", inputs, 2, epsilon=1e-12)
    for _ in range(2):
        packed, bias = w.weight(hidden, 3 * hidden), w.weight(3 * hidden)
        attended = w.add("com.microsoft.Attention", x, packed, bias, mask, num_heads=heads)
        joined = w.add("MatMul", attended, w.weight(hidden, hidden))
        x = _skip_norm(w, joined, x, hidden)
        wide = w.add("MatMul", x, w.weight(hidden, 4 * hidden))
        active = w.add("com.microsoft.BiasGelu", wide, w.weight(4 * hidden))
        x = _skip_norm(w, w.add("MatMul", active, w.weight(4 * hidden, hidden)), x, hidden)
    first = w.add("Gather", x, w.store("zero", np.array(0, np.int64)), axis=1)
    w.finish(w.add("Tanh", w.add("Gemm", first, w.weight(hidden, hidden), w.weight(hidden))), 2)
    rng = np.random.default_rng(0)
    mask_values = np.ones((batch, length), np.int32)
    mask_values[1, 15:] = 0
    arrays = {
        "input_ids": rng.integers(0, 300, (batch, length), np.int32),
        "segment_ids": rng.integers(0, 2, (batch, length), np.int32),
        "mask": mask_values,
    }
    return Structure(w.model, arrays, {"batch": batch, "sequence": length})


def _skip_norm(w: _Writer, x: str, skip: str, hidden: int) -> str:
    parts = (w.weight(hidden, centre=1.0), w.weight(hidden), w.weight(hidden))
    return w.add("com.microsoft.SkipLayerNormalization", x, skip, *parts, epsilon=1e-12)


def make_unet_block() -> Structure:
    """Make a block of a diffusion U-Net: group norms, a step of time, cross attention, Resize."""
    w = _Writer("unet", {"": 21, "com.microsoft": 1}, "unet")
    channels, context, batch, edge, words = 32, 48, 1, 12, 11
    w.add_input("sample", _FLOAT, ("batch", channels, "height", "width"))
    w.add_input("time", _FLOAT, ("batch", 64))
    w.add_input("context", _FLOAT, ("batch", "words", context))
    x = _norm_and_conv(w, "sample", channels)
    time = w.add("Gemm", _silu(w, "time"), w.weight(64, channels), w.weight(channels))
    x = w.add("Add", x, w.add("Unsqueeze", time, w.integers(2, 3)))
    x = w.add("Add", _norm_and_conv(w, x, channels), "sample")
    tokens = _add_cross_attention(w, x, channels, context)
    x = w.add("Add", tokens, x)
    scales = w.store("scales", np.array([1, 1, 2, 2], np.float32))
    x = w.add("Resize", x, "", scales, mode="nearest")
    w.finish(w.add("Conv", x, w.weight(channels, channels, 3, 3), pads=[1] * 4), 4)
    rng = np.random.default_rng(0)
    shapes = {
        "sample": (batch, channels, edge, edge),
        "time": (batch, 64),
        "context": (batch, words, context),
    }
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return Structure(w.model, arrays, {"batch": batch, "height": edge, "width": edge, "words": words})


def _silu(w: _Writer, x: str) -> str:
    return w.add("Mul", x, w.add("Sigmoid", x))


def _norm_and_conv(w: _Writer, x: str, channels: int) -> str:
    scale, bias = w.weight(channels, centre=1.0), w.weight(channels)
    normal = w.add("GroupNormalization", x, scale, bias, num_groups=8, epsilon=1e-5)
    kernel, shift = w.weight(channels, channels, 3, 3), w.weight(channels)
    return w.add("Conv", _silu(w, normal), kernel, shift, pads=[1] * 4)


def _add_cross_attention(w: _Writer, x: str, channels: int, context: int) -> str:
    """Attend from the pixels of an image to the words of a text, and return an image again."""
    extents = w.add("Shape", x)
    rows = w.add("Reshape", x, w.integers(0, channels, -1))
    tokens = w.add("Transpose", rows, perm=[0, 2, 1])
    normal = w.add("LayerNormalization", tokens, w.weight(channels, centre=1.0), w.weight(channels))
    q = w.add("MatMul", normal, w.weight(channels, channels))
    k, v = (w.add("MatMul", "context", w.weight(context, channels)) for _ in "kv")
    attended = w.add("com.microsoft.MultiHeadAttention", q, k, v, num_heads=4)
    back = w.add("Transpose", w.add("MatMul", attended, w.weight(channels, channels)), perm=[0, 2, 1])
    return w.add("Reshape", back, extents)


def make_paddle_export() -> Structure:
    """Make a small classifier as paddle2onnx writes it: dimensions without names, shapes computed."""
    w = _Writer("paddle", {"": 14}, "paddle")
    w.add_input("x", _FLOAT, (None, 3, None, None))
    x = w.add("Conv", "x", w.weight(16, 3, 3, 3), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    parts = (w.weight(16, centre=1.0), w.weight(16), w.weight(16), w.store("v", np.ones(16, np.float32)))
    x = w.add("HardSwish", w.add("BatchNormalization", x, *parts))
    extents = w.add("Shape", x)
    batch = w.add("Slice", extents, w.integers(0), w.integers(1), w.integers(0))
    rest = w.add("Cast", w.integers(16, -1), to=_INT64)
    rows = w.add("Reshape", x, w.add("Concat", batch, rest, axis=0))
    mean = w.add("ReduceMean", rows, axes=[2], keepdims=0)
    product = w.add("MatMul", mean, w.weight(16, 10))
    w.finish(w.add("Softmax", product, axis=-1), 2)
    image = np.random.default_rng(0).standard_normal((2, 3, 32, 48), np.float32)
    return Structure(w.model, {"x": image}, {})


def make_tf2onnx_export() -> Structure:
    """Make a network as tf2onnx writes it: a Slice whose ends are computed from a shape, by int32."""
    w = _Writer("tf2onnx", {"": 15}, "tf2onnx")
    w.add_input("image", _FLOAT, (1, 18, 20, 3))
    x = w.add("Transpose", "image", perm=[0, 3, 1, 2])
    x = w.add("Relu", w.add("Conv", x, w.weight(8, 3, 3, 3), auto_pad="VALID"))
    extents = w.add("Cast", w.add("Shape", w.add("Transpose", x, perm=[0, 2, 3, 1])), to=_INT32)
    wide = w.add("Cast", extents, to=_INT64)
    height, width = (
        w.add("Slice", wide, w.integers(i), w.integers(i + 1), w.integers(0)) for i in (1, 2)
    )
    ends = [w.add("Sub", each, w.integers(2)) for each in (height, width)]
    cropped = w.add(
        "Slice", x, w.integers(1, 1), w.add("Concat", *ends, axis=0), w.integers(2, 3), w.integers(1, 2)
    )
    zeros = w.add("ConstantOfShape", w.integers(4))
    moved = w.add("Concat", zeros, w.add("Cast", w.integers(0, 0, 1, 1), to=_FLOAT), axis=0)
    padded = w.add("Pad", cropped, w.add("Cast", moved, to=_INT64))
    y = w.add("Conv", padded, w.weight(4, 8, 3, 3))
    flat = w.add("Concat", w.add("Slice", wide, w.integers(0), w.integers(1)), w.integers(-1), axis=0)
    w.finish(w.add("Reshape", y, flat), 2)
    image = np.random.default_rng(0).standard_normal((1, 18, 20, 3), np.float32)
    return Structure(w.model, {"image": image}, {})


def make_mxnet_export() -> Structure:
    """Make a network as mxnet writes it: sizes of an upsampled map taken from another's shape."""
    w = _Writer("mxnet", {"": 13}, "mxnet")
    w.add_input("data", _FLOAT, (1, 3, 21, 25))
    large = w.add("Relu", w.add("Conv", "data", w.weight(8, 3, 3, 3), pads=[1] * 4))
    small = w.add("Conv", large, w.weight(8, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    scales = w.store("scales", np.array([1, 1, 2, 2], np.float32))
    up = w.add("Resize", small, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    # slice_like: as much of the upsampled map as the larger one has.
    extents = w.add("Shape", large)
    ends = w.add("Slice", extents, w.integers(2), w.integers(4), w.integers(0))
    cropped = w.add("Slice", up, w.integers(0, 0), ends, w.integers(2, 3))
    merged = w.add("Conv", w.add("Add", large, cropped), w.weight(6, 8, 1, 1))
    parts = w.add_many("Split", (w.add("Shape", merged),), 4, axis=0)
    rows = w.add("Mul", parts[2], parts[3])
    target = w.add("Concat", parts[0], parts[1], rows, axis=0)
    w.finish(w.add("Softmax", w.add("Reshape", merged, target), axis=1), 3)
    image = np.random.default_rng(0).standard_normal((1, 3, 21, 25), np.float32)
    return Structure(w.model, {"data": image}, {})


STRUCTURES = {
    "fused_bert": make_fused_bert,
    "unet_block": make_unet_block,
    "paddle": make_paddle_export,
    "tf2onnx": make_tf2onnx_export,
    "mxnet": make_mxnet_export,
}
