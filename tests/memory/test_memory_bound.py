from arena_searches import (
    find_best_order,
    find_cut_bound,
    find_least_bytes_at,
    find_witness,
    split_segments,
)
from hypothesis import given, settings
from problems import chain, fewest_bytes_at, problems

from byoc.memory.arena import ArenaProblem, find_live_ranges


@settings(deadline=None)
@given(problems(6))
def test_the_cut_at_each_step_is_the_fewest_bytes_over_all_sets(problem: ArenaProblem) -> None:
    cuts = [fewest_bytes_at(problem, step) for step in range(len(problem.steps))]

    segments = list(split_segments(problem))
    assert [find_least_bytes_at(each, step) for each in segments for step in range(each.count)] == cuts
    found, step = find_cut_bound(find_live_ranges(problem, range(len(problem.steps))))
    assert found == max(cuts, default=0)
    assert step is None or cuts[step] == found


@settings(deadline=None)
@given(problems(9))
def test_the_largest_cut_is_never_above_the_least_peak(problem: ArenaProblem) -> None:
    ordered = find_best_order(problem)

    found, _ = find_cut_bound(find_live_ranges(problem, range(len(problem.steps))))

    assert found <= ordered.peak
    step = find_witness(find_live_ranges(problem, ordered.order), ordered.peak)
    assert (step is not None) == (bool(problem.steps) and found == ordered.peak)


def test_bytes_beyond_32_bits_are_exact() -> None:
    big = 2**40 + 1

    assert find_cut_bound(find_live_ranges(chain(big, 3 * big, big), (0, 1)))[0] == 4 * big
