"""The compiler: a region's model to a list of instructions and the weights they name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc.codegen import CompileError

Instruction = dict[str, Any]


def assemble(model: onnx.ModelProto) -> tuple[list[Instruction], dict[str, NDArray[np.generic]]]:
    """Return the program and its weights. Raises CompileError for an operator without an emitter."""
    program = []
    for node in model.graph.node:
        if node.op_type not in EMITTERS:
            raise CompileError(f"acme has no instruction for {node.op_type}")
        program.append(EMITTERS[node.op_type](node) | {"out": node.output[0]})
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return program, weights


def _convolution(node: onnx.NodeProto, prefix: str = "", relu: bool = False) -> Instruction:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {
        "do": "conv",
        "in": list(node.input),
        "strides": list(attributes.get(f"{prefix}strides", [1, 1])),
        "pads": list(attributes.get(f"{prefix}pads", [0, 0, 0, 0])),
        "relu": relu,
    }


# One small function for each operator and composite of acme.yaml. The composite's attributes carry the
# name of the pattern's line, `c`.
EMITTERS: dict[str, Callable[[onnx.NodeProto], Instruction]] = {
    "Conv": _convolution,
    "conv_relu": lambda node: _convolution(node, "c_", relu=True),
    "Relu": lambda node: {"do": "relu", "in": list(node.input)},
    "Add": lambda node: {"do": "add", "in": list(node.input)},
}
