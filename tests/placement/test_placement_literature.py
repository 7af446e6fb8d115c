"""Problems that the literature asks for: the right value of each, ours, and the page's table of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byoc.placement import Conditions, PlacedNetwork, Problem, Strategy, add_split, solve_problem
from byoc.placement.strategies import Exact, LaunchAware, Makespan, Throughput

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"


def make(seconds: Sequence[Sequence[float]], **more: Any) -> Problem:
    """Return a problem whose units exchange nothing unless tensors are given."""
    devices = len(seconds[0]) - 1
    nothing: dict[str, Any] = {
        "producer": [],
        "consumers": [],
        "is_output": [],
        "to_device": np.zeros((0, devices)),
        "to_host": np.zeros((0, devices)),
        "launch": np.zeros(devices),
    }
    return Problem.build(seconds=seconds, **{**nothing, **more})


@dataclass(frozen=True)
class Asked:
    """A problem by its name in the page's table, its right value, and the strategy that solves it."""

    name: str
    problem: Problem
    right: float
    strategy: Strategy = field(default_factory=lambda: Makespan(time_limit=1.0))


TWO_STATES = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
"""Both accelerators are states of one engine."""

GOOGLENET = (
    (0.35, 0.15, 0.20, 0.11, 0.12, 0.13, 0.15, 0.19, 0.12, 0.20),
    (0.75, 0.34, 0.45, 0.37, 0.31, 0.33, 0.31, 0.35, 0.27, 0.36),
    (0.05, 0.07, 0.06, 0.01, 0.05, 0.02, 0.06, 0.03, 0.02),
)
RESNET = (
    (0.14, 0.11, 0.39, 0.58, 1.4, 0.9, 0.75, 0.52, 0.59, 0.07),
    (0.28, 0.15, 1.99, 1.73, 2.8, 1.9, 1.41, 0.99, 1.14, 0.15),
    (0.03, 0.11, 0.08, 0.03, 0.09, 0.08, 0.07, 0.06, 0.04),
)
"""Milliseconds of ten groups of layers on GPU and DLA, and of the change between them after each group:
the input that HaX-CoNN's solver comes with (Dagli and Belviranli, PPoPP 2024)."""


