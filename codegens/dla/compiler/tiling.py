"""Tiles that fit into the scratchpad, the slots that they have there, and cuts of layers into tiles.

With two places for a kind of tile in its slot, the next load can run ahead.

A tile is a box of the result, rows x columns x channels, and for a convolution a number of input
channels that are summed at a time. Convolutions are cut by the fastest of all tilings that fit. That
search depends on sizes alone (`ConvSizes`), so that equal layers, of which transformers have
hundreds, are searched once.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, islice
from math import ceil, prod

from ..machine import LINE, NO_PADS, ZERO, DType, MachineFigures, Operand, Pads, Pair
from .layers import (
    ActivationLayer,
    ConvLayer,
    Int4Weights,
    MachineLayer,
    MatMulLayer,
    MinMaxLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
)
from .output_shapes import INT16, Extents, LayerTensor, SlidingWindow

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


# Cut convolutions into tiles: of all tilings that fit into the scratchpad, the fastest by estimate.


_STEP_SECONDS = 50e-9  # that a step is charged, to prefer few commands among tilings nearly as fast

_MAX_RESULTS = 4096  # of searches that are kept; one has some hundred bytes


@dataclass(frozen=True)
class ConvSizes:
    """The sizes of a convolution that its tiling depends on; equal ones have equal tilings.

    `x` and `y` are the extents of input and result, `kernel` those of the weights. `block` counts
    the input channels that cannot be cut apart, and `parameters` the numbers for each output channel.
    Sizes of elements are in bytes; that of the residual is 0 without one. `sums_wide`: the residual is
    added to sums of 32 bits by another command. `scales_channels`: each channel of the result has a
    scale. `limits_bytes` are those of the limits of an input that is quantized as the program runs, 0
    without.
    """

    x: Extents
    y: Extents
    window: SlidingWindow
    groups: int
    kernel: tuple[int, ...]
    block: int
    parameters: int
    input_itemsize: int
    result_itemsize: int
    weight_itemsize: int
    residual_itemsize: int
    weight_bytes: int
    sums_wide: bool
    sum_itemsize: int
    scales_channels: bool
    limits_bytes: int

    @classmethod
    def of_layer(cls, layer: ConvLayer) -> "ConvSizes":
        """Return the sizes of a layer."""
        weights, residual = layer.weights, layer.residual
        return cls(
            x=layer.x.extents,
            y=layer.y.extents,
            window=layer.window,
            groups=layer.groups,
            kernel=tuple(weights.shape),
            block=weights.block if isinstance(weights, Int4Weights) else 1,
            parameters=layer.count_parameters(),
            input_itemsize=layer.x.itemsize,
            result_itemsize=layer.y.itemsize,
            weight_itemsize=weights.itemsize,
            residual_itemsize=0 if residual is None else residual.itemsize,
            weight_bytes=weights.nbytes,
            sums_wide=layer.adds_residual_apart,
            sum_itemsize=8 if layer.is_wide else 4,
            scales_channels=layer.y.has_channel_scales,
            limits_bytes=0 if layer.limits is None else layer.limits.nbytes,
        )


@dataclass(frozen=True)
class _Machine:
    """Bytes of the scratchpad; bytes a second that are moved, and operations that are computed."""

    scratchpad: int
    bandwidth: float
    peak: float


def list_conv_slots(layer: ConvLayer, tile: TileShape) -> dict[str, SlotNeed]:
    """Return the slots that tiles of a convolution need: for input, weights, result."""
    return _find_slots(ConvSizes.of_layer(layer), tile)


def find_conv_tiling(layer: ConvLayer, rows: int, budget: TileBudget) -> Tiling | None:
    """Return the tiling of so many rows of a convolution, None if none fits."""
    figures = budget.figures
    peak = figures.peak[layer.x.dtype if layer.x.dtype in ("float32", INT16) else "int8"]
    machine = _Machine(budget.scratchpad, figures.bandwidth, peak)
    return _search_tilings(ConvSizes.of_layer(layer), rows, machine)


@lru_cache(_MAX_RESULTS)
def _search_tilings(sizes: ConvSizes, rows: int, machine: _Machine) -> Tiling | None:
    """Return the tiling with the least estimated time, then the fewest bytes moved."""
    found: list[tuple[float, int, Tiling]] = []
    for channels, inputs, groups in _list_channel_cuts(sizes):
        for doubled in (True, False):
            tiles = _list_largest_tiles(
                sizes, rows, TileShape(1, 1, channels, inputs, groups), doubled, machine.scratchpad
            )
            for tile in tiles:
                for outermost in (True, False):
                    tiling = Tiling(tile, doubled, outermost)
                    seconds, moved = _estimate_tiling(sizes, rows, tiling, machine)
                    found.append((seconds, moved, tiling))
    return min(found, key=lambda each: each[:2])[2] if found else None


def _find_slots(sizes: ConvSizes, tile: TileShape) -> dict[str, SlotNeed]:
    _, height, width, channels = sizes.x
    rows = input_extent(sizes.window, 0, height, tile.rows)
    cols = input_extent(sizes.window, 1, width, tile.cols)
    kernel = prod(sizes.window.kernel)
    results = tile.rows * tile.cols * tile.channels
    needs = {
        "x": SlotNeed(rows * cols * tile.inputs * sizes.input_itemsize),
        "weights": SlotNeed(tile.channels * kernel * tile.inputs // tile.groups * sizes.weight_itemsize),
        "parameters": SlotNeed(tile.channels * 4 * sizes.parameters),
        "y": SlotNeed(results * sizes.result_itemsize),
    }
    if tile.inputs * sizes.groups < channels * tile.groups:
        needs["accumulator"] = SlotNeed(results * sizes.sum_itemsize, twice=False)
    if sizes.residual_itemsize:
        needs["residual"] = SlotNeed(results * sizes.residual_itemsize)
    if sizes.limits_bytes:
        needs["limits"] = SlotNeed(sizes.limits_bytes)
    if sizes.sums_wide:
        needs["wide"] = SlotNeed(results * 4, twice=False)
        if sizes.scales_channels:
            needs["channels"] = SlotNeed(tile.channels * CHANNEL_BYTES)
    return needs


def _list_channel_cuts(sizes: ConvSizes) -> Iterator[tuple[int, int, int]]:
    """Yield the possible cuts of channels: output channels, input channels, groups of a tile."""
    outputs, inputs = sizes.y[3] // sizes.groups, sizes.x[3] // sizes.groups  # of a group
    if sizes.groups > 1:
        for groups in decreasing_parts(sizes.groups):
            yield groups * outputs, groups * inputs, groups
    for cut_outputs in decreasing_parts(outputs):
        for blocks in decreasing_parts(ceil(inputs / sizes.block)):
            cut_inputs = min(blocks * sizes.block, inputs)
            if sizes.groups == 1 or (cut_outputs, cut_inputs) != (outputs, inputs):
                yield cut_outputs, cut_inputs, 1


def _list_largest_tiles(
    sizes: ConvSizes, rows: int, tile: TileShape, doubled: bool, scratchpad: int
) -> Iterator[TileShape]:
    """Yield the tiles with the most columns that fit: with the most rows, and up to three with fewer.

    Fewer rows make more tiles, so that more loads run while others are computed.
    """

    def fits(tile: TileShape) -> bool:
        return count_slot_bytes(_find_slots(sizes, tile), doubled) <= scratchpad

    if not fits(replace(tile, rows=1, cols=1)):
        return
    _, height, width, _ = sizes.y
    for cols in decreasing_parts(width):
        count = 0
        for number in decreasing_parts(min(rows, height)):
            grown = replace(tile, rows=number, cols=cols)
            if fits(grown):
                yield grown
                count += 1
            if count == 4:
                break
        if count:
            return


def _estimate_tiling(
    sizes: ConvSizes, rows: int, tiling: Tiling, machine: _Machine
) -> tuple[float, int]:
    """Estimate the seconds of a tiling, and the bytes that it moves.

    A tile stays in its slot as long as the next step uses the same one. So areas of the input are loaded
    once if they are the outer loop or there is only one, else for each tile of output channels. Weights
    are loaded once if they are the outer loop, or one tile has them all, or there is only one area, else
    for each area. Input channels in several tiles are the innermost loop, and replace both.
    """
    tile, window = tiling.tile, sizes.window
    _, height, width, channels = sizes.y
    _, read_height, read_width, read_channels = sizes.x
    row_tiles = ceil(min(rows, height) / tile.rows) * ceil(rows / height)
    areas = row_tiles * ceil(width / tile.cols)
    share = tile.groups / sizes.groups  # of all groups
    output_tiles = ceil(channels * share / tile.channels)  # along the channels of a group
    input_tiles = ceil(read_channels * share / tile.inputs)
    pixels = input_extent(window, 0, read_height, tile.rows)  # of the input, for a tile
    pixels *= input_extent(window, 1, read_width, tile.cols)
    stays = areas == 1 and input_tiles == 1
    x_times = 1 if stays or (input_tiles == 1 and not tiling.weights_outermost) else output_tiles
    single = output_tiles * sizes.groups == tile.groups and input_tiles == 1
    weights_times = (
        1 if areas == 1 or single or (input_tiles == 1 and tiling.weights_outermost) else areas
    )
    loaded = areas * pixels * read_channels * sizes.input_itemsize * x_times
    loaded += sizes.weight_bytes * weights_times
    row_bytes = width * channels * sizes.result_itemsize
    moved = loaded + rows * row_bytes * (2 if sizes.residual_itemsize else 1)
    operations = 2 * rows * width * channels * prod(sizes.kernel[1:])
    steps = areas * output_tiles * input_tiles * ceil(1 / share)
    return _estimate_seconds(moved, operations, steps, tiling.doubled, machine), moved


def _estimate_seconds(
    moved: float, operations: float, steps: int, doubled: bool, machine: _Machine
) -> float:
    """Estimate the seconds of a layer from the bytes that it moves, its operations and its steps."""
    issued = steps * _STEP_SECONDS
    moving = moved / machine.bandwidth
    computing = operations / machine.peak
    if not doubled:
        return moving + computing + issued
    return max(moving, computing) + min(moving, computing) / steps + issued
