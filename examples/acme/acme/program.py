"""The compiler: a region to a list of instructions and the weights that they name."""

from typing import Any

import numpy as np
from byoc.codegen import Emitters, Operation, Region
from numpy.typing import NDArray

FORMAT = "1"
"""The version of the instructions, stored in each artifact's metadata."""

Instruction = dict[str, Any]

emit: Emitters[Instruction] = Emitters()


def assemble(region: Region) -> tuple[list[Instruction], dict[str, NDArray[np.generic]]]:
    """Return the program and its weights. Raises CompileError for an operator without a function."""
    program = emit(region)
    names = {name for operation in region.operations() for name in operation.constants}
    return program, {name: region.constant(name) for name in sorted(names)}


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
    return {"do": do, "in": list(operation.inputs), "out": operation.outputs[0], **more}
