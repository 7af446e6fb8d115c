"""Lower attention with a cache: GroupQueryAttention, by products, sums and a softmax.

The cache has a fixed length, and how much of it is filled is known when the program runs. Commands have
no addresses that depend on data, so a position becomes numbers: of p, the first new position,
clamp(p - j, 0, 1) is 1 for each j before it and 0 for the others. Such steps mask the cache and the
scores, and the difference of two is 1 at a single position, which puts new keys into the cache and
takes rows out of tables of cosines.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np

from byoc.codegen import CompileError

from ..machine import NormalizeKind
from .layer_groups import LayerGroup
from .layers import ActivationLayer, ConcatLayer, MoveLayer, NormalizeLayer
from .network_builder import LayerArithmetic, NetworkBuilder
from .output_shapes import Array, Clamp, Extents, LayerTensor, Shape, is_reordered
from .region_reading import Operand

# Lower rotary embeddings: the rotation of pairs of channels by angles of positions.
#
# A rotation is x * cos + (x P) * sin, where P is a constant matrix of 0, 1 and -1 that takes each
# pair (a, b) to (-b, a). Channels that are not rotated have a cosine of 1 and a sine of 0.


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


_FAR = 1e30  # below any score, so that its exponential is 0
_STEP = Clamp(0.0, 1.0)
_ATTRIBUTES = {
    "local_window_size": -1,
    "softcap": 0.0,
    "smooth_softmax": 0,
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
}
"""Attributes of GroupQueryAttention with the value that is lowered; smooth_softmax may be -1, too."""


@dataclass(frozen=True)
class CacheShape:
    """The extents of an attention, in sequences, positions, heads and channels.

    `count` is the number of new positions, `past` that of the cache that is read, 0 where there is none,
    and `length` that of the cache that is made. `head` is the width of a head.
    """

    batch: int
    count: int
    heads: int
    kv_heads: int
    head: int
    past: int
    length: int

    @property
    def shared(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads


def lower_group_query_attention(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a GroupQueryAttention whose cache has a fixed length."""
    group.require_float()
    query, key, value, past_key, past_value, lengths, total, cosines, sines, *others = (
        group.take_operands(9)
    )
    _check_attributes(builder, group, others)
    shape = _read_shape(builder, group)
    attention = _CachedAttention(
        builder, group, shape, _find_start(builder, group, shape, total, lengths)
    )
    parts = attention.split_heads(query, key, value)
    if group.main.attributes.get("do_rotary", 0):
        parts = attention.rotate_heads(parts, cosines, sines)
    names = group.main.outputs[1:3]
    keys = attention.update_cache(parts[1], past_key, names[0])
    values = attention.update_cache(parts[2], past_value, names[1])
    attention.attend(parts[0], keys, values)


def _check_attributes(builder: NetworkBuilder, group: LayerGroup, others: list[Operand]) -> None:
    attributes = group.main.attributes
    for name, value in _ATTRIBUTES.items():
        if attributes.get(name, value) not in (value, -1 if name == "smooth_softmax" else value):
            raise CompileError(f"{name} of a {group.main.op} must be {value}", group.nodes)
    if any(each.name for each in others) or any(builder.is_read(n) for n in group.main.outputs[3:]):
        raise CompileError(
            f"the machine has no {group.main.op} with positions, a bias, sinks or scales", group.nodes
        )


def _read_shape(builder: NetworkBuilder, group: LayerGroup) -> CacheShape:
    """Return the extents. Raises CompileError for a cache that is not as long as it says."""
    attributes, main = group.main.attributes, group.main
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    batch, count, width = builder.shape_of(main.inputs[0])
    packed = not main.inputs[1]
    past = builder.shape_of(main.inputs[3])[2] if main.inputs[3] else 0
    length = builder.shapes[main.outputs[1]][2]
    head = width // (heads + 2 * kv_heads if packed else heads)
    if heads % kv_heads or length < count or (not past and length != count):
        raise CompileError(f"a {main.op} of {count} positions in a cache of {length}", group.nodes)
    return CacheShape(batch, count, heads, kv_heads, head, past, length)


def _find_start(
    builder: NetworkBuilder, group: LayerGroup, shape: CacheShape, total: Operand, lengths: Operand
) -> "LayerTensor | Array":
    """Return the first new position of each sequence: a tensor [batch, 1, 1, 1], or known numbers.

    A prompt begins at 0: as onnxruntime has it, one that is as long as the whole. `lengths` are those of
    the sequences with the new positions, less 1.
    """
    reading = builder.reading
    whole = reading.stored_array(total.name).item() if reading.is_constant(total.name) else None
    if not shape.past or whole == shape.count:
        return np.zeros((1, 1, 1, 1), np.float32)
    if whole is None and shape.count > 1:
        raise CompileError(f"'{total.name}' must be constant", group.nodes)
    if reading.is_constant(lengths.name):
        last = reading.stored_array(lengths.name).astype(np.float32).reshape(-1, 1, 1, 1)
        return last - (shape.count - 1)
    return _read_start(builder, group, shape, lengths)


