"""Tiles of the dla: what a window reads, and cuts that fit into the scratchpad."""

from dataclasses import replace
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
from byoc.codegens.dla.compiler import BoundaryPort
from byoc.codegens.dla.compiler.compile_region import emit_program
from byoc.codegens.dla.compiler.layers import ConvLayer, LayerNetwork, PoolLayer
from byoc.codegens.dla.compiler.output_shapes import LayerTensor, SlidingWindow, windowed_extents
from byoc.codegens.dla.compiler.scheduling import schedule_whole
from byoc.codegens.dla.compiler.tiling import (
    AxisSpan,
    ConvSizes,
    LayerSlots,
    SlotNeed,
    TileBudget,
    count_slot_bytes,
    decreasing_parts,
    find_conv_tiling,
    find_simple_tiling,
    list_conv_slots,
    receptive_field,
    simple_slots,
    split_images,
    split_span,
)
from byoc.codegens.dla.machine import DType, Load, MachineFigures, Store
from dla_regions import executed, floats, model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.codegen import ResourceError

FIGURES = MachineFigures({"float32": 0.5e12, "int8": 2e12}, 16e9, 1e-6, 50e-6)
extents = st.integers(1, 12)


@st.composite
def windows(draw: st.DrawFn) -> tuple[SlidingWindow, LayerTensor, LayerTensor]:
    """Draw a window, the image that it slides over, and what it makes."""
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilations = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(draw(st.integers(0, reach[axis])) for axis in (0, 1, 0, 1))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    window = SlidingWindow(kernel, strides, dilations, pads)  # type: ignore[arg-type]
    size = tuple(reach[axis] + 1 + draw(st.integers(0, 6)) for axis in (0, 1))
    height, width = windowed_extents(size, window, ceil=draw(st.booleans()))
    x = LayerTensor("x", (1, *size, 2), "float32")
    return window, x, LayerTensor("y", (1, height, width, 2), "float32")


@given(windows(), st.data())
def test_a_field_is_all_that_is_read(
    drawn: tuple[SlidingWindow, LayerTensor, LayerTensor], data: st.DataObject
) -> None:
    window, x, y = drawn
    rows = AxisSpan(data.draw(st.integers(0, y.height - 1)), 1)
    rows = AxisSpan(rows.start, data.draw(st.integers(1, y.height - rows.start)))
    cols = AxisSpan(0, y.width)

    field = receptive_field(window, x, rows, cols)

    for axis, made, size, read in ((0, rows, x.height, field.rows), (1, cols, x.width, field.cols)):
        before = (field.pads.top, field.pads.left)[axis]
        after = (field.pads.bottom, field.pads.right)[axis]
        beyond = (field.overhang.rows, field.overhang.cols)[axis]
        touched = [
            at * window.strides[axis] + k * window.dilations[axis] - window.pads[axis]
            for at, k in product(range(made.start, made.end), range(window.kernel[axis]))
        ]
        assert read.start - before == min(touched)
        assert read.end + after + beyond == max(touched) + 1
        assert 0 <= read.start < read.end <= size
        assert after <= window.pads[axis + 2]


@given(extents, st.integers(1, 20))
def test_spans_cover_once(extent: int, most: int) -> None:
    parts = list(split_span(AxisSpan(3, extent), most))

    assert [at for part in parts for at in range(part.start, part.end)] == list(range(3, 3 + extent))
    assert max(part.count for part in parts) <= most


def test_rows_are_of_images() -> None:
    y = LayerTensor("y", (3, 4, 1, 1), "float32")

    found = list(split_images(y, AxisSpan(2, 8)))

    assert found == [(0, AxisSpan(2, 2)), (1, AxisSpan(0, 4)), (2, AxisSpan(0, 2))]


@given(st.integers(1, 5000))
def test_halves_go_down_to_one(extent: int) -> None:
    found = list(decreasing_parts(extent))

    assert (found[0], found[-1]) == (extent, 1)
    assert found == sorted(set(found), reverse=True)


def test_slots_take_turns_and_tiles_stay() -> None:
    pad = LayerSlots({"x": SlotNeed(100), "y": SlotNeed(10, twice=False)}, count(1), doubled=True)
    assert (
        count_slot_bytes({"x": SlotNeed(100), "y": SlotNeed(10, twice=False)}, doubled=True) == 256 + 64
    )
    assert [slot.addresses for slot in pad.slots.values()] == [(0, 128), (256,)]
    made = [pad.new_tile("x", key, (1, 1, 4), DType.INT8) for key in "abc"]

    assert [tile.address for tile in made] == [0, 128, 0]
    assert pad.slots["x"].find("a") is None
    assert pad.slots["x"].find("b") is made[1]


def convolution(  # noqa: PLR0917 - what tells convolutions apart
    groups: int, read: int, made: int, window: SlidingWindow, size: int, dtype: str
) -> ConvLayer:
    height, width = windowed_extents((size, size), window)
    kind = np.float32 if dtype == "float32" else np.int8
    weights = np.zeros((made * groups, *window.kernel, read), kind)
    x = LayerTensor("x", (1, size, size, read * groups), dtype)
    y = LayerTensor("y", (1, height, width, made * groups), dtype)
    multipliers = np.ones(made * groups if dtype == "int8" else 0)
    return ConvLayer("c", ("c",), y, x, weights, np.zeros(made * groups), multipliers, window, groups)


