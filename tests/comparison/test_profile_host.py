"""Measuring the host node by node, and one run of the real profiler."""

from collections.abc import Mapping
from typing import Any

import pytest
from clocks import Clock

from byoc.comparison import (
    Patience,
    PredictionComparison,
    Samples,
    compare_placement,
    mean_error_factor,
    rank_correlation,
)
from byoc.runtime import Session, Stage, StageProgram

PATIENCE = Patience(warmup=1, least=2, most=2, seconds=0.0)


def test_rank_correlation_and_the_mean_factor_by_hand() -> None:
    assert rank_correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None

    def off(predicted: float) -> PredictionComparison:
        return PredictionComparison("m", "host", predicted, Samples(1.0, 0.0, 1), 1.0, 0, None)

    assert mean_error_factor([off(4.0), off(0.25)]) == pytest.approx(4.0)  # over and under do not cancel
    assert mean_error_factor([off(1.0)]) == pytest.approx(1.0)


def test_a_placement_is_measured_whole_and_stage_by_stage() -> None:
    """Two stages of 2 s and 3 s; the whole takes a second more each time it is called."""
    clock = Clock()

    def stage(name: str, reads: str, makes: str, seconds: float) -> Stage:
        def run(given: Mapping[str, Any]) -> Mapping[str, Any]:
            clock.now += seconds
            return {makes: given[reads] + 1}

        return Stage(name, (reads,), run, {}, (makes,))

    class Slow(Session):
        def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            clock.now += 1.0
            return super().__call__(inputs)

    stages = [stage("host segment 0", "x", "a", 2.0), stage("acc_0", "a", "y", 3.0)]
    session = Slow(("x",), {}, StageProgram(stages, {}, ("y",), {}))
    result = compare_placement("m", "acc", session, {"x": 1}, 9.0, 2, PATIENCE, clock)
    assert result == PredictionComparison("m", "acc", 9.0, Samples(6.0, 0.0, 2), 5.0, 2, None)
    assert result.error == 0.5


def test_regions_count_with_the_estimates_of_their_compilers() -> None:
    """Of two stages of 2 s and 3 s the second is estimated to take 0.5 s."""
    clock = Clock()

    def stage(name: str, reads: str, makes: str, seconds: float) -> Stage:
        def run(given: Mapping[str, Any]) -> Mapping[str, Any]:
            clock.now += seconds
            return {makes: given[reads] + 1}

        return Stage(name, (reads,), run, {}, (makes,), device=name)

    stages = [stage("host", "x", "a", 2.0), stage("acc_0", "a", "y", 3.0)]
    session = Session(("x",), {}, StageProgram(stages, {}, ("y",), {}))
    result = compare_placement(
        "m", "acc", session, {"x": 1}, 5.0, 0, PATIENCE, clock, {"acc_0": 1.0}, {"acc_0": 0.5}
    )
    assert (result.measured.median, result.parts, result.error) == (2.5, 2.5, 1.0)
    (pair,) = result.pairs
    assert (pair.name, pair.predicted, pair.measured.median) == ("acc_0", 1.0, 0.5)