def two_chains(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Problem:
    """Return two networks of ten groups each on GPU and DLA, the host being out of reach."""
    makers = [*range(9), *range(10, 19)]
    direct = np.full((18, 2, 2), inf)
    direct[:, 0, 1] = direct[:, 1, 0] = [*first[2], *second[2]]
    return make(
        [[99.0, *pair] for one in (first, second) for pair in zip(*one[:2], strict=True)],
        producer=makers,
        consumers=[[unit + 1] for unit in makers],
        is_output=[False] * 18,
        to_device=np.full((18, 2), 50.0),
        to_host=np.full((18, 2), 50.0),
        conditions=Conditions(
            direct=direct,
            networks=(PlacedNetwork("googlenet"), PlacedNetwork("resnet")),
            network_of=np.repeat([0, 1], 10),
        ),
    )


LINKED: dict[str, Any] = {"producer": [0], "consumers": [[1]], "is_output": [False]}
ENERGY = make([[3, 1], [5, 3], [7, 1]])
"""Seconds of three units; the joules of the same are those of the problem."""

PROBLEMS = [
    Asked(
        "two engines slow one another by 1.8",
        make(
            [[9, 1, 9], [9, 9, 1]],
            conditions=Conditions(slowdown=[[1, 1, 1], [1, 1, 1.8], [1, 1.8, 1]]),
        ),
        1.8,
    ),
    Asked(
        "two engines slow one another by 3",
        make(
            [[9, 1, 9], [9, 9, 1]],
            conditions=Conditions(slowdown=[[1, 1, 1], [1, 1, 3], [1, 3, 1]]),
        ),
        2.0,
    ),
    Asked(
        "two frequency states of one accelerator",
        make([[9, 1, 1.5], [9, 1, 1.5]], conditions=Conditions(engines=TWO_STATES)),
        2.0,
    ),
    Asked(
        "weights beyond the memory, loaded anew in each run",
        make(
            [[10, 1, 1.2], [10, 1, 1.2]],
            memory=[[5, 0], [5, 0]],
            capacity=[5, inf],
            conditions=Conditions(engines=TWO_STATES),
        ),
        2.2,
        LaunchAware(),
    ),
    Asked(
        "the same, the part beyond the memory alone",
        make([[10, 1]], memory=[[7]], capacity=[5], conditions=Conditions(reload=[0.05])),
        1.1,
        LaunchAware(),
    ),
    Asked(
        "least joules within 11 s",
        make([[3, 8], [8, 9], [4, 13]], conditions=Conditions(other=ENERGY, most=11)),
        21.0,
        LaunchAware(),
    ),
    Asked(
        "least seconds within 21 J",
        make(
            [[3, 1], [5, 3], [7, 1]],
            conditions=Conditions(other=make([[3, 8], [8, 9], [4, 13]]), most=21),
        ),
        11.0,
        Exact(),
    ),
    Asked(
        "a pipeline whose stage has two replicas",
        make(
            [[9, 4, 4, 4], [9, 1, 1, 1]],
            conditions=Conditions(engines=[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0.5, 0.5]]),
        ),
        2.5,
        Throughput(),
    ),
    Asked(
        "an operator split over two accelerators",
        make(
            [[9, 4, 4, 2.2], [9, 3, 3, inf]],
            conditions=Conditions(engines=[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]),
        ),
        4.0,
    ),
    Asked(
        "the same where nothing waits: three eighths and five",
        add_split(make([[9, 5, 3]]), (1, 2), [8]),
        1.875,
    ),
    Asked(
        "a direct link between two accelerators",
        make(
            [[9, 1, 9], [9, 9, 1]],
            **LINKED,
            to_device=[[2, 2]],
            to_host=[[2, 2]],
            conditions=Conditions(direct=[[[0, 0.5], [0.5, 0]]]),
        ),
        2.5,
        LaunchAware(),
    ),
    Asked(
        "a link that is slower on the way back",
        make([[9, 1], [1, 9]], **LINKED, to_device=[[0.25]], to_host=[[4.0]]),
        6.0,
        LaunchAware(),
    ),
    Asked(
        "two networks at rates, the earliest deadline first",
        make(
            [[9, 2], [9, 3]],
            conditions=Conditions(
                networks=(PlacedNetwork("a", 5.0), PlacedNetwork("b", 10.0)), network_of=np.array([0, 1])
            ),
        ),
        5.0,
    ),
    Asked(
        "two networks of which one counts three times",
        make(
            [[9, 2], [9, 1]],
            conditions=Conditions(
                networks=(PlacedNetwork("a"), PlacedNetwork("b", weight=3.0)),
                network_of=np.array([0, 1]),
            ),
        ),
        3.0,
    ),
    Asked(
        "an accelerator on the host's cores",
        make([[3, 2], [3, 2]], conditions=Conditions(engines=[[1.0], [1.0]])),
        4.0,
    ),
    Asked(
        "least joules within 3 s, by frequency states",
        make(
            [[99, 4, 1], [99, 4, 1]],
            conditions=Conditions(engines=TWO_STATES, other=make([[99, 1, 2], [99, 1, 2]]), most=3),
        ),
        5.0,
        LaunchAware(),
    ),
    Asked(
        "a codec at a cut that loses nothing",
        make(
            [[9, 1, 2], [0, inf, inf]],
            producer=[-1],
            consumers=[[0]],
            is_output=[False],
            to_device=[[4, 1]],
            to_host=[[4, 1]],
            conditions=Conditions(engines=TWO_STATES),
        ),
        3.0,
        LaunchAware(),
    ),
    Asked("HaX-CoNN's input, without contention", two_chains(GOOGLENET, RESNET), 5.45),
]


