"""Lower operators that only move elements: views and concatenations."""

from byoc.codegen import CompileError

from .layers import Activation, Concat
from .lower import Lowering
from .tensors import Tensor
from .units import Unit

_IMAGE_AXES = (0, 3, 1, 2)  # of ONNX's N, C, H, W among images, rows, columns, channels


def lower_reshape(lowering: Lowering, unit: Unit) -> None:
    """Lower a Reshape, Flatten or Dropout to a view, unless bytes have to move or scales differ."""
    if any(lowering.is_read(name) for name in unit.main.outputs[1:]):
        raise CompileError(f"the machine does not compute the mask of a {unit.main.op}", unit.nodes)
    name = unit.main.inputs[0]
    x, y = lowering.operand(unit, name), lowering.result(unit)
    view = lowering.reshaped(x, lowering.shapes[name], lowering.shapes[unit.result], unit.nodes)
    if (view.dtype, view.scale, view.zero) == (y.dtype, y.scale, y.zero):
        lowering.tensors[unit.output] = view.view(unit.output)
    else:
        lowering.add(Activation(unit.output, unit.nodes, y, view))


def lower_concat(lowering: Lowering, unit: Unit) -> None:
    """Lower a Concat."""
    shape = lowering.shapes[unit.main.outputs[0]]
    axis = unit.main.attributes["axis"] % len(shape)
    parts = tuple(_part(lowering, unit, name, len(shape)) for name in unit.main.inputs)
    y = lowering.result(unit)
    place = _place(axis, len(shape))
    if place is None:
        raise CompileError(
            f"the machine has no Concat along axis {axis} of {len(shape)} axes", unit.nodes
        )
    parts = tuple(part for part in parts if part.nbytes)
    clamp = lowering.clamp(unit)
    lowering.add(Concat(unit.output, unit.nodes, y, parts, place, clamp=clamp))


def _part(lowering: Lowering, unit: Unit, name: str, rank: int) -> Tensor:
    if lowering.reading.is_constant(name):
        return lowering.constant(unit, name, rank)
    return lowering.operand(unit, name)


def _place(axis: int, rank: int) -> int | None:
    """Return the position of an ONNX axis among `extents`, None if it is only a part of one."""
    if rank == 4:
        return _IMAGE_AXES[axis]
    if axis == rank - 1:
        return 3
    if axis == 0:
        return 1
    return 2 if rank == 3 else None
