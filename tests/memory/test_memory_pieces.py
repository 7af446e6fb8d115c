"""Parts of the arena planner, against searches of every set, every gap and every sequence."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import chain, problems, random_problem, total_bytes

from byoc.errors import InputError
from byoc.memory.arena import (
    METHODS,
    ArenaProblem,
    ArenaStep,
    Compound,
    CompoundPart,
    DistancePacking,
    GreedyPacking,
    SegmentWalker,
    _find_peak,
    _growing_limits,
    _own_bytes,
    find_best_order,
    find_live_ranges,
    find_lowest_gap,
    pack_under,
    plan_buffers,
    vary_order,
)
from byoc.memory.arena import _packing as packing_module
from byoc.memory.arena._packing import find_lowest_offsets, place_quickly
from byoc.memory.arena._segments import (
    Backward,
    Forward,
    Segment,
    _find_relatives,
    _list_bits,
    find_least_bytes_at,
    split_segments,
)
from byoc.numerics import SearchBudget

blocks = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 3)).map(
        lambda each: Compound.of_block(each[0], each[1], each[1] + each[2])
    ),
    min_size=1,
    max_size=4,
)


def closed_sets(segment: Segment) -> list[int]:
    """Return the sets of steps that hold all predecessors of their steps, as masks."""
    return [
        ran
        for ran in range(1 << segment.count)
        if all(not segment.predecessors[step] & ~ran for step in _list_bits(ran))
    ]


def live_bytes(segment: Segment, ran: int) -> int:
    """Return the bytes of items that are there between the steps of a set and the others."""
    outside = segment.bytes_before - sum(item.size for item in segment.items if not item.maker_mask)
    return outside + sum(
        item.size
        for item in segment.items
        if not item.maker_mask & ~ran and (item.outlives or item.reader_mask & ~ran)
    )


def bytes_while(segment: Segment, step: int, ran: int) -> int:
    """Return the bytes while a step runs after a set of others."""
    makes = [segment.items[item] for item in segment.makes[step]]
    after = ran | 1 << step
    dying = [
        item
        for item in (segment.items[each] for each in segment.may_overwrite[step])
        if not item.outlives and not item.reader_mask & ~after
    ]
    shared = makes[0].size if makes and dying else 0
    needed = segment.scratch[step] + sum(item.size for item in makes) - shared
    return live_bytes(segment, ran) + needed


@given(problems(5))
def test_both_directions_count_the_bytes_of_each_set(problem: ArenaProblem) -> None:
    for segment in split_segments(problem):
        forward, backward = Forward(segment), Backward(segment)
        everything = (1 << segment.count) - 1
        assert forward.start == live_bytes(segment, 0) == segment.bytes_before
        assert backward.start == live_bytes(segment, everything) == segment.bytes_after
        for ran in closed_sets(segment):
            here, left = live_bytes(segment, ran), everything & ~ran
            for step in range(segment.count):
                if not ran >> step & 1 and not segment.predecessors[step] & ~ran:
                    after = live_bytes(segment, ran | 1 << step)
                    needed = bytes_while(segment, step, ran)
                    assert here + forward.change(step, ran) == after
                    assert here + forward.extra(step, ran) == needed
                    gone = left & ~(1 << step)
                    assert after + backward.change(step, gone) == here
                    assert after + backward.extra(step, gone) == needed


@given(problems(5))
def test_what_a_step_needs_in_each_direction_is_before_or_after_it(problem: ArenaProblem) -> None:
    for segment in split_segments(problem):
        forward, backward = Forward(segment), Backward(segment)
        before = [set(_list_bits(mask)) for mask in segment.predecessors]
        after = [
            {other for other in range(segment.count) if step in before[other]}
            for step in range(segment.count)
        ]
        assert [set(_list_bits(mask)) for mask in forward.needs] == before
        assert [*map(set, forward.frees)] == after
        assert [set(_list_bits(mask)) for mask in backward.needs] == after
        assert [*map(set, backward.frees)] == before
        for step in range(segment.count):
            ancestors, descendants = _find_relatives(segment, step)
            sets = [ran for ran in closed_sets(segment) if ran >> step & 1]
            expected = sets[0]
            for ran in sets:
                expected &= ran
            assert ancestors | 1 << step == expected
            later = [
                other
                for other in range(segment.count)
                if other != step
                and all(ran >> step & 1 for ran in closed_sets(segment) if ran >> other & 1)
            ]
            assert _list_bits(descendants) == later


@given(problems(5))
def test_the_bytes_of_a_step_alone_are_no_more_than_it_needs_in_any_order(problem: ArenaProblem) -> None:
    for segment in split_segments(problem):
        for step, own in enumerate(_own_bytes(segment)):
            assert own <= find_least_bytes_at(segment, step)
            items = {*segment.reads[step], *segment.makes[step]}
            sizes = sum(segment.items[item].size for item in items) + segment.scratch[step]
            over = bool(segment.may_overwrite[step] and segment.makes[step])
            assert own == sizes - (segment.items[segment.makes[step][0]].size if over else 0)


def test_the_peak_of_a_sequence_is_that_of_its_first_highest_step_or_a_later_one() -> None:
    segment = Segment(3, 4, 0, (0, 1, 2), (0, 5, 0), (), ((), (), ()), ((), (), ()), ((), (), ()))
    forward = Forward(segment)
    assert _find_peak(forward, (0, 1, 2)) == (9, 1)
    assert _find_peak(forward, (0,)) == (4, 0)
    walker = SegmentWalker(forward, 8, 0b111)
    start = walker.start_state()
    assert (start.state, start.live, start.ready) == (0, 4, (0,))
    reached, steps = walker.follow_chains(start)
    assert (steps, reached.state, reached.ready) == ([0], 1, (1,))
    assert walker.least_blocked == 9
    assert not walker.fits(reached, 1)
    assert SegmentWalker(forward, 9, 0b111).fits(reached, 1)
    assert SegmentWalker(forward, 9, 0b011).follow_chains(start)[1] == [0, 1]
    assert SegmentWalker(forward, 9, 0b110).start_state().ready == ()


@pytest.mark.parametrize(
    ("most", "limits"),
    [(50, [50]), (100, [100]), (101, [100, 101]), (400, [100, 400]), (2000, [100, 400, 1600, 2000])],
)
def test_limits_of_states_grow_fourfold(most: int, limits: list[int]) -> None:
    assert [*_growing_limits(most)] == limits


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=5), st.integers(1, 4))
def test_a_gap_is_the_lowest_that_is_large_enough(spans: list[tuple[int, int]], size: int) -> None:
    taken = {at for begin, length in spans for at in range(begin, begin + length)}
    lowest = next(at for at in range(99) if not taken & {*range(at, at + size)})
    assert find_lowest_gap([(begin, begin + length) for begin, length in spans], size) == lowest


def overlap(packing: GreedyPacking, offsets: Sequence[int], one: int, other: int) -> bool:
    return any(
        a.size
        and b.size
        and a.first <= b.last
        and b.first <= a.last
        and offsets[one] + a.offset < offsets[other] + b.offset + b.size
        and offsets[other] + b.offset < offsets[one] + a.offset + a.size
        for a, b in product(packing.compounds[one].parts, packing.compounds[other].parts)
    )


two_parts = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)),
        min_size=1,
        max_size=2,
    ).map(
        lambda parts: Compound(
            tuple(CompoundPart(at, size, first, first + more) for at, size, first, more in parts)
        )
    ),
    min_size=2,
    max_size=3,
)


@given(two_parts, st.lists(st.integers(0, 7), min_size=3, max_size=3))
def test_conflicts_are_the_distances_at_which_parts_overlap(
    compounds: list[Compound], offsets: list[int]
) -> None:
    packing = GreedyPacking(compounds)
    for one, other in permutations(range(len(compounds)), 2):
        forbidden = any(
            low < offsets[one] - offsets[other] < high
            for owner, low, high in packing.conflicts[one]
            if owner == other
        )
        assert forbidden == overlap(packing, offsets, one, other)


@given(blocks)
def test_sequences_are_sorted_by_what_they_say(compounds: list[Compound]) -> None:
    packing = GreedyPacking(compounds)
    parts = [compound.parts[0] for compound in compounds]
    lengths = [part.last - part.first + 1 for part in parts]
    numbers = range(len(parts))
    assert packing.by_start() == sorted(numbers, key=lambda n: (parts[n].first, -parts[n].size, n))
    assert packing.by_size() == sorted(numbers, key=lambda n: (-parts[n].size, -lengths[n], n))
    assert packing.by_duration() == sorted(numbers, key=lambda n: (-lengths[n], -parts[n].size, n))
    areas = [part.size * length for part, length in zip(parts, lengths, strict=True)]
    assert packing.by_area() == sorted(numbers, key=lambda n: (-areas[n], -parts[n].size, n))
    peaks = (sum(p.size for p in parts if p.first <= at <= p.last) for at in range(12))
    assert packing.peak == max(peaks)
    pairs = sum(len(others) for others in packing.conflicts)
    assert packing.seconds == pytest.approx(4e-7 * (4 * len(parts) + pairs))
    best = min(
        packing.height(packing.place(sequence, best_fit))
        for sequence in (packing.by_size(), packing.by_area(), packing.by_start(), packing.by_duration())
        for best_fit in (True, False)
    )
    assert packing.height(place_quickly(packing, 0)) == best
    assert packing.height(place_quickly(packing, best)) == best


@given(blocks, st.integers(0, 12))
def test_the_first_sequence_that_needs_no_more_than_the_goal_is_taken(
    compounds: list[Compound], goal: int
) -> None:
    packing = GreedyPacking(compounds)
    sequences = packing.by_size(), packing.by_area(), packing.by_start(), packing.by_duration()
    tried = [packing.place(each, best_fit) for each in sequences for best_fit in (True, False)]
    enough = [offsets for offsets in tried if packing.height(offsets) <= goal]
    assert place_quickly(packing, goal) == (enough[0] if enough else min(tried, key=packing.height))


@given(blocks)
def test_the_lowest_offsets_of_a_few_are_those_of_the_best_sequence(compounds: list[Compound]) -> None:
    """For compounds of one part, as low as possible in some sequence is best."""
    packing = GreedyPacking(compounds)
    best = min(packing.height(packing.place(each)) for each in permutations(range(len(compounds))))
    offsets = find_lowest_offsets(packing)
    assert packing.height(offsets) == best
    assert not any(
        overlap(packing, offsets, one, other) for one, other in permutations(range(len(compounds)), 2)
    )


def test_placing_stops_at_the_first_that_ends_too_high() -> None:
    packing = DistancePacking(
        [3, 2, 4], [[(1, -3, 2), (2, -3, 4)], [(0, -2, 3), (2, -2, 4)], [(0, -4, 3), (1, -4, 2)]]
    )
    assert packing.place([0, 1, 2]) == [0, 3, 5]
    assert packing.place([2, 1, 0]) == [6, 4, 0]
    for goal, offsets, above in (
        (9, [0, 3, 5], None),
        (8, [0, 3, 5], 2),
        (5, [0, 3, 5], 2),
        (4, [0, 3, 0], 1),
        (2, [0, 0, 0], 0),
    ):
        assert packing.place_below([0, 1, 2], False, goal) == (offsets, above)
    assert packing.place_under([0, 1, 2], [3, 5, 9]) == [0, 3, 5]
    assert packing.place_under([0, 1, 2], [3, 4, 9]) == [0, None, 3]
    assert packing.place_under([0, 1, 2], [2, 4, 9]) == [None, 0, 2]


def test_the_tightest_gap_leaves_the_least_room_above() -> None:
    for taken, tightest, lowest in (
        ([], 0, 0),
        ([(2, 5)], 0, 0),
        ([(-1, 3)], 3, 3),
        ([(3, 6), (7, 9)], 6, 0),
        ([(3, 6), (9, 12)], 0, 0),
        ([(3, 6), (6, 9)], 6, 0),
        ([(-2, 4), (1, 5), (6, 8), (8, 9)], 8, 5),
        ([(0, 2)], 0, 0),
    ):
        assert packing_module._tightest_gap(taken) == tightest
        assert packing_module._lowest_gap(taken) == lowest


@given(blocks, st.lists(st.integers(0, 12), min_size=9, max_size=9), st.booleans())
def test_what_ends_above_its_ceiling_is_left_out(
    compounds: list[Compound], ceilings: list[int], weighted: bool
) -> None:
    """And where all fit in the sequence by size, none is; a loss is never more than that of all."""
    packing = GreedyPacking(compounds)
    losses = [1.0 + number for number in range(len(compounds))] if weighted else None
    offsets = pack_under(packing, ceilings, losses)
    highest = [min(ceilings[c.parts[0].first : c.parts[0].last + 1]) for c in compounds]
    kept = [number for number, at in enumerate(offsets) if at is not None]
    for number in kept:
        assert (offsets[number] or 0) + packing.sizes[number] <= highest[number]
    placed = [at or 0 for at in offsets]
    assert not any(overlap(packing, placed, one, other) for one, other in permutations(kept, 2))
    alone = {number for number, size in enumerate(packing.sizes) if size > highest[number]}
    assert alone.isdisjoint(kept)
    first = packing.place_under(packing.by_size(), highest)
    weights = losses or [1.0] * len(compounds)
    assert sum(w for w, at in zip(weights, offsets, strict=True) if at is None) <= sum(
        w for w, at in zip(weights, first, strict=True) if at is None
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sizes": (16, 24, 16)}, "b1 has 24 bytes, which is no multiple of 16"),
        ({"step": {"after": (1,)}}, "s0 stands in front of a step that it waits for"),
        ({"step": {"after": (0,)}}, "s0 stands in front of a step that it waits for"),
        ({"step": {"scratch": 8}}, "s0 has scratch that is no multiple of 16"),
        (
            {"step": {"may_overwrite": (0,)}, "sizes": (32, 16, 16)},
            "s0 cannot be written over an operand",
        ),
    ],
)
def test_a_problem_that_is_none_is_told(change: dict[str, object], sentence: str) -> None:
    problem = replace(chain(16, 16, 16), alignment=16)
    assert plan_buffers(problem).size == 32
    step = change.pop("step", {})
    steps = (replace(problem.steps[0], **step), *problem.steps[1:])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        plan_buffers(replace(problem, steps=steps, **change))  # type: ignore[arg-type]


def test_a_method_that_is_none_is_told() -> None:
    with pytest.raises(InputError) as caught:
        plan_buffers(chain(1, 1), "bysize")
    assert str(caught.value) == (
        "no memory planning method is named 'bysize' (did you mean by-size?): there are no-reuse, "
        "best-fit, by-size, reordered, exact"
    )


@pytest.mark.parametrize("seed", range(8))
def test_each_method_keeps_its_order_and_all_have_one_bound(seed: int) -> None:
    problem = random_problem(seed, 7)
    plans = {method: plan_buffers(problem, method) for method in METHODS}
    assert len({(plan.bound, plan.proof, plan.witness) for plan in plans.values()}) == 1
    given_order = tuple(range(7))
    for method in ("no-reuse", "best-fit", "by-size"):
        assert plans[method].order == given_order
    assert plans["reordered"].order == find_best_order(problem).order
    assert plans["no-reuse"].size == total_bytes(problem)
    assert plans["no-reuse"].overwrites == (None,) * len(problem.sizes)
    assert plans["exact"].size <= min(plan.size for plan in plans.values())
    assert plans["exact"].size >= plans["exact"].bound
    proof, witness = plans["exact"].proof, plans["exact"].witness
    assert (proof == "cut") == (witness is not None)
    inputs = sum(problem.sizes[buffer] for buffer in problem.inputs)
    if witness is None:
        assert (proof == "total") == (plans["exact"].bound == inputs)


def test_a_bound_is_proven_by_a_step_or_by_the_inputs() -> None:
    inputs = ArenaProblem(("a", "b"), (5, 7), (ArenaStep("s"),), frozenset({0, 1}), frozenset())
    for problem, bound, proof, witness in (
        (chain(3, 4, 9, 2), 13, "cut", 1),
        (chain(3, 4), 7, "cut", 0),
        (inputs, 12, "total", None),
    ):
        plan = plan_buffers(problem)
        assert (plan.bound, plan.proof, plan.witness) == (bound, proof, witness)
        assert plan.is_minimal


@given(problems(6))
def test_segments_end_before_and_after_steps_that_all_others_precede_or_follow(
    problem: ArenaProblem,
) -> None:
    count = len(problem.steps)
    after: list[set[int]] = [set() for _ in range(count)]  # by reachability
    for step in reversed(range(count)):
        for other in range(step + 1, count):
            if step in problem.predecessors[other]:
                after[step] |= {other} | after[other]
    gates = {
        step
        for step in range(count)
        if all(other in after[step] or step in after[other] for other in range(count) if other != step)
    }
    ends = {0, count} | gates | {step + 1 for step in gates}
    segments = [*split_segments(problem)]
    assert {0} | {each.start + each.count for each in segments} == ends


def test_tries_place_so_many_compounds_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = GreedyPacking([Compound.of_block(1, 0, 0)] * 3)
    for most, tries in ((3, 0), (4, 1), (11, 2), (12, 3)):
        assert [*packing_module._tries(packing, most, SearchBudget())] == list(range(tries))
    monkeypatch.setattr(packing_module, "_MAX_TRIES", 2)
    assert [*packing_module._tries(packing, 99, SearchBudget())] == [0, 1]
    budget = SearchBudget(1.5 * packing.seconds)
    assert [*packing_module._tries(packing, 99, budget)] == [0, 1]
    assert budget.is_spent
    assert [*packing_module._tries(packing, 99, budget)] == []


def test_independent_steps_change_places_and_others_do_not() -> None:
    apart = ArenaProblem(
        tuple("abcd"),
        (1, 1, 1, 1),
        tuple(ArenaStep(name, (), (number,)) for number, name in enumerate("abcd")),
        outputs=frozenset(range(4)),
    )
    lives = find_live_ranges(apart, range(4))
    assert len({vary_order(lives, seed).order for seed in range(9)}) > 3
    row = find_live_ranges(chain(1, 1, 1, 1), range(3))
    assert {vary_order(row, seed).order for seed in range(9)} == {(0, 1, 2)}
    one = find_live_ranges(chain(1, 2), range(1))
    assert vary_order(one, 0).order == (0,)
