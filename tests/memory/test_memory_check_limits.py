"""The checks of memory plans on both sides of each limit: right to the byte, and one byte off."""

from dataclasses import replace

import pytest
from checkers.arena_check import check
from checkers.scratchpad_check import _Memory
from checkers.stripes_check import PlanError
from checkers.stripes_check import check as check_stripes

from byoc.memory.arena import ArenaPlan, ArenaProblem, ArenaStep, plan_buffers
from byoc.memory.stripes import (
    ALL_ROWS,
    SAME_ROW,
    OperandRows,
    RowBand,
    RowLayer,
    RowTensor,
    RowWindow,
    StripedPlan,
)


def scratched(**changes: object) -> ArenaPlan:
    """A step reads x (4 bytes at 0), makes y (4 bytes at 4), and has 4 bytes of scratch at 8, of 12."""
    steps = (ArenaStep("a", (0,), (1,), scratch=4),)
    problem = ArenaProblem(("x", "y"), (4, 4), steps, frozenset({0}), frozenset({1}), alignment=4)
    return replace(plan_buffers(problem), offsets=(0, 4), scratch=(8,), size=12, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, []),
        ({"scratch": (12,)}, ["scratch of a lies at bytes 12 to 16, outside of the arena"]),
        ({"scratch": (-4,)}, ["scratch of a lies at bytes -4 to 0, outside of the arena"]),
        (
            {"scratch": (9,), "size": 13},
            ["scratch of a lies at byte 9, which is no multiple of 4"],
        ),
        (
            {"scratch": (7,)},
            [
                "scratch of a lies at byte 7, which is no multiple of 4",
                "y and scratch of a overlap while both are needed",
            ],
        ),
        ({"scratch": (4,)}, ["y and scratch of a overlap while both are needed"]),
        ({"scratch": (0,)}, ["x and scratch of a overlap while both are needed"]),
        ({"offsets": (0, 12), "size": 16}, []),
        ({"offsets": (0, 12), "size": 15}, ["y lies at bytes 12 to 16, outside of the arena"]),
        ({"offsets": (-4, 4)}, ["x lies at bytes -4 to 0, outside of the arena"]),
        (
            {"offsets": (-1, 4)},
            [
                "x lies at bytes -1 to 3, outside of the arena",
                "x lies at byte -1, which is no multiple of 4",
            ],
        ),
        ({"offsets": (4, 4)}, ["x and y overlap while both are needed"]),
        ({"offsets": (8, 4), "scratch": (0,)}, []),
    ],
)
def test_places_in_an_arena(changes: dict[str, object], sentences: list[str]) -> None:
    found = [each for each in check(replace(scratched(), **changes)) if "bound" not in each]  # type: ignore[arg-type]
    normal = [
        each.replace("scratch of a and y", "y and scratch of a")
        .replace("scratch of a and x", "x and scratch of a")
        .replace("y and x", "x and y")
        for each in found
    ]
    assert normal == sentences


@pytest.mark.parametrize("names", [("x", "y", "z"), ("y", "x", "z")])
def test_an_operand_is_written_over_whatever_the_names_are(names: tuple[str, ...]) -> None:
    steps = (ArenaStep("a", (0,), (1, 2), (0,)),)
    problem = ArenaProblem(names, (8, 8, 8), steps, frozenset({0}), frozenset({1, 2}))
    right = replace(plan_buffers(problem), offsets=(0, 0, 8), overwrites=(None, 0, None), size=16)
    assert check(right) == []


def test_what_is_written_over_has_its_place_and_size_and_is_made_first() -> None:
    steps = (ArenaStep("a", (0,), (1, 2), (0,)),)
    problem = ArenaProblem(("x", "y", "z"), (8, 8, 8), steps, frozenset({0}), frozenset({1, 2}))
    right = replace(plan_buffers(problem), offsets=(0, 0, 8), overwrites=(None, 0, None), size=16)
    assert check(right) == []
    assert check(replace(right, overwrites=(None, None, 0), offsets=(0, 8, 0))) == [
        "z over x: only what a step makes first is written over an operand",
        "x and z overlap while both are needed",
    ]
    assert "y over x: they lie at different places" in check(replace(right, offsets=(8, 0, 8)))
    smaller = replace(problem, sizes=(8, 4, 8))
    assert "y over x: they have different sizes" in check(replace(right, problem=smaller))


