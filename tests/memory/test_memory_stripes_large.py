"""Networks too large to be planned row by row, or to be searched to the end."""

import pytest
from checkers.stripes_check import check
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stripes_random import Numbers, numbers

from byoc.memory.stripes import (
    SAME_ROW,
    OperandRows,
    RowLayer,
    RowTensor,
    stripe,
)


def _planned_by_blocks(net: Numbers, most: int, alignment: int = 1) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byoc.memory.stripes._ROWS", most)
        plan = stripe(net.tensors, net.layers, net.inputs, net.outputs, alignment)
    check(net.tensors, net.layers, net.inputs, net.outputs, plan)
    assert plan.live <= plan.size
    highest = max(each.rows for each in net.tensors)
    assert bool(plan.limits) == (highest > most)


@settings(deadline=None, max_examples=examples(100))
@given(numbers(), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 4]))
def test_plan_of_blocks_is_a_plan_of_rows(net: Numbers, most: int, alignment: int) -> None:
    _planned_by_blocks(net, most, alignment)


def test_millions_of_rows_cost_no_more_than_thousands() -> None:
    rows = 1 << 24
    tensors = [RowTensor("x", rows, 4), RowTensor("y", rows, 4), RowTensor("z", rows // 2, 4)]
    layers = [
        RowLayer("y", (("x", OperandRows(3, 1, 1)),), ("y",)),
        RowLayer("z", (("y", OperandRows(2, 2)),), ("z",)),
    ]
    plan = stripe(tensors, layers, ["x"], ["z"])

    assert plan.limits == ("rows go in blocks of up to 4096",)
    assert len(plan.bands) < 3 * 4096
    assert sum(band.rows for band in plan.bands if band.layer == "z") == rows // 2
    assert plan.size < 1.01 * rows * 4


def test_blocks_of_half_the_rows_below_a_stride_of_two_need_one_block_more() -> None:
    rows = 1 << 13
    tensors = [RowTensor("w", rows, 4), RowTensor("x", rows, 4), RowTensor("y", rows // 2, 4)]
    layers = [
        RowLayer("x", (("w", SAME_ROW),), ("x",)),
        RowLayer("y", (("x", OperandRows(2, 2)),), ("y",)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byoc.memory.stripes._ROWS", 1024)
        plan = stripe(tensors, layers, ["w"], ["y"])

    assert {(band.layer, band.rows) for band in plan.bands} == {("x", 8), ("y", 4)}
    assert plan.places["x"].window == 8


def _chain(count: int) -> Numbers:
    tensors = [RowTensor("x", 16, 8), *(RowTensor(f"t{n}", 16, 8) for n in range(count))]
    layers = [
        RowLayer(
            f"t{n}",
            ((tensors[n].name, OperandRows(3, 1, 1)), (tensors[max(n - 5, 0)].name, SAME_ROW)),
            (f"t{n}",),
        )
        for n in range(count)
    ]
    return Numbers(tensors, layers, ["x"], [tensors[-1].name])


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("_WORK", "not all cascades were looked at"),
        ("_CASCADE", "not all cascades were looked at"),
        ("_row_clock._MEETINGS", "not all places were looked at"),
        ("_row_clock._LOOKED", "not all places were looked at"),
    ],
)
def test_search_that_is_cut_short_says_so(limit: str, said: str) -> None:
    net = _chain(30)
    full = stripe(net.tensors, net.layers, net.inputs, net.outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"byoc.memory.stripes.{limit}", 100)
        plan = stripe(net.tensors, net.layers, net.inputs, net.outputs)

    check(net.tensors, net.layers, net.inputs, net.outputs, plan)
    assert full.limits == ()
    assert plan.limits == (said,)
    assert plan.size >= full.size


def test_a_search_with_work_for_all_cascades_is_the_only_one_without_a_limit() -> None:
    net = _chain(30)
    found = []
    for work in (100, 150_000, 1_000_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("byoc.memory.stripes._WORK", work)
            plan = stripe(net.tensors, net.layers, net.inputs, net.outputs)
        found.append((plan.size, bool(plan.limits)))

    assert found == [(896, True), (896, True), (832, False)]
