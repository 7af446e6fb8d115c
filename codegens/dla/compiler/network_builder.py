"""The network of layers under construction, which the functions that lower operators add to."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np

from byoc.codegen import CompileError, Operation, TensorContract

from ..machine import FunctionKind
from . import layers as limits
from .layer_groups import LayerGroup
from .layers import (
    ActivationLayer,
    BoundaryPort,
    ConvLayer,
    EltwiseLayer,
    MachineLayer,
    MatMulLayer,
    MoveLayer,
    RegionTensor,
    RestackLayer,
)
from .output_shapes import (
    FROM_NHWC,
    INTEGERS,
    TO_NHWC,
    Array,
    Clamp,
    Extents,
    LayerTensor,
    Shape,
    SlidingWindow,
    boundary_shape,
    check_dtype,
    is_reordered,
    matrix_extents,
    memory_extents,
    needs_reordering,
    onnx_order_extents,
    to_memory_layout,
)
from .region_reading import Operand, RegionReading, list_operands, read_encoding

_GREATEST = float(np.finfo(np.float32).max)


class NetworkBuilder:
    """The network of a region under construction; `reading` is the region.

    `tensors` has the tensors by their names in the region. Four axes are those of an image, in the order
    of the machine, except where `plain` has the name: there they are in ONNX's order, as the matrices of
    attention are. Where rows begin may differ from the table, since a Reshape moves nothing; `arrange`
    gives a reader the order and the extents that it needs. Extents for a shape (N, C, H, W):

        order  extents               images, rows, pixels, channels   a row is
        image  `memory_extents`      (N, H, W, C)                     a row of an image
        plain  `onnx_order_extents`  (1, N, C, H * W)                 a whole image
        plain  `matrix_extents`      (N, C, H, W)                     a matrix

    For other ranks all three are the same.
    """

    def __init__(self, reading: RegionReading) -> None:
        """Begin with the region's inputs.

        `limits` has, by name of what is quantized as the program runs, the tensor that it is made of and
        the limits of that.
        """
        self.reading = reading
        self.layers: list[MachineLayer] = []
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, LayerTensor] = {}
        self.plain: set[str] = set()
        self.limits: dict[str, tuple[str, LayerTensor]] = {}
        self._arranged: dict[tuple[str, Shape, bool, Extents | None], LayerTensor] = {}
        self._shared: dict[Hashable, LayerTensor] = {}
        self._copies: Counter[str] = Counter()  # by name, so that the next one is found at once
        self._given = {contract.inner for contract in reading.region.inputs}
        self.inputs = [self._add_input(contract) for contract in reading.region.inputs]

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor of the region, as ONNX has it."""
        return self.reading.shapes

    def shape_of(self, name: str) -> Shape:
        """Return the shape of a tensor, computed or constant."""
        return self.shapes[name] if name in self.shapes else self.reading.stored_array(name).shape

    def add_layer(self, layer: MachineLayer) -> LayerTensor:
        """Append a layer, unless its result has no elements, and return the result.

        Raises CompileError for a layer that exceeds `limits`.
        """
        if layer.y.nbytes:
            limits.check_limits(layer)
            self.layers.append(layer)
        self.tensors[layer.y.name] = layer.y
        return layer.y

    def operand_tensor(
        self, group: LayerGroup, operand: Operand, *, by_channel: bool = False
    ) -> LayerTensor:
        """Return a tensor that a group reads with its scale and zero point, four axes as an image.

        With `by_channel` each channel of an image may have its own. Raises CompileError if only one of
        the group and the tensor is quantized.
        """
        shape = self.shapes[operand.name]
        x = self.arrange(operand.name, shape, group.nodes, extents=memory_extents(shape))
        return self.scale_operand(group, operand, x, by_channel=by_channel and len(shape) == 4)

    def rows_tensor(self, group: LayerGroup, operand: Operand) -> LayerTensor:
        """Return a tensor that a group reads, in ONNX's order, with its last axis as channels.

        Raises as `operand_tensor`.
        """
        shape = self.shapes[operand.name]
        x = self.arrange(operand.name, shape, group.nodes, image=False)
        if x.channels != (shape or (1,))[-1]:
            extents = matrix_extents(shape)
            x = self.arrange(operand.name, shape, group.nodes, image=False, extents=extents)
        return self.scale_operand(group, operand, x)

    def scale_operand(
        self, group: LayerGroup, operand: Operand, x: LayerTensor, *, by_channel: bool = False
    ) -> LayerTensor:
        """Return a tensor with the scale and zero point of an operand. Raises as `operand_tensor`."""
        if not self._is_quantized(group, operand):
            return x
        channels = x.channels if by_channel else 0
        return x.view(x.name).encoded_by(*read_encoding(operand.quantization, group.nodes, channels))

    def constant_tensor(
        self, group: LayerGroup, operand: Operand, rank: int, image: bool = True
    ) -> LayerTensor:
        """Return a constant as a tensor, broadcast to a rank. Raises as `operand_tensor`."""
        quantized = group.quantization is not None
        read = (
            self.reading.stored_array(operand.name)
            if quantized
            else self.reading.constant_array(operand)
        )
        array = to_memory_layout(read, rank, image)
        unused = self.unused_name(operand.name)
        self.constants[unused] = array
        x = LayerTensor(unused, array.shape, str(array.dtype))
        return self.scale_operand(group, operand, x) if quantized else x

    def _is_quantized(self, group: LayerGroup, operand: Operand) -> bool:
        """Whether an operand is quantized. Raises CompileError unless the group's result is as well."""
        quantization = operand.quantization
        if (quantization is None) == (group.quantization is None):
            return quantization is not None
        how = "is not quantized" if quantization is None else "is quantized, but its result is not"
        raise CompileError(f"'{operand.name}', which {group.main.op} reads, {how}", group.nodes)

    def result_tensor(
        self, group: LayerGroup, plain: Extents | None = None, *, by_channel: bool = False
    ) -> LayerTensor:
        """Return the tensor of a group's result: an image, or in ONNX's order with `plain` extents.

        With `by_channel` each channel of an image may have a scale. Raises CompileError for its dtype.
        """
        shape = self.shapes[group.output]
        extents = plain or memory_extents(shape)
        if plain and is_reordered(shape):
            self.plain.add(group.output)
        if group.quantization is None:
            return LayerTensor(group.output, extents, "float32")
        dtype = group.quantization.dtype
        if dtype not in INTEGERS:
            raise CompileError(
                f"'{group.output}' is {dtype}, but must be int8, uint8 or int16", group.nodes
            )
        channels = extents[3] if by_channel and len(shape) == 4 and not plain else 0
        encoding = read_encoding(group.quantization, group.nodes, channels)
        return LayerTensor(group.output, extents, dtype).encoded_by(*encoding)

    def add_view(self, group: LayerGroup, view: LayerTensor, plain: bool) -> None:
        """Make a tensor the result of a group: the same bytes, unless scales differ or it is clamped.

        `plain` says that they are in ONNX's order. Raises as `operand_tensor`.
        """
        x = self.scale_operand(group, group.operands[0], view)
        y = replace(self.result_tensor(group, x.extents if plain else None), extents=x.extents)
        clamp = self.fused_clamp(group)
        if clamp == Clamp() and x.has_encoding_of(y):
            self.tensors[group.output] = x.view(group.output)
        else:
            self.add_layer(ActivationLayer(group.output, group.nodes, y, x, clamp=clamp))

    def fused_clamp(self, group: LayerGroup) -> Clamp:
        """Return the clamp that is equal to all Relus and Clips of a group."""
        if group.quantization is not None and group.quantization.is_per_tensor:
            limits = group.operations[-1].output_limits[0]
            return Clamp() if limits in {None, group.quantization.limits} else Clamp(*limits)
        found = Clamp()
        for each in group.operations:
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

    def share(self, key: Hashable, make: Callable[[], LayerTensor]) -> LayerTensor:
        """Return the tensor of a key. The first call for the key adds its layers by `make`."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def is_read(self, name: str) -> bool:
        """Whether an operation reads a tensor, or it is an output of the region."""
        return bool(name) and name in self._read

    @cached_property
    def _read(self) -> frozenset[str]:
        given = {contract.inner for contract in self.reading.region.outputs}
        return frozenset(given.union(*(each.inputs for each in self.reading.operations)))

    def unused_name(self, name: str) -> str:
        """Return a name that no tensor has, derived from `name`."""
        taken = (self.tensors, self.constants, self.shapes)  # a union of them takes long
        made = name
        while any(made in names for names in taken):
            self._copies[name] += 1
            made = f"{name}/{self._copies[name] + 1}"
        return made

    def is_plain(self, names: Sequence[str]) -> bool:
        """Return whether what reads several tensors should read them in ONNX's order.

        So it is where one of them was computed in that order, or none is an image. Images that enter the
        region as the host has them are reordered sooner or later.
        """
        ordered = {name for name in names if name in self.shapes and is_reordered(self.shapes[name])}
        return bool(ordered & self.plain - self._given) or (bool(ordered) and ordered <= self.plain)

    def arrange(
        self,
        name: str,
        shape: Shape,
        nodes: tuple[str, ...],
        *,
        image: bool = True,
        extents: Extents | None = None,
    ) -> LayerTensor:
        """Return a computed tensor with a shape of as many elements, in an order, with some extents.

        With `image`, a shape of four axes is an image, else in ONNX's order. Without `extents`, those of
        a tensor in ONNX's order stay as they are. Adds layers only if bytes have to move, and only once.
        """
        key = (name, shape, image, extents)
        if key not in self._arranged:
            x = self._change_order(name, shape, nodes, image and is_reordered(shape))
            self._arranged[key] = x if extents is None else self._change_extents(x, extents, nodes)
        return self._arranged[key]

    def _change_order(self, name: str, shape: Shape, nodes: tuple[str, ...], image: bool) -> LayerTensor:
        x, before = self.tensors[name], self.shapes[name]
        if name in self._given:
            nodes = ()  # what reorders an input is part of no node
        is_image = is_reordered(before) and name not in self.plain
        if is_image and image and shape == before:
            return x
        if is_image:
            y = x.like(self.unused_name(f"{name}/plain"), onnx_order_extents(before))
            x = self.add_move(nodes, y, x, memory_extents(before), FROM_NHWC)
        if image:
            x = self._change_extents(x, onnx_order_extents(shape), nodes)
            y = x.like(self.unused_name(f"{name}/image"), memory_extents(shape))
            x = self.add_move(nodes, y, x, shape, TO_NHWC)
        return x

    def add_move(
        self, nodes: tuple[str, ...], y: LayerTensor, x: LayerTensor, shape: Shape, order: Shape
    ) -> LayerTensor:
        """Append a layer that reorders the axes of a whole tensor, and return the result."""
        return self.add_layer(MoveLayer(y.name, nodes, y, x, shape, order, shape))

    def _change_extents(self, x: LayerTensor, extents: Extents, nodes: tuple[str, ...]) -> LayerTensor:
        """Return a tensor with other extents: a view if the bytes of each row stay the same."""
        view = x.view(x.name, extents)
        if (view.rows, view.row_bytes) == (x.rows, x.row_bytes) or not x.nbytes:
            return view
        y = x.like(self.unused_name(f"{x.name}/rows"), extents)
        return self.add_layer(RestackLayer(y.name, nodes, y, x))

    def _add_input(self, contract: TensorContract) -> BoundaryPort:
        name, shape = contract.inner, self.shapes[contract.inner]
        extents = memory_extents(shape)
        if needs_reordering(contract, shape):
            extents = onnx_order_extents(shape)
            self.plain.add(name)
        tensor = self.tensors[name] = LayerTensor(name, extents, contract.type.dtype)
        return BoundaryPort(contract.name, contract.type.dtype, boundary_shape(contract), tensor)

    def add_output(self, contract: TensorContract) -> BoundaryPort:
        """Return an output of the region, reordered to its layout on the host."""
        name = contract.inner
        if self.reading.is_constant(name):
            x = self._add_constant_output(contract)
        elif name in self.tensors:
            shape = self.shapes[name]
            x = self.arrange(name, shape, (), image=not needs_reordering(contract, shape))
        else:
            raise CompileError(f"the output '{name}' is a floating-point value inside a quantized group")
        return BoundaryPort(contract.name, contract.type.dtype, boundary_shape(contract), x)

    def list_results(self) -> list[RegionTensor]:
        """Return the tensors of the region that layers compute, views of their results included."""
        made = {layer.y.storage_name for layer in self.layers}
        return [
            RegionTensor(
                name, x.storage_name, self.shapes[name], self._is_image(name, x, self.shapes[name])
            )
            for name, x in self.tensors.items()
            if name in self.shapes and x.storage_name in made
        ]

    def _is_image(self, name: str, x: LayerTensor, shape: Shape) -> bool:
        """Return whether a tensor is in memory as NHWC, whose order of elements is not ONNX's."""
        return is_reordered(shape) and name not in self.plain and x.extents == memory_extents(shape)

    def _add_constant_output(self, contract: TensorContract) -> LayerTensor:
        """Return the copy of a constant that is an output of the region.

        Raises CompileError where it is an input instead, of a model that is nothing but a conversion.
        """
        name = contract.inner
        try:
            stored = self.reading.stored_array(name)
        except KeyError:
            raise CompileError(f"nothing but a conversion makes the output '{name}'") from None
        image = not needs_reordering(contract, stored.shape)
        array = to_memory_layout(stored, stored.ndim, image)
        check_dtype(name, str(array.dtype))
        unused = self.unused_name(f"{name}/constant")
        self.constants[unused] = array
        x = LayerTensor(unused, array.shape, str(array.dtype))
        return self.add_layer(ActivationLayer(name, (), x.like(name), x))


