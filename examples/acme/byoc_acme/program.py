"""The compiler: a region to a list of instructions and the weights that they name."""

from typing import Any

import numpy as np
from byoc.codegen import Emitters, Operation, Quantization, Region
from numpy.typing import NDArray

FORMAT = "1"
"""The version of the instructions, stored in each artifact's metadata."""

Instruction = dict[str, Any]

emit: Emitters[Instruction] = Emitters()


def assemble(region: Region) -> tuple[list[Instruction], dict[str, NDArray[np.generic]]]:
    """Return the program and its weights. Raises CompileError for an operator without a function."""
    operations = region.operations(quantized=True)  # integers at both ends where it is quantized
    names = {name for operation in operations for name in operation.constants}
    return emit(region, quantized=True), {name: region.constant(name) for name in sorted(names)}


# One small function for each operator and composite of the rule file.
@emit.op("Conv")
def _conv(operation: Operation) -> Instruction:
    return _instruction("conv", operation, **_window(operation), relu=False)


@emit.composite("conv_relu")
def _conv_relu(operation: Operation) -> Instruction:
    # The attributes of a composite carry the name of the pattern's line, `c`.
    return _instruction("conv", operation, **_window(operation, "c_"), relu=True)


@emit.op("Relu")
def _relu(operation: Operation) -> Instruction:
    return _instruction("relu", operation)


@emit.op("Add")
def _add(operation: Operation) -> Instruction:
    return _instruction("add", operation)


def _window(operation: Operation, line: str = "") -> Instruction:
    """Return the strides and padding of a convolution; ONNX's defaults are filled in."""
    return {name: operation.attributes[line + name] for name in ("strides", "pads")}


def _instruction(do: str, operation: Operation, **more: Any) -> Instruction:
    """Return an instruction; of a quantized operation with scales, and with limits of its integers."""
    made: Instruction = {"do": do, "in": list(operation.inputs), "out": operation.outputs[0]}
    (quantization,) = operation.output_quantization
    if quantization is not None:
        made["scales"] = [each and _scale(each) for each in operation.input_quantization]
        made["to"] = {**_scale(quantization), "dtype": quantization.dtype}
        made["limits"] = operation.output_limits[0]  # of a Relu behind the operator, too
    return {**made, **more}


def _scale(quantization: Quantization) -> Instruction:
    """Return the scale and the zero point, a number each or one for each channel."""
    return {"scale": quantization.scale.tolist(), "zero": quantization.zero_point.tolist()}
