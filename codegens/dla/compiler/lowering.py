"""Lowering: the state that the functions for all kinds of operations share."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import isnan

import numpy as np

from byoc.codegen import CompileError, Operation, Quantization, TensorContract

from . import layer_limits as limits
from .layer_groups import LayerGroup
from .layer_tensors import (
    INTEGERS,
    Clamp,
    Extents,
    LayerTensor,
    Shape,
    boundary_shape,
    check_dtype,
    is_reordered,
    memory_extents,
    needs_reordering,
    onnx_order_extents,
    to_memory_layout,
)
from .layers import ActivationLayer, Array, BoundaryPort, MachineLayer, MoveLayer, RestackLayer
from .region_reading import Operand, RegionReading, list_operands

_GREATEST = float(np.finfo(np.float32).max)


class NetworkBuilder:
    """The network of a region under construction; `reading` is the region.

    `tensors` has the tensors by their names in the region.
    """

    def __init__(self, reading: RegionReading) -> None:
        """Begin with the region's inputs."""
        self.reading = reading
        self.layers: list[MachineLayer] = []
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, LayerTensor] = {}
        self.inputs = [self._add_input(contract) for contract in reading.region.inputs]

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor of the region, as ONNX has it."""
        return self.reading.shapes

    def add_layer(self, layer: MachineLayer) -> LayerTensor:
        """Append a layer, unless its result has no elements, and return the result.

        Raises CompileError for a layer that exceeds `limits`.
        """
        if layer.y.nbytes:
            limits.check_limits(layer)
            self.layers.append(layer)
        self.tensors[layer.y.name] = layer.y
        return layer.y

    def operand_tensor(self, unit: LayerGroup, operand: Operand) -> LayerTensor:
        """Return a tensor that a unit reads, with scale and zero point.

        Raises CompileError if only one of the unit and the tensor is quantized.
        """
        scale, zero = self._operand_scale(unit, operand)
        x = self.tensors[operand.name]
        if operand.quantization is None:
            return x
        return replace(x.view(x.name), scale=scale, zero=zero)

    def constant_tensor(self, unit: LayerGroup, operand: Operand, rank: int) -> LayerTensor:
        """Return a constant as a tensor, broadcast to a rank. Raises as `operand_tensor`."""
        scale, zero = self._operand_scale(unit, operand)
        array = to_memory_layout(self.reading.stored_array(operand.name), rank)
        unused = self.unused_name(operand.name)
        self.constants[unused] = array
        return LayerTensor(unused, array.shape, str(array.dtype), scale, zero)

    def _operand_scale(self, unit: LayerGroup, operand: Operand) -> tuple[float, int]:
        quantization = operand.quantization
        if (quantization is None) == (unit.quantization is None):
            return (1.0, 0) if quantization is None else scale_of(quantization, unit)
        how = "is not quantized" if quantization is None else "is quantized, but its result is not"
        raise CompileError(f"'{operand.name}', which {unit.main.op} reads, {how}", unit.nodes)

    def result_tensor(self, unit: LayerGroup) -> LayerTensor:
        """Return the tensor for the result of a unit. Raises CompileError for its dtype."""
        extents = memory_extents(self.shapes[unit.output])
        if unit.quantization is None:
            return LayerTensor(unit.output, extents, "float32")
        dtype = unit.quantization.dtype
        if dtype not in INTEGERS:
            raise CompileError(f"'{unit.output}' is {dtype}, but must be int8 or uint8", unit.nodes)
        return LayerTensor(unit.output, extents, dtype, *scale_of(unit.quantization, unit))

    def fused_clamp(self, unit: LayerGroup) -> Clamp:
        """Return the clamp that is equal to all Relus and Clips of a unit."""
        if unit.quantization is not None:
            limits = unit.operations[-1].output_limits[0]
            return Clamp() if limits in {None, unit.quantization.limits} else Clamp(*limits)
        found = Clamp()
        for each in unit.operations:
            found = (
                found.followed_by(self.operation_clamp(each)) if each.op in ("Relu", "Clip") else found
            )
        return found

    def operation_clamp(self, operation: Operation) -> Clamp:
        """Return the clamp of a Relu or Clip; a missing bound of a Clip is the limit of float32.

        Raises CompileError for a bound that is computed, NaN, or more than one number.
        """
        if operation.op == "Relu":
            return Clamp(low=0.0)
        attributes = operation.attributes
        low, high = (
            attributes.get("min", -_GREATEST),
            attributes.get("max", _GREATEST),
        )  # attributes before operator set 11
        bounds = list_operands(operation)[1:]
        if any(each.name and not self.reading.is_constant(each.name) for each in bounds):
            raise CompileError("the bounds of a Clip must be constant", [operation.name])
        if bounds and bounds[0].name:
            low = self._clip_limit(bounds[0], operation)
        if len(bounds) > 1 and bounds[1].name:
            high = self._clip_limit(bounds[1], operation)
        return Clamp(low, high)

    def _clip_limit(self, operand: Operand, operation: Operation) -> float:
        bound = self.reading.constant_array(operand)
        if bound.size != 1 or isnan(bound.item()):
            raise CompileError("a bound of a Clip must be one number", [operation.name])
        return float(bound.item())

    def is_read(self, name: str) -> bool:
        """Whether an operation reads a tensor, or it is an output of the region."""
        return bool(name) and name in self._read

    @cached_property
    def _read(self) -> frozenset[str]:
        given = {contract.inner for contract in self.reading.region.outputs}
        return frozenset(given.union(*(each.inputs for each in self.reading.operations)))

    def unused_name(self, name: str) -> str:
        """Return a name that no tensor has, derived from `name`."""
        taken = self.tensors.keys() | self.constants.keys() | self.shapes.keys()
        number = 1
        made = name
        while made in taken:
            number += 1
            made = f"{name}/{number}"
        return made

    def reshape_tensor(
        self, x: LayerTensor, before: Shape, after: Shape, nodes: tuple[str, ...]
    ) -> LayerTensor:
        """Reshape a tensor from one shape of ONNX to another; add layers only if bytes have to move."""
        if before == after:
            return x
        if is_reordered(before):
            y = x.like(self.unused_name(f"{x.name}/plain"), onnx_order_extents(before))
            x = self.add_layer(MoveLayer(y.name, nodes, y, x, memory_extents(before), to_image=False))
        x = self._change_extents(
            x, onnx_order_extents(after) if is_reordered(after) else memory_extents(after), nodes
        )
        if is_reordered(after):
            y = x.like(self.unused_name(f"{x.name}/image"), memory_extents(after))
            x = self.add_layer(MoveLayer(y.name, nodes, y, x, memory_extents(after), to_image=True))
        return x

    def _change_extents(self, x: LayerTensor, extents: Extents, nodes: tuple[str, ...]) -> LayerTensor:
        """Return a tensor with other extents: a view if the bytes of each row stay the same."""
        view = x.view(x.name, extents)
        if (view.rows, view.row_bytes) == (x.rows, x.row_bytes) or not x.nbytes:
            return view
        y = x.like(self.unused_name(f"{x.name}/rows"), extents)
        return self.add_layer(RestackLayer(y.name, nodes, y, x))

    def _add_input(self, contract: TensorContract) -> BoundaryPort:
        shape = self.shapes[contract.inner]
        plain = needs_reordering(contract, shape)
        name = self.unused_name(f"{contract.inner}/plain") if plain else contract.inner
        extents = onnx_order_extents(shape) if plain else memory_extents(shape)
        tensor = LayerTensor(name, extents, contract.type.dtype)
        self.tensors[name] = tensor
        if plain:
            y = tensor.like(contract.inner, memory_extents(shape))
            self.add_layer(MoveLayer(contract.inner, (), y, tensor, y.extents, to_image=True))
        return BoundaryPort(contract.name, contract.type.dtype, boundary_shape(contract), tensor)

    def add_output(self, contract: TensorContract) -> BoundaryPort:
        """Return an output of the region, reordered to its layout on the host."""
        name = contract.inner
        if self.reading.is_constant(name):
            self._add_constant_output(name)
        if name not in self.tensors:
            raise CompileError(f"the output '{name}' is a floating-point value inside a quantized group")
        x = self.tensors[name]
        stored = self.shapes.get(name)
        shape = self.reading.stored_array(name).shape if stored is None else stored
        if needs_reordering(contract, shape):
            y = x.like(self.unused_name(f"{name}/given"), onnx_order_extents(shape))
            x = self.add_layer(MoveLayer(y.name, (), y, x, memory_extents(shape), to_image=False))
        return BoundaryPort(contract.name, contract.type.dtype, boundary_shape(contract), x)

    def _add_constant_output(self, name: str) -> None:
        """Add the copy of a constant that is an output of the region.

        Raises CompileError where it is an input instead, of a model that is nothing but a conversion.
        """
        try:
            stored = self.reading.stored_array(name)
        except KeyError:
            raise CompileError(f"nothing but a conversion makes the output '{name}'") from None
        array = to_memory_layout(stored, stored.ndim)
        check_dtype(name, str(array.dtype))
        unused = self.unused_name(f"{name}/constant")
        self.constants[unused] = array
        x = LayerTensor(unused, array.shape, str(array.dtype))
        self.add_layer(ActivationLayer(name, (), x.like(name), x))


def scale_of(quantization: Quantization, unit: LayerGroup) -> tuple[float, int]:
    """Return the only scale and zero point of a tensor.

    Raises CompileError if there are several, or the scale is not positive, or too large.
    """
    if not quantization.is_per_tensor:
        raise CompileError(
            "activations have a scale for each channel, but must have one scale", unit.nodes
        )
    scale = float(quantization.scale)
    if not 0 < scale <= _GREATEST / 256:
        raise CompileError(
            f"a scale of {scale}: it must be positive, and 256 times it finite in float32", unit.nodes
        )
    return scale, int(quantization.zero_point)
