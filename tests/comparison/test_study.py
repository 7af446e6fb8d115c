"""Studies: axes become cases, rows are the same wherever they are solved, nothing is computed twice."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from support import VANILLA, Ran, parse

import byoc
from byoc.comparison import COLUMNS, TIME_COLUMNS, StudyRow, make_study_schema, read_results
from byoc.comparison._case_schedulers import CaseQueue
from byoc.comparison._study_journal import StudyJournal
from byoc.pipeline import partition

NET = """net (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {
    v = Constant <value_float = 0.01> ()
    kernel = Constant <value_ints = [64, 64, 3, 3]> ()
    k = Expand(v, kernel)
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1]> (b, k)
    y = Softmax(c)
}"""
STRATEGIES = """
import os
import time
from dataclasses import dataclass, replace
from byoc.placement.strategies import AllSupported


class Deadly:
    name = "deadly"

    def solve(self, problem):
        os._exit(9)


class Endless:
    name = "endless"

    def solve(self, problem):
        time.sleep(1000)


@dataclass(frozen=True)
class Counting:
    seed: int = 0
    folder: str = ""
    name: str = "counting"

    def solve(self, problem):
        if self.folder:
            with open(os.path.join(self.folder, "solved"), "a") as file:
                file.write(f"{self.seed}\\\\n")
            while os.path.exists(os.path.join(self.folder, "wait")) and self.seed >= 3:
                time.sleep(0.02)
        found = AllSupported().solve(problem)
        return replace(found, measures={"steps": 10 * self.seed, "units": problem.units})
