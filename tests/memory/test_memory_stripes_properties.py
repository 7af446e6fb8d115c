"""Plans of random row-wise networks: accepted by the checker, and refused with an error planted."""

from dataclasses import replace

import pytest
from checkers.stripes_check import PlanError, check
from helpers.support import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stripes_random import Numbers, numbers

from byoc.memory.stripes import (
    ALL_ROWS,
    OperandRows,
    RowLayer,
    RowNetwork,
    RowTensor,
    RowWindow,
    StripedPlan,
    stripe,
)


def planned(net: Numbers, alignment: int = 1) -> StripedPlan:
    return stripe(net.tensors, net.layers, net.inputs, net.outputs, alignment)


def checked(net: Numbers, plan: StripedPlan) -> None:
    check(net.tensors, net.layers, net.inputs, net.outputs, plan)


def test_layer_of_which_only_padding_is_read_runs_inside_the_arena() -> None:
    """Row 0 of `b` reads row -1 of `a`, and nothing reads the other rows of `b`."""
    rows = {"x": 2, "a": 1, "b": 3, "y": 1, "z": 2}
    tensors = [RowTensor(name, count, 1) for name, count in rows.items()]
    layers = [
        RowLayer("a", (("x", ALL_ROWS),), ("a",), mode="whole"),
        RowLayer("b", (("a", OperandRows(before=1)),), ("b",)),
        RowLayer("y", (("b", OperandRows(stride=3)),), ("y",)),
        RowLayer("z", (("x", OperandRows()),), ("z",), may_overwrite=("x",)),
    ]
    net = Numbers(tensors, layers, ["x"], ["y", "z"])
    plan = planned(net)
    checked(net, plan)
    assert {band.layer for band in plan.bands} == {"a", "b", "y", "z"}


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.sampled_from([1, 4, 16]))
def test_plan_is_accepted(net: Numbers, alignment: int) -> None:
    plan = planned(net, alignment)
    checked(net, plan)
    assert plan.live <= plan.size
    assert all(place.offset % alignment == 0 for place in plan.places.values())
    rows = {layer.name: 0 for layer in net.layers}
    for band in plan.bands:
        rows[band.layer] += band.rows
    steps = RowNetwork(
        {each.name: each for each in net.tensors}, (*net.layers,), (*net.inputs,), ()
    ).steps
    assert all(rows.values())
    assert all(rows[name] <= max(steps[name], rows[name] * (steps[name] == 1)) for name in rows)


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_window_one_row_short_is_refused(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    reads = [each for layer in net.layers for each in layer.reads]
    read = {name for name, _ in reads} | {*net.outputs}
    # A row that all readers skip, as by a stride of 2 without overlap, may be overwritten at once.
    skipped = {name for name, rows in reads if rows.stride > rows.extent * rows.repeat} - {*net.outputs}
    read -= skipped
    wide = sorted(name for name, place in plan.places.items() if place.window > 1 and name in read)
    assume(wide)
    place = plan.places[data.draw(st.sampled_from(wide))]
    shared = [name for name, other in plan.places.items() if other == place]
    assume(all(name in read for name in shared))
    short = dict.fromkeys(shared, RowWindow(place.offset, place.window - 1, place.row_bytes))
    with pytest.raises(PlanError, match=r"row \d+ of"):
        checked(net, replace(plan, places=plan.places | short))


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_operand_moved_onto_its_result_is_refused(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    pairs = [
        (name, layer.writes[0])
        for layer in net.layers
        for name, rows in layer.reads
        if name not in layer.may_overwrite and rows.end_row(0, 1) == 1
    ]
    assume(pairs)
    operand, result = data.draw(st.sampled_from(pairs))
    there = plan.places[operand]
    moved = RowWindow(plan.places[result].offset, there.window, there.row_bytes)
    with pytest.raises(PlanError):
        checked(net, replace(plan, places=plan.places | {operand: moved}))


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_band_too_early_is_refused(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    makes = {name: layer.name for layer in net.layers for name in layer.writes}
    made = {layer.name: {makes[n] for n, _ in layer.reads if n in makes} for layer in net.layers}
    early = [
        (first, number)
        for number, band in enumerate(plan.bands)
        for first in [next((n for n, b in enumerate(plan.bands) if b.layer in made[band.layer]), number)]
        if first < number and band.first_row == 0
    ]
    assume(early)
    first, number = data.draw(st.sampled_from(early))
    layer = next(each for each in net.layers if each.name == plan.bands[number].layer)
    assume(any(rows.end_row(0, 9) > 0 for _, rows in layer.reads))
    bands = list(plan.bands)
    bands.insert(first, bands.pop(number))
    with pytest.raises(PlanError):
        checked(net, replace(plan, bands=tuple(bands)))


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_band_left_out_or_run_twice_is_refused(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    number = data.draw(st.integers(0, len(plan.bands) - 1))
    band = plan.bands[number]
    with pytest.raises(PlanError, match="rows"):
        checked(net, replace(plan, bands=(*plan.bands[:number], band, band, *plan.bands[number + 1 :])))
    made = next(layer.writes for layer in net.layers if layer.name == band.layer)
    assume({*net.outputs}.intersection(made))
    with pytest.raises(PlanError):
        checked(net, replace(plan, bands=plan.bands[:number] + plan.bands[number + 1 :]))


@settings(deadline=None, max_examples=examples(50))
@given(numbers())
def test_a_byte_fewer_is_refused(net: Numbers) -> None:
    plan = planned(net)
    with pytest.raises(PlanError):
        checked(net, replace(plan, size=plan.size - 1))


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_layer_left_out_is_refused_even_if_nobody_reads_it(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    name = data.draw(st.sampled_from(sorted({band.layer for band in plan.bands})))
    without = tuple(band for band in plan.bands if band.layer != name)
    with pytest.raises(PlanError):
        checked(net, replace(plan, bands=without))


@settings(deadline=None, max_examples=examples(50))
@given(numbers(), st.data())
def test_place_that_is_not_inside_the_arena_is_refused(net: Numbers, data: st.DataObject) -> None:
    plan = planned(net)
    name = data.draw(st.sampled_from(sorted(plan.places)))
    place = plan.places[name]
    offset = data.draw(st.sampled_from([-1, plan.size - place.window * place.row_bytes + 1]))
    with pytest.raises(PlanError, match="outside the arena"):
        checked(net, replace(plan, places=plan.places | {name: replace(place, offset=offset)}))
    with pytest.raises(PlanError, match="has no place"):
        checked(net, replace(plan, places={n: p for n, p in plan.places.items() if n != name}))
