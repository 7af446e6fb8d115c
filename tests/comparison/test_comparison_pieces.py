"""Parts of measuring and of studies: cuts, timers, nodes, sentences, journals, queues."""

import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle, repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import pytest
from clocks import Clock
from comparison_parts import MeasuredCodegen, MeasurementRecords, describe_machine
from helpers.solving import here, solve_studies_here  # noqa: F401 - a fixture
from helpers.support import parse, prepared
from hypothesis import given
from hypothesis import strategies as st
from studying import NET, Cli, drop_times, make_folder, write_study  # noqa: F401 - a fixture

import byoc
from byoc.codegen import find_codegen
from byoc.comparison import Patience, Samples, measure_in_turn, write_costs
from byoc.comparison import _measured_costs as write
from byoc.comparison._case_schedulers import CaseQueue
from byoc.comparison._measured_costs import NodeTimes, compare_in_turn, measure_runs, time_nodes
from byoc.comparison._prediction_error import choose_margin, compare_host_times
from byoc.comparison._profile import (
    MeasuredCut,
    _describe_wide_entries,
    describe_link,
    fit_link,
    time_cuts,
)
from byoc.comparison._study_run import StudyJournal
from byoc.costs import (
    CostTable,
    HostLink,
    Measurement,
    UnseenPrediction,
    read_cost_file,
)
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.onnxrt import open_session
from byoc.support import COST_MODELS, find_file

QUICKLY = Patience(warmup=0, least=2, most=2)


COPIES = HostLink(bandwidth=1e11, latency=1e-7)


TWO_BRANCHES = (
    "g (float[8, 16] x, float[16, 16] w) => (float[8, 16] y) {"
    " a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) d = Relu(c) e = MatMul(d, w) y = Add(e, b) }"
)


def test_models_are_cut_where_a_share_of_the_work_is_done() -> None:
    host = MeasuredCodegen(find_codegen("reference"), {}, QUICKLY, perf_counter)
    model = prepare_model(parse(TWO_BRANCHES), "two branches")

    cuts = time_cuts(model, None, host, 0.0)

    # `b` crosses after the first Relu, and `b` and `d` after the second; each has 8 x 16 floats.
    assert [(cut.tensors, cut.size) for cut in cuts] == [(1, 512), (2, 1024)]
    assert all(cut.whole > 0 for cut in cuts)


@given(
    st.floats(1e-6, 1e-3),
    st.floats(1e8, 1e10),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 10**7)), min_size=4, max_size=12, unique=True),
)
def test_the_link_that_cuts_were_made_with_is_found(
    latency: float, bandwidth: float, crossings: list[tuple[int, int]]
) -> None:
    rows = np.array(crossings, float)
    if np.linalg.cond(rows / rows.max(axis=0)) > 1e3:
        return
    cuts = [MeasuredCut(n, size, n * latency + size / bandwidth, 0.01) for n, size in crossings]

    link = fit_link(cuts, COPIES)

    assert link.latency == pytest.approx(latency, rel=1e-4)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-4)


def test_few_or_free_cuts_cost_what_copying_does() -> None:
    free = [MeasuredCut(1, 1000 * n, -1e-6, 0.01) for n in range(1, 6)]
    assert fit_link(free, COPIES) == COPIES
    dear = [MeasuredCut(1, 1000, 1.0, 0.01)] * 3
    assert fit_link(dear, COPIES) == COPIES
    assert describe_link(COPIES, 3) == []
    assert describe_link(HostLink(bandwidth=2e9, latency=3e-5), 8) == [
        "8 cuts: what crosses takes 0.5 ns for each byte and 30 us for each tensor"
    ]


def test_the_margin_is_half_of_the_error_of_unseen_models() -> None:
    off = [UnseenPrediction(f"m{n}", factor, 1.0) for n, factor in enumerate((1.44, 1 / 1.44))]
    assert choose_margin(off * 2) == pytest.approx(1 - 1 / 1.2, abs=5e-3)
    assert choose_margin(off) == 0.0
    assert choose_margin([UnseenPrediction("m", 1e-3, 1.0)] * 4) == 0.5


