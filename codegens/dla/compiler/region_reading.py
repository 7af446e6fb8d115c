"""A region for lowering: operations without composites, constants, shapes and quantization."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from byoc.codegen import CompileError, Operation, Region, TensorContract

from .layer_tensors import Array, Shape
from .output_shapes import infer_shape

_PACKED = {"": (), "OHWI": (0, 3, 1, 2), "NHWC": (0, 3, 1, 2)}
"""For each supported layout, the permutation to ONNX's order of axes."""
_UNKNOWN_ZERO = np.dtype(np.int32)  # type for a DequantizeLinear without zero point


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of the integers `name`: real = (stored - zero) * scale.

    `scale` and `zero` have one element, or one for each index of the dimension `axis`.
    """

    name: str
    scale: Array
    zero: Array
    axis: int

    def dequantize(self, stored: Array) -> Array:
        """Dequantize integers to float32, as DequantizeLinear does."""
        difference = stored.astype(np.int64) - self.broadcast_along(self.zero, stored.ndim).astype(
            np.int64
        )
        return difference.astype(np.float32) * self.broadcast_along(self.scale, stored.ndim)

    def broadcast_along(self, values: Array, rank: int) -> Array:
        """Reshape scales or zero points so that they broadcast to a tensor of the rank."""
        if values.size == 1:
            return values.reshape(())
        extents = [1] * rank
        extents[self.axis] = values.size
        return values.reshape(extents)


@dataclass(frozen=True, eq=False)
class RegionReading:
    """A region for lowering: `operations` in order, with composites replaced by their operations.

    Operations that read only constants are left out; their results are constants.
    """

    region: Region

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that run, those on constants left out."""
        return tuple(each for each in self._flat_operations if not self.is_constant(each.outputs[0]))

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape in ONNX of each input of the region and of each computed tensor."""
        found: dict[str, Shape] = {}
        for contract in self.region.inputs:
            readers = [each.name for each in self._flat_operations]
            found[contract.inner] = _static_shape(contract, readers)
        for each in self.operations:
            given = [found[n] if n in found else self.constant_array(n).shape for n in each.inputs if n]
            target = self.constant_array(each.inputs[1]).tolist() if each.op == "Reshape" else ()
            found[each.outputs[0]] = infer_shape(each, given, target)
        return found

    def check_shapes(self) -> None:
        """Raise CompileError, with the node, where the region states another shape than is made here."""
        shapes = self.shapes
        stated = dict(map(_value_extents, self.region.model.graph.value_info))
        makers = {name: [each.name] for each in self.operations for name in each.outputs}
        for contract in self.region.outputs:
            if not self.is_constant(contract.inner):
                stated[contract.inner] = _static_shape(contract, makers.get(contract.inner, []))
        for each in self.operations:
            name = each.outputs[0]
            made = shapes[name]
            expected = stated.get(name) or made
            if len(expected) != len(made) or any(
                extent not in {None, real} for extent, real in zip(expected, made, strict=True)
            ):
                why = f"'{name}' should have the shape {expected}, but {each.op} makes {made}"
                raise CompileError(why, [each.name])

    @cached_property
    def quantizations(self) -> Mapping[str, Quantization]:
        """The quantization of each result of a DequantizeLinear, by the name of the result."""
        return {
            each.outputs[0]: self.quantization(each, each.inputs[0])
            for each in self._flat_operations
            if each.op == "DequantizeLinear"
        }

    def quantization(self, operation: Operation, name: str) -> Quantization:
        """Return the quantization of the integers `name` by a DequantizeLinear or QuantizeLinear."""
        scale = self._stored_array(operation.inputs[1])
        has_zero = len(operation.inputs) > 2 and operation.inputs[2]
        zero = (
            self._stored_array(operation.inputs[2])
            if has_zero
            else np.zeros(scale.shape, _zero_dtype(operation))
        )
        if scale.ndim > 1 or operation.attributes.get("block_size"):
            raise CompileError(
                "the scales are of blocks, but must be of a tensor or an axis", [operation.name]
            )
        return Quantization(name, scale, zero, operation.attributes.get("axis", 1))

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is stored, or computed from stored tensors only."""
        return name in self._constant_names

    def constant_array(self, name: str) -> Array:
        """Return a constant in ONNX's order of axes, dequantized if it is quantized."""
        found = self.quantizations.get(name)
        if found is not None and found.name in self._stored_layouts:
            return found.dequantize(self._stored_array(found.name))
        return self._stored_array(name)

    def quantized_constant(self, name: str) -> tuple[Array, Quantization] | None:
        """Return the integers of a dequantized constant and their quantization, None for any other."""
        found = self.quantizations.get(name)
        if found is None:
            return None
        if found.name in self._stored_layouts:
            return self._stored_array(found.name), found
        # They are computed. Dequantizing is exact to the last bit but one, so it can be inverted.
        real = self._stored_array(name)
        scale, zero = (found.broadcast_along(each, real.ndim) for each in (found.scale, found.zero))
        stored = np.rint(real.astype(np.float64) / scale) + zero
        kinds = (np.int8, np.uint8) if found.zero.dtype == _UNKNOWN_ZERO else ()
        kind = next((k for k in kinds if _fits_dtype(stored, k)), found.zero.dtype)
        return stored.astype(kind), found

    def _stored_array(self, name: str) -> Array:
        stored = self.region.constant(name)
        order = _PACKED[self._stored_layouts.get(name, "")]
        return stored.transpose(order) if order else stored

    @cached_property
    def _stored_layouts(self) -> Mapping[str, str]:
        """The layout of each stored constant."""
        layouts = {each.name: each.layout for each in self.region.constants}
        strange = sorted({layout for layout in layouts.values() if layout not in _PACKED})
        if strange:
            raise CompileError(f"weights have the layout {strange[0]}, but must have OHWI")
        return layouts

    @cached_property
    def _flat_operations(self) -> tuple[Operation, ...]:
        found: list[Operation] = []
        for each in self.region.operations(fold=False):
            found += [replace(one, name=each.name) for one in each.inner] or [each]
        return tuple(found)

    @cached_property
    def _constant_names(self) -> frozenset[str]:
        known = {*self._stored_layouts}
        for each in self._flat_operations:
            if known.issuperset(filter(None, each.inputs)):
                known.update(each.outputs)
        return frozenset(known - {""})


