"""Layers in float32 that operators without a command of their own are made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..machine import FunctionKind
from .layer_groups import LayerGroup
from .layer_tensors import Array, Clamp, Extents, LayerTensor, SlidingWindow
from .layers import ActivationLayer, ConvLayer, EltwiseLayer, MatMulLayer, MoveLayer
from .network_builder import NetworkBuilder

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

    def project(
        self, x: LayerTensor, matrix: Array, bias: Array | None = None, y: LayerTensor | None = None
    ) -> LayerTensor:
        """Return the channels of each pixel times a `matrix` [channels, results], plus a bias."""
        made = matrix.shape[1]
        y = y or self.new_tensor((*x.extents[:3], made))
        weights = np.ascontiguousarray(matrix.T, np.float32).reshape(made, 1, 1, -1)
        bias = np.zeros(made, np.float32) if bias is None else bias.astype(np.float32)
        return self.builder.add_layer(
            ConvLayer(y.name, self.group.nodes, y, x, weights, bias, _NO_MULTIPLIERS, SlidingWindow())
        )

    def multiply_matrices(
        self, a: LayerTensor, b: LayerTensor, y: LayerTensor | None = None
    ) -> LayerTensor:
        """Return the product of the matrices that are the rows of two tensors, pixels x channels."""
        y = y or self.new_tensor((*a.extents[:3], b.channels))
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