""".replace("\\\\n", "\\n")
NAMES = ("deadly", "endless", "counting")
Cli = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, and some strategies installed for this process and its children."""
    site = tmp_path / "site"
    info = site / "study_strategies-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "study_strategies.py").write_text(STRATEGIES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: study-strategies\nVersion: 1.0\n")
    points = "".join(f"{name} = study_strategies:{name.capitalize()}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[byoc.strategies]\n{points}")
    monkeypatch.syspath_prepend(site)
    root = Path(byoc.__file__).parents[1]
    paths = (str(site), str(root), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    (tmp_path / "nets").mkdir()
    onnx.save(parse(NET), tmp_path / "nets" / "one.onnx")
    onnx.save(parse(NET.replace("Softmax", "Sigmoid")), tmp_path / "nets" / "two.onnx")
    return tmp_path


def write_study(folder: Path, **axes: Any) -> Path:
    content = {"models": "nets/*.onnx", "rules": str(VANILLA), "strategies": "launch-aware"} | axes
    (folder / "study.yaml").write_text(json.dumps(content))  # which is YAML, too
    return folder / "study.yaml"


def drop_times(rows: list[StudyRow]) -> list[StudyRow]:
    return [{name: row[name] for name in row if name not in TIME_COLUMNS} for row in rows]


def start_interruptible(command: list[str], **given: Any) -> subprocess.Popen[str]:
    """Start a command that SIGINT interrupts, though this process may have been started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, text=True, **given)
    finally:
        signal.signal(signal.SIGINT, before)


def count_solved(folder: Path) -> int:
    return len((folder / "solved").read_text().splitlines())


def test_every_combination_is_a_row(folder: Path) -> None:
    study = write_study(
        folder,
        links=[0.1, None],
        strategies=["host-only", {"name": "launch-aware", "options": {"rounds": [3, 12]}}],
        costs=[{}, {"parameters": {"launch": [0, 1e-3]}}],
        limits=[{}, {"time": 2, "memory": "64KiB"}],
        repetitions=2,
    )
    result = byoc.study(study, jobs=1)
    rows = result.rows
    assert len(rows) == result.total == 2 * 2 * 3 * 3 * 2 * 2
    assert [tuple(row) for row in rows] == [tuple(COLUMNS)] * len(rows)
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["model"] for row in rows} == {"nets/one.onnx", "nets/two.onnx"}
    assert {row["options"] for row in rows} == {"", "rounds=3", "rounds=12"}
    assert {row["parameters"] for row in rows} == {"", "launch=0", "launch=0.001"}
    assert {row["limits"] for row in rows} == {"", "memory=64KiB"}
    for row in rows:
        parts = row["execution_seconds"] + row["transfer_seconds"] + row["launch_seconds"]
        assert row["seconds"] == pytest.approx(parts)
        assert (
            row["launch_seconds"]
            == {"": 5e-5, "launch=0": 0.0, "launch=0.001": 1e-3}[row["parameters"]] * row["regions"]
        )
        assert row["gap"] is not None  # of heuristics, too
        assert row["value"] >= row["best_bound"] * (1 - 1e-9)
        assert row["ratio"] >= 1
    again = [row for row in rows if row["repetition"]]
    first = [row for row in rows if not row["repetition"]]
    for one, other in zip(drop_times(first), drop_times(again), strict=True):
        assert {**one, "key": "", "repetition": 1} == {**other, "key": ""}


def test_a_row_says_what_partition_says(folder: Path) -> None:
    (row,) = byoc.study(write_study(folder, models="nets/one.onnx", links=100), jobs=1).rows
    fast = folder / "fast.yaml"
    text = (Path(byoc.__file__).parents[1] / "cost_models" / "dla.yaml").read_text()
    assert "bandwidth: 2.0e+9" in text
    fast.write_text(text.replace("bandwidth: 2.0e+9", "bandwidth: 1.0e+11"))
    report = partition(folder / "nets" / "one.onnx", VANILLA, cost_model=fast).report
    assert row["seconds"] == report.predicted.seconds
    assert row["bound"] == report.predicted.bound
    assert row["joules"] == report.predicted.joules
    assert row["regions"] == len(report.regions)
    assert row["offloaded"] == report.compute.offloaded
    # In go x, out comes what Softmax reads; the convolutions share a constant.
    assert row["bytes_moved"] == 2 * 4 * 64 * 56 * 56
    assert row["constant_bytes"] == 4 * 64 * 64 * 3 * 3


def test_failures_are_rows_and_the_rest_goes_on(folder: Path, byoc: Cli) -> None:
    (folder / "nets" / "bad.onnx").write_bytes(b"no model")
    study = write_study(
        folder,
        models=["nets/one.onnx", "nets/bad.onnx", "nets/gone.onnx"],
        strategies=["deadly", "endless", "host-only"],
        case_seconds=3,
    )
    ran = byoc("study", study, "-o", folder / "r.csv", "--jobs", "1")
    assert ran.code == 1
    rows = read_results(folder / "r.csv")
    assert [row["status"] for row in rows[:3]] == ["crashed", "timed out", "ok"]
    assert [row["reason"] for row in rows[:3]] == [
        "its process ended with exit code 9",
        "stopped after 3 s",
        "",
    ]
    assert all(row["status"] == "refused" and "bad.onnx: " in row["reason"] for row in rows[3:6])
    assert all(row["reason"].endswith("gone.onnx: no such file") for row in rows[6:])
    assert "9 cases" in ran.err
    assert "8 not solved (6 refused, 1 crashed, 1 timed out)" in ran.err
    ran = byoc("study", study, "-o", folder / "r.csv", "--jobs", "1", "--allow-failures")
    assert ran.code == 0


def test_what_is_done_is_not_computed_again(folder: Path) -> None:
    axes = {"models": "nets/one.onnx"}
    counting = {"name": "counting", "options": {"folder": str(folder)}}
    path = folder / "r.csv"
    few = byoc.study(write_study(folder, strategies={**counting, "seeds": [1, 2]}, **axes), path, jobs=1)
    assert (few.earlier, count_solved(folder)) == (0, 2)
    study = write_study(folder, strategies={**counting, "seeds": [2, 1, 4]}, **axes)
    more = byoc.study(study, path, jobs=2)
    assert (more.earlier, count_solved(folder)) == (2, 3)
    assert [row["own_steps"] for row in more.rows] == [20, 10, 40]
    assert drop_times(more.rows[:2]) == drop_times(few.rows[::-1])
    model = parse(NET.replace("Softmax", "Tanh"))
    onnx.save(model, folder / "nets" / "one.onnx")
    other = byoc.study(study, path, jobs=1)
    assert (other.earlier, count_solved(folder)) == (0, 6)
    assert other.rows[0]["model_digest"] != more.rows[0]["model_digest"]


def test_a_study_that_was_killed_goes_on(folder: Path) -> None:
    counting = {"name": "counting", "options": {"folder": str(folder)}, "seeds": list(range(6))}
    study = write_study(folder, models="nets/one.onnx", strategies=counting)
    whole = byoc.study(study, jobs=1).rows
    (folder / "solved").unlink()
    (folder / "wait").touch()  # seeds from 3 on do not end
    path = folder / "r.csv"
    command = [sys.executable, "-m", "byoc", "study", str(study), "-o", str(path), "--jobs", "1"]
    for number in (signal.SIGKILL, signal.SIGINT):
        process = start_interruptible(command, stderr=subprocess.PIPE)
        journal = Path(f"{path}.cases.jsonl")
        while not (journal.exists() and len(journal.read_text().splitlines()) >= 4):
            assert process.poll() is None
            time.sleep(0.02)
        while count_solved(folder) < 4:  # it is at the next
            time.sleep(0.02)
        process.send_signal(number)
        _, told = process.communicate()
        if number is signal.SIGKILL:
            with journal.open("a") as file:
                file.write('{"key": "broken o')
            (folder / "solved").write_text("0\n1\n2\n")
    assert process.returncode == 130
    assert "stopped: 3 of 6 cases are done; the same command goes on" in told
    assert drop_times(read_results(path)) == drop_times(
        [row | {"notes": "; ".join(row["notes"])} for row in whole[:3]]
    )
    (folder / "wait").unlink()
    result = byoc.study(study, path, jobs=2)
    assert result.earlier == 3
    assert drop_times(result.rows) == drop_times(whole)
    assert count_solved(folder) == 4 + 3  # the one that was broken off begins anew


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_leaves_what_is_compared(jobs: str, folder: Path) -> None:
    (folder / "wait").touch()
    asked = ["compare", str(folder / "nets" / "one.onnx"), "--rules", str(VANILLA), "--jobs", jobs]
    asked += ["--strategies", "host-only,counting", "--format", "json"]
    for option in (f"counting:folder={folder}", "counting:seed=3"):
        asked += ["--strategy-option", option]
    command = [sys.executable, "-m", "byoc", *asked]
    process = start_interruptible(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (folder / "solved").exists():  # it is at the second strategy, which does not end
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)  # until the first is told
    process.send_signal(signal.SIGINT)
    out, told = process.communicate()
    assert process.returncode == 130
    assert [row["strategy"] for row in json.loads(out)] == ["host-only"]
    assert told == "byoc: stopped: 1 case done, above\n"


def test_results_are_the_same_as_csv_and_parquet(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    study = write_study(folder, strategies=["host-only", {"name": "counting", "seeds": [7]}])
    rows = byoc.study(study, folder / "r.csv", jobs=2).rows
    same = byoc.study(study, folder / "r.parquet", jobs=1).rows
    assert drop_times(same) == drop_times(rows)
    assert drop_times(read_results(folder / "r.csv")) == drop_times(read_results(folder / "r.parquet"))
    with (folder / "r.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["value"]) for row in table] == [row["value"] for row in rows]
    assert [row["own_steps"] for row in table] == ["", "70.0", "", "70.0"]


CLUSTER = """
import sys
from pathlib import Path
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.process.process.pid for worker in cluster.workers.values()]
        print(cluster.scheduler_address, *pids, flush=True)
        sys.stdin.read()