# Layers in float32 that operators without a command of their own are made of.

_NO_MULTIPLIERS = np.zeros(0)


@dataclass(frozen=True, eq=False)
class LayerArithmetic:
    """Adds the layers of a group to a network; each method returns the result of one layer.

    Operands are float32, and broadcast as ADD and MUL do: an extent of 1 is repeated. `y` is the tensor
    to write, else one is made.
    """

    builder: NetworkBuilder
    group: LayerGroup

    def new_tensor(self, extents: Extents) -> LayerTensor:
        """Return a tensor of the group with a name that no other has."""
        name = self.builder.unused_name(f"{self.group.output}/1")
        return LayerTensor(name, extents, "float32")

    def add_constant(self, values: Any) -> LayerTensor:
        """Return a constant of four extents, images, rows, pixels and channels."""
        array = np.ascontiguousarray(values, np.float32)
        name = self.builder.unused_name(f"{self.group.output}/constant")
        self.builder.constants[name] = array
        return LayerTensor(name, array.shape, "float32")

    def add(
        self, a: LayerTensor, b: LayerTensor, y: LayerTensor | None = None, clamp: Clamp | None = None
    ) -> LayerTensor:
        """Return the sum of two tensors, clamped."""
        y = y or self.new_tensor(_broadcast(a, b))
        clamp = clamp or Clamp()
        layer = EltwiseLayer(y.name, self.group.nodes, y, a, b, multiplies=False, clamp=clamp)
        return self.builder.add_layer(layer)

    def multiply(
        self, a: LayerTensor, b: LayerTensor, y: LayerTensor | None = None, clamp: Clamp | None = None
    ) -> LayerTensor:
        """Return the product of two tensors, element by element, clamped."""
        y = y or self.new_tensor(_broadcast(a, b))
        clamp = clamp or Clamp()
        return self.builder.add_layer(
            EltwiseLayer(y.name, self.group.nodes, y, a, b, multiplies=True, clamp=clamp)
        )

    def scale(
        self, x: LayerTensor, factor: float, y: LayerTensor | None = None, clamp: Clamp | None = None
    ) -> LayerTensor:
        """Return a tensor times a number, clamped."""
        return self.multiply(x, self.add_constant([[[[factor]]]]), y, clamp)

    def apply(self, kind: FunctionKind, x: LayerTensor) -> LayerTensor:
        """Return a function of each element."""
        y = self.new_tensor(x.extents)
        return self.builder.add_layer(ActivationLayer(y.name, self.group.nodes, y, x, function=kind))

    def project(self, x: LayerTensor, matrix: Array, y: LayerTensor | None = None) -> LayerTensor:
        """Return the channels of each pixel times a `matrix` [channels, results]."""
        made = matrix.shape[1]
        y = y or self.new_tensor((*x.extents[:3], made))
        weights = np.ascontiguousarray(matrix.T, np.float32).reshape(made, 1, 1, -1)
        bias = np.zeros(made, np.float32)
        return self.builder.add_layer(
            ConvLayer(y.name, self.group.nodes, y, x, weights, bias, _NO_MULTIPLIERS, SlidingWindow())
        )

    def multiply_matrices(self, a: LayerTensor, b: LayerTensor) -> LayerTensor:
        """Return the product of the matrices that are the rows of two tensors, pixels x channels."""
        y = self.new_tensor((*a.extents[:3], b.channels))
        return self.builder.add_layer(MatMulLayer(y.name, self.group.nodes, y, a, b))

    def reorder(
        self, x: LayerTensor, order: tuple[int, int, int, int], y: LayerTensor | None = None
    ) -> LayerTensor:
        """Return a tensor with its four extents reordered: extent i is `order[i]` of `x`."""
        whole = x.extents
        made: Any = tuple(whole[axis] for axis in order)
        y = y or self.new_tensor(made)
        return self.builder.add_layer(MoveLayer(y.name, self.group.nodes, y, x, whole, order, whole))

    def take_part(self, x: LayerTensor, axis: int, start: int, count: int) -> LayerTensor:
        """Return a copy of `count` positions along one of the four extents, from `start`."""
        whole = x.extents
        part: Any = (*whole[:axis], count, *whole[axis + 1 :])
        step = int(np.prod(whole[axis + 1 :]))
        y = self.new_tensor(part)
        return self.builder.add_layer(
            MoveLayer(y.name, self.group.nodes, y, x, part, (0, 1, 2, 3), whole, start * step)
        )


def _broadcast(a: LayerTensor, b: LayerTensor) -> Extents:
    pairs = zip(a.extents, b.extents, strict=True)
    images, rows, cols, channels = (n if m == 1 else m for m, n in pairs)
    return images, rows, cols, channels
