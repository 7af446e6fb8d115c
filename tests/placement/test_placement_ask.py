"""Strategies that do as they like: what they can touch, how they fail, what of their answer counts."""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from byoc.errors import InputError
from byoc.placement import (
    Cost,
    Fusion,
    Placement,
    Problem,
    describe_ignored,
    find_violation,
    normalize_placement,
    run_strategy,
    solve_problem,
    strategy_display_name,
)


class Vendors:
    """A strategy from outside that does what it is told to."""

    name: Any = "mine"
    honours: Any = frozenset()

    def __init__(self, does: Callable[[Problem], Any]) -> None:
        self.solve = does


class Nameless(Vendors):
    """One whose properties fail."""

    @property
    def name(self) -> Any:
        raise RuntimeError("no name")

    @property
    def honours(self) -> Any:
        raise RuntimeError("no honours")


def chain() -> Problem:
    """Return two units, one after the other; the accelerator refuses the second."""
    return Problem.build(
        seconds=[[4.0, 1.0], [4.0, np.inf]],
        producer=[0, 1],
        consumers=[[1], []],
        is_output=[False, True],
        to_device=np.ones((2, 1)),
        to_host=np.ones((2, 1)),
        launch=[1],
        min_nodes=[2],
    )


def on_host(problem: Problem) -> Placement:
    return Placement.from_labels(problem, np.zeros(problem.units, np.int64))


def everywhere(problem: Problem) -> Placement:
    return Placement.from_labels(problem, np.ones(problem.units, np.int64))


def test_the_arrays_cannot_be_written_to() -> None:
    def writes(problem: Problem) -> Placement:
        problem.seconds[:] = 0.0
        return everywhere(problem)

    with pytest.raises(InputError, match="strategy mine: failed with ValueError: assignment destin"):
        run_strategy(Vendors(writes), chain())


def test_what_is_held_to_is_the_problem_as_it_was() -> None:
    fused = replace(chain(), seconds=np.ones((2, 2)), fusions=(Fusion((0, 1), 1, 0.5),))

    def forces(problem: Problem) -> Placement:
        problem.seconds.setflags(write=True)
        problem.seconds[:] = 0.0
        object.__setattr__(problem, "min_nodes", np.zeros(1, np.int64))
        for fusion in problem.fusions:
            object.__setattr__(fusion, "saving", 0.0)
        return everywhere(problem)

    problem = chain()
    assert "which refuses it" in find_violation(problem, run_strategy(Vendors(forces), problem))
    assert problem.seconds[0, 0] == 4
    assert problem.min_nodes[0] == 2
    run_strategy(Vendors(forces), fused)
    assert fused.fusions[0].saving == 0.5


def test_the_cost_is_found_anew() -> None:
    problem = chain()
    lie = replace(on_host(problem), cost=Cost(1e-9, 0, 0), bound=np.float32(0.5), fusions=[])  # type: ignore[arg-type]
    assert find_violation(problem, lie) == ""
    placement = normalize_placement(problem, lie)
    assert placement.cost.total == 8
    assert (type(placement.bound), placement.bound, placement.fusions) == (float, 0.5, ())


def test_a_problem_is_solved_by_name_and_in_any_order() -> None:
    problem = replace(chain(), min_nodes=np.zeros(1, np.int64))
    greedy = Vendors(lambda given: Placement.from_labels(given, given.costs.argmin(axis=1)))
    placement = solve_problem(problem, greedy, ["second", "first"])  # names do not override the edges
    assert placement.labels.tolist() == [1, 0]
    assert placement.notes == ("strategy mine: launches played no part in the choice",)


def test_a_refusal_names_the_unit_and_the_limits_that_were_ignored() -> None:
    with pytest.raises(InputError) as caught:
        solve_problem(chain(), Vendors(everywhere), ["a", "b"])
    assert str(caught.value) == (
        "strategy mine: it placed unit 'b' on device 1, which refuses it "
        "(it was not told how many nodes a region may have)"
    )


def test_long_sentences_are_cut() -> None:
    placement = replace(
        on_host(chain()), notes=("x" * 50_000_000, "a\n\nb") + ("c",) * 100, why_host="y\n" * 10_000
    )
    found = normalize_placement(chain(), placement)
    assert len(found.notes) == 20
    assert (len(found.notes[0]), found.notes[1]) == (1000, "a b")
    assert len(found.why_host) == 1000


class MuteError(Exception):
    """An exception that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (BaseException("boo"), "BaseException: boo"),
        (MuteError(), "MuteError"),
        (ValueError("one\ntwo\r\nthree"), "ValueError: one two three"),
        (ValueError("x" * 10_000_000), f"ValueError: {'x' * 497}..."),
    ],
)
def test_failures_are_the_strategys(error: BaseException, sentence: str) -> None:
    def fails(_: Problem) -> Placement:
        raise error

    with pytest.raises(InputError) as caught:
        run_strategy(Vendors(fails), chain())
    assert str(caught.value) == f"strategy mine: failed with {sentence}"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM)])
def test_who_says_stop_is_heard(error: BaseException) -> None:
    def is_stopped(_: Problem) -> Placement:
        if isinstance(error, SystemExit):
            sys.exit(error.code)
        raise error

    with pytest.raises(type(error)):
        run_strategy(Vendors(is_stopped), chain())


@pytest.mark.parametrize("honours", [None, 5, "launch"])
def test_honours_that_are_no_set(honours: Any) -> None:
    strategy = Vendors(on_host)
    strategy.honours = honours
    with pytest.raises(InputError, match=r"^strategy mine: its honours are not a set of names$"):
        describe_ignored(strategy, chain())


def test_properties_that_fail() -> None:
    strategy = Nameless(on_host)
    assert strategy_display_name(strategy) == "Nameless"
    with pytest.raises(InputError, match=r"^strategy Nameless: its honours are not a set of names$"):
        describe_ignored(strategy, chain())


def test_a_name_is_short() -> None:
    strategy = Vendors(on_host)
    strategy.name = "long\n" * 1000
    assert len(strategy_display_name(strategy)) == 80
    strategy.name = 5
    assert strategy_display_name(strategy) == "5"
