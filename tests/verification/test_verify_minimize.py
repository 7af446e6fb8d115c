"""The searches alone, on sets that are wrong by definition."""

from collections.abc import Sequence
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from byoc.verification._part_trials import TrialOutcome, find_shortest_wrong, minimize_wrong

OFF, RIGHT, UNKNOWN = TrialOutcome.WRONG, TrialOutcome.RIGHT, TrialOutcome.UNKNOWN


@given(st.integers(1, 200), st.data())
def test_the_earliest_prefix_in_few_tries(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count))
    tried = []

    def trial(length: int) -> TrialOutcome:
        tried.append(length)
        return OFF if length >= first else RIGHT

    assert find_shortest_wrong(count, trial) == first
    assert len(tried) <= ceil(log2(count)) + 1 if count > 1 else not tried
    assert len({*tried}) == len(tried)
    assert all(0 < length < count for length in tried)


@given(st.lists(st.sampled_from([OFF, RIGHT, UNKNOWN]), min_size=1, max_size=30))
def test_whatever_is_known_a_change_from_right_to_off_is_found(outcomes: list[TrialOutcome]) -> None:
    outcomes[-1] = OFF
    found = find_shortest_wrong(len(outcomes), lambda length: outcomes[length - 1])
    assert outcomes[found - 1] is OFF
    before = [outcome for outcome in outcomes[: found - 1] if outcome is not UNKNOWN]
    assert not before or before[-1] is RIGHT


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4))
    )
)
def test_what_is_off_only_together_is_all_that_is_left(case: tuple[int, set[int]]) -> None:
    count, needed = case
    found = minimize_wrong(range(count), lambda items: OFF if needed <= {*items} else RIGHT)
    assert found == sorted(needed)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_what_is_left_is_off_and_nothing_of_it_can_go(count: int, random: object) -> None:
    """Whatever outcome each set has, so that ddmin's promise holds though nothing is monotone."""
    told: dict[tuple[int, ...], TrialOutcome] = {tuple(range(count)): OFF}

    def trial(items: Sequence[int]) -> TrialOutcome:
        return told.setdefault(tuple(items), random.choice([OFF, RIGHT, UNKNOWN]))  # type: ignore[attr-defined]

    found = minimize_wrong(range(count), trial)
    assert told[tuple(found)] is OFF
    assert found == sorted(found)
    if len(found) > 1:
        assert all(told[(*found[:i], *found[i + 1 :])] is not OFF for i in range(len(found)))
