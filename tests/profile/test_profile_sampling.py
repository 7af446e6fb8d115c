"""How long something is measured, by a clock that the tests drive."""

from itertools import chain, cycle, repeat

import pytest
from clocks import Clock

from byoc.profile.sampling import Patience, Samples, sampled


def test_warm_up_does_not_count_and_what_settles_is_enough() -> None:
    clock = Clock()
    run = clock.taking(chain([100.0, 50.0], repeat(2.0)))
    assert sampled(run, Patience(warmup=2, least=3, most=10, seconds=1e9), clock) == [2.0] * 3


@pytest.mark.parametrize(
    ("patience", "runs"),
    [
        (Patience(warmup=0, least=5, most=7, seconds=1e9), 7),  # it never settles
        (Patience(warmup=0, least=5, most=100, seconds=12.0), 8),  # 1 + 2 + 1 + 2 + ... reaches 12
        (Patience(warmup=0, least=5, most=100, seconds=0.0), 5),
        (Patience(warmup=0, least=5, most=100, seconds=1e9, settled=0.2), 12),  # 1 / sqrt(12) of 1.5
        (Patience(warmup=0, least=5, most=0), 1),
    ],
)
def test_bounds(patience: Patience, runs: int) -> None:
    clock = Clock()
    found = sampled(clock.taking(cycle([1.0, 2.0])), patience, clock)
    assert found == [1.0 + i % 2 for i in range(runs)]


def test_median_and_spread_by_hand() -> None:
    assert Samples.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Samples(3.0, 2.0, 5)
    assert Samples.of([7.0]) == Samples(7.0, 0.0, 1)
