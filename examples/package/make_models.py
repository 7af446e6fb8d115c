"""Write the two models of the application: a detector and a classifier with one backbone.

python examples/package/make_models.py FOLDER

The weights are random: the example is about shipping them. Those of the backbone are equal in both.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BACKBONE = (("conv1", 3, 16), ("conv2", 16, 32), ("conv3", 32, 32))
"""Convolutions of 3 x 3 with a Relu behind each: their names, channels in and channels out."""


def build_model(head: str, outputs: int) -> onnx.ModelProto:
    """Return a model of an image of 32 x 32: the backbone, and a head with so many outputs."""
    random = np.random.default_rng(42)
    weights: dict[str, np.ndarray] = {}
    nodes, last = [], "image"
    for name, inside, outside in BACKBONE:
        weights[f"{name}_w"] = random.standard_normal((outside, inside, 3, 3)) / np.sqrt(9 * inside)
        weights[f"{name}_b"] = np.zeros(outside)
        stride = 1 if name == "conv3" else 2
        inputs = [last, f"{name}_w", f"{name}_b"]
        nodes.append(helper.make_node("Conv", inputs, [name], pads=[1] * 4, strides=[stride] * 2))
        nodes.append(helper.make_node("Relu", [name], [f"{name}_relu"]))
        last = f"{name}_relu"
    weights["head_w"] = np.random.default_rng(outputs).standard_normal((outputs, 32, 1, 1)) / 6
    if head == "pool":
        nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
        last = "pooled"
    nodes.append(helper.make_node("Conv", [last, "head_w"], ["scores"]))
    size = [1, outputs, 1, 1] if head == "pool" else [1, outputs, 8, 8]
    graph = helper.make_graph(
        nodes,
        head,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, size)],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Write the models into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(build_model("map", 1), folder / "detector.onnx")
    onnx.save(build_model("pool", 10), folder / "classifier.onnx")


if __name__ == "__main__":
    main()
