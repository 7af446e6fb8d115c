"""Write a network that finds twelve words in a second of speech, with random weights.

    python examples/cortex_m/make_model.py FILE

It has the structure of DS-CNN (Zhang et al., Hello Edge: Keyword Spotting on Microcontrollers,
arXiv:1711.07128): a convolution over 49 frames of 10 cepstral coefficients, and four depthwise-separable
ones.
"""

import sys
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, WORDS = 64, 12


class NetworkWriter:
    """Writes layers one behind the other, with seeded weights."""

    def __init__(self) -> None:
        """Begin with the input."""
        self.random = np.random.default_rng(0)
        self.graph = onnx.GraphProto(name="keywords")
        self.last = "x"

    def add(self, kind: str, *shapes: tuple[int, ...], **attributes: object) -> None:
        """Add an operator on the last tensor, with weights of these shapes."""
        number = len(self.graph.node)
        names = [f"w{number}_{at}" for at in range(len(shapes))]
        for name, shape in zip(names, shapes, strict=True):
            scale = np.sqrt(2 / prod(shape[1:])) if len(shape) > 1 else 0.1
            values = (self.random.standard_normal(shape) * scale).astype(np.float32)
            self.graph.initializer.append(numpy_helper.from_array(values, name))
        made = f"t{number}"
        self.graph.node.append(helper.make_node(kind, [self.last, *names], [made], **attributes))
        self.last = made

    def add_convolution(self, inputs: int, kernel: tuple[int, int], **attributes: object) -> None:
        """Add a convolution of `inputs` channels for each group, and a Relu."""
        self.add("Conv", (CHANNELS, inputs, *kernel), (CHANNELS,), **attributes)
        self.add("Relu")


def make_model() -> onnx.ModelProto:
    """Return the network."""
    writer = NetworkWriter()
    writer.add_convolution(1, (10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    for _ in range(4):
        writer.add_convolution(1, (3, 3), group=CHANNELS, pads=[1, 1, 1, 1])
        writer.add_convolution(CHANNELS, (1, 1))
    writer.add("GlobalAveragePool")
    writer.add("Flatten")
    writer.add("Gemm", (WORDS, CHANNELS), (WORDS,), transB=1)
    writer.add("Softmax", axis=-1)
    graph = writer.graph
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 49, 10]))
    graph.output.append(helper.make_tensor_value_info(writer.last, TensorProto.FLOAT, [1, WORDS]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(make_model(), Path(sys.argv[1]))
