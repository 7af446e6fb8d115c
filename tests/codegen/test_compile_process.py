"""Compilers in a process that a model may end, and tools in another interpreter, asked over pipes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import is_running, parse, wait_for

from byoc.codegen import CompileError, CompileProcess, PipeProcess, ProcessEndedError, find_version_in

TWO = "g (float[2] x) => (float[2] z) { y = Relu(x) w = Relu(y) z = Neg(w) }"
PROGRAM = """
import json, os, sys
from pathlib import Path
import onnx

flag, folder, first = sys.argv[1:]
number = int(first)
while (path := Path(folder) / f"{number}.onnx").exists():
    op = onnx.load(path).graph.node[0].op_type
    if op == flag:
        END
    print(json.dumps("" if op == "Relu" else f"no {op}"), flush=True)
    number += 1
"""
Make = Callable[..., CompileProcess]


@pytest.fixture(params=[(), ("onnx",)], ids=["new processes", "forks"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a process that takes Relu, and ends in a way at the operator that it is given."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make_process(flag: str = "", end: str = "os._exit(3)", patience: float = 60.0) -> CompileProcess:
        (tmp_path / "some_compiler.py").write_text(PROGRAM.replace("END", end), encoding="utf-8")
        return CompileProcess("Some", "some_compiler", (flag,), patience, request.param)

    return make_process


def test_each_node_gets_its_answer(make: Make) -> None:
    answers = make().check_nodes(parse(TWO))

    assert [each.reason for each in answers] == ["", "", "no Neg"]
    assert all(each.lasting for each in answers)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os.abort()", "its compiler ended with -6"),
        ("sys.exit(0)", "its compiler ended with 0"),
        ("sys.exit('no such processor')", "no such processor\n"),
        ("path.with_suffix('.txt').write_text('a word'); os._exit(1)", "a word"),
    ],
)
def test_what_ends_it_is_an_answer_and_the_next_is_asked(end: str, reason: str, make: Make) -> None:
    answers = make("Relu", end).check_nodes(parse(TWO))

    assert [each.reason for each in answers] == [reason, reason, "no Neg"]
    assert [each.lasting for each in answers] == [False, False, True]


def test_what_takes_too_long_is_no_answer(make: Make) -> None:
    process = make("Neg", "import time; time.sleep(60)", patience=2.0)

    with pytest.raises(CompileError, match="Some gave no answer in 2 s") as caught:
        process.check_nodes(parse(TWO))

    assert not caught.value.lasting


def test_models_may_be_changed_before_they_are_asked_about(make: Make) -> None:
    def negate(model: object) -> None:
        model.graph.node[0].op_type = "Neg"  # type: ignore[attr-defined]

    answers = make().check_nodes(parse(TWO), negate)

    assert [each.reason for each in answers] == ["no Neg"] * 3


def test_nothing_is_imported_from_the_working_directory(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = make()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "onnx.py").write_text("raise SystemExit('taken')", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")

    assert process.run(tmp_path, 0) == []
    assert [each.reason for each in process.check_nodes(parse(TWO))] == ["", "", "no Neg"]


SLOW_IMPORT = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write("once ")
runs = []
"""
COUNTING = """
import json, os, sys
import slow_import
slow_import.runs.append(1)
print(json.dumps(f"{len(slow_import.runs)} {os.environ['MARK']} {os.getcwd()}"))
"""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileProcess:
    """Return a process whose answer is how often it ran in its state, a variable, and its folder."""
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT, encoding="utf-8")
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    monkeypatch.setenv("MARK", "first")
    return CompileProcess("Some", "counting", (), 60.0, ("slow_import", "no_such_module"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each run is a new process")
def test_what_is_preloaded_is_imported_once_and_each_run_begins_anew(
    counted: CompileProcess, tmp_path: Path
) -> None:
    answers = [counted.run(tmp_path, 1)[0].reason for _ in range(3)]

    assert answers == [f"1 first {Path.cwd()}"] * 3
    assert (tmp_path / "imports").read_text() == "once "


def test_forks_have_the_environment_and_the_folder_of_each_call(
    counted: CompileProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.run(tmp_path, 1)
    monkeypatch.setenv("MARK", "second")
    assert counted.run(tmp_path, 1)[0].reason == f"1 second {Path.cwd()}"
    monkeypatch.chdir(tmp_path)
    assert counted.run(tmp_path, 1)[0].reason == f"1 second {tmp_path}"


PIPED = """
import os, time
def answer(request, arrays):
    if request["do"] == "die":
        os._exit(7)
    if request["do"] == "hang" and os.fork():
        os.wait()  # for a child that has the pipes as well
    elif request["do"] == "hang":
        time.sleep(60)
    if request["do"] == "fail":
        raise ValueError("no")
    return {"pid": os.getpid()}, [each + 1 for each in arrays]
"""


def test_a_piped_process_answers_until_it_dies_or_is_too_slow(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(PIPED)
    process = PipeProcess(sys.executable, tmp_path / "worker.py", tmp_path)
    assert process.life == 0
    assert process.start() == process.start() == process.life == 1
    given = [np.arange(6, dtype=np.int8).reshape(2, 3).T, np.array(2.5), np.zeros((0, 4))]

    fields, made = process.ask({"do": "add"}, given, 60.0)
    for before, after in zip(given, made, strict=True):
        np.testing.assert_array_equal(after, before + 1, strict=True)
    assert process.ask({"do": "fail"}, ()) == ({"error": "ValueError: no"}, [])
    assert process.ask({"do": "add"}, ()) == (fields, [])

    with pytest.raises(ProcessEndedError) as caught:
        process.ask({"do": "die"}, (), 60.0)
    assert caught.value.code == 7
    assert process.life == 0
    assert process.start() == 2
    with pytest.raises(TimeoutError):
        process.ask({"do": "hang"}, (), 0.2)
    assert process.life == 0
    process.close()


def test_an_interpreter_is_asked_for_a_module() -> None:
    assert find_version_in(sys.executable, "onnx", "onnx") == onnx.__version__
    assert find_version_in(sys.executable, "onnx", "no-such-distribution") == ""
    assert find_version_in(sys.executable, "no_such_module", "onnx") is None
    assert find_version_in("/no/such/python", "onnx", "onnx") is None


def test_it_ends_with_the_process_that_asked_whatever_it_does(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, subprocess, time\n"
        "from pathlib import Path\n"
        "def answer(request, arrays):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    Path(request['file']).write_text(f'{os.getpid()} {child.pid}\\n')\n"
        "    time.sleep(600)\n"
    )
    asker = (
        "import sys\n"
        "from pathlib import Path\n"
        "from byoc.codegen import PipeProcess\n"
        "process = PipeProcess(sys.executable, Path(sys.argv[1]))\n"
        "process.start()\n"
        "process.ask({'file': sys.argv[2]}, ())\n"
    )
    told = tmp_path / "told"
    with subprocess.Popen([sys.executable, "-c", asker, tmp_path / "worker.py", told]) as asking:
        wait_for(lambda: told.exists() and told.read_text().endswith("\n"))
        asking.kill()
    for pid in map(int, told.read_text().split()):
        wait_for(lambda pid=pid: not is_running(pid))
