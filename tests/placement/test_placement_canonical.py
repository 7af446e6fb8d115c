"""One order whatever the file's."""

import numpy as np
import pytest
from optimality import reordered
from placement_random import FEATURES, random_problem

from byoc.placement import Problem, canonical

FIELDS = Problem.__dataclass_fields__


@pytest.mark.parametrize("seed", range(60))
def test_any_order_gives_the_same_arrays(seed: int) -> None:
    problem = random_problem(seed, 14, frozenset(FEATURES))
    keys = [f"unit {number * 7 % 97}" for number in range(problem.units)]
    other, place = reordered(problem, seed)
    moved = [keys[place.index(unit)] for unit in range(problem.units)]
    (one, order), (two, other_order) = canonical(problem, keys), canonical(other, moved)
    assert [keys[unit] for unit in order] == [moved[unit] for unit in other_order]
    for name in FIELDS:
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    again, same = canonical(one, [keys[unit] for unit in order])
    assert same.tolist() == list(range(problem.units))
    assert np.array_equal(again.seconds, one.seconds)


def test_keys_must_tell_units_apart() -> None:
    problem = random_problem(3, 14, frozenset())
    assert problem.units > 1
    with pytest.raises(ValueError, match="one distinct key for each"):
        canonical(problem, ["same"] * problem.units)
    with pytest.raises(ValueError, match="one distinct key for each"):
        canonical(problem, ["a"])
