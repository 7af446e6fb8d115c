from itertools import pairwise

from arena_searches import CompoundPart, build_compounds, place_quickly
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import chain, linked, problems

from byoc.memory.arena import (
    ArenaProblem,
    ArenaStep,
    Compound,
    GreedyPacking,
    find_live_ranges,
    search_offsets,
)

part = st.builds(
    lambda size, first, more: CompoundPart(0, size, first, first + more),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 3),
)
two_parts = st.builds(
    lambda a, b: Compound((a, CompoundPart(a.size, b.size, b.first, b.last))), part, part
)
plain = st.lists(st.builds(lambda a: Compound((a,)), part), max_size=5)
mixed = st.lists(st.one_of(st.builds(lambda a: Compound((a,)), part), two_parts), max_size=3)


def overlap(one: Compound, at_one: int, other: Compound, at_other: int) -> bool:
    return any(
        p.first <= q.last
        and q.first <= p.last
        and at_one + p.offset < at_other + q.offset + q.size
        and at_other + q.offset < at_one + p.offset + p.size
        for p in one.parts
        for q in other.parts
    )


def fits(parts: list[Compound], height: int, offsets: tuple[int, ...] = ()) -> bool:
    if len(offsets) == len(parts):
        return True
    here = parts[len(offsets)]
    return any(
        fits(parts, height, (*offsets, at))
        for at in range(height - here.size + 1)
        if not any(overlap(parts[n], o, here, at) for n, o in enumerate(offsets))
    )


def least_height(parts: list[Compound]) -> int:
    return next(h for h in range(100) if fits(parts, h))


def right(parts: list[Compound], offsets: list[int]) -> bool:
    pairs = [(a, b) for a in range(len(parts)) for b in range(a)]
    return all(not overlap(parts[a], offsets[a], parts[b], offsets[b]) for a, b in pairs)


@settings(deadline=None)
@given(plain)
def test_climbing_finds_the_lowest_of_plain_compounds(parts: list[Compound]) -> None:
    packing = GreedyPacking(parts)

    offsets = search_offsets(packing, least_height(parts))

    assert right(parts, offsets)
    assert packing.height(offsets) == least_height(parts)


@settings(deadline=None)
@example(
    [
        Compound((CompoundPart(0, 2, 1, 1),)),
        Compound((CompoundPart(0, 1, 1, 1), CompoundPart(1, 2, 0, 0))),
        Compound((CompoundPart(0, 2, 0, 0), CompoundPart(2, 2, 1, 1))),
    ]
)
@given(mixed)
def test_climbing_finds_the_lowest_of_a_few_compounds(parts: list[Compound]) -> None:
    packing = GreedyPacking(parts)

    offsets = search_offsets(packing, least_height(parts))

    assert right(parts, offsets)
    assert packing.height(offsets) == least_height(parts)


@settings(deadline=None)
@given(mixed, st.booleans())
def test_whatever_the_sequence_nothing_meets(parts: list[Compound], best_fit: bool) -> None:
    packing = GreedyPacking(parts)
    for sequence in (packing.by_size(), packing.by_start(), packing.by_area(), packing.by_duration()):
        assert right(parts, packing.place(sequence, best_fit))
    assert right(parts, place_quickly(packing, 0))


def test_best_fit_takes_the_tightest_hole() -> None:
    first = [
        CompoundPart(0, 4, 0, 9),
        CompoundPart(0, 5, 0, 1),
        CompoundPart(0, 1, 0, 9),
        CompoundPart(0, 3, 0, 1),
        CompoundPart(0, 2, 0, 9),
    ]
    packing = GreedyPacking([Compound((p,)) for p in (*first, CompoundPart(0, 3, 5, 6))])

    assert packing.place(range(6)) == [0, 4, 9, 10, 13, 4]
    assert packing.place(range(6), best_fit=True) == [0, 4, 9, 10, 13, 10]


def test_a_chain_of_take_overs_is_one_place() -> None:
    together = build_compounds(find_live_ranges(chain(8, 8, 8, over=True), (0, 1)))

    assert together.all == (Compound((CompoundPart(0, 8, -1, 1),), ((0, 0), (1, 0), (2, 0))),)


def test_a_take_over_that_a_link_forbids_is_not_done() -> None:
    steps = (ArenaStep("a", (0,), (1,), (0,)),)
    problem = ArenaProblem(("x", "y"), (8, 8), steps, frozenset({0}), frozenset({1}), ((0, 1),))

    together = build_compounds(find_live_ranges(problem, (0,)))

    assert together.overwrites == (None, None)
    assert len(together.all[0].parts) == 2


@settings(deadline=None)
@given(problems(7), st.integers(0, 99))
def test_linked_buffers_and_take_overs_keep_their_distance(problem: ArenaProblem, seed: int) -> None:
    problem = linked(problem, seed)
    lives = find_live_ranges(problem, range(len(problem.steps)))
    together = build_compounds(lives)

    where = {b: (n, at) for n, c in enumerate(together.all) for b, at in c.members}
    assert len(where) == len(problem.sizes)
    for row in problem.links:
        for left, right_of in pairwise(row):
            assert where[right_of] == (where[left][0], where[left][1] + problem.sizes[left])
    for buffer, under in enumerate(together.overwrites):
        assert under is None or where[buffer] == where[under]