def test_a_memory_holds_what_was_written_last() -> None:
    memory = _Memory("pad", 10)
    one, other = (0, 1), (1, 1)
    assert list(memory.write(0, 10, one)) == []
    assert list(memory.write(4, 2, other)) == []
    assert memory.spans == [(0, 4, one), (4, 6, other), (6, 10, one)]
    assert list(memory.read(0, 4, one)) == list(memory.read(6, 4, one)) == []
    assert list(memory.read(4, 2, other)) == []
    assert list(memory.read(3, 2, one)) == ["byte 4 of the pad does not hold it"]
    assert list(memory.read(5, 2, one)) == ["byte 5 of the pad does not hold it"]
    assert list(memory.read(5, 2, other)) == ["byte 6 of the pad does not hold it"]
    for begin, size, end in ((-1, 2, 1), (9, 2, 11)):
        sentence = [f"bytes {begin} to {end} are outside the pad of 10"]
        assert list(memory.write(begin, size, one)) == list(memory.read(begin, size, one)) == sentence
    assert memory.spans == [(0, 4, one), (4, 6, other), (6, 10, one)]


TENSORS = [RowTensor("x", 4, 2), RowTensor("y", 2, 2), RowTensor("s", 1, 2), RowTensor("z", 1, 2)]
LAYERS = [
    RowLayer("pool", (("x", OperandRows(2, 2)),), ("y",), scratch=2),
    RowLayer("mean", (("y", SAME_ROW),), ("s",), "reduction"),
    RowLayer("fc", (("s", ALL_ROWS),), ("z",), "whole"),
]
BANDS = (
    RowBand("pool", 0, 1),
    RowBand("mean", 0, 1),
    RowBand("pool", 1, 1),
    RowBand("mean", 1, 1),
    RowBand("fc", 0, 1),
)
PLACES = {
    "x": RowWindow(0, 4, 2),
    "y": RowWindow(8, 1, 2),
    "s": RowWindow(10, 1, 2),
    "z": RowWindow(0, 1, 2),
}
PLAN = StripedPlan(BANDS, PLACES, {"pool": 12}, 14, ())


def place(**windows: RowWindow) -> StripedPlan:
    return replace(PLAN, places=PLACES | windows)


def bands(*numbers: int, **changed: RowBand) -> StripedPlan:
    return replace(PLAN, bands=tuple(changed.get(f"b{n}", BANDS[n]) for n in numbers))


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (PLAN, ""),
        (place(z=RowWindow(12, 1, 2)), ""),
        (place(z=RowWindow(13, 1, 2)), "'z' lies outside the arena"),
        (place(z=RowWindow(-1, 1, 2)), "'z' lies outside the arena"),
        (place(z=RowWindow(0, 0, 2)), "'z' has no place for its rows"),
        (place(z=RowWindow(0, 1, 1)), "'z' has no place for its rows"),
        (
            replace(PLAN, places={k: v for k, v in PLACES.items() if k != "z"}),
            "'z' has no place for its rows",
        ),
        (replace(PLAN, scratch={}), "the scratch of 'pool' lies outside the arena"),
        (replace(PLAN, scratch={"pool": -2}), "the scratch of 'pool' lies outside the arena"),
        (replace(PLAN, scratch={"pool": 13}), "the scratch of 'pool' lies outside the arena"),
        (
            replace(PLAN, scratch={"pool": 2}),
            "band 0 of 'pool': its scratch lies over rows that it reads",
        ),
        (
            replace(PLAN, scratch={"pool": 8}),
            "band 0 of 'pool': row 0 of 'y' lies over what the band needs",
        ),
        (replace(PLAN, scratch={"pool": 10}), "band 3 of 'mean': row 0 of 's' is not there"),
        (bands(0, 0), "band 1 of 'pool': rows 0 to 0 after 1 of 2"),
        (bands(2), "band 0 of 'pool': rows 1 to 1 after 0 of 2"),
        (bands(0, 1, 2, b2=RowBand("pool", 1, 2)), "band 2 of 'pool': rows 1 to 2 after 1 of 2"),
        (bands(0, b0=RowBand("pool", 0, 0)), "band 0 of 'pool': rows 0 to -1 after 0 of 2"),
        (bands(0, b0=RowBand("none", 0, 1)), "band 0 of 'none': there is no such layer"),
        (bands(1), "band 0 of 'mean': row 0 of 'y' is not there"),
        (bands(0, 2, 1), "band 2 of 'mean': row 0 of 'y' is not there"),
        (bands(0, 1, 4), "band 2 of 'fc': 's' is read before all rows are added"),
        (bands(0, 1, 2, 3), "the end: 'fc' has run for 0 rows of 1"),
        (place(y=RowWindow(6, 1, 2)), "band 2 of 'pool': row 3 of 'x' is not there"),
        (place(y=RowWindow(2, 1, 2)), "band 0 of 'pool': row 0 of 'y' lies over what the band needs"),
        (place(z=RowWindow(10, 1, 2)), "band 4 of 'fc': row 0 of 'z' lies over what the band needs"),
    ],
)
def test_bands_are_replayed_to_the_byte(plan: StripedPlan, sentence: str) -> None:
    if not sentence:
        check_stripes(TENSORS, LAYERS, ["x"], ["z"], plan)
        return
    with pytest.raises(PlanError) as caught:
        check_stripes(TENSORS, LAYERS, ["x"], ["z"], plan)
    assert str(caught.value) == sentence


