"""Measuring the host node by node, and one run of the real profiler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import pytest
from clocks import Clock
from helpers.support import parse, prepared

from byoc.comparison import (
    MeasurementRecords,
    Patience,
    PredictionComparison,
    Samples,
    compare_placement,
    describe_machine,
    mean_error_factor,
    rank_correlation,
)
from byoc.comparison._measured_costs import NodeTimes, time_nodes
from byoc.comparison._prediction_error import compare_host_times
from byoc.costs import CostTable
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.onnxrt import open_session
from byoc.runtime import Session, Stage, StageProgram

TEXT = """
g (float[1, 8] x, float[N] n) => (float[8] y, float[1, 8] z, float[N] m) <int64[1] s = {8}> {
  a = Relu (x)
  z = Relu (a)
  t = Tanh (z)
  y = Reshape (t, s)
  m = Neg (n)
}
"""
PATIENCE = Patience(warmup=1, least=2, most=2, seconds=0.0)


def timer(
    found: Mapping[int, Sequence[float]],
) -> Callable[[onnx.ModelProto, Any, Callable[[Any], object]], dict[str, list[float]]]:
    """Replace onnxruntime's profiler by one that returns these seconds by node number."""

    def time(
        proto: onnx.ModelProto, folder: Any, use: Callable[[Any], object]
    ) -> dict[str, list[float]]:
        names = [node.name for node in proto.graph.node]
        assert len(set(names)) == len(names)
        return {names[i]: list(seconds) for i, seconds in found.items()}

    return time


SECONDS = {
    0: [9.0, 1.0, 3.0],
    1: [9.0, 5.0, 7.0],
    2: [9.0, 10.0, 10.0],
    3: [9.0, 1.0, 1.0],
    4: [9, 4.0, 4.0],
}


def times(found: Mapping[int, Sequence[float]] = SECONDS) -> NodeTimes:
    return time_nodes(prepared(TEXT), PATIENCE, timer(found))


def test_equal_nodes_are_measured_together_and_warm_up_is_left_out() -> None:
    records = MeasurementRecords()
    found = times()
    assert found.add_to(records) == 1  # N is open
    assert found.total == 2 + 6 + 10 + 1 + 4
    table = records.make_table("host", "", describe_machine())
    rows = {entry.op: (entry.seconds, entry.samples) for entry in table.entries}
    assert rows == {"Relu": (4.0, 4), "Tanh": (10.0, 2)}  # a Reshape is a view


def test_what_nodes_take_together_goes_run_by_run() -> None:
    """Two nodes and the whole in three runs, the second slowed by something else: halves, all three."""
    tasks = times().tasks
    found = NodeTimes(tasks, {0: [1.0, 10.0, 1.0], 1: [3.0, 30.0, 5.0]}, [2.0, 20.0, 3.0])
    assert found.together == 0.5
    assert found.total == 1.0 + 5.0


def test_the_whole_runs_beside_the_nodes_and_its_warm_up_is_left_out() -> None:
    clock = Clock()

    def running(
        proto: onnx.ModelProto, folder: Any, use: Callable[[Any], object]
    ) -> dict[str, list[float]]:
        use(open_session(proto, folder))
        return {}

    found = time_nodes(prepared(TEXT), PATIENCE, running, clock)
    assert list(found.wholes) == [0.0, 0.0]  # by a clock that stands still


def test_a_node_that_onnxruntime_does_not_name_is_missing() -> None:
    found = times({i: SECONDS[i] for i in (0, 4)})
    assert found.missing == [1, 2, 3]
    assert found.add_to(MeasurementRecords()) == 3


def test_predicted_against_measured_by_hand() -> None:
    """Relu 4 s twice, Tanh 10 s, a view; the table guesses Neg at 4.67 s from what it knows."""
    records = MeasurementRecords()
    found = times()
    found.add_to(records)
    table = records.make_table("host", "", describe_machine())
    assert isinstance(table, CostTable)
    result = compare_host_times(prepared(TEXT), table, Samples(20.0, 1.0, 5), found)
    neg = table.estimate(found.tasks[4]).seconds
    assert result.predicted == pytest.approx(4 + 4 + 10 + neg)
    assert (result.parts, result.unknown) == (23.0, 1)
    assert result.error == pytest.approx((18 + neg) / 20 - 1)
    assert result.additive_error == pytest.approx(3 / 20)
    assert result.rank is not None


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


def test_the_real_profiler_times_every_node() -> None:
    """Only what there is: no test goes by the time that something took."""
    model = prepare_model(parse(TEXT.replace("float[N]", "float[3]")), "test")
    found = time_nodes(model, PATIENCE)
    assert found.missing == []
    assert {i: len(seconds) for i, seconds in found.seconds.items()} == dict.fromkeys(range(5), 2)
    assert all(second >= 0 for seconds in found.seconds.values() for second in seconds)
    assert len(found.wholes) == 2
    assert found.together > 0


def test_a_model_that_does_not_run_is_a_sentence() -> None:
    text = "g (float[2] x) => (float[2] y) <int64[1] s = {3}> { a = Reshape (x, s)\n y = Relu (a) }"
    proto = parse(text.replace("float[2] y", "float[A] y"))
    with pytest.raises(InputError, match=r"^onnxruntime cannot (run|load) the model: "):
        time_nodes(prepare_model(proto, "test"), PATIENCE)
