"""Lower operators that only move elements: views and concatenations."""

from byoc.codegen import CompileError

from .layers import ActivationLayer, ConcatLayer
from .lower import NetworkBuilder
from .tensors import LayerTensor
from .units import LayerGroup

_IMAGE_AXES = (0, 3, 1, 2)  # of ONNX's N, C, H, W among images, rows, columns, channels


def lower_reshape(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Reshape, Flatten or Dropout to a view, unless bytes have to move or scales differ."""
    if any(lowering.is_read(name) for name in unit.main.outputs[1:]):
        raise CompileError(f"the machine does not compute the mask of a {unit.main.op}", unit.nodes)
    name = unit.main.inputs[0]
    x, y = lowering.operand_tensor(unit, name), lowering.result_tensor(unit)
    view = lowering.reshape_tensor(x, lowering.shapes[name], lowering.shapes[unit.result], unit.nodes)
    if (view.dtype, view.scale, view.zero) == (y.dtype, y.scale, y.zero):
        lowering.tensors[unit.output] = view.view(unit.output)
    else:
        lowering.add_layer(ActivationLayer(unit.output, unit.nodes, y, view))


def lower_concat(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a Concat."""
    shape = lowering.shapes[unit.main.outputs[0]]
    axis = unit.main.attributes["axis"] % len(shape)
    parts = tuple(_concat_part(lowering, unit, name, len(shape)) for name in unit.main.inputs)
    y = lowering.result_tensor(unit)
    place = _extents_axis(axis, len(shape))
    if place is None:
        raise CompileError(
            f"the machine has no Concat along axis {axis} of {len(shape)} axes", unit.nodes
        )
    parts = tuple(part for part in parts if part.nbytes)
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(ConcatLayer(unit.output, unit.nodes, y, parts, place, clamp=clamp))


def _concat_part(lowering: NetworkBuilder, unit: LayerGroup, name: str, rank: int) -> LayerTensor:
    if lowering.reading.is_constant(name):
        return lowering.constant_tensor(unit, name, rank)
    return lowering.operand_tensor(unit, name)


def _extents_axis(axis: int, rank: int) -> int | None:
    """Return the position of an ONNX axis among `extents`, None if it is only a part of one."""
    if rank == 4:
        return _IMAGE_AXES[axis]
    if axis == rank - 1:
        return 3
    if axis == 0:
        return 1
    return 2 if rank == 3 else None
