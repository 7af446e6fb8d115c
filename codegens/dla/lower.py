"""Lowering: the state that the functions for all kinds of operations share."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Contract, Operation

from . import limits
from .layers import Activation, Array, Layer, Move, Port, Restack
from .layout import (
    check_dtype,
    crossing_extents,
    extents_of,
    is_plain,
    is_reordered,
    laid,
    plain_extents,
)
from .reading import Quantized, Reading
from .tensors import INTEGERS, Clamp, Extents, Shape, Tensor
from .units import Unit

_GREATEST = float(np.finfo(np.float32).max)


class Lowering:
    """The network of a region under construction; `reading` is the region.

    `tensors` has the tensors by their names in the region.
    """

    def __init__(self, reading: Reading) -> None:
        """Begin with the region's inputs."""
        self.reading = reading
        self.layers: list[Layer] = []
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, Tensor] = {}
        self.inputs = [self._input(contract) for contract in reading.region.inputs]

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor of the region, as ONNX has it."""
        return self.reading.shapes

    def add(self, layer: Layer) -> Tensor:
        """Append a layer, unless its result has no elements, and return the result.

        Raises CompileError for a layer that exceeds `limits`.
        """
        if layer.y.nbytes:
            limits.check(layer)
            self.layers.append(layer)
        self.tensors[layer.y.name] = layer.y
        return layer.y

    def operand(self, unit: Unit, name: str) -> Tensor:
        """Return the tensor that a unit reads under a name, with scale and zero point.

        Raises CompileError if only one of the unit and the tensor is quantized.
        """
        quantized = self.reading.dequantized.get(name)
        if (quantized is None) == (unit.quantize is not None):
            how = "is not quantized" if quantized is None else "is quantized, but its result is not"
            raise CompileError(f"'{name}', which {unit.main.op} reads, {how}", unit.nodes)
        if quantized is None:
            return self.tensors[name]
        x = self.tensors[quantized.name]
        zero = int(one(quantized.zero, unit))
        return replace(x.view(x.name), scale=scale_of(quantized, unit), zero=zero)

    def constant(self, unit: Unit, name: str, rank: int) -> Tensor:
        """Return a constant as a tensor, broadcast to a rank. Raises CompileError as `operand` does."""
        found = self.reading.integers(name)
        if (found is None) == (unit.quantize is not None):
            how = "is not quantized" if found is None else "is quantized, but its result is not"
            raise CompileError(f"the constant '{name}', which {unit.main.op} reads, {how}", unit.nodes)
        scale, zero = 1.0, 0
        if found is None:
            stored = self.reading.array(name)
        else:
            stored, quantized = found
            scale, zero = scale_of(quantized, unit), one(quantized.zero, unit)
        array = laid(stored, rank)
        unused = self.fresh(name)
        self.constants[unused] = array
        return Tensor(unused, array.shape, str(array.dtype), scale, int(zero))

    def result(self, unit: Unit) -> Tensor:
        """Return the tensor for the result of a unit. Raises CompileError for its dtype."""
        extents = extents_of(self.shapes[unit.result])
        if unit.quantize is None:
            return Tensor(unit.output, extents, "float32")
        quantized = self.reading.quantization(unit.quantize, unit.output)
        dtype = str(quantized.zero.dtype)
        if dtype not in INTEGERS:
            raise CompileError(f"'{unit.output}' is {dtype}, but must be int8 or uint8", unit.nodes)
        scale, zero = scale_of(quantized, unit), int(one(quantized.zero, unit))
        return Tensor(unit.output, extents, dtype, scale, zero)

    def clamp(self, unit: Unit) -> Clamp:
        """Return the clamp that is equal to all Relus and Clips of a unit."""
        found = Clamp()
        for each in unit.operations:
            found = found.then(self.clamp_of(each)) if each.op in ("Relu", "Clip") else found
        return found

    def clamp_of(self, operation: Operation) -> Clamp:
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
        bounds = [*operation.inputs[1:], "", ""][:2]
        if any(name and not self.reading.is_constant(name) for name in bounds):
            raise CompileError("the bounds of a Clip must be constant", [operation.name])
        if bounds[0]:
            low = self._bound(bounds[0], operation)
        if bounds[1]:
            high = self._bound(bounds[1], operation)
        return Clamp(low, high)

    def _bound(self, name: str, operation: Operation) -> float:
        bound = self.reading.array(name)
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

    def fresh(self, name: str) -> str:
        """Return a name that no tensor has, derived from `name`."""
        taken = self.tensors.keys() | self.constants.keys() | self.shapes.keys()
        number = 1
        made = name
        while made in taken:
            number += 1
            made = f"{name}/{number}"
        return made

    def reshaped(self, x: Tensor, before: Shape, after: Shape, nodes: tuple[str, ...]) -> Tensor:
        """Reshape a tensor from one shape of ONNX to another; add layers only if bytes have to move."""
        if before == after:
            return x
        if is_reordered(before):
            y = x.like(self.fresh(f"{x.name}/plain"), plain_extents(before))
            x = self.add(Move(y.name, nodes, y, x, extents_of(before), to_image=False))
        x = self._rows_of(x, plain_extents(after) if is_reordered(after) else extents_of(after), nodes)
        if is_reordered(after):
            y = x.like(self.fresh(f"{x.name}/image"), extents_of(after))
            x = self.add(Move(y.name, nodes, y, x, extents_of(after), to_image=True))
        return x

    def _rows_of(self, x: Tensor, extents: Extents, nodes: tuple[str, ...]) -> Tensor:
        """Return a tensor with other extents: a view if the bytes of each row stay the same."""
        view = x.view(x.name, extents)
        if (view.rows, view.row_bytes) == (x.rows, x.row_bytes) or not x.nbytes:
            return view
        y = x.like(self.fresh(f"{x.name}/rows"), extents)
        return self.add(Restack(y.name, nodes, y, x))

    def _input(self, contract: Contract) -> Port:
        shape = self.shapes[contract.inner]
        plain = is_plain(contract, shape)
        name = self.fresh(f"{contract.inner}/plain") if plain else contract.inner
        extents = plain_extents(shape) if plain else extents_of(shape)
        tensor = Tensor(name, extents, contract.type.dtype)
        self.tensors[name] = tensor
        if plain:
            y = tensor.like(contract.inner, extents_of(shape))
            self.add(Move(contract.inner, (), y, tensor, y.extents, to_image=True))
        return Port(contract.name, contract.type.dtype, crossing_extents(contract), tensor)

    def output(self, contract: Contract) -> Port:
        """Return an output of the region, reordered to its layout on the host."""
        name = contract.inner
        if self.reading.is_constant(name):
            self._given(name)
        if name not in self.tensors:
            raise CompileError(f"the output '{name}' is a floating-point value inside a quantized group")
        x = self.tensors[name]
        shape = self._shape(name)
        if is_plain(contract, shape):
            y = x.like(self.fresh(f"{name}/given"), plain_extents(shape))
            x = self.add(Move(y.name, (), y, x, extents_of(shape), to_image=False))
        return Port(contract.name, contract.type.dtype, crossing_extents(contract), x)

    def _given(self, name: str) -> None:
        """Add the copy of a constant that is an output of the region."""
        array = laid(self.reading.array(name), self.reading.array(name).ndim)
        check_dtype(name, str(array.dtype))
        unused = self.fresh(f"{name}/constant")
        self.constants[unused] = array
        x = Tensor(unused, array.shape, str(array.dtype))
        self.add(Activation(name, (), x.like(name), x))

    def _shape(self, name: str) -> Shape:
        return self.shapes[name] if name in self.shapes else self.reading.array(name).shape


def one(values: Array, unit: Unit) -> Any:
    """Return the only scale or zero point of a tensor. Raises CompileError if there are several."""
    if values.size != 1:
        raise CompileError(
            "activations have a scale for each channel, but must have one scale", unit.nodes
        )
    return values.reshape(()).item()


def scale_of(quantized: Quantized, unit: Unit) -> float:
    """Return the only scale of a tensor. Raises CompileError if it is not positive, or too large."""
    scale = float(one(quantized.scale, unit))
    if not 0 < scale <= _GREATEST / 256:
        raise CompileError(
            f"a scale of {scale}: it must be positive, and 256 times it finite in float32", unit.nodes
        )
    return scale