def _value_extents(value: onnx.ValueInfoProto) -> tuple[str, tuple[int | None, ...]]:
    """Return the name and extents of a tensor, None for an unknown extent; () if the rank is unknown."""
    extents = value.type.tensor_type.shape.dim
    return value.name, tuple(d.dim_value if d.HasField("dim_value") else None for d in extents)


def _zero_dtype(operation: Operation) -> Any:
    """Return the zero point's type of an operation that has no zero point."""
    if operation.op == "DequantizeLinear":
        return _UNKNOWN_ZERO
    dtype = operation.attributes.get("output_dtype", 0)
    return onnx.helper.tensor_dtype_to_np_dtype(dtype) if dtype else np.dtype(np.uint8)


def _fits_dtype(stored: Array, kind: Any) -> bool:
    info = np.iinfo(kind)
    return bool((stored >= info.min).all() and (stored <= info.max).all())


def _static_shape(contract: TensorContract, nodes: Sequence[str]) -> Shape:
    """Return the shape of a boundary tensor in ONNX's order. Raises CompileError for unknown extents."""
    shape = contract.type.shape
    extents = [] if shape is None else [extent for extent in shape if isinstance(extent, int)]
    if shape is None or len(extents) < len(shape):
        what = f"'{contract.name}' is {contract.type}: all extents must be known (--dim gives a model's)"
        raise CompileError(what, nodes)
    return tuple(extents[i] for i in _PACKED.get(contract.layout) or range(len(extents)))
