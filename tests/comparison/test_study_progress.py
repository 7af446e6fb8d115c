"""Studies that are killed, interrupted, spread over a cluster, or go on where they stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from helpers.solving import here, solve_studies_here  # noqa: F401 - a fixture
from helpers.support import VANILLA, parse
from helpers.warm_processes import WarmProcesses
from studying import NET, Cli, drop_times, make_folder, write_study  # noqa: F401 - a fixture

import byoc
from byoc.comparison import read_results


def count_solved(folder: Path) -> int:
    return len((folder / "solved").read_text().splitlines())


@pytest.mark.usefixtures("here")
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


def test_a_study_that_was_killed_goes_on(folder: Path, warm_processes: WarmProcesses) -> None:
    counting = {"name": "counting", "options": {"folder": str(folder)}, "seeds": list(range(6))}
    study = write_study(folder, models="nets/one.onnx", strategies=counting)
    with solve_studies_here():
        whole = byoc.study(study, jobs=1).rows
    (folder / "solved").unlink()
    (folder / "wait").touch()  # seeds from 3 on do not end
    path = folder / "r.csv"
    command = [sys.executable, "-m", "byoc", "study", str(study), "-o", str(path), "--jobs", "1"]
    for number in (signal.SIGKILL, signal.SIGINT):
        process = warm_processes.Popen(command, stderr=subprocess.PIPE)
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
    assert b"stopped: 3 of 6 cases are done; the same command goes on" in told
    assert drop_times(read_results(path)) == drop_times(
        [row | {"notes": "; ".join(row["notes"])} for row in whole[:3]]
    )
    (folder / "wait").unlink()
    with solve_studies_here():
        result = byoc.study(study, path, jobs=2)
    assert result.earlier == 3
    assert drop_times(result.rows) == drop_times(whole)
    assert count_solved(folder) == 4 + 3  # the one that was broken off begins anew


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_leaves_what_is_compared(
    jobs: str, folder: Path, warm_processes: WarmProcesses
) -> None:
    (folder / "wait").touch()
    asked = ["compare", str(folder / "nets" / "one.onnx"), "--rules", str(VANILLA), "--jobs", jobs]
    asked += ["--strategies", "host-only,counting", "--format", "json"]
    for option in (f"counting:folder={folder}", "counting:seed=3"):
        asked += ["--strategy-option", option]
    command = [sys.executable, "-m", "byoc", *asked]
    process = warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (folder / "solved").exists():  # it is at the second strategy, which does not end
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(2)  # until the first is told
    process.send_signal(signal.SIGINT)
    out, told = process.communicate()
    assert process.returncode == 130
    assert [row["strategy"] for row in json.loads(out)] == ["host-only"]
    assert told == b"byoc: stopped: 1 case done, above\n"


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


needs_dask = pytest.mark.skipif(not find_spec("distributed"), reason="needs Dask")


@needs_dask
def test_a_cluster_gives_the_serial_rows(folder: Path) -> None:
    from distributed import LocalCluster  # noqa: PLC0415 - optional, and slow to import

    counting = {"name": "counting", "options": {"folder": str(folder)}, "seeds": [0, 1, 2]}
    study = write_study(folder, models="nets/one.onnx", strategies=["host-only", counting])
    with solve_studies_here():
        serial = byoc.study(study, jobs=1)
    (folder / "solved").unlink()
    threads = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**threads, dashboard_address=None) as cluster:
        found = byoc.study(study, folder / "r.csv", scheduler=cluster.scheduler_address)
    assert (found.earlier, count_solved(folder)) == (0, 3)
    assert drop_times(found.rows) == drop_times(serial.rows)
    rows = [row | {"notes": "; ".join(row["notes"])} for row in serial.rows]
    assert drop_times(read_results(folder / "r.csv")) == drop_times(rows)


@pytest.mark.thorough
@needs_dask
def test_a_cluster_with_a_worker_killed_gives_the_serial_rows(folder: Path) -> None:
    counting = {"name": "counting", "options": {"folder": str(folder)}, "seeds": [0, 1, 2, 3]}
    study = write_study(folder, strategies=["launch-aware", "host-only", counting])
    with solve_studies_here():
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
        _, told = ran.communicate(timeout=1200)
    assert ran.returncode == 0, told
    rows = [row | {"notes": "; ".join(row["notes"])} for row in serial.rows]
    assert drop_times(read_results(folder / "r.csv")) == drop_times(rows)
    lines = Path(f"{folder / 'r.csv'}.cases.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len({json.loads(line)["key"] for line in lines[1:]}) == 1 + serial.total
    # The cases that the worker was at when it was killed begin anew, at most one.
    assert count_solved(folder) in {8, 9}


def test_a_cluster_that_is_not_there(folder: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.comparison._case_schedulers._CONNECT_SECONDS", 0.1)
    study = write_study(folder)
    ran = byoc("study", study, "-o", folder / "r.csv", "--scheduler", "tcp://127.0.0.1:9")
    assert ran.code == 1
    assert "scheduler tcp://127.0.0.1:9: " in ran.err
    assert byoc("study", study, "-o", folder / "r.csv", "--scheduler", "x", "--jobs", "2").code == 1
