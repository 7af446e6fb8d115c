"""Small models with QDQ pairs, built node by node."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SMALL = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}


class Net:
    """A model with QDQ pairs that is built node by node; tensors are named after their nodes."""

    def __init__(self, kind: int = TensorProto.INT8) -> None:
        """Start with nothing; `kind` is the data type of quantized activations."""
        self.kind = kind
        self.nodes: list[NodeProto] = []
        self.stored: dict[str, NDArray[Any]] = {}

    def node(self, op: str, *inputs: str, to: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [to], f"{op}_{to}", **attributes))
        return to

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.stored[name] = value
        return name

    def quantized(self, tensor: str, scale: float, zero_point: int) -> str:
        """Quantize a tensor `t` to `t_q`."""
        self.constant(f"{tensor}_s", np.array(scale, np.float32))
        self.constant(f"{tensor}_z", np.array(zero_point, SMALL[self.kind]))
        return self.node("QuantizeLinear", tensor, f"{tensor}_s", f"{tensor}_z", to=f"{tensor}_q")

    def read(self, quantized: str, to: str) -> str:
        """Read `t_q` as floating point, by a DequantizeLinear of its own."""
        tensor = quantized.removesuffix("_q")
        return self.node("DequantizeLinear", quantized, f"{tensor}_s", f"{tensor}_z", to=to)

    def pair(self, tensor: str, scale: float, zero_point: int) -> str:
        return self.read(self.quantized(tensor, scale, zero_point), f"{tensor}_dq")

    def weight(self, name: str, *shape: int) -> str:
        """Store an int8 weight with a scale for each output channel, and read it."""
        values = np.random.default_rng(len(name) + sum(map(ord, name))).integers(-127, 128, shape)
        self.constant(f"{name}_q", values.astype(np.int8))
        self.constant(f"{name}_s", np.linspace(0.002, 0.006, shape[0]).astype(np.float32))
        self.constant(f"{name}_z", np.zeros(shape[0], np.int8))
        parts = (f"{name}_q", f"{name}_s", f"{name}_z")
        return self.node("DequantizeLinear", *parts, to=name, axis=0)

    def conv(self, x: str, name: str, channels: int, to: str) -> str:
        """Add a 3 by 3 convolution that keeps the size, the weight's DequantizeLinear first."""
        return self.node("Conv", x, self.weight(name, channels, channels, 3, 3), to=to, pads=[1] * 4)

    def model(
        self, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]], opset: int = 17
    ) -> ModelProto:
        made = {name for node in self.nodes for name in node.output}
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [
                helper.make_tensor_value_info(n, self._dtype(n), s)
                for n, s in outputs.items()
                if n in made or n in inputs or n in self.stored
            ],
            [numpy_helper.from_array(value, name) for name, value in self.stored.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def _dtype(self, name: str) -> int:
        return self.kind if name.endswith("_q") else TensorProto.FLOAT
