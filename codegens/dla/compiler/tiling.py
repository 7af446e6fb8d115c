"""Tiles that fit into the scratchpad, the slots that they have there, and cuts of layers into tiles.

With two places for a kind of tile in its slot, the next load can run ahead.

A tile is a box of the result, rows x columns x channels, and for a convolution a number of input
channels that are summed at a time. Convolutions are cut in `conv_tiling`, all other layers here.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from math import ceil

from ..machine import LINE, NO_PADS, ZERO, DType, MachineFigures, Operand, Pads, Pair
from .layers import (
    ActivationLayer,
    ConvLayer,
    MachineLayer,
    MatMulLayer,
    MinMaxLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
)
from .output_shapes import LayerTensor, SlidingWindow

# Spans and boxes of tensors, and the part of an input that a box of a result depends on.


@dataclass(frozen=True)
class AxisSpan:
    """A range of `count` positions along one axis, beginning at `start`."""

    start: int
    count: int

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.count


def split_span(whole: AxisSpan, most: int) -> Iterator[AxisSpan]:
    """Yield consecutive parts of a span, each of `most` positions but the last, which may be shorter."""
    for start in range(whole.start, whole.end, most):
        yield AxisSpan(start, min(most, whole.end - start))


@dataclass(frozen=True)
class TensorBox:
    """A box of a tensor; rows are counted over all images."""

    rows: AxisSpan
    cols: AxisSpan
    channels: AxisSpan


@dataclass(frozen=True)
class TileBox:
    """A box of one image of a tensor; rows are counted within the image."""

    image: int
    rows: AxisSpan
    cols: AxisSpan
    channels: AxisSpan

    def of(self, tensor: LayerTensor) -> TensorBox:
        """Return this box of a tensor."""
        rows = AxisSpan(self.image * tensor.height + self.rows.start, self.rows.count)
        return TensorBox(rows, self.cols, self.channels)


@dataclass(frozen=True)
class ReceptiveField:
    """The receptive field of a box of a result: rows and columns of the input, and padding.

    `overhang` counts rows and columns past the padding at the end, as ONNX's ceil_mode allows.
    """

    rows: AxisSpan
    cols: AxisSpan
    pads: Pads = NO_PADS
    overhang: Pair = ZERO


def receptive_field(
    window: SlidingWindow, x: LayerTensor, rows: AxisSpan, cols: AxisSpan
) -> ReceptiveField:
    """Return the receptive field of rows and columns of a result, for a window that slides over `x`."""
    down, top, bottom, below = _receptive_axis(window, 0, x.height, rows)
    right, left, end, beyond = _receptive_axis(window, 1, x.width, cols)
    return ReceptiveField(down, right, Pads(top, left, bottom, end), Pair(below, beyond))


def _receptive_axis(
    window: SlidingWindow, axis: int, size: int, made: AxisSpan
) -> tuple[AxisSpan, int, int, int]:
    """Return the span that is read, the padding before and after it, and the overhang."""
    stride, extent = window.strides[axis], window.extent[axis]
    first = made.start * stride - window.pads[axis]
    last = (made.end - 1) * stride - window.pads[axis] + extent
    low, high = max(first, 0), min(last, size)
    after = min(last - high, window.pads[axis + 2])
    return AxisSpan(low, high - low), low - first, after, last - high - after


def input_extent(window: SlidingWindow, axis: int, size: int, count: int) -> int:
    """Return the most positions of an input that `count` neighbours of a result read, along an axis."""
    return min((count - 1) * window.strides[axis] + window.extent[axis], size)


def split_images(y: LayerTensor, rows: AxisSpan) -> Iterator[tuple[int, AxisSpan]]:
    """Split rows that are counted over all images: yield each image with its rows."""
    row = rows.start
    while row < rows.end:
        image, inside = divmod(row, y.height)
        count = min(y.height - inside, rows.end - row)
        yield image, AxisSpan(inside, count)
        row += count


ALIGNMENT = LINE
"""Alignment of places in the scratchpad, in bytes, so that no two tiles share a line."""


def align_size(size: int) -> int:
    """Return a size rounded up to whole lines of the scratchpad."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class TileSlot:
    """Places of one size for tiles of one kind; a new tile takes the place taken longest ago."""

    addresses: tuple[int, ...]
    tiles: dict[Hashable, Operand] = field(default_factory=dict)
    _next: int = 0

    def find(self, key: Hashable) -> Operand | None:
        """Return the tile with a key if it is still there, else None."""
        return self.tiles.get(key)

    def add_tile(self, key: Hashable, make: Callable[[int], Operand]) -> Operand:
        """Create a tile at the next address, replacing the one there, and remember it under a key."""
        address = self.addresses[self._next]
        self._next = (self._next + 1) % len(self.addresses)
        self.tiles = {k: tile for k, tile in self.tiles.items() if tile.address != address}
        self.tiles[key] = make(address)
        return self.tiles[key]


@dataclass(frozen=True)
class SlotNeed:
    """Bytes of the largest tile of one kind; `twice` allows a second place for it."""

    size: int
    twice: bool = True


class LayerSlots:
    """The slots of one layer; each tile of a program has a number of its own, from `numbers`."""

    def __init__(
        self, needs: Mapping[str, SlotNeed], numbers: "count[int]", doubled: bool, start: int = 0
    ) -> None:
        """Lay out the slots one after another, from byte `start` of the scratchpad."""
        self._numbers = numbers
        self.doubled = doubled
        self.slots: dict[str, TileSlot] = {}
        for name, need in needs.items():
            times = 2 if doubled and need.twice else 1
            step = align_size(need.size)
            self.slots[name] = TileSlot(tuple(start + step * i for i in range(times)))
            start += step * times

    def new_tile(self, slot: str, key: Hashable, extents: tuple[int, int, int], dtype: DType) -> Operand:
        """Return a new dense tile of rows, columns and channels in a slot."""
        return self.slots[slot].add_tile(
            key, lambda at: dense_operand(next(self._numbers), at, extents, dtype)
        )