def test_a_layer_that_cannot_run_by_rows_runs_at_once() -> None:
    tensors = [RowTensor("x", 2, 1), RowTensor("y", 2, 1)]
    layers = [RowLayer("soft", (("x", ALL_ROWS),), ("y",), "whole")]
    places = {"x": RowWindow(0, 2, 1), "y": RowWindow(2, 2, 1)}
    plan = StripedPlan((RowBand("soft", 0, 2),), places, {}, 4, ())
    check_stripes(tensors, layers, ["x"], ["y"], plan)
    halves = (RowBand("soft", 0, 1), RowBand("soft", 1, 1))
    with pytest.raises(PlanError, match=r"^band 0 of 'soft': the layer cannot run by rows$"):
        check_stripes(tensors, layers, ["x"], ["y"], replace(plan, bands=halves))


def test_an_operand_is_written_over_where_the_layer_may_and_reads_it_once() -> None:
    tensors = [RowTensor("x", 2, 1), RowTensor("y", 2, 1)]
    places = {"x": RowWindow(0, 2, 1), "y": RowWindow(0, 2, 1)}
    plan = StripedPlan((RowBand("relu", 0, 1), RowBand("relu", 1, 1)), places, {}, 2, ())
    may = RowLayer("relu", (("x", SAME_ROW),), ("y",), may_overwrite=("x",))
    check_stripes(tensors, [may], ["x"], ["y"], plan)
    sentence = r"^band 0 of 'relu': row 0 of 'y' lies over what the band needs$"
    twice = replace(may, reads=(("x", SAME_ROW), ("x", SAME_ROW)))
    for layer in (replace(may, may_overwrite=()), twice):
        with pytest.raises(PlanError, match=sentence):
            check_stripes(tensors, [layer], ["x"], ["y"], plan)


@pytest.mark.parametrize(("over", "offset"), [("y", 2), ("y", 0), ("y", 1), ("w", 2)])
def test_only_the_first_result_lies_over_an_operand_and_exactly(over: str, offset: int) -> None:
    """The rows of x are bytes 2 to 6."""
    tensors = [RowTensor(name, 2, 2) for name in "xyw"]
    layers = [RowLayer("f", (("x", SAME_ROW),), ("y", "w"), may_overwrite=("x",))]
    windows = {name: RowWindow(at, 2, 2) for name, at in (("x", 2), ("y", 8), ("w", 12))}
    plan = StripedPlan((RowBand("f", 0, 1), RowBand("f", 1, 1)), windows, {}, 16, ())
    check_stripes(tensors, layers, ["x"], ["y", "w"], plan)
    moved = replace(plan, places=windows | {over: RowWindow(offset, 2, 2)})
    if (over, offset) in {
        ("y", 2),
        ("y", 0),
    }:  # a row before, which is dead by then, is no row of the band
        check_stripes(tensors, layers, ["x"], ["y", "w"], moved)
        return
    with pytest.raises(PlanError, match=rf"^band 0 of 'f': row 0 of '{over}' lies over what the band"):
        check_stripes(tensors, layers, ["x"], ["y", "w"], moved)


