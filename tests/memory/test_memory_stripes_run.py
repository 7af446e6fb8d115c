"""Striped plans executed in one poisoned byte array, against onnxruntime."""

from dataclasses import replace

import pytest
from arena import error, execute, plan_rows, random_feeds, read_rows, reference
from checkers.stripes_check import check
from helpers.support import examples, parse
from hypothesis import given, settings
from onnx import ModelProto
from stripes_random import convolutional

from byoc.memory.stripes import RowWindow

CLOSE = 1e-5

RESIDUAL = """
    g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] z)
    <float[4, 4, 3, 3] w = {WEIGHTS}, float[4] b = {0.5, -0.5, 0.25, 1}>
    {
        c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
        r = Relu(c)
        d = Conv<pads = [1, 1, 1, 1]>(r, w, b)
        y = Add(d, x)
        z = Sigmoid(y)
    }
""".replace("WEIGHTS", ", ".join(f"{n % 7 - 3}" for n in range(144)))


@settings(deadline=None, max_examples=examples(40))
@given(convolutional())
def test_random_network_is_executed_as_onnxruntime_does(model: ModelProto) -> None:
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    check(rows.tensors, rows.layers, rows.inputs, rows.outputs, plan)
    feeds = random_feeds(index)
    assert error(execute(index, rows, plan, feeds), reference(model, feeds)) < CLOSE


def test_result_over_dead_rows_of_the_input() -> None:
    """One image of 1,024 bytes, rows of 128: three rows of each result, not three images."""
    model = parse(RESIDUAL)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    assert plan.places["r"].window == 3
    assert plan.places["x"].offset == plan.places["z"].offset
    assert plan.size == 1024 + 3 * 128 + 128 + 128  # x, r, d, and the product of a tap
    feeds = random_feeds(index)
    assert error(execute(index, rows, plan, feeds), reference(model, feeds)) < CLOSE


@pytest.mark.parametrize("tensor", ["x", "r"])
def test_window_one_row_short_gives_wrong_numbers(tensor: str) -> None:
    model = parse(RESIDUAL)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    shared = [name for name, place in plan.places.items() if place == plan.places[tensor]]
    place = plan.places[tensor]
    short = RowWindow(place.offset, place.window - 1, place.row_bytes)
    broken = replace(plan, places=plan.places | dict.fromkeys(shared, short))
    feeds = random_feeds(index)
    assert error(execute(index, rows, broken, feeds), reference(model, feeds)) > CLOSE


def test_band_too_early_gives_wrong_numbers() -> None:
    model = parse(RESIDUAL)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    bands = list(plan.bands)
    number = max(n for n, band in enumerate(bands) if band.layer == "d")
    bands.insert(0, bands.pop(number))
    feeds = random_feeds(index)
    broken = replace(plan, bands=tuple(bands))
    assert error(execute(index, rows, broken, feeds), reference(model, feeds)) > CLOSE


def test_two_tensors_in_one_place_give_wrong_numbers() -> None:
    model = parse(RESIDUAL)
    index, rows = read_rows(model)
    plan = plan_rows(rows)
    there = plan.places["r"]
    onto = RowWindow(plan.places["d"].offset, there.window, there.row_bytes)
    broken = replace(plan, places=plan.places | {"r": onto, "c": onto})
    if onto.offset + 3 * onto.row_bytes > plan.size:
        broken = replace(broken, size=plan.size + 3 * onto.row_bytes)
    feeds = random_feeds(index)
    assert error(execute(index, rows, broken, feeds), reference(model, feeds)) > CLOSE
