"""Measuring one function or several in turn, by a clock that the tests drive."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from byoc.comparison import Patience, Samples, measure_in_turn


def test_median_and_spread_by_hand() -> None:
    assert Samples.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Samples(3.0, 2.0, 5)
    assert Samples.of([7.0]) == Samples(7.0, 0.0, 1)


@dataclass
class Clockwork:
    """A clock that goes on by what each run takes, and a list of who ran."""

    now: float = 0.0
    ran: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, seconds: list[float]) -> Callable[[], None]:
        pending = list(seconds)

        def run() -> None:
            self.ran.append(name)
            self.now += pending.pop(0) if len(pending) > 1 else pending[0]

        return run


def test_each_runs_as_often_behind_each_other_one() -> None:
    clock = Clockwork()
    runs = [clock.run("a", [1.0]), clock.run("b", [2.0]), clock.run("c", [3.0])]

    found = measure_in_turn(runs, Patience(warmup=1, least=300, most=300, seconds=1e9), clock)

    assert found == [[1.0] * 300, [2.0] * 300, [3.0] * 300]
    order = "".join(clock.ran[3:])
    assert all(sorted(order[at : at + 3]) == ["a", "b", "c"] for at in range(0, 900, 3))
    before = Counter(pairwise(order))
    for each in "abc":
        counts = [before[other, each] for other in "abc" if other != each]
        assert min(counts) > 0.8 * max(counts)


def test_warming_up_does_not_count() -> None:
    clock = Clockwork()

    found = measure_in_turn(
        [clock.run("a", [9.0, 9.0, 1.0])], Patience(warmup=2, least=2, most=2), clock
    )

    assert found == [[1.0, 1.0]]


def test_it_goes_on_until_all_have_settled() -> None:
    clock = Clockwork()
    runs = [clock.run("a", [1.0]), clock.run("b", [1.0, 2.0, 1.0, 2.0, 1.0])]

    found = measure_in_turn(runs, Patience(warmup=0, least=2, most=50, seconds=1e9, settled=0.1), clock)

    assert 4 < len(found[1]) < 50
    assert len(found[0]) == len(found[1])


def test_it_ends_when_the_seconds_for_each_have_passed() -> None:
    clock = Clockwork()
    runs = [clock.run("a", [1.0, 3.0] * 50), clock.run("b", [1.0, 3.0] * 50)]

    found = measure_in_turn(runs, Patience(warmup=0, least=2, most=50, seconds=8.0, settled=0.0), clock)

    assert len(found[0]) == 4  # 2, 8, 10, 16 seconds: 8 for each of the two
