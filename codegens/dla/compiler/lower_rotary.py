"""Lower rotary embeddings: the rotation of pairs of channels by angles of positions.

A rotation is x * cos + (x P) * sin, where P is a constant matrix of 0, 1 and -1 that takes each pair
(a, b) to (-b, a). Channels that are not rotated have a cosine of 1 and a sine of 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.codegen import CompileError

from .layer_arithmetic import LayerArithmetic
from .layer_groups import LayerGroup
from .layer_tensors import Array, LayerTensor, Shape
from .network_builder import NetworkBuilder
from .region_reading import Operand


@dataclass(frozen=True)
class ChannelPairs:
    """The channels of a head that are rotated: the first `rotated` of `width`.

    Pair i is channels 2i and 2i + 1 if `interleaved`, else i and i + rotated / 2.
    """

    width: int
    rotated: int
    interleaved: bool

    def spread(self, cosines: Array) -> Array:
        """Return an array [..., pairs] as [..., width], zeros where nothing is rotated."""
        return cosines @ self.spreading_matrix

    @property
    def spreading_matrix(self) -> Array:
        """The matrix [pairs, width] that gives both channels of a pair what the pair has."""
        result = np.zeros((self.rotated // 2, self.width), np.float32)
        for pair, channels in enumerate(self._list_pairs()):
            result[pair, channels] = 1
        return result

    @property
    def turning_matrix(self) -> Array:
        """The matrix [width, width] that takes each pair (a, b) to (-b, a), and other channels to 0."""
        result = np.zeros((self.width, self.width), np.float32)
        for first, second in self._list_pairs():
            result[second, first], result[first, second] = -1, 1
        return result

    @property
    def unrotated(self) -> Array:
        """The cosines of what is not rotated: 1 for each such channel, 0 for the others."""
        return (np.arange(self.width) >= self.rotated).astype(np.float32)

    def _list_pairs(self) -> list[list[int]]:
        half = self.rotated // 2
        if self.interleaved:
            return [[2 * pair, 2 * pair + 1] for pair in range(half)]
        return [[pair, pair + half] for pair in range(half)]


def rotate(
    layers: LayerArithmetic,
    x: LayerTensor,
    angles: tuple[LayerTensor, LayerTensor],
    pairs: ChannelPairs,
    y: LayerTensor | None = None,
) -> LayerTensor:
    """Return the rotation of `x`, whose channels are a head, by cosines and sines that are spread."""
    cosines, sines = angles
    turned = layers.multiply(layers.project(x, pairs.turning_matrix), sines)
    return layers.add(layers.multiply(x, cosines), turned, y)


def lower_rotary_embedding(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower ONNX's RotaryEmbedding: x, cosines, sines, and which of them each position has."""
    x, cosines, sines, *positions = group.operands
    _lower_rotation(builder, group, (x, cosines, sines, *positions))


def lower_contrib_rotary_embedding(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower the RotaryEmbedding of com.microsoft: x, positions, cosines and sines."""
    attributes = group.main.attributes
    if attributes.get("scale", 1) != 1 or attributes.get("is_packed_batching", 0):
        raise CompileError("a RotaryEmbedding must have a scale of 1 and no packed batch", group.nodes)
    x, positions, cosines, sines = group.operands
    _lower_rotation(builder, group, (x, cosines, sines, positions))


def _lower_rotation(builder: NetworkBuilder, group: LayerGroup, operands: tuple[Operand, ...]) -> None:
    """Lower a rotation of x [batch, positions, width] or [batch, heads, positions, width of a head]."""
    group.require_float()
    x, cosines, sines, *positions = operands
    shape = builder.shapes[x.name]
    if len(shape) not in (3, 4):
        raise CompileError("a RotaryEmbedding must be of 3 or 4 axes", group.nodes)
    pairs, heads = _find_pairs(builder, group, shape, cosines)
    layers = LayerArithmetic(builder, group)
    angles = [
        _arrange_angles(layers, each, positions, pairs, len(shape) == 4) for each in (cosines, sines)
    ]
    extents: Any = shape if len(shape) == 4 else (*shape[:2], heads, pairs.width)
    given = builder.arrange(x.name, extents, group.nodes, image=False, extents=extents)
    unrotated = layers.add_constant(pairs.unrotated.reshape(1, 1, 1, -1))
    angles[0] = layers.add(angles[0], unrotated) if pairs.rotated < pairs.width else angles[0]
    y = builder.result_tensor(group, given.extents)
    rotate(layers, given, (angles[0], angles[1]), pairs, y)


def _find_pairs(
    builder: NetworkBuilder, group: LayerGroup, shape: Shape, cosines: Operand
) -> tuple[ChannelPairs, int]:
    """Return the rotated channels of a head, and the number of heads."""
    attributes = group.main.attributes
    rotated = 2 * builder.shape_of(cosines.name)[-1]
    heads = shape[1] if len(shape) == 4 else attributes.get("num_heads", 0) or shape[-1] // rotated
    width = shape[-1] if len(shape) == 4 else shape[-1] // heads
    if attributes.get("rotary_embedding_dim", 0) not in (0, rotated) or rotated > width:
        raise CompileError("the cosines of a RotaryEmbedding are not of its width", group.nodes)
    return ChannelPairs(width, rotated, bool(attributes.get("interleaved", 0))), heads


def _arrange_angles(
    layers: LayerArithmetic,
    table: Operand,
    positions: list[Operand],
    pairs: ChannelPairs,
    has_heads_first: bool,
) -> LayerTensor:
    """Return the cosines or sines of each position, for each channel: heads have an extent of 1."""
    builder, group = layers.builder, layers.group
    shape = builder.shapes[group.main.inputs[0]]
    batch, count = shape[0], shape[-2] if has_heads_first else shape[1]
    reading = builder.reading
    if reading.is_constant(table.name):
        values = reading.stored_array(table.name)
        if positions and positions[0].name:
            values = values[_read_positions(layers, positions[0], count, len(values))]
        values = pairs.spread(values.reshape(-1, count, pairs.rotated // 2))
        if len(values) not in (1, batch):
            raise CompileError("the positions of a RotaryEmbedding are not of its input", group.nodes)
        return layers.add_constant(values[:, None] if has_heads_first else values[:, :, None])
    if positions and positions[0].name:
        raise CompileError(f"the positions and '{table.name}' must be constant", group.nodes)
    half = pairs.rotated // 2
    extents = (batch, 1, count, half) if has_heads_first else (batch, count, 1, half)
    given = builder.arrange(table.name, extents, group.nodes, image=False, extents=extents)
    return layers.project(given, pairs.spreading_matrix)


def _read_positions(layers: LayerArithmetic, positions: Operand, count: int, most: int) -> Array:
    """Return constant positions below `most`; a single one is that of the first."""
    reading = layers.builder.reading
    if not reading.is_constant(positions.name):
        raise CompileError(f"'{positions.name}' must be constant", layers.group.nodes)
    stored = reading.stored_array(positions.name)
    found: Array = stored.item() + np.arange(count) if stored.shape == (1,) else stored
    if found.min(initial=0) < 0 or found.max(initial=0) >= most:
        raise CompileError(f"'{positions.name}' has positions outside the cosines", layers.group.nodes)
    return found
