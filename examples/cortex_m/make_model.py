"""Write a network that finds twelve words in a second of speech, with random weights.

    python examples/cortex_m/make_model.py FILE [int8 | int16]

With int8 or int16 it computes in integers of 8 or 16 bits, weights of 8, between QuantizeLinear and
DequantizeLinear; zero points of 16 bits are 0. It has the structure of DS-CNN (Zhang et al., Hello Edge:
Keyword Spotting on Microcontrollers, arXiv:1711.07128): a convolution over 49 frames of 10 cepstral
coefficients, and four depthwise-separable ones.
"""

import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

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

    def add_convolution(
        self, inputs: int, kernel: tuple[int, int], channels: int = CHANNELS, **attributes: object
    ) -> None:
        """Add a convolution of `inputs` channels for each group to `channels`, and a Relu."""
        self.add("Conv", (channels, inputs, *kernel), (channels,), **attributes)
        self.add("Relu")

    def finish(self, inputs: int, classes: int, shape: list[int]) -> onnx.ModelProto:
        """Add a classifier of `inputs` channels; return the model, whose input has the shape."""
        self.add("GlobalAveragePool")
        self.add("Flatten")
        self.add("Gemm", (classes, inputs), (classes,), transB=1)
        self.add("Softmax", axis=-1)
        self.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
        made = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, [1, classes])
        self.graph.output.append(made)
        return helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_model() -> onnx.ModelProto:
    """Return the network."""
    writer = NetworkWriter()
    writer.add_convolution(1, (10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    for _ in range(4):
        writer.add_convolution(1, (3, 3), group=CHANNELS, pads=[1, 1, 1, 1])
        writer.add_convolution(CHANNELS, (1, 1))
    return writer.finish(CHANNELS, WORDS, [1, 1, 49, 10])


class RandomSpeech(CalibrationDataReader):
    """Inputs that say which ranges tensors have: here random ones, of a product recorded ones."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Make inputs for a model of one input."""
        given = model.graph.input[0]
        shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        random = np.random.default_rng(1)
        self.samples: Iterator[dict[str, np.ndarray]] = iter(
            [{given.name: random.standard_normal(shape).astype(np.float32)} for _ in range(8)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next input, None behind the last."""
        return next(self.samples, None)


def quantize_model(model: onnx.ModelProto, path: Path, form: str) -> None:
    """Write a network in integers, all but its Softmax: weights by channel, one scale an activation."""
    quantize_static(
        model,
        path,
        RandomSpeech(model),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if form == "int8" else QuantType.QInt16,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["Conv", "GlobalAveragePool", "Gemm"],
        extra_options={"ActivationSymmetric": form == "int16"},
    )
    begin_with_integers(path, TensorProto.INT8 if form == "int8" else TensorProto.INT16)


def begin_with_integers(path: Path, dtype: int) -> None:
    """Make the first QuantizeLinear's result the input: a camera and a microphone give integers."""
    found = onnx.load(path)
    first = next(each for each in found.graph.node if each.input[0] == found.graph.input[0].name)
    given = found.graph.input[0]
    given.name, given.type.tensor_type.elem_type = first.output[0], dtype
    found.graph.node.remove(first)
    onnx.save(found, path)


if __name__ == "__main__":
    path, *form = sys.argv[1:] or [""]
    if not path or form not in ([], ["int8"], ["int16"]):
        sys.exit("usage: make_model.py FILE [int8 | int16]")
    if form:
        quantize_model(make_model(), Path(path), *form)
    else:
        onnx.save(make_model(), path)
