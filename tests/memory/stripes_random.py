"""Random row-wise networks: numbers alone, and as ONNX models."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from byoc.memory.stripes import ALL_ROWS, SAME_ROW, LayerMode, OperandRows, RowLayer, RowTensor


@dataclass
class Numbers:
    """What `stripe` and `check` take."""

    tensors: list[RowTensor]
    layers: list[RowLayer] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@st.composite
def numbers(draw: st.DrawFn, most: int = 12) -> Numbers:
    """Draw a network of windows, elementwise layers, reductions and layers that read everything."""
    rows = st.integers(1, 9)
    net = Numbers(
        [RowTensor(f"x{n}", draw(rows), draw(st.integers(1, 6))) for n in range(draw(st.integers(1, 2)))]
    )
    net.inputs = [each.name for each in net.tensors]
    for number in range(draw(st.integers(1, most))):
        _add_layer(draw, net, f"t{number}")
    read = {name for layer in net.layers for name, _ in layer.reads}
    unread = [name for layer in net.layers for name in layer.writes if name not in read]
    some = [name for layer in net.layers for name in layer.writes if draw(st.integers(0, 5)) == 0]
    net.outputs = list(dict.fromkeys([*unread[: draw(st.integers(1, 9))], *some]))
    return net


def _add_layer(draw: st.DrawFn, net: Numbers, name: str) -> None:
    operand = draw(st.sampled_from(net.tensors))
    scratch = draw(st.integers(0, 4))
    size = draw(st.integers(1, 6))
    kind = draw(
        st.sampled_from(["window", "window", "same", "same", "join", "sum", "whole", "two", "repeat"])
    )
    alike = [each for each in net.tensors if each.rows == operand.rows]
    if kind == "window":
        extent, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        before = draw(st.integers(0, 2))
        height = (operand.rows + 2 * before - extent) // stride + 1
        if height >= 1:
            net.tensors.append(RowTensor(name, height, size))
            reads = ((operand.name, OperandRows(extent, stride, before)),)
            net.layers.append(RowLayer(name, reads, (name,), scratch=scratch))
            return
    if kind in ("sum", "whole"):
        net.tensors.append(RowTensor(name, 1 if kind == "sum" else draw(st.integers(1, 4)), size))
        rows = SAME_ROW if kind == "sum" else ALL_ROWS
        mode: LayerMode = "reduction" if kind == "sum" else "whole"
        net.layers.append(RowLayer(name, ((operand.name, rows),), (name,), mode, scratch=scratch))
    elif kind == "two":
        pair = [RowTensor(f"{name}{part}", operand.rows, size + (part == "b")) for part in "ab"]
        net.tensors += pair
        reads = ((operand.name, SAME_ROW),)
        net.layers.append(RowLayer(name, reads, tuple(each.name for each in pair), scratch=scratch))
    elif kind == "repeat":
        net.tensors.append(RowTensor(name, operand.rows * 2, size))
        net.layers.append(
            RowLayer(name, ((operand.name, OperandRows(repeat=2)),), (name,), scratch=scratch)
        )
    else:
        names = {operand.name: SAME_ROW}
        if kind == "join":
            names |= {draw(st.sampled_from(alike)).name: SAME_ROW}
            names |= dict.fromkeys([each.name for each in net.tensors if each.rows == 1][:1], ALL_ROWS)
        net.tensors.append(RowTensor(name, operand.rows, operand.row_bytes))
        over = [
            each.name
            for each in alike
            if each.row_bytes == operand.row_bytes and names.get(each.name) == SAME_ROW
        ]
        net.layers.append(
            RowLayer(name, tuple(names.items()), (name,), may_overwrite=tuple(over), scratch=scratch)
        )


class _Net:
    """An ONNX model in the making."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.chance = np.random.default_rng(draw(st.integers(0, 99)))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        value = self.chance.uniform(0.2, 1, shape) * self.chance.choice([-1, 1], shape)
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name] = shape


@st.composite
def convolutional(draw: st.DrawFn, most: int = 8) -> ModelProto:
    """Draw a small convolutional network with residuals, concatenations, gates and global pooling."""
    net = _Net(draw)
    net.shapes["x"] = (draw(st.integers(1, 4)), draw(st.integers(4, 9)), draw(st.integers(4, 9)))
    for _ in range(draw(st.integers(1, most))):
        _add_node(net)
    if not net.nodes:  # onnxruntime takes no graph without
        net.add("Relu", ["x"], net.shapes["x"])
    read = {name for node in net.nodes for name in node.input}
    unread = [name for name in net.shapes if name not in read and name != "x"]
    graph = helper.make_graph(
        net.nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *net.shapes["x"]])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, *net.shapes[name]])
            for name in unread
        ],
        net.weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


_OPERATORS = ["Conv"] * 3 + ["Pool", "Relu", "BatchNormalization", "LRN", "Add", "Concat", "Gate"]


def _add_node(net: _Net) -> None:
    draw = net.draw
    name = draw(st.sampled_from(sorted(net.shapes)))
    channels, height, width = net.shapes[name]
    same = sorted(other for other in net.shapes if net.shapes[other] == net.shapes[name])
    kind = draw(st.sampled_from(_OPERATORS))
    if kind == "Conv":
        _add_convolution(net, name)
    elif kind == "Pool":
        stride, before = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        extents = [(n + 2 * before - 2) // stride + 1 for n in (height, width)]
        op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
        given = {"kernel_shape": [2, 2], "strides": [stride] * 2, "pads": [before] * 4}
        if min(extents) > 0:
            net.add(op, [name], (channels, *extents), **given)
    elif kind == "BatchNormalization":
        weights = [net.weight(channels) for _ in range(3)]
        variance = f"w{len(net.weights)}"
        net.weights.append(numpy_helper.from_array(np.ones(channels, np.float32), variance))
        net.add(kind, [name, *weights, variance], net.shapes[name])
    elif kind == "LRN":
        net.add(kind, [name], net.shapes[name], size=3)
    elif kind == "Add":
        net.add(kind, [name, draw(st.sampled_from(same))], net.shapes[name])
    elif kind == "Concat":
        other = draw(st.sampled_from(same))
        net.add(kind, [name, other], (2 * channels, height, width), axis=1)
    elif kind == "Gate":
        net.add("GlobalAveragePool", [name], (channels, 1, 1))
        pooled = net.nodes[-1].output[0]
        net.add("Sigmoid", [pooled], (channels, 1, 1))
        net.add("Mul", [name, net.nodes[-1].output[0]], net.shapes[name])
    else:
        net.add("Relu", [name], net.shapes[name])


def _add_convolution(net: _Net, name: str) -> None:
    draw = net.draw
    channels, height, width = net.shapes[name]
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    dilation, before = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    reach = (kernel - 1) * dilation + 1
    extents = [(n + 2 * before - reach) // stride + 1 for n in (height, width)]
    if min(extents) < 1:
        return
    groups = draw(st.sampled_from([1, channels]))
    made = groups * draw(st.integers(1, 2)) if groups > 1 else draw(st.integers(1, 4))
    weight = net.weight(made, channels // groups, kernel, kernel)
    given = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [before] * 4, "group": groups}
    net.add("Conv", [name, weight, net.weight(made)], (made, *extents), **given)