@pytest.mark.parametrize("asked", PROBLEMS, ids=lambda asked: asked.name)
def test_the_right_value_is_found(asked: Asked) -> None:
    problem = asked.problem
    found = solve_problem(problem, asked.strategy, [f"u{unit:02d}" for unit in range(problem.units)])
    assert found.value == pytest.approx(asked.right)
    assert found.bound is not None
    assert found.bound <= asked.right * (1 + 1e-9)


def test_the_table_of_the_page_has_these_values() -> None:
    rows = {
        cells[0]: (float(cells[1]), float(cells[2]))
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if (cells := [cell.strip() for cell in line.strip("| ").split("|")])
        and len(cells) == 4
        and cells[0] in {asked.name for asked in PROBLEMS}
    }
    assert rows == {asked.name: (asked.right, asked.right) for asked in PROBLEMS}


def test_weights_of_seconds_and_joules_reach_less_than_a_limit() -> None:
    """No weighted sum has 21 J within 11 s as its least: its best ones within that have 25 J."""
    seconds, joules = np.array([[3, 1], [5, 3], [7, 1]]), np.array([[3, 8], [8, 9], [4, 13]])
    reached = []
    for weight in np.linspace(0, 1, 1001):
        chosen = (weight * seconds + (1 - weight) * joules).argmin(axis=1)
        taken = seconds[range(3), chosen].sum()
        reached += [int(joules[range(3), chosen].sum())] if taken <= 11 else []
    assert min(reached) == 25


def blocked_products(rows: int, columns: int, depth: int) -> Problem:
    """Return products of blocks and their sums: rows x columns x depth products on 4 accelerators."""
    seconds: list[list[float]] = []
    producer, consumers = [], []
    for _ in range(rows * columns):
        last = None
        for step in range(depth):
            product = len(seconds)
            seconds.append([40.0, 4.0, 4.0, 4.0, 4.0])
            if step:
                total = len(seconds)
                seconds.append([4.0, 1.0, 1.0, 1.0, 1.0])
                for made in (product, last):
                    producer.append(made)
                    consumers.append([total])
                last = total
            else:
                last = product
    tensors = len(producer)
    return make(
        seconds,
        producer=producer,
        consumers=consumers,
        is_output=[False] * tensors,
        to_device=np.full((tensors, 4), 0.5),
        to_host=np.full((tensors, 4), 0.5),
    )


def schedule_greedily(problem: Problem, generator: np.random.Generator) -> float:
    """Return the makespan of a list schedule: units in a drawn order, each where it ends first."""
    free, end, at = [0.0] * 5, {}, {}
    rank = generator.random(problem.units)
    before = {unit: [] for unit in range(problem.units)}
    for made, readers in zip(problem.producer.tolist(), problem.consumers.tolist(), strict=True):
        before[readers].append(made)
    waiting = set(range(problem.units))
    while waiting:
        ready = [unit for unit in waiting if all(made in end for made in before[unit])]
        unit = min(ready, key=lambda unit: rank[unit])
        options = []
        for device in range(5):
            came = [end[made] + (at[made] != device) * (1.0 if device else 0.5) for made in before[unit]]
            begin = max(free[device], *came, 0.0)
            options.append((begin + float(problem.seconds[unit, device]), device))
        end[unit], at[unit] = min(options)
        free[at[unit]] = end[unit]
        waiting.remove(unit)
    return max(end.values())


@pytest.mark.thorough
def test_blocked_products_are_no_worse_than_fifty_list_schedules() -> None:
    problem = blocked_products(6, 4, 2)
    assert problem.units == 72
    generator = np.random.default_rng(0)
    best = min(schedule_greedily(problem, generator) for _ in range(50))
    found = solve_problem(problem, Makespan(time_limit=0.4), [f"u{n:02d}" for n in range(72)])
    assert found.value <= best
    assert found.bound is not None
    assert found.bound >= 0.9 * found.value