def count_slot_bytes(needs: Mapping[str, SlotNeed], doubled: bool) -> int:
    """Return the bytes of the scratchpad that slots for `needs` take."""
    return sum(align_size(n.size) * (2 if doubled and n.twice else 1) for n in needs.values())


def dense_operand(tensor: int, address: int, extents: tuple[int, int, int], dtype: DType) -> Operand:
    """Return an operand of rows, columns and channels without gaps."""
    rows, cols, channels = extents
    pixel = channels * dtype.size
    return Operand(
        tensor, address, 0, rows, rows, cols, channels, cols * pixel, pixel, dtype.size, dtype
    )


@dataclass(frozen=True)
class TileShape:
    """Rows, columns and channels of a result that are computed together, at most.

    For a convolution, `inputs` counts the input channels that are summed together, and `groups` the
    groups of a tile; `channels` and `inputs` are those of all its groups.
    """

    rows: int
    cols: int
    channels: int
    inputs: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Tiling:
    """The tiles of a layer.

    `doubled`: tiles have two places each. `weights_outermost`: the outer loop is over output channels,
    so that weights are loaded once; else it is over rows and columns.
    """

    tile: TileShape
    doubled: bool
    weights_outermost: bool = False


@dataclass(frozen=True)
class TileBudget:
    """The resources for tiles: bytes of the scratchpad, and the speed of the machine."""

    scratchpad: int
    figures: MachineFigures

    def fits(self, needs: Mapping[str, SlotNeed], doubled: bool) -> bool:
        """Return whether slots for `needs` fit into the scratchpad."""
        return count_slot_bytes(needs, doubled) <= self.scratchpad


CHANNEL_BYTES = 32
"""Bytes of at most eight numbers for each channel."""


def slot_tensors(layer: MachineLayer) -> dict[str, LayerTensor]:
    """Return the tensor of each slot, by name; slots of constants and sums have none."""
    if not isinstance(layer, ConvLayer):
        return {**{f"x{n}": x for n, x in enumerate(layer.reads)}, "y": layer.y}
    others = {"residual": layer.residual, "limits": layer.limits}
    read = {slot: tensor for slot, tensor in others.items() if tensor is not None}
    return {"x": layer.x, **read, "y": layer.y}


def tiled_tensor(layer: MachineLayer) -> LayerTensor:
    """Return the tensor whose boxes are a layer's tiles: the result, but of MINMAX what it reads."""
    return layer.x if isinstance(layer, MinMaxLayer) else layer.y


def decreasing_parts(extent: int) -> Iterator[int]:
    """Yield an extent, half of it, a third, a quarter, a sixth, an eighth and so on, down to 1."""
    parts = 1
    seen = 0
    while seen != 1:
        size = ceil(extent / parts)
        if size != seen:
            yield size
        seen = size
        parts = parts + 1 if parts < 4 else parts * 3 // 2


def simple_slots(layer: MachineLayer, tile: TileShape) -> dict[str, SlotNeed]:
    """Return the slots that tiles of any other layer need: for each operand, and for the result."""
    needs: dict[str, SlotNeed] = {}
    for number, x in enumerate(layer.reads):
        window = layer.window if isinstance(layer, PoolLayer) else SlidingWindow()
        rows = input_extent(window, 0, x.height, tile.rows)
        cols = input_extent(window, 1, x.width, tile.cols)
        channels = min(tile.channels, x.channels)
        if isinstance(layer, MatMulLayer):  # whole rows of `a` by whole columns of `b`
            cols, channels = (cols, x.channels) if number == 0 else (x.width, channels)
        if isinstance(layer, QuantizeLayer) and number == 1:  # both limits for each tile
            channels = x.channels
        needs[f"x{number}"] = SlotNeed(rows * cols * channels * x.itemsize)
    if isinstance(layer, MinMaxLayer):
        return {**needs, "y": SlotNeed(layer.y.nbytes, twice=False)}
    needs["y"] = SlotNeed(tile.rows * tile.cols * tile.channels * layer.y.itemsize)
    by_channel = layer.y.has_channel_scales or any(x.has_channel_scales for x in layer.reads)
    if isinstance(layer, ActivationLayer) and layer.table is not None:
        needs["table"] = SlotNeed(256 * (tile.channels if by_channel else 1), twice=by_channel)
    elif by_channel:
        needs["channels"] = SlotNeed(tile.channels * CHANNEL_BYTES)
    return needs


def find_simple_tiling(layer: MachineLayer, rows: int, budget: TileBudget) -> Tiling | None:
    """Return the tiling of so many rows of a layer other than a convolution, None if none fits.

    Whole rows are preferred, then all channels, which a normalization needs; and several tiles, so that
    loads and computing overlap. Of MINMAX the rows are those that it reads, regardless of `rows`.
    """
    y = tiled_tensor(layer)
    rows = y.rows if isinstance(layer, MinMaxLayer) else rows
    for doubled in (True, False):
        parts = decreasing_parts(y.channels)
        for channels in islice(parts, 1) if isinstance(layer, NormalizeLayer) else parts:
            for cols in decreasing_parts(y.width):
                for number in decreasing_parts(ceil(min(rows, y.height) / (4 if doubled else 1))):
                    tile = TileShape(number, cols, channels)
                    if budget.fits(simple_slots(layer, tile), doubled):
                        return Tiling(tile, doubled)
    return None