@settings(deadline=None, max_examples=examples(40))
@given(
    st.sampled_from([1, 1, 1, 3, 8]),
    st.integers(1, 200),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(3, 60),
    st.sampled_from(["float32", "int8"]),
    st.sampled_from([8192, 131072, 524288]),
)
def test_tiles_of_convolutions_fit(  # noqa: PLR0917 - what hypothesis draws
    groups: int, read: int, made: int, kernel: int, size: int, dtype: str, scratchpad: int
) -> None:
    layer = convolution(groups, read, made, SlidingWindow((kernel, kernel)), size, dtype)

    found = find_conv_tiling(layer, layer.y.rows, TileBudget(scratchpad, FIGURES))

    assert found is not None
    assert count_slot_bytes(list_conv_slots(layer, found.tile), found.doubled) <= scratchpad
    tile = found.tile
    assert groups % tile.groups == 0 or tile.groups > 1
    assert (tile.channels, tile.inputs) == (made * tile.groups, read * tile.groups) or tile.groups == 1


def test_layers_that_differ_in_names_and_numbers_alone_have_the_same_sizes() -> None:
    layer = convolution(1, 8, 16, SlidingWindow((3, 3)), 12, "int8")
    other = replace(
        layer,
        name="d",
        x=replace(layer.x, name="u", scale=0.5, zero=3),
        weights=layer.weights + np.int8(1),
    )

    assert ConvSizes.of_layer(other) == ConvSizes.of_layer(layer)
    assert ConvSizes.of_layer(replace(layer, residual=layer.y)) != ConvSizes.of_layer(layer)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.sampled_from([2048, 65536]))
def test_tiles_of_pools_fit(channels: int, height: int, width: int, scratchpad: int) -> None:
    x, y = (LayerTensor(name, (1, height, width, channels), "float32") for name in "xy")
    layer = PoolLayer("p", ("p",), y, x, False, SlidingWindow((3, 3), pads=(1, 1, 1, 1)))

    found = find_simple_tiling(layer, y.rows, TileBudget(scratchpad, FIGURES))

    assert found is not None
    assert count_slot_bytes(simple_slots(layer, found.tile), found.doubled) <= scratchpad


@pytest.mark.parametrize(
    ("read", "made", "size", "scratchpad"),
    [(64, 256, 14, 16384), (512, 64, 7, 16384), (2048, 1000, 1, 32768), (32, 32, 56, 65536)],
)
def test_the_bytes_that_are_estimated_are_moved(
    read: int, made: int, size: int, scratchpad: int
) -> None:
    layer = convolution(1, read, made, SlidingWindow(), size, "float32")
    network = LayerNetwork(
        [layer],
        [BoundaryPort("x", "float32", (), layer.x)],
        [BoundaryPort("y", "float32", (), layer.y)],
        {},
    )

    built = emit_program(network, schedule_whole(network, "exact"), scratchpad, FIGURES)

    tiling = find_conv_tiling(layer, layer.y.rows, TileBudget(scratchpad, FIGURES))
    assert tiling is not None
    found = built.statistics.total("loaded") + built.statistics.total("stored")
    down, across = (
        -(-size // tiling.tile.rows) * -(-size // tiling.tile.cols),
        made // tiling.tile.channels,
    )
    least = layer.x.nbytes + layer.weights.nbytes + layer.y.nbytes
    most = layer.x.nbytes * (across + 1) + (layer.weights.nbytes + made * 8) * down + layer.y.nbytes
    assert least <= found <= most


def test_every_byte_of_the_result_is_stored_once() -> None:
    layer = convolution(1, 96, 40, SlidingWindow((3, 3), pads=(1, 1, 1, 1)), 9, "float32")
    ports = [BoundaryPort("x", "float32", (), layer.x)], [BoundaryPort("y", "float32", (), layer.y)]
    network = LayerNetwork([layer], *ports, {})

    built = emit_program(network, schedule_whole(network, "exact"), 16384, FIGURES)

    counts = np.zeros(layer.y.nbytes, int)
    start = built.arena.whole_operand(layer.y).address
    for command in built.program.commands:
        if isinstance(command, Store):
            box = command.target
            for row, col in product(range(box.rows), range(box.cols)):
                at = box.address - start + (box.first_row + row) * box.row_pitch + col * box.pixel_pitch
                counts[at : at + box.channels * 4] += 1
    assert set(counts) == {1}
    assert any(isinstance(command, Load) for command in built.program.commands)


def test_what_does_not_fit_names_its_node(tmp_path: Path) -> None:
    text = "g (float[1,1,64,64] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }"

    with pytest.raises(ResourceError) as caught:
        executed(model(text), {"x": floats(1, 1, 64, 64)}, tmp_path, scratchpad="8192")

    assert str(caught.value) == "no tile of 'y' fits into a scratchpad of 8192 bytes"
    assert caught.value.nodes == ("y",)
