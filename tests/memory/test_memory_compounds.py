"""Buffers at fixed distances: merged parts cover what they did, and joins keep distances."""

from types import SimpleNamespace
from typing import Any

import pytest
from arena_searches import CompoundPart, build_compounds
from hypothesis import given
from hypothesis import strategies as st

SPANS = st.tuples(st.integers(0, 6), st.integers(0, 3)).map(lambda span: (span[0], sum(span)))
Group = dict[int, int]
"""The addresses of buffers that keep their distances."""


def list_cells(parts: list[CompoundPart]) -> set[tuple[int, int, int]]:
    """Return offset, size and step of what is taken."""
    return {(p.offset, p.size, step) for p in parts for step in range(p.first, p.last + 1) if p.size}


def join_groups(lives: Any, groups: list[Group], left: int, right: int, distance: int) -> bool:
    """Fix `right` at `distance` above `left`; return False where live buffers would overlap."""
    sizes, over = lives.problem.sizes, lives.overwrites
    one = next(group for group in groups if left in group)
    other = next(group for group in groups if right in group)
    shift = one[left] + distance - other[right]
    if one is other:
        return shift == 0
    moved = {number: at + shift for number, at in other.items()}
    for a, at_a in one.items():
        for b, at_b in moved.items():
            apart = at_a >= at_b + sizes[b] or at_b >= at_a + sizes[a]
            together = lives.first[a] <= lives.last[b] and lives.first[b] <= lives.last[a]
            replaces = at_a == at_b and (over[a] == b or over[b] == a)
            if together and not apart and not replaces:
                return False
    one.update(moved)
    groups.remove(other)
    return True


@given(
    st.lists(st.tuples(st.integers(0, 4), SPANS), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=3),
    st.lists(st.none() | st.integers(0, 4), min_size=5, max_size=5),
)
def test_compounds_keep_distances_and_live_buffers_do_not_overlap(
    buffers: list[tuple[int, tuple[int, int]]], links: list[tuple[int, int]], over: list[int | None]
) -> None:
    count = len(buffers)
    sizes, spans = [size for size, _ in buffers], [span for _, span in buffers]
    rows = [(left, right) for left, right in links if left < count and right < count]
    under = [
        at if at is not None and at < count and at != number else None
        for number, at in enumerate(over[:count])
    ]
    problem = SimpleNamespace(sizes=sizes, links=rows, names=[str(n) for n in range(count)])
    lives: Any = SimpleNamespace(
        problem=problem,
        overwrites=under,
        first=[first for first, _ in spans],
        last=[last for _, last in spans],
        order=(),
    )
    groups: list[Group] = [{number: 0} for number in range(count)]
    if not all(join_groups(lives, groups, left, right, sizes[left]) for left, right in rows):
        with pytest.raises(ValueError, match="contradicts another one"):
            build_compounds(lives)
        return
    kept = list(under)
    for number in sorted(range(count), key=lambda n: spans[n][0]):
        at = under[number]
        if at is not None and not join_groups(lives, groups, at, number, 0):
            kept[number] = None

    found = build_compounds(lives)

    assert list(found.overwrites) == kept
    assert len(found.all) == len(groups)
    for compound in found.all:
        placed = dict(compound.members)
        group = next(each for each in groups if placed.keys() == each.keys())
        assert placed == {number: at - min(group.values()) for number, at in group.items()}
        members = [CompoundPart(at, sizes[n], *spans[n]) for n, at in placed.items()]
        assert list_cells([*compound.parts]) == list_cells(members)
        for number, one in enumerate(compound.parts):
            for other in compound.parts[number + 1 :]:
                same = (one.offset, one.size) == (other.offset, other.size)
                assert not (same and one.first <= other.last + 1 and other.first <= one.last + 1)
