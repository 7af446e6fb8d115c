"""Cut layers into tiles that fit into the scratchpad, and give the tiles slots there.

With two places for a kind of tile in its slot, the next load can run ahead.

A tile is a box of the result, rows x columns x channels, and for a convolution a number of input
channels that are summed at a time. Of the tilings that fit, the one with the least estimated time is
chosen. The estimate counts bytes and operations, which overlap if tiles have two places.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import ceil, prod

from ..machine import LINE, DType, MachineFigures, Operand
from .boxes import input_extent
from .int4_weights import Int4Weights
from .layer_tensors import LayerTensor, SlidingWindow
from .layers import ActivationLayer, ConvLayer, MachineLayer, MatMulLayer, NormalizeLayer, PoolLayer

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


_STEP = (
    50e-9  # seconds a step is charged, to prefer fewer commands among tilings that are nearly as fast
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

    def estimate_seconds(
        self, moved: float, operations: float, dtype: str, steps: int, doubled: bool
    ) -> float:
        """Estimate the seconds of a layer from the bytes that it moves, its operations and its steps."""
        issued = steps * _STEP
        moving = moved / self.figures.bandwidth
        computing = operations / self.figures.peak["float32" if dtype == "float32" else "int8"]
        if not doubled:
            return moving + computing + issued
        return max(moving, computing) + min(moving, computing) / steps + issued


_CHANNEL_BYTES = 32  # of at most eight numbers by channel


def slot_tensors(layer: MachineLayer) -> dict[str, LayerTensor]:
    """Return the tensor of each slot, by name; slots of constants and sums have none."""
    if not isinstance(layer, ConvLayer):
        return {**{f"x{n}": x for n, x in enumerate(layer.reads)}, "y": layer.y}
    residual = {} if layer.residual is None else {"residual": layer.residual}
    return {"x": layer.x, **residual, "y": layer.y}


def conv_slots(layer: ConvLayer, tile: TileShape) -> dict[str, SlotNeed]:
    """Return the slots that tiles of a convolution need: for input, weights, result."""
    x, y = layer.x, layer.y
    rows, cols = (
        input_extent(layer.window, 0, x.height, tile.rows),
        input_extent(layer.window, 1, x.width, tile.cols),
    )
    kernel = layer.window.kernel[0] * layer.window.kernel[1]
    made = tile.rows * tile.cols * tile.channels
    needs = {
        "x": SlotNeed(rows * cols * tile.inputs * x.itemsize),
        "weights": SlotNeed(
            tile.channels * kernel * tile.inputs // tile.groups * layer.weights.itemsize
        ),
        "parameters": SlotNeed(tile.channels * 4 * layer.count_parameters()),
        "y": SlotNeed(made * y.itemsize),
    }
    if tile.inputs * layer.groups < x.channels * tile.groups:
        needs["accumulator"] = SlotNeed(made * 4, twice=False)
    if layer.residual is not None:
        needs["residual"] = SlotNeed(made * layer.residual.itemsize)
        if y.is_integer and layer.function is None:
            needs["wide"] = SlotNeed(made * 4, twice=False)
            if y.has_channel_scales:
                needs["channels"] = SlotNeed(tile.channels * _CHANNEL_BYTES)
    return needs


def find_conv_tiling(layer: ConvLayer, rows: int, budget: TileBudget) -> Tiling | None:
    """Return the tiling of so many rows of a convolution, None if none fits."""
    found: list[tuple[float, int, Tiling]] = []
    for channels, inputs, groups in _channel_splits(layer):
        for doubled in (True, False):
            for tile in _largest_tiles(
                layer, rows, TileShape(1, 1, channels, inputs, groups), doubled, budget
            ):
                for outermost in (True, False):
                    tiling = Tiling(tile, doubled, outermost)
                    seconds, moved = _estimate_conv(layer, rows, tiling, budget)
                    found.append((seconds, moved, tiling))
    return min(found, key=lambda each: each[:2])[2] if found else None


def _channel_splits(layer: ConvLayer) -> Iterator[tuple[int, int, int]]:
    """Yield the possible cuts of channels: output channels, input channels, groups of a tile."""
    made, read = layer.y.channels // layer.groups, layer.x.channels // layer.groups
    if layer.groups > 1:
        for groups in decreasing_parts(layer.groups):
            yield groups * made, groups * read, groups
    block = layer.weights.block if isinstance(layer.weights, Int4Weights) else 1
    for channels in decreasing_parts(made):
        for blocks in decreasing_parts(ceil(read / block)):
            inputs = min(blocks * block, read)
            if layer.groups == 1 or (channels, inputs) != (made, read):
                yield channels, inputs, 1


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


def _largest_tiles(
    layer: ConvLayer, rows: int, tile: TileShape, doubled: bool, budget: TileBudget
) -> Iterator[TileShape]:
    """Yield tiles of as many rows as fit, and of fewer for more overlap; of fewer columns if needed."""
    if not budget.fits(conv_slots(layer, replace(tile, rows=1, cols=1)), doubled):
        return
    height = min(rows, layer.y.height)
    for cols in decreasing_parts(layer.y.width):
        most = 0
        for number in decreasing_parts(height):
            grown = replace(tile, rows=number, cols=cols)
            if budget.fits(conv_slots(layer, grown), doubled):
                yield grown
                most += 1
            if most == 4:
                break
        if most:
            return


def _estimate_conv(layer: ConvLayer, rows: int, tiling: Tiling, budget: TileBudget) -> tuple[float, int]:
    """Estimate the seconds of a tiling, and the bytes that it moves.

    A tile stays in its slot as long as the next step uses the same one. So areas of the input are loaded
    once if they are the outer loop or there is only one, else for each tile of output channels. Weights
    are loaded once if they are the outer loop, or one tile has them all, or there is only one area, else
    for each area. Input channels in several tiles are the innermost loop, and replace both.
    """
    tile, x, y, window = tiling.tile, layer.x, layer.y, layer.window
    down = ceil(min(rows, y.height) / tile.rows) * ceil(rows / y.height)
    areas = down * ceil(y.width / tile.cols)
    share = tile.groups / layer.groups
    across = ceil(y.channels * share / tile.channels)  # tiles of output channels in a group
    deep = ceil(x.channels * share / tile.inputs)
    read = input_extent(window, 0, x.height, tile.rows) * input_extent(window, 1, x.width, tile.cols)
    stays = areas == 1 and deep == 1
    x_times = 1 if stays or (deep == 1 and not tiling.weights_outermost) else across
    single = across * layer.groups == tile.groups and deep == 1
    weights_times = 1 if areas == 1 or single or (deep == 1 and tiling.weights_outermost) else areas
    loaded = areas * read * x.channels * x.itemsize * x_times + layer.weights.nbytes * weights_times
    residual = 1 if layer.residual is not None else 0
    moved = loaded + rows * y.row_bytes * (1 + residual)
    operations = 2 * rows * y.width * y.channels * prod(layer.weights.shape[1:])
    steps = areas * across * deep * ceil(1 / share)
    return budget.estimate_seconds(moved, operations, y.dtype, steps, tiling.doubled), moved


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
        needs[f"x{number}"] = SlotNeed(rows * cols * channels * x.itemsize)
    needs["y"] = SlotNeed(tile.rows * tile.cols * tile.channels * layer.y.itemsize)
    by_channel = layer.y.has_channel_scales or any(x.has_channel_scales for x in layer.reads)
    if isinstance(layer, ActivationLayer) and layer.table is not None:
        needs["table"] = SlotNeed(256 * (tile.channels if by_channel else 1), twice=by_channel)
    elif by_channel:
        needs["channels"] = SlotNeed(tile.channels * _CHANNEL_BYTES)
    return needs


def find_simple_tiling(layer: MachineLayer, rows: int, budget: TileBudget) -> Tiling | None:
    """Return the tiling of so many rows of a layer other than a convolution, None if none fits.

    Whole rows are preferred, then all channels, which a normalization needs; and several tiles, so that
    loads and computing overlap.
    """
    y = layer.y
    for doubled in (True, False):
        parts = decreasing_parts(y.channels)
        for channels in islice(parts, 1) if isinstance(layer, NormalizeLayer) else parts:
            for cols in decreasing_parts(y.width):
                for number in decreasing_parts(ceil(min(rows, y.height) / (4 if doubled else 1))):
                    tile = TileShape(number, cols, channels)
                    if budget.fits(simple_slots(layer, tile), doubled):
                        return Tiling(tile, doubled)
    return None