"""


@pytest.mark.skipif(not find_spec("distributed"), reason="needs Dask")
def test_a_cluster_with_a_worker_killed_gives_the_serial_rows(folder: Path) -> None:
    counting = {"name": "counting", "options": {"folder": str(folder)}, "seeds": [0, 1, 2, 3]}
    study = write_study(folder, strategies=["launch-aware", "host-only", counting])
    serial = byoc.study(study, jobs=1)
    (folder / "solved").unlink()
    (folder / "cluster.py").write_text(CLUSTER)
    (folder / "wait").touch()
    command = [sys.executable, str(folder / "cluster.py")]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
    ) as cluster:  # which ends when its standard input is closed
        assert cluster.stdout is not None
        address, pid, _ = cluster.stdout.readline().split()
        asked = ["study", str(study), "-o", str(folder / "r.csv"), "--scheduler", address]
        ran = subprocess.Popen([sys.executable, "-m", "byoc", *asked], stderr=subprocess.PIPE, text=True)
        while not (folder / "solved").exists() or "3" not in (folder / "solved").read_text():
            assert ran.poll() is None, ran.communicate()
            time.sleep(0.05)
        os.kill(int(pid), signal.SIGKILL)
        (folder / "wait").unlink()
        _, told = ran.communicate(timeout=120)
    assert ran.returncode == 0, told
    rows = [row | {"notes": "; ".join(row["notes"])} for row in serial.rows]
    assert drop_times(read_results(folder / "r.csv")) == drop_times(rows)
    lines = Path(f"{folder / 'r.csv'}.cases.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len({json.loads(line)["key"] for line in lines[1:]}) == 1 + serial.total
    # The cases that the worker was at when it was killed begin anew, at most one.
    assert count_solved(folder) in {8, 9}


def test_a_cluster_that_is_not_there(folder: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.comparison._dask_cluster._CONNECT_SECONDS", 0.1)
    study = write_study(folder)
    ran = byoc("study", study, "-o", folder / "r.csv", "--scheduler", "tcp://127.0.0.1:9")
    assert ran.code == 1
    assert "scheduler tcp://127.0.0.1:9: " in ran.err
    assert byoc("study", study, "-o", folder / "r.csv", "--scheduler", "x", "--jobs", "2").code == 1


MISTAKES = [
    ({"links": [1, -2]}, "study.yaml: links[1]: input should be greater than 0"),
    ({"modles": "x"}, "study.yaml: modles: no such key (did you mean models?)"),
    ({"strategies": [{"name": "exact", "option": {}}]}, "strategies[0].option: no such key"),
    ({"strategies": ["exact", "exakt"]}, "strategies[1]: exakt: no such strategy (did you mean exact?)"),
    ({"strategies": {"name": "exact", "seeds": [1]}}, "strategies[0]: strategy 'exact' of "),
    ({"rules": [str(VANILLA), "dlb"]}, "rules[1]: dlb: no such file"),
    ({"costs": [{"parameters": {"lunch": 1}}]}, "costs[0]: cost model "),
    ({"costs": [{"parameters": {"launch": -1}}]}, "launch: must be at least 0"),
    ({"objectives": "speed"}, "objectives[0]: objective speed: no such objective"),
    ({"models": ["nets/*.txt"]}, " matches 'nets/*.txt'"),
    ({"models": ["zoo:nix*"]}, "models[0]: no model of the zoo that is here matches 'zoo:nix*'"),
    ({"links": []}, "study.yaml: links: must not be empty"),
    ({"limits": [{"regions": 0}]}, "limits[0].regions: must be at least 1"),
]


@pytest.mark.parametrize(("axes", "sentence"), MISTAKES)
def test_mistakes_have_locations(axes: dict[str, Any], sentence: str, folder: Path, byoc: Cli) -> None:
    ran = byoc("study", write_study(folder, **axes), "-o", folder / "r.csv")
    assert (ran.code, ran.out) == (1, "")
    assert sentence in ran.err
    assert not (folder / "r.csv").exists()


def test_results_have_a_suffix_and_a_folder(folder: Path, byoc: Cli) -> None:
    study = write_study(folder)
    assert "end in .csv or .parquet" in byoc("study", study, "-o", folder / "r.txt").err
    assert "there is no folder" in byoc("study", study, "-o", folder / "no" / "r.csv").err
    (folder / "r.csv.cases.jsonl").write_text("model,rules\n")
    assert "not a line of the journal" in byoc("study", study, "-o", folder / "r.csv").err


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"repetitions": 10**30}, "at most 1000000 are possible"),
        ({"models": ["**x/*"]}, "models[0]: '**x/*': "),
        (
            {"strategies": {"name": "min-cut", "options": {f"o{i}": [1, 2] for i in range(60)}}},
            "strategies: options of one make more than 1000000 cases",
        ),
    ],
)
def test_axes_without_end_are_refused(axes: dict[str, Any], said: str) -> None:
    whole = {"models": "zoo:squeezenet", "rules": "dla", "strategies": "min-cut", **axes}
    with pytest.raises(byoc.InputError, match=re.escape(said)):
        byoc.study(whole)


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


def test_the_schema_is_one_and_takes_studies(folder: Path, byoc: Cli) -> None:
    schema = json.loads(byoc("study", "schema").out)
    assert schema == make_study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = [
        {"models": "a", "rules": "b", "strategies": "c"},
        {"models": ["a"], "rules": [["b", "c"], "d"], "strategies": ["c", {"name": "d", "seeds": [1]}]},
    ]
    more = {"costs": [{"parameters": {"launch": [1, 2]}}, "x"], "links": [None, 1.5], "limits": {}}
    for content in (*good, good[0] | more):
        assert list(validator.iter_errors(content)) == []
    for axes in ({"links": []}, *(axes for axes, _ in MISTAKES[:3])):
        assert list(validator.iter_errors(good[0] | axes))


def test_slots_stay_with_their_models_as_long_as_they_can(folder: Path) -> None:
    from byoc.comparison._study_cases import expand_cases  # noqa: PLC0415
    from byoc.comparison._study_file import read_study  # noqa: PLC0415

    study = write_study(folder, links=[1, 2, 3, 4])
    cases = expand_cases(read_study(study), folder, "study")
    waiting = CaseQueue(cases)
    taken = [(slot, waiting.take(slot)) for slot in "abababaa"]
    assert waiting.take("a") is None
    models = {slot: [case.model for name, case in taken if name == slot and case] for slot in "ab"}
    assert models["b"] == ["nets/two.onnx"] * 3
    assert models["a"] == ["nets/one.onnx"] * 4 + ["nets/two.onnx"]


def test_the_digest_of_a_strategy_does_not_depend_on_the_order_of_sets() -> None:
    script = (
        "from dataclasses import make_dataclass\n"
        "from byoc.comparison._content_digests import _describe_plugin\n"
        "kind = make_dataclass('Kind', ['names', 'other'])\n"
        "print(_describe_plugin(kind(frozenset('abcdefgh'), [{'x', 'y', 'z'}, {'k': (1, 2.5)}])))"
    )
    command, found = [sys.executable, "-c", script], set()
    for seed in ("0", "1", "2"):
        seeded = os.environ | {"PYTHONHASHSEED": seed}
        found.add(subprocess.check_output(command, env=seeded, text=True))
    assert len(found) == 1
    assert "'k': [1, 2.5]" in found.pop()
