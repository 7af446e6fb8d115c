"""Buffers at fixed distances: merged parts cover what they did, and joins keep distances."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from byoc.memory.arena import CompoundPart
from byoc.memory.arena._packing import _JoinedBuffers, _merge_parts

SPANS = st.tuples(st.integers(0, 6), st.integers(0, 3)).map(lambda span: (span[0], sum(span)))


def list_cells(parts: list[CompoundPart]) -> set[tuple[int, int, int]]:
    """Return offset, size and step of what is taken."""
    return {(p.offset, p.size, step) for p in parts for step in range(p.first, p.last + 1) if p.size}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), SPANS), max_size=8))
def test_merged_parts_cover_the_same_and_do_not_touch(
    drawn: list[tuple[int, int, tuple[int, int]]],
) -> None:
    parts = [CompoundPart(offset, size, *span) for offset, size, span in drawn]
    merged = [*_merge_parts(parts)]
    assert list_cells(merged) == list_cells(parts)
    for number, one in enumerate(merged):
        for other in merged[number + 1 :]:
            same = (one.offset, one.size) == (other.offset, other.size)
            assert not (same and one.first <= other.last + 1 and other.first <= one.last + 1)


@given(
    st.lists(st.tuples(st.integers(1, 4), SPANS), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-4, 4)), max_size=6),
)
def test_joined_buffers_keep_their_distances_and_live_ones_do_not_overlap(
    buffers: list[tuple[int, tuple[int, int]]], joins: list[tuple[int, int, int]]
) -> None:
    count = len(buffers)
    sizes, spans = [size for size, _ in buffers], [span for _, span in buffers]
    lives: Any = SimpleNamespace(
        problem=SimpleNamespace(sizes=sizes),
        overwrites=[None] * count,
        first=[first for first, _ in spans],
        last=[last for _, last in spans],
    )
    joined = _JoinedBuffers(lives)
    groups = [{number: 0} for number in range(count)]  # addresses of the buffers of each group
    for left, right, distance in joins:
        if left >= count or right >= count:
            continue
        one = next(group for group in groups if left in group)
        other = next(group for group in groups if right in group)
        shift = one[left] + distance - other[right]
        moved = {number: at + shift for number, at in other.items()}
        if one is other:
            fits = shift == 0
        else:
            fits = not any(
                one[a] < moved[b] + sizes[b]
                and moved[b] < one[a] + sizes[a]
                and spans[a][0] <= spans[b][1]
                and spans[b][0] <= spans[a][1]
                for a in one
                for b in moved
            )
        assert joined.join(left, right, distance) == fits
        if fits and one is not other:
            one.update(moved)
            groups.remove(other)
    compounds = [*joined.build([None] * count)]
    assert len(compounds) == len(groups)
    for compound in compounds:
        placed = dict(compound.members)
        group = next(each for each in groups if placed.keys() == each.keys())
        assert placed == {number: at - min(group.values()) for number, at in group.items()}