def _read_start(
    builder: NetworkBuilder, group: LayerGroup, shape: CacheShape, lengths: Operand
) -> LayerTensor:
    """Return the first new positions that an input of int32 says, computed once for all attentions."""
    layers = LayerArithmetic(builder, group)
    extents = (shape.batch, 1, 1, 1)

    def make() -> LayerTensor:
        given = builder.arrange(lengths.name, extents, group.nodes, image=False, extents=extents)
        last = layers.new_tensor(extents)
        builder.add_layer(ActivationLayer(last.name, group.nodes, last, given))
        return (
            layers.add(last, layers.add_constant([[[[1 - shape.count]]]])) if shape.count > 1 else last
        )

    return builder.share(("start", lengths.name, shape.count), make)


@dataclass(frozen=True, eq=False)
class _CachedAttention:
    """The layers of one attention; `start` is as in `_find_start`."""

    builder: NetworkBuilder
    group: LayerGroup
    shape: CacheShape
    start: LayerTensor | Array

    @cached_property
    def layers(self) -> LayerArithmetic:
        return LayerArithmetic(self.builder, self.group)

    def split_heads(self, query: Operand, key: Operand, value: Operand) -> list[LayerTensor]:
        """Return queries, keys and values, each [batch, positions, heads, width of a head]."""
        size = self.shape
        if key.name:
            pairs = ((query, size.heads), (key, size.kv_heads), (value, size.kv_heads))
            return [self._arrange_heads(operand, heads) for operand, heads in pairs]
        both = self._arrange_heads(query, size.heads + 2 * size.kv_heads)
        counts = (size.heads, size.kv_heads, size.kv_heads)
        starts = (0, size.heads, size.heads + size.kv_heads)
        return [
            self.layers.take_part(both, 2, start, count)
            for start, count in zip(starts, counts, strict=True)
        ]

    def _arrange_heads(self, operand: Operand, heads: int) -> LayerTensor:
        size = self.shape
        extents = (size.batch, size.count, heads, size.head)
        return self.builder.arrange(
            operand.name, extents, self.group.nodes, image=False, extents=extents
        )

    def rotate_heads(
        self, parts: list[LayerTensor], cosines: Operand, sines: Operand
    ) -> list[LayerTensor]:
        """Return queries and keys rotated by their positions, and values as they are."""
        tables = [self._read_table(each) for each in (cosines, sines)]
        interleaved = bool(self.group.main.attributes.get("rotary_interleaved", 0))
        pairs = ChannelPairs(self.shape.head, 2 * tables[0].shape[1], interleaved)
        spread = [pairs.spread(each) for each in tables]
        spread[0] = spread[0] + pairs.unrotated
        names = (cosines.name, sines.name)
        angles = [self._pick_rows(each, name) for each, name in zip(spread, names, strict=True)]
        queries, keys = (rotate(self.layers, x, (angles[0], angles[1]), pairs) for x in parts[:2])
        return [queries, keys, parts[2]]

    def _read_table(self, operand: Operand) -> Array:
        """Return the cosines or sines of the positions that the cache has."""
        if not self.builder.reading.is_constant(operand.name):
            raise CompileError(f"'{operand.name}' must be constant", self.group.nodes)
        stored = self.builder.reading.stored_array(operand.name)
        if 2 * stored.shape[1] > self.shape.head:
            raise CompileError(f"'{operand.name}' is wider than a head", self.group.nodes)
        return stored[: self.shape.length]

    def _pick_rows(self, table: Array, name: str) -> LayerTensor:
        """Return the rows of a table at the new positions, [batch, positions, 1, width]."""
        size = self.shape
        if isinstance(self.start, np.ndarray):
            rows = self.start.astype(int).reshape(-1, 1) + np.arange(size.count)
            if rows.min() < 0 or rows.max() >= len(table):
                raise CompileError("there are no cosines of some positions", self.group.nodes)
            return self.layers.add_constant(table[rows][:, :, None])
        offsets = np.arange(size.count)[:, None] - np.arange(len(table))
        marks = self._mark(offsets[None, :, None])  # [1, positions, 1, rows of the table]
        return self.builder.share(
            ("row", name, self.start.name, size), lambda: self.layers.project(marks, table)
        )

    def _step(self, offsets: Array) -> LayerTensor:
        """Return clamp(start + offsets, 0, 1), of four extents."""
        if isinstance(self.start, np.ndarray):
            return self.layers.add_constant(np.clip(self.start + offsets, 0, 1))
        start = self.start
        return self.builder.share(
            ("step", start.name, offsets.shape, offsets.tobytes()),
            lambda: self.layers.add(start, self.layers.add_constant(offsets), clamp=_STEP),
        )

    def _mark(self, offsets: Array) -> LayerTensor:
        """Return 1 where start + offsets is 0, else 0."""
        after, before = self._step(offsets + 1), self._step(offsets)
        return self.builder.share(
            ("mark", after.name, before.name),
            lambda: self.layers.add(after, self.layers.scale(before, -1.0)),
        )

    def update_cache(self, new: LayerTensor, past: Operand, name: str) -> LayerTensor:
        """Return the cache [batch, heads, length, width] with new rows; behind them there are zeros."""
        size = self.shape
        whole: Extents = (size.batch, size.kv_heads, size.length, size.head)
        name = name or self.builder.unused_name(f"{self.group.output}/cache")
        made = LayerTensor(name, whole, "float32")
        if is_reordered(whole):
            self.builder.plain.add(name)
        if size.length == size.count:
            return self.layers.reorder(new, (0, 2, 1, 3), made)
        rows = self.layers.reorder(new, (0, 2, 1, 3))
        if not self._is_behind_past:
            return self._append_zeros(rows, made)
        extents: Extents = (size.batch, size.kv_heads, size.past, size.head)
        before = self.builder.arrange(past.name, extents, self.group.nodes, image=False, extents=extents)
        if size.past < size.length:
            before = self._append_zeros(before, self.layers.new_tensor(whole))
        positions = np.arange(size.length)
        kept = self.layers.multiply(before, self._step(-positions[None, None, :, None]))
        return self.layers.add(kept, self._spread_rows(rows, positions), made)

    @property
    def _is_behind_past(self) -> bool:
        """Whether new rows may stand behind older ones."""
        return not isinstance(self.start, np.ndarray) or bool(self.start.any())

    def _append_zeros(self, x: LayerTensor, y: LayerTensor) -> LayerTensor:
        missing = y.width - x.width
        zeros = self.layers.add_constant(np.zeros((x.images, x.height, missing, x.channels)))
        return self.builder.add_layer(ConcatLayer(y.name, self.group.nodes, y, (x, zeros), 2))

    def _spread_rows(self, rows: LayerTensor, positions: Array) -> LayerTensor:
        """Return the new rows at their positions in the cache, and zeros at the others."""
        size = self.shape
        marks = self._mark(np.arange(size.count) - positions[None, None, :, None])
        if size.count == 1:
            return self.layers.multiply(marks, rows)
        ones = self.layers.add_constant(np.ones((size.batch, size.kv_heads, 1, 1)))
        return self.layers.multiply_matrices(self.layers.multiply(marks, ones), rows)

    def attend(self, queries: LayerTensor, keys: LayerTensor, values: LayerTensor) -> None:
        """Add the attention itself: the softmax of masked scores, multiplied by the values."""
        size, layers = self.shape, self.layers
        factor = self.group.main.attributes.get("scale", 0.0) or 1 / sqrt(size.head)
        grouped = layers.scale(self._group_queries(queries), factor)
        scores = layers.multiply_matrices(grouped, layers.reorder(keys, (0, 1, 3, 2)))
        masked = layers.add(scores, self._make_mask())
        shares = layers.new_tensor(masked.extents)
        self.builder.add_layer(
            NormalizeLayer(shares.name, self.group.nodes, shares, masked, NormalizeKind.SOFTMAX)
        )
        made = layers.multiply_matrices(shares, values)
        width = size.heads * size.head
        y = self.builder.result_tensor(self.group, (1, size.batch, size.count, width))
        whole = (size.batch, size.kv_heads, size.count, size.shared, size.head)
        self.builder.add_layer(
            MoveLayer(self.group.output, self.group.nodes, y, made, whole, (0, 2, 1, 3, 4), whole)
        )

    def _group_queries(self, queries: LayerTensor) -> LayerTensor:
        """Return queries as [batch, heads of keys, positions x heads that share one, width]."""
        size = self.shape
        extents: Extents = (size.batch, size.kv_heads, size.count * size.shared, size.head)
        whole = (size.batch, size.count, size.kv_heads, size.shared, size.head)
        y = self.layers.new_tensor(extents)
        return self.builder.add_layer(
            MoveLayer(y.name, self.group.nodes, y, queries, whole, (0, 2, 1, 3, 4), whole)
        )

    def _make_mask(self) -> LayerTensor:
        """Return 0 where a query sees a position of the cache, and a number far below it elsewhere."""
        size = self.shape
        rows = np.repeat(np.arange(size.count), size.shared)
        ahead: Any = (rows[:, None] - np.arange(size.length))[None, None]
        if isinstance(self.start, np.ndarray):
            return self.layers.add_constant(np.where(self.start + ahead < 0, -_FAR, 0))
        start = self.start

        def make() -> LayerTensor:
            distance = self.layers.add(start, self.layers.add_constant(ahead))
            return self.layers.scale(distance, _FAR, clamp=Clamp(-_FAR, 0.0))

        return self.builder.share(("mask", start.name, size), make)
