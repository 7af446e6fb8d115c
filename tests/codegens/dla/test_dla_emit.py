"""Commands of the dla: their order, stripes, and errors planted into a schedule."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byoc.codegens.dla.compiler import CompiledRegion
from byoc.codegens.dla.compiler.compile_region import emit_program
from byoc.codegens.dla.compiler.emission import TileStep, interleave_steps
from byoc.codegens.dla.compiler.scheduling import (
    LayerSchedule,
    RunLayer,
    plan_residency,
    schedule_striped,
    schedule_whole,
)
from byoc.codegens.dla.compiler.tiling import AxisSpan, TileBudget
from byoc.codegens.dla.machine import Command, Conv, Load, Store, read_figures
from byoc.codegens.dla.simulator import SimulationError, Simulator
from dla_regions import floats, model, network

FIGURES = read_figures()
CONSTANTS = {
    "w": floats(8, 4, 3, 3),
    "b": floats(8),
    "v": floats(8, 8, 3, 3, seed=1),
    "u": floats(4, 8, 1, 1, seed=2),
}
CHAIN = """g (float[1,4,20,20] x) => (float[1,4,18,18] y) {
  p = AveragePool<kernel_shape=[1,1]>(x)
  c = Conv<pads=[1,1,1,1]>(p, w, b)
  d = Conv<pads=[1,1,1,1]>(c, v)
  e = MaxPool<kernel_shape=[3,3]>(d)
  f = Add(e, e)
  y = Conv(f, u)
}"""


def built(
    folder: Path,
    make: Callable[..., LayerSchedule] = schedule_whole,
    scratchpad: int = 8192,
    **changes: int,
) -> CompiledRegion:
    """Return the program of CHAIN; `changes` are added to offsets and windows of places."""
    made = network(model(CHAIN, CONSTANTS), folder)
    schedule = make(made, "exact")
    places = dict(schedule.places)
    for change, by in changes.items():
        field, name = change.split("_")
        places[name] = replace(places[name], **{field: getattr(places[name], field) + by})
    return emit_program(made, replace(schedule, places=places), scratchpad, FIGURES)


def ran(made: CompiledRegion) -> np.ndarray:
    port = made.network.inputs[0]
    box = made.arena.whole_operand(port.tensor)
    values = floats(box.rows * box.cols * box.channels, seed=9)
    placed = [(box, values.reshape(box.rows, box.cols, box.channels))]
    outputs = [made.arena.whole_operand(each.tensor) for each in made.network.outputs]
    return Simulator(made.program, made.weights, FIGURES).run(placed, outputs).outputs[0]


def named(*names: str) -> list[Command]:
    return list(names)  # type: ignore[arg-type]


def test_the_next_tile_is_loaded_before_this_one_is_stored() -> None:
    steps = [TileStep(named(f"L{n}"), named(f"C{n}"), named(f"S{n}")) for n in range(3)]  # type: ignore[arg-type]

    assert list(interleave_steps(steps)) == ["L0", "C0", "L1", "S0", "C1", "L2", "S1", "C2", "S2"]


def test_loads_run_while_the_machine_computes(tmp_path: Path) -> None:
    statistics = built(tmp_path, scratchpad=16384).statistics
    both = statistics.total("computing") + statistics.total("moving")

    assert sum(layer.cycles for layer in statistics.layers) < both + 500 * len(statistics.layers)


@pytest.mark.parametrize("scratchpad", [4096, 8192, 65536])
def test_the_numbers_do_not_depend_on_the_scratchpad(scratchpad: int, tmp_path: Path) -> None:
    one, other = built(tmp_path, scratchpad=scratchpad), built(tmp_path, scratchpad=1 << 20)

    assert one.program.scratchpad == scratchpad
    assert len(one.program.commands) >= len(other.program.commands)
    np.testing.assert_allclose(ran(one), ran(other), rtol=1e-4, atol=1e-4)


def test_stripes_take_less_memory_and_compute_the_same(tmp_path: Path) -> None:
    one, other = built(tmp_path), built(tmp_path, schedule_striped)

    assert other.program.arena < one.program.arena * 0.7
    assert len(other.schedule.turns) > len(one.schedule.turns)
    np.testing.assert_allclose(ran(other), ran(one), rtol=1e-4, atol=1e-4)


def test_every_layer_has_commands_of_its_own(tmp_path: Path) -> None:
    made = built(tmp_path, scratchpad=4096)
    kinds = {type(each) for each in made.program.commands}

    assert {Load, Store, Conv} <= kinds
    assert {each.layer for each in made.program.commands[:-1]} == set(range(len(made.network.layers)))


def test_two_tensors_that_overlap_are_caught(tmp_path: Path) -> None:
    good = built(tmp_path)
    apart = good.arena.addresses["c"].offset - good.arena.addresses["d"].offset

    with pytest.raises(SimulationError, match=r"byte \d+ of the arena should hold row"):
        ran(built(tmp_path, offset_d=apart + 64))


def test_a_window_one_row_short_is_caught(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="has 3 rows, but its window only 2"):
        ran(built(tmp_path, schedule_striped, window_d=-1))


def test_a_stripe_one_row_short_is_caught(tmp_path: Path) -> None:
    made = network(model(CHAIN, CONSTANTS), tmp_path)
    schedule = schedule_striped(made, "exact")
    last = max(n for n, turn in enumerate(schedule.turns) if made.layers[turn.number].y.name == "c")
    turn = schedule.turns[last]
    short = replace(turn, rows=AxisSpan(turn.rows.start, turn.rows.count - 1))
    turns = [*schedule.turns[:last], *([short] if short.rows.count else []), *schedule.turns[last + 1 :]]

    with pytest.raises(SimulationError, match=r"byte \d+ of the arena should hold row 19 of tensor"):
        ran(emit_program(made, replace(schedule, turns=tuple(turns)), 8192, FIGURES))


def test_a_stale_line_of_the_scratchpad_is_caught(tmp_path: Path) -> None:
    made = built(tmp_path, scratchpad=4096)
    loads = [n for n, each in enumerate(made.program.commands) if isinstance(each, Load)]
    left_out = [each for n, each in enumerate(made.program.commands) if n != loads[len(loads) // 2]]
    program = replace(made.program, commands=tuple(left_out))

    with pytest.raises(SimulationError, match=r"byte \d+ of the scratchpad should hold row"):
        ran(replace(made, program=program))


def test_an_arena_that_is_too_small_is_caught(tmp_path: Path) -> None:
    made = built(tmp_path)
    program = replace(made.program, arena=made.program.arena - 64)

    with pytest.raises(SimulationError, match="of the arena, which has"):
        ran(replace(made, program=program))


def test_what_stays_in_the_scratchpad_is_neither_stored_nor_loaded(tmp_path: Path) -> None:
    made = network(model(CHAIN, CONSTANTS), tmp_path)
    schedule, budget = schedule_whole(made, "exact"), TileBudget(65536, FIGURES)
    actions = plan_residency(made, schedule, budget)
    assert actions is not None

    plain = emit_program(made, schedule, budget.scratchpad, FIGURES)
    other = emit_program(made, schedule, budget.scratchpad, FIGURES, actions)

    assert any(isinstance(each, RunLayer) and each.near for each in actions)
    assert other.statistics.total("stored") < plain.statistics.total("stored") / 2
    assert other.statistics.cycles < plain.statistics.cycles
    np.testing.assert_allclose(ran(other), ran(plain), rtol=1e-4, atol=1e-4)


def test_a_tile_over_what_stays_is_caught(tmp_path: Path) -> None:
    made = network(model(CHAIN, CONSTANTS), tmp_path)
    schedule, budget = schedule_whole(made, "exact"), TileBudget(65536, FIGURES)
    actions = plan_residency(made, schedule, budget)
    assert actions is not None
    moved = [
        replace(each, area=min(place.offset for place in each.near.values()))
        if isinstance(each, RunLayer) and each.near
        else each
        for each in actions
    ]

    with pytest.raises(SimulationError, match=r"byte \d+ of the scratchpad should hold row"):
        ran(emit_program(made, schedule, budget.scratchpad, FIGURES, moved))
