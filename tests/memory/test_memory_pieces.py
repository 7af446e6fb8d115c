"""Parts of the arena planner, against searches of every set, every gap and every sequence."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest
from arena_searches import (
    CompoundPart,
    find_best_order,
    find_lowest_offsets,
    place_quickly,
    split_segments,
    vary_order,
)
from hypothesis import given
from hypothesis import strategies as st
from problems import chain, problems, random_problem, total_bytes

from byoc.errors import InputError
from byoc.memory.arena import (
    METHODS,
    ArenaProblem,
    ArenaStep,
    Compound,
    DistancePacking,
    GreedyPacking,
    find_live_ranges,
    find_lowest_gap,
    pack_under,
    plan_buffers,
    search_offsets,
)
from byoc.numerics import SearchBudget

blocks = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 3)).map(
        lambda each: Compound.of_block(each[0], each[1], each[1] + each[2])
    ),
    min_size=1,
    max_size=4,
)


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
        # Items without bytes lie at 0, and the last one keeps its distances from them.
        count = len(taken)
        conflicts = [*([] for _ in taken), [(other, *span) for other, span in enumerate(taken)]]
        packing = DistancePacking([0] * (count + 1), conflicts)
        assert packing.place(range(count + 1), best_fit=True)[-1] == tightest
        assert packing.place(range(count + 1))[-1] == lowest


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


class _Counted(GreedyPacking):
    """A packing that counts how often its compounds are placed."""

    placed = 0

    def place_below(
        self, sequence: Iterable[int], best_fit: bool, goal: float
    ) -> tuple[list[int], int | None]:
        self.placed += 1
        return super().place_below(sequence, best_fit, goal)


def test_a_search_ends_with_its_budget_or_after_its_tries() -> None:
    blocks = [Compound.of_block(1 + n % 7, n % 5, n % 5 + 1 + n % 3) for n in range(30)]
    found = []
    for tries in (0, 2, 20, 10_000):
        packing = _Counted(blocks)
        budget = SearchBudget((tries + 0.5) * packing.seconds)
        height = packing.height(search_offsets(packing, packing.peak - 1, budget))
        # Eight sequences at first, and each repair of one places it before or after its tries.
        assert 8 <= packing.placed <= 8 + tries + 1 + 16
        assert budget.is_spent == (tries < 10_000)
        found.append((packing.placed, height))
    placed, heights = zip(*found, strict=True)
    assert list(placed) == sorted({*placed})
    assert list(heights) == sorted(heights, reverse=True)
    assert placed[-1] <= 8 + 8 * (500 + 1) + 8 * (8_000 // 31 + 1)


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
