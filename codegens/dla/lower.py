"""From a region's operations to layers of the machine: `rules` has the function for each kind of unit.

What no function takes is a CompileError that names the nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Contract, Operation, Region

from . import limits
from .layers import Activation, Array, Layer, Move, Network, Port, Restack
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
from .shapes import Shape
from .tensors import INTEGERS, Clamp, Extents, Tensor
from .units import Unit, units

_GREATEST = float(np.finfo(np.float32).max)


class Lowering:
    """A network as it grows. `reading` is the region; tensors go by the names that the region has."""

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
        """Append a layer, unless what it makes has no elements, and return what it makes.

        Raises CompileError for what `limits` refuses.
        """
        if layer.y.nbytes:
            limits.check(layer)
            self.layers.append(layer)
        self.tensors[layer.y.name] = layer.y
        return layer.y

    def operand(self, unit: Unit, name: str) -> Tensor:
        """Return what a unit reads under a name, scale and zero point as it takes them.

        Raises CompileError where a quantized unit reads what is not quantized, or the other way round.
        """
        told = self.reading.dequantized.get(name)
        if (told is None) == (unit.quantize is not None):
            how = "is not quantized" if told is None else "is quantized, and what it makes is not"
            raise CompileError(f"'{name}', which {unit.main.op} reads, {how}", unit.nodes)
        if told is None:
            return self.tensors[name]
        x = self.tensors[told.name]
        return replace(x.view(x.name), scale=scale_of(told, unit), zero=int(one(told.zero, unit)))

    def constant(self, unit: Unit, name: str, rank: int) -> Tensor:
        """Return a constant as a tensor beside others of a rank; as `operand`."""
        found = self.reading.integers(name)
        if (found is None) == (unit.quantize is not None):
            how = "is not quantized" if found is None else "is quantized, and what it makes is not"
            raise CompileError(f"the constant '{name}', which {unit.main.op} reads, {how}", unit.nodes)
        scale, zero = 1.0, 0
        if found is None:
            stored = self.reading.array(name)
        else:
            stored, told = found
            scale, zero = scale_of(told, unit), one(told.zero, unit)
        lying = laid(stored, rank)
        called = self.fresh(name)
        self.constants[called] = lying
        return Tensor(called, lying.shape, str(lying.dtype), scale, int(zero))

    def result(self, unit: Unit) -> Tensor:
        """Return the tensor that a unit makes."""
        extents = extents_of(self.shapes[unit.result])
        if unit.quantize is None:
            return Tensor(unit.output, extents, "float32")
        told = self.reading.quantization(unit.quantize, unit.output)
        dtype = str(told.zero.dtype)
        if dtype not in INTEGERS:
            raise CompileError(f"'{unit.output}' is {dtype}, and not int8 or uint8", unit.nodes)
        return Tensor(unit.output, extents, dtype, scale_of(told, unit), int(one(told.zero, unit)))

    def clamp(self, unit: Unit) -> Clamp:
        """Return what the Relus and Clips of a unit come to."""
        found = Clamp()
        for each in unit.operations:
            found = found.then(self.clamp_of(each)) if each.op in ("Relu", "Clip") else found
        return found

    def clamp_of(self, operation: Operation) -> Clamp:
        """Return the bounds of a Relu or Clip, which for a Clip are finite where it has none.

        Raises CompileError for bounds that are computed, are no numbers, or are several.
        """
        if operation.op == "Relu":
            return Clamp(low=0.0)
        told = operation.attributes
        low, high = told.get("min", -_GREATEST), told.get("max", _GREATEST)  # before operator set 11
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
        """Whether an operation reads a tensor, or the region gives it out."""
        return bool(name) and name in self._read

    @cached_property
    def _read(self) -> frozenset[str]:
        given = {contract.inner for contract in self.reading.region.outputs}
        return frozenset(given.union(*(each.inputs for each in self.reading.operations)))

    def fresh(self, name: str) -> str:
        """Return a name that no tensor has."""
        taken = self.tensors.keys() | self.constants.keys() | self.shapes.keys()
        number = 1
        made = name
        while made in taken:
            number += 1
            made = f"{name}/{number}"
        return made

    def reshaped(self, x: Tensor, before: Shape, after: Shape, nodes: tuple[str, ...]) -> Tensor:
        """Return a tensor of one shape of ONNX's as one of another; nothing moves where bytes stay."""
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
        """Return a tensor as one of other extents: a view where the bytes of each row stay."""
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
        """Return an output of the region: what was made, in the order in which it is given out."""
        name = contract.inner
        if self.reading.is_constant(name):
            self._given(name)
        if name not in self.tensors:
            raise CompileError(f"the output '{name}' is floating point inside a quantized group")
        x = self.tensors[name]
        shape = self._shape(name)
        if is_plain(contract, shape):
            y = x.like(self.fresh(f"{name}/given"), plain_extents(shape))
            x = self.add(Move(y.name, (), y, x, extents_of(shape), to_image=False))
        return Port(contract.name, contract.type.dtype, crossing_extents(contract), x)

    def _given(self, name: str) -> None:
        """Make a constant that the region gives out."""
        lying = laid(self.reading.array(name), self.reading.array(name).ndim)
        check_dtype(name, str(lying.dtype))
        held = self.fresh(f"{name}/constant")
        self.constants[held] = lying
        x = Tensor(held, lying.shape, str(lying.dtype))
        self.add(Activation(name, (), x.like(name), x))

    def _shape(self, name: str) -> Shape:
        return self.shapes[name] if name in self.shapes else self.reading.array(name).shape


Rule = Callable[[Lowering, Unit], None]


def lower(region: Region, rules: Mapping[str, Rule]) -> Network:
    """Return a region as a network; `rules` has by operator what makes layers of a unit.

    Raises CompileError for what the machine does not do, with the nodes at fault.
    """
    reading = Reading(region)
    for contract in (*region.inputs, *region.outputs):
        check_dtype(contract.name, contract.type.dtype)
    reading.check_shapes()
    lowering = Lowering(reading)
    parts = units(reading)
    unknown = [unit for unit in parts if unit.main.domain or unit.main.op not in rules]
    if unknown:
        told = ", ".join(dict.fromkeys(unit.main.op for unit in unknown))
        raise CompileError(f"the machine has no {told}", [n for unit in unknown for n in unit.nodes])
    for unit in parts:
        rules[unit.main.op](lowering, unit)
    outputs = [lowering.output(contract) for contract in region.outputs]
    return Network(lowering.layers, lowering.inputs, outputs, lowering.constants)


def one(values: Array, unit: Unit) -> Any:
    """Return the one scale or zero point of a tensor. Raises CompileError where there are several."""
    if values.size != 1:
        raise CompileError("activations have one scale for each channel, and not one", unit.nodes)
    return values.reshape(()).item()


def scale_of(told: Quantized, unit: Unit) -> float:
    """Return the one scale of a tensor. Raises CompileError where it is none, or leaves float32."""
    scale = float(one(told.scale, unit))
    if not 0 < scale <= _GREATEST / 256:
        raise CompileError(f"a scale of {scale}: it must be positive, and 256 of it finite", unit.nodes)
    return scale