def test_rows_that_nobody_reads_are_made_all_the_same() -> None:
    tensors = [RowTensor("x", 2, 1), RowTensor("y", 2, 1)]
    layers = [RowLayer("f", (("x", SAME_ROW),), ("y",))]
    windows = {"x": RowWindow(0, 2, 1), "y": RowWindow(2, 2, 1)}
    plan = StripedPlan((RowBand("f", 0, 1),), windows, {}, 4, ())
    with pytest.raises(PlanError, match=r"^the end: 'f' has run for 1 rows of 2$"):
        check_stripes(tensors, layers, ["x"], [], plan)


def test_inputs_do_not_lie_over_one_another() -> None:
    tensors = [RowTensor("x", 2, 2), RowTensor("u", 2, 2)]
    plan = StripedPlan((), {"x": RowWindow(0, 2, 2), "u": RowWindow(4, 2, 2)}, {}, 8, ())
    check_stripes(tensors, [], ["x", "u"], [], plan)
    over = {"x": RowWindow(0, 2, 2), "u": RowWindow(2, 2, 2)}
    with pytest.raises(PlanError, match=r"^the inputs: row 1 of 'x' is not there$"):
        check_stripes(tensors, [], ["x", "u"], [], replace(plan, places=over))


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        (SAME_ROW, {0: {0}, 1: {1}, 2: {2}, 3: {3}}),
        (OperandRows(3, before=1), {0: {0, 1}, 1: {0, 1, 2}, 2: {1, 2, 3}, 3: {2, 3}}),
        (OperandRows(2, stride=2), {0: {0, 1}, 1: {2, 3}, 2: set(), 3: set()}),
        (OperandRows(repeat=2), {0: {0}, 1: {0}, 2: {1}, 3: {1}}),
        (OperandRows(2, stride=3, before=1, repeat=2), {0: {0}, 1: {0, 1}, 2: {2, 3}, 3: {3}}),
        (ALL_ROWS, {row: {0, 1, 2, 3} for row in range(4)}),
    ],
)
def test_a_band_needs_the_rows_that_its_results_read_and_no_others(
    rows: OperandRows, read: dict[int, set[int]]
) -> None:
    """One row of x after another is written over by c before y is made: the first reader notices."""
    tensors = [RowTensor("x", 4, 1), RowTensor("y", 4, 1), RowTensor("c", 1, 1)]
    layers = [RowLayer("f", (("x", rows),), ("y",)), RowLayer("c", (), ("c",))]
    order = (RowBand("c", 0, 1), *(RowBand("f", row, 1) for row in range(4)))
    for gone in range(4):
        windows = {"x": RowWindow(0, 4, 1), "y": RowWindow(4, 4, 1), "c": RowWindow(gone, 1, 1)}
        plan = StripedPlan(order, windows, {}, 8, ())
        first = next((row for row in range(4) if gone in read[row]), None)
        if first is None:
            check_stripes(tensors, layers, ["x"], ["y"], plan)
            continue
        with pytest.raises(PlanError) as caught:
            check_stripes(tensors, layers, ["x"], ["y"], plan)
        assert str(caught.value) == f"band {first + 1} of 'f': row {gone} of 'x' is not there"