def test_warm_up_does_not_count_and_what_settles_is_enough() -> None:
    clock = Clock()
    run = clock.taking(chain([100.0, 50.0], repeat(2.0)))
    assert measure_runs(run, Patience(warmup=2, least=3, most=10, seconds=1e9), clock) == [2.0] * 3


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
    found = measure_runs(clock.taking(cycle([1.0, 2.0])), patience, clock)
    assert found == [1.0 + i % 2 for i in range(runs)]


def test_a_clearly_slower_function_is_measured_no_more() -> None:
    clock = Clock()

    def take(seconds: float) -> Callable[[], None]:
        return clock.taking(repeat(seconds))

    runs = [take(1.0), take(1.0), take(3.0)]
    patience = Patience(warmup=0, least=5, most=20, seconds=1e9, settled=-1.0)
    found = measure_in_turn(runs, patience, clock, drop_slow=True)
    assert [len(each) for each in found] == [20, 20, 5]
    assert compare_in_turn(found[2], found[0]) == Samples(3.0, 0.0, 5)
    alone = measure_in_turn([take(1.0), take(2.0)], patience, clock, drop_slow=True)
    assert [len(each) for each in alone] == [5, 5]
    assert [len(each) for each in measure_in_turn(runs, patience, clock)] == [20, 20, 20]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_what_is_interrupted_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text("old")

    def interrupted(costs: object) -> str:
        raise stop

    monkeypatch.setattr(write, "format_costs", interrupted)
    with pytest.raises(stop):
        write_costs(path, read_cost_file(find_file(COST_MODELS, "dla")))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_wide_spreads_are_told_with_the_widest() -> None:
    """Quartiles of fewer than five runs are not judged."""
    figures = [("Relu", 1.0, 0.4, 9), ("Tanh", 1.0, 0.6, 5), ("Sin", 2.0, 1.2, 7), ("Abs", 1.0, 3.0, 4)]
    entries = tuple(
        Measurement(op=op, types="float32[1] -> float32[1]", seconds=s, spread=spread, samples=n)
        for op, s, spread, n in figures
    )
    table = CostTable(kind="table", name="t", entries=entries)
    assert _describe_wide_entries(table) == [
        "2 of 4 measurements spread over more than half of their median, Sin the most: "
        "measure longer, or on a machine that is idle"
    ]
    assert not _describe_wide_entries(table.model_copy(update={"entries": entries[:1]}))


@pytest.mark.parametrize(
    "outcome",
    [
        '{"status": {}}',
        '{"status": "fine"}',
        '{"status": "ok"}',
        '{"status": "ok", "value": NaN}',
        '{"status": "ok", "value": "1"}',
        '{"status": "ok", "value": 1.0, "notes": [1]}',
        '{"status": "ok", "value": 1.0, "measures": {"tried": "x"}}',
        "[" * 100_000,
    ],
)
def test_an_edited_journal_is_refused_with_its_line(outcome: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(f'{{"byoc_study": 1}}\n{{"key": "a", "outcome": {outcome}}}\n')
    with pytest.raises(byoc.InputError, match=r"j:2: not a line of the journal"):
        StudyJournal(path)


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        StudyJournal(tmp_path / "j"),
        pytest.raises(byoc.InputError, match="another study is writing it"),
    ):
        StudyJournal(tmp_path / "j")


def test_a_journal_that_the_disk_does_not_take_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = StudyJournal(tmp_path / "j")
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(byoc.InputError, match="j: cannot be written: File too large"), journal:
            journal.append("a" * 100, {"status": "ok"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_slots_stay_with_their_models_as_long_as_they_can(folder: Path) -> None:
    from byoc.comparison._study_file import read_study  # noqa: PLC0415
    from byoc.comparison._study_run import expand_cases  # noqa: PLC0415

    study = write_study(folder, links=[1, 2, 3, 4])
    cases = expand_cases(read_study(study), folder, "study")
    waiting = CaseQueue(cases)
    taken = [(slot, waiting.take(slot)) for slot in "abababaa"]
    assert waiting.take("a") is None
    models = {slot: [case.model for name, case in taken if name == slot and case] for slot in "ab"}
    assert models["b"] == ["nets/two.onnx"] * 3
    assert models["a"] == ["nets/one.onnx"] * 4 + ["nets/two.onnx"]


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
