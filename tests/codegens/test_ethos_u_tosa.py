"""What `ethos_u` does without Vela and reference model: scales, orders of axes, graphs."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flatbuffers")

from byoc.codegens.ethos_u.lower_elementwise import find_factors
from byoc.codegens.ethos_u.lowering import Value, arrange, arrange_plain, reshape_value
from byoc.codegens.ethos_u.tosa_graph import TosaGraph, merge_axes, quantize_scales

SCALES = st.floats(2.0**-31, 2.0**20)


@given(st.lists(SCALES, min_size=1, max_size=5), st.sampled_from([15, 31]))
def test_a_multiplier_and_a_shift_are_the_scale(scales: list[float], bits: int) -> None:
    if bits == 15:
        scales = [min(scale, 2.0**12) for scale in scales]
    multipliers, shifts = quantize_scales(np.array(scales), bits)

    assert np.all((multipliers >= 0) & (multipliers < 2**bits))
    assert np.all((shifts >= 2) & (shifts <= 62))
    made = multipliers.astype(float) / 2.0 ** shifts.astype(float)
    assert np.all(np.abs(made - scales) <= np.array(scales) * 2.0**-bits + 2.0**-62)


@pytest.mark.parametrize("scale", [2.0**30, -1.0])
def test_a_scale_that_is_none_is_an_error(scale: float) -> None:
    with pytest.raises(ValueError, match="cannot be a multiplier and a shift"):
        quantize_scales(np.array([scale]), 31)


@given(st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=4), st.sampled_from([2**14 - 1, 2**15 - 1]))
def test_factors_are_in_the_ratio_of_scales(scales: list[float], most: int) -> None:
    factors, unit = find_factors(scales, most)

    assert 0 < max(factors) <= most
    assert np.all(np.abs(np.array(factors) * unit - scales) <= max(scales) * 1.01 / most)


def test_factors_of_equal_scales_are_one() -> None:
    assert find_factors([0.1, 0.1, 0.1], 100) == ([1, 1, 1], pytest.approx(0.1))
    assert find_factors([0.3, 0.1], 100)[0] == [3, 1]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Draw a shape, an order of its axes, and another shape of as many elements."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5)))
    order = draw(st.sampled_from(list(permutations(range(len(shape))))))
    left, made = math.prod(shape), list[int]()
    while left > 1:
        factor = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        made.append(factor)
        left //= factor
    for _ in range(draw(st.integers(0, 2))):
        made.insert(draw(st.integers(0, len(made))), 1)
    return shape, order, tuple(made) or (1,)


@given(reshapes())
def test_a_reshape_is_numpys_in_any_order_of_axes(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, order, wanted = case
    numbers = np.arange(math.prod(shape)).reshape(shape)
    graph = TosaGraph()
    value = Value(graph.constant(numbers.transpose(order), "int32"), order)
    assert value.shape == shape

    made = reshape_value(graph, value, wanted)

    assert made.shape == wanted
    found = arrange_plain(graph, made).tensor.data
    assert found is not None
    np.testing.assert_array_equal(found, numbers.reshape(wanted))


def test_a_channel_shuffle_moves_channels_alone() -> None:
    graph = TosaGraph()
    image = Value(graph.add_input("int8", (1, 10, 12, 8)), (0, 2, 3, 1))

    split = reshape_value(graph, image, (1, 2, 4, 10, 12))
    assert (split.tensor.shape, split.order) == ((1, 10, 12, 2, 4), (0, 3, 4, 1, 2))
    perm = (0, 2, 1, 3, 4)
    moved = Value(split.tensor, tuple(perm.index(axis) for axis in split.order))
    joined = arrange(graph, reshape_value(graph, moved, (1, 8, 10, 12)), (0, 2, 3, 1))

    assert joined.tensor.shape == (1, 10, 12, 8)
    (move,) = (each for each in graph.operators if each.op == "TRANSPOSE")
    assert move.attributes["perms"] == [0, 2, 1]  # rows and columns together, groups, channels


@given(reshapes())
def test_merged_axes_move_elements_alike(
    case: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, order, _ = case
    numbers = np.arange(math.prod(shape)).reshape(shape)

    extents, perms = merge_axes(shape, order)

    found = numbers.reshape(extents).transpose(perms) if extents else numbers
    np.testing.assert_array_equal(found.reshape(-1), numbers.transpose(order).reshape(-1))
    assert 1 not in extents
    assert all(later != first + 1 for first, later in pairwise(perms))


def test_a_transpose_that_is_too_large_at_once_moves_axis_by_axis() -> None:
    graph = TosaGraph()
    graph.transpose(graph.add_input("int8", (20, 300, 300, 30)), (3, 2, 1, 0))

    moves = [each for each in graph.operators if each.op == "TRANSPOSE"]
    assert len(moves) > 1
    assert all(len(each.attributes["perms"]) <= 3 for each in moves), moves


def test_axes_of_one_element_move_for_nothing() -> None:
    graph = TosaGraph()
    tensor = graph.add_input("int8", (1, 7, 1, 8))

    graph.transpose(tensor, (2, 1, 0, 3))

    assert all(each.op != "TRANSPOSE" for each in graph.operators)


def test_the_same_graph_gives_the_same_bytes_and_a_constant_is_stored_once() -> None:
    def write() -> bytes:
        graph = TosaGraph()
        total = graph.add_input("int32", (4,))
        for _ in range(3):
            total = graph.combine("ADD", total, graph.constant(np.array([7]), "int32"))
        graph.add_output(total)
        assert sum(each.op == "CONST" for each in graph.operators) == 1
        return graph.write()

    assert write() == write()
    assert write()[4:8] == b"TOSA"
