"""The dla's clock: at 1 GHz, 1000 float32 operations and 32 bytes a cycle, 5000 cycles to launch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    ABSENT,
    Add,
    Command,
    Conv,
    ConvFlags,
    DType,
    Function,
    FunctionKind,
    Load,
    Memory,
    Operand,
    Pair,
    Pool,
    PoolKind,
    Scale,
    Statistics,
    Store,
    read_figures,
    simulate_timing,
)
from byoc.codegens.dla.machine.timing import command_cycles, count_operations
from byoc.codegens.dla.simulator import Simulator
from dla_bench import FIGURES, box, program

from byoc.costs import load_cost_model
from byoc.errors import InputError

LAUNCH, OVERHEAD = 5000, 1000
SIZE = 16384  # a box of 64 x 8 x 8 float32: 512 cycles of DMA, 4.096 of adding, so 5


def place(tensor: int, slot: int) -> Operand:
    return box(tensor, slot * SIZE, (64, 8, 8), DType.FLOAT32)


def load(slot: int, layer: int = 0) -> Load:
    return Load(layer, Memory.ARENA, place(1, 0), place(1, slot))


def slow(source: int, target: int, layer: int = 0) -> Conv:
    """Return a 16 x 16 convolution of one group: 64 * 8 * 8 * 2 * 256 * 8 operations, 16778 cycles."""
    weights = box(9, 6 * SIZE, (1, 1, 8 * 16 * 16 * 8), DType.FLOAT32)
    x, y = place(1, source), place(2, target)
    return Conv(layer, ConvFlags.ONLY, x, weights, ABSENT, ABSENT, ABSENT, y, Pair(16, 16))


def taken(*commands: Command) -> Statistics:
    return simulate_timing(program(*commands, scratchpad=16 * SIZE), FIGURES)


def test_durations_are_operations_over_the_peak_and_bytes_over_the_bandwidth():
    assert command_cycles(load(0), FIGURES) == 512
    assert command_cycles(Store(0, place(1, 0), place(1, 0)), FIGURES) == 512
    assert count_operations(slow(0, 1)) == 64 * 8 * 8 * 2 * 256 * 8
    assert command_cycles(slow(0, 1), FIGURES) == 16778
    x = place(1, 0)
    assert count_operations(Add(0, x, x, x)) == count_operations(Scale(0, x, x)) == 4096
    assert count_operations(Pool(0, PoolKind.MAX, x, x, Pair(3, 2))) == 6 * 4096
    assert count_operations(Function(0, FunctionKind.EXP, x, x)) == 4 * 4096
    assert command_cycles(Add(0, x, x, x), FIGURES) == 5


def test_integers_run_at_their_own_peak_and_groups_share_the_channels():
    conv = slow(0, 1)
    small = replace(conv, x=replace(conv.x, dtype=DType.INT8), y=replace(conv.y, dtype=DType.INT8))
    assert command_cycles(small, FIGURES) == -(-16777216 // 4000)
    assert count_operations(replace(conv, groups=8)) * 8 == count_operations(conv)
    part = replace(small, flags=ConvFlags.FIRST, accumulator=replace(conv.y, dtype=DType.INT32))
    assert command_cycles(part, FIGURES) == command_cycles(small, FIGURES)
    wide = replace(small, x=replace(conv.x, dtype=DType.INT16))
    assert command_cycles(wide, FIGURES) == -(-16777216 // 2000)
    made = replace(small, y=replace(conv.y, dtype=DType.INT16))
    assert command_cycles(made, FIGURES) == command_cycles(small, FIGURES)
    sums = [replace(box, dtype=DType.INT16) for box in (conv.x, conv.y)]
    assert command_cycles(Add(0, small.x, small.x, sums[1]), FIGURES) == 3
    assert command_cycles(Add(0, sums[0], sums[0], small.y), FIGURES) == 3


def test_one_after_another_where_each_needs_the_last():
    found = taken(load(0), slow(0, 1), Store(0, place(2, 1), place(2, 1)))
    assert found.launch == LAUNCH
    assert found.cycles == LAUNCH + max(OVERHEAD, 512) + 16778 + 512
    assert found.seconds == found.cycles / 1e9


def test_the_next_tile_is_loaded_while_the_machine_computes():
    found = taken(load(0), slow(0, 1), load(2), slow(2, 3))
    assert found.cycles == LAUNCH + OVERHEAD + 2 * 16778


def test_a_tile_in_the_same_place_waits_until_it_was_read():
    found = taken(load(0), slow(0, 1), load(0), slow(0, 3))
    assert found.cycles == LAUNCH + OVERHEAD + 16778 + 512 + 16778


def test_a_result_waits_until_the_last_one_was_stored():
    store = Store(0, place(2, 1), place(2, 1))
    in_one_place = taken(load(0), load(2), slow(0, 1), store, slow(2, 1), store)
    assert in_one_place.cycles == LAUNCH + OVERHEAD + 2 * (16778 + 512)
    other = Store(0, place(2, 3), place(2, 3))
    assert taken(load(0), load(2), slow(0, 1), store, slow(2, 3), other).cycles == (
        LAUNCH + OVERHEAD + 2 * 16778 + 512
    )


def test_a_rolling_buffer_waits_for_all_of_its_window_where_it_wraps():
    wrapping = replace(place(1, 0), first_row=60)
    first_rows = box(1, 0, (4, 8, 8), DType.FLOAT32)
    again = Load(0, Memory.ARENA, first_rows, first_rows)
    found = taken(load(0), replace(slow(0, 1), x=wrapping), again)
    assert found.cycles == LAUNCH + OVERHEAD + 16778 + 32


def test_what_is_written_waits_until_it_was_written_before():
    assert taken(load(0), slow(0, 1), load(1)).cycles == LAUNCH + OVERHEAD + 16778 + 512
    assert taken(load(0), slow(0, 1), load(2)).cycles == LAUNCH + OVERHEAD + 16778


def test_layers_add_up_and_overhead_is_paid_once_for_each():
    commands = [load(0), slow(0, 1), load(2, 1), slow(2, 3, 1), load(4), slow(4, 5)]
    found = taken(*commands)
    first, second = found.layers
    assert (first.layer, second.layer) == (0, 1)
    assert found.cycles == LAUNCH + first.cycles + second.cycles
    assert found.cycles == LAUNCH + 2 * OVERHEAD + 3 * 16778
    assert (first.computing, second.computing) == (2 * 16778, 16778)
    assert (first.moving, second.moving) == (1024, 512)
    assert (first.loaded, second.loaded, found.total("loaded")) == (2 * SIZE, SIZE, 3 * SIZE)
    assert found.total("stored") == 0
    assert found.total("operations") == 3 * count_operations(slow(0, 1))


def test_the_simulator_keeps_the_time():
    x, y = (box(tensor, 0, (2, 2, 2), DType.FLOAT32) for tensor in (1, 2))
    made = program(Load(3, Memory.ARENA, x, x), Scale(3, x, y), Store(3, y, y))
    found = Simulator(made, b"", FIGURES).run([(x, np.zeros((2, 2, 2), np.float32))], [y]).statistics
    (layer,) = found.layers
    assert (layer.layer, layer.loaded, layer.stored, layer.operations) == (3, 32, 32, 8)
    assert found.cycles == LAUNCH + OVERHEAD + 1 + 1


def test_the_figures_are_those_of_the_cost_model():
    figures, costs = read_figures(), load_cost_model("dla")
    assert figures.peak == costs.peak
    assert (figures.bandwidth, figures.overhead, figures.launch) == (
        costs.bandwidth, costs.overhead, costs.launch
    )  # fmt: skip
    assert figures.peak["int8"] / 2 / figures.frequency == pytest.approx(2048, rel=0.05)


def test_figures_of_another_kind_are_refused(tmp_path: Path):
    path = tmp_path / "other.yaml"
    path.write_text("kind: roofline\nname: other\npeak: {float32: 1.0e+12}\nbandwidth: 1.0e+9\n")
    with pytest.raises(
        InputError, match=r"peak: it must have an entry for int8, in which the dla computes"
    ):
        read_figures(str(path))
    path.write_text("kind: linear\nname: other\noperators: {Conv: {}}\n")
    with pytest.raises(InputError, match="the figures of the dla must be a cost model of kind roofline"):
        read_figures(str(path))