@pytest.mark.parametrize("unit", [1, 4])
@pytest.mark.parametrize("at", range(9))
def test_scratch_lies_beside_the_rows_that_a_band_reads(at: int, unit: int) -> None:
    """The rows are bytes 3 to 7, the result byte 11, or four times as many."""
    tensors = [RowTensor("x", 2, 2 * unit), RowTensor("y", 1, unit)]
    layers = [RowLayer("f", (("x", ALL_ROWS),), ("y",), scratch=2 * unit)]
    windows = {"x": RowWindow(3 * unit, 2, 2 * unit), "y": RowWindow(11 * unit, 1, unit)}
    plan = StripedPlan((RowBand("f", 0, 1),), windows, {"f": at * unit}, 12 * unit, ())
    if at in {0, 1, 7, 8}:
        check_stripes(tensors, layers, ["x"], ["y"], plan)
        return
    with pytest.raises(PlanError, match=r"^band 0 of 'f': its scratch lies over rows that it reads$"):
        check_stripes(tensors, layers, ["x"], ["y"], plan)


def test_outputs_are_there_whole_at_the_end() -> None:
    for outputs, sentence in ((["z", "y"], "row 0 of 'y'"), (["x"], "row 0 of 'x'")):
        with pytest.raises(PlanError) as caught:
            check_stripes(TENSORS, LAYERS, ["x"], outputs, PLAN)
        assert str(caught.value) == f"the end: {sentence} is not there"


@pytest.mark.parametrize("row", [0, 1])
def test_bytes_that_nobody_wrote_hold_no_row(row: int) -> None:
    """Not even one of the tensor that is named first."""
    tensors = [RowTensor("y", 2, 1), RowTensor("x", 1, 1)]
    layers = [RowLayer("f", (("y", OperandRows(before=-row)),), ("x",))]
    windows = {"y": RowWindow(0, 2, 1), "x": RowWindow(2, 1, 1)}
    plan = StripedPlan((RowBand("f", 0, 1),), windows, {}, 3, ())
    check_stripes(tensors, layers, ["y"], ["x"], plan)
    with pytest.raises(PlanError, match=rf"^band 0 of 'f': row {row} of 'y' is not there$"):
        check_stripes(tensors, layers, [], ["x"], plan)


def test_what_scratch_lay_over_is_gone() -> None:
    tensors = [RowTensor(name, 1, 1) for name in "xuyz"]
    layers = [
        RowLayer("f", (("u", SAME_ROW),), ("y",), scratch=1),
        RowLayer("g", (("x", SAME_ROW),), ("z",)),
    ]
    windows = {name: RowWindow(at, 1, 1) for at, name in enumerate("xuyz")}
    plan = StripedPlan((RowBand("f", 0, 1), RowBand("g", 0, 1)), windows, {"f": 4}, 5, ())
    check_stripes(tensors, layers, ["x", "u"], ["z"], plan)
    with pytest.raises(PlanError, match=r"^band 1 of 'g': row 0 of 'x' is not there$"):
        check_stripes(tensors, layers, ["x", "u"], ["z"], replace(plan, scratch={"f": 0}))


def test_results_of_a_band_do_not_lie_over_one_another() -> None:
    tensors = [RowTensor(name, 2, 1) for name in "xyz"]
    layers = [RowLayer("f", (("x", SAME_ROW),), ("y", "z"))]
    windows = {name: RowWindow(2 * at, 2, 1) for at, name in enumerate("xyz")}
    plan = StripedPlan((RowBand("f", 0, 2),), windows, {}, 6, ())
    check_stripes(tensors, layers, ["x"], [], plan)
    for name, window, row in (("y", RowWindow(2, 1, 1), 0), ("z", RowWindow(3, 2, 1), 1)):
        wrong = replace(plan, places=windows | {name: window})
        with pytest.raises(PlanError, match=rf"^band 0 of 'f': row {row} of 'y' is not there$"):
            check_stripes(tensors, layers, ["x"], [], wrong)


def test_rows_may_have_no_bytes() -> None:
    tensors = [RowTensor("x", 2, 0), RowTensor("y", 2, 0)]
    windows = dict.fromkeys("xy", RowWindow(0, 2, 0))
    plan = StripedPlan((RowBand("f", 0, 2),), windows, {}, 0, ())
    check_stripes(tensors, [RowLayer("f", (("x", SAME_ROW),), ("y",))], ["x"], ["y"], plan)
