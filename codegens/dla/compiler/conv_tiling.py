"""Cut convolutions into tiles: of all tilings that fit into the scratchpad, the fastest by estimate.

The search depends on sizes alone (`ConvSizes`), so that equal layers, of which transformers have
hundreds, are searched once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from .layers import ConvLayer, Int4Weights
from .output_shapes import INT16, Extents, SlidingWindow
from .tiling import (
    CHANNEL_BYTES,
    SlotNeed,
    TileBudget,
    TileShape,
    Tiling,
    count_slot_bytes,
    decreasing_parts,
    input_extent,
)

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
