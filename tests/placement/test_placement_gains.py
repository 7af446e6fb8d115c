"""Sums that limits and what-if questions are made of, compared with sums unit by unit."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import problems
from hypothesis import assume, given
from hypothesis import strategies as st

from byoc.placement import Problem, Sensitivity


@given(problems(most_units=6, devices=st.integers(1, 2)), st.data())
def test_what_units_can_gain_at_most_is_what_taking_them_back_costs(problem: Problem, data: Any) -> None:
    assume(problem.units)
    units = st.lists(st.integers(0, problem.units - 1), min_size=1, unique=True)
    rows = sorted(data.draw(units))
    device = data.draw(st.integers(1, problem.devices))
    seconds = np.array([data.draw(st.floats(0, 10)) for _ in rows])
    host = [float(problem.seconds[row, 0]) for row in rows]
    assume(all(map(math.isfinite, host)))
    parts = [max(own - new, 0.0) for own, new in zip(host, seconds.tolist(), strict=True)]
    parts += [float(problem.launch[device - 1])] * len(rows)
    for tensor in range(len(problem.producer)):
        start, stop = problem.consumer_start[tensor : tensor + 2]
        if {*problem.consumers[start:stop].tolist()} & {*rows}:
            parts.append(max(0.0, *problem.to_host[tensor].tolist()))
        if problem.producer[tensor] in rows:
            parts.append(float(problem.to_device[tensor, device - 1]))
    known: Any = SimpleNamespace(problem=problem)
    found = Sensitivity.bound_gain(known, rows, device, seconds)
    assert found == pytest.approx(sum(parts)) or (math.isinf(found) and math.isinf(sum(parts)))
