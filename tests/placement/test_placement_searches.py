"""What searches find when they may not finish, and what they spend: the same numbers on every machine.

A search that is cut off shows the order in which it looks; one that finishes hides it behind the
optimum.
Work is counted and not measured, so both are exact. They change where a search is changed: read the
difference, which is in the values of placements as well, then `pytest --regenerate`.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from helpers.placement_random import FEATURES, alike, random_problem
from helpers.support import sample_cases
from large_problems import layered_problem

from byoc.errors import InputError
from byoc.placement import Placement, Problem
from byoc.placement.strategies import LaunchAware, Makespan, Throughput

FEATURE_SETS = {
    "plain": frozenset[str](),
    "launched": frozenset({"two devices", "launch", "capacity"}),
    "fused": frozenset({"three devices", "fusions", "connected", "region count"}),
    "sized": frozenset({"two devices", "must", "region size", "launch"}),
    "all": frozenset(FEATURES),
}
STRATEGIES = {"launch-aware": LaunchAware, "makespan": Makespan, "throughput": Throughput}


def make_problems(name: str) -> Iterator[Problem]:
    if name == "layers":
        yield layered_problem(1, 60, 2)
        yield layered_problem(2, 50, 3, share=0.4, launch=2.0)
    elif name == "loads":
        yield layered_problem(3, 40, 3)
        yield layered_problem(4, 30, 2, launch=1.0)
        yield layered_problem(5, 16, 3)
        yield alike(random_problem(5, 24, frozenset({"three devices"})))
    else:
        for seed in range(3):
            yield random_problem(100 + seed, 24, FEATURE_SETS[name])


CASES = [*product([*FEATURE_SETS, "layers"], STRATEGIES), ("loads", "throughput")]
# The same placements are found with every scipy, here by another number of steps: it has other ties.
DIFFERING = {("layers", "makespan")}


@pytest.mark.parametrize(
    ("name", "strategy"),
    sample_cases(
        CASES, *(case for case in CASES if case[1] != "makespan" or case[0] in ("all", "plain"))
    ),
)
def test_searches_that_are_cut_off_find_what_they_did(
    name: str, strategy: str, spent: list[float], golden: Callable[[str, str], None]
) -> None:
    rows = []
    for number, problem in enumerate(make_problems(name)):
        for limit in (0.1, 0.3) if name == "loads" else (1e-3, 2e-2):
            spent.clear()
            try:
                found = describe(STRATEGIES[strategy](limit).solve(problem))
            except InputError as error:
                found = str(error)
            rows.append(f"{number} {limit:g}: {found}")
            if (name, strategy) not in DIFFERING:
                rows.append(f"    spent {sum(spent):.6g} in {len(spent)}")
    golden(f"placement/{strategy}-{name}.txt", "\n".join(rows) + "\n")


def describe(found: Placement) -> str:
    """Return a placement as a line: its value and bound, and the device of each unit."""
    bound = "none" if found.bound is None else f"{found.bound:.6g}"
    labels = "".join(map(str, np.asarray(found.labels).tolist()))
    return f"{found.value:.9g} bound {bound} {labels}"
