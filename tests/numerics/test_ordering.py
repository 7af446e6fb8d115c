"""Topological order, disjoint sets, and rounding up."""

from byoc.numerics import find_cycle, merge_groups, round_up, sort_topologically


def test_of_the_nodes_that_are_ready_the_smallest_key_is_first() -> None:
    assert sort_topologically([[], [], [0, 1], [2]]) == [0, 1, 2, 3]
    assert sort_topologically([[], [], [0, 1], [0]], ["d", "c", "b", "a"]) == [1, 0, 3, 2]


def test_nodes_on_a_cycle_and_those_after_it_are_left_out() -> None:
    assert sort_topologically([[], [0, 2], [1], [2], [0]]) == [0, 4]


def test_a_cycle_is_found_among_what_leads_to_it_and_follows() -> None:
    assert set(find_cycle([[], [0, 2], [1], [2], [3]])) == {1, 2}
    assert find_cycle([[], [0]]) == []


def test_groups_that_overlap_are_one_set() -> None:
    assert merge_groups(6, [(5, 3), (1, 2), (2, 3)]) == [0, 1, 1, 1, 4, 1]


def test_round_up() -> None:
    assert [round_up(size, 16) for size in (0, 1, 16, 17)] == [0, 16, 16, 32]
