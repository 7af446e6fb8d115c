"""How the command line ends: not by a plug-in, and at signals even while a library computes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import onnx
import pytest
from helpers.support import VANILLA, Ran, parse, sample_cases
from helpers.wrecking import Wreck

from byoc import long_calls
from byoc.long_calls import waiting_for, watch_calls

NET = "g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"


FOREVER = """g (float[2] x) => (float[2] y)
    <int64 trips = {4611686018427387904}, bool always = {1}> {
    y = Loop (trips, always, x)
        <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Sin(v) }>
}"""


CUT = ["partition", "net.onnx", "--rules", str(VANILLA), "--strategy", "all-supported", "-o", "b"]


_BUSY_SECONDS = 6


Cli = Callable[..., Ran]


pytestmark = pytest.mark.usefixtures("numbered_regions")


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), "net.onnx")
    onnx.save(parse(FOREVER), "forever.onnx")
    return tmp_path


def test_a_codegen_that_leaves_with_0_has_failed(folder: Path, wreck: Wreck, byoc: Cli) -> None:
    leave = os._exit
    for method in ("compile", "run", "load"):
        wreck(f"{method} leave")
        ran = byoc(*CUT, "--codegen", "wrecker")
        assert ran.code == 5
        assert (
            "it called os._exit(0), which would end byoc with nothing said (helpers/wrecker.py:"
            in ran.err + ran.out
        )
    wreck("")
    assert byoc(*CUT, "--codegen", "wrecker").code == 0
    wreck("run leave")
    ran = byoc("run", "b", "--inputs", "random")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "codegen wrecker: failed with RuntimeError: it called os._exit(0)" in ran.err
    assert os._exit is leave


def test_a_codegen_that_hangs_in_a_process_of_its_own_is_stopped_by_default(
    folder: Path, wreck: Wreck, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byoc.codegen._worker._DEFAULT_SECONDS", 3.0)
    isolated = [*CUT, "--codegen", "wrecker", "--isolate", "--no-cache"]
    assert byoc(*isolated).code == 0
    wreck("run hang")
    stopped = "took longer than 3 s and was stopped (--call-timeout SECONDS allows more)"
    for verb in (["run", "b", "--inputs", "random"], ["verify", "b"]):
        ran = byoc(*verb, "--isolate")
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert f"run {stopped}" in ran.err
    wreck("compile hang")
    ran = byoc(*isolated)
    assert ran.code == 5
    assert f"compile {stopped}" in ran.err + ran.out


def test_the_handlers_of_a_program_that_calls_it_stay(byoc: Cli) -> None:
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    before = [signal.getsignal(number) for number in numbers]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    threads = threading.active_count()
    assert byoc("strategies").code == 0
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(wakeup) == wakeup
    assert threading.active_count() <= threads  # one of an earlier test may have ended meanwhile


def test_it_runs_in_another_thread(byoc: Cli) -> None:
    found: list[Ran] = []
    thread = threading.Thread(target=lambda: found.append(byoc("strategies")))
    thread.start()
    thread.join()
    assert found[0].code == 0


@contextmanager
def start(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that runs a verb; it is killed where a test leaves it running."""
    command = [sys.executable, "-m", "byoc", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the codegen is found there
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_busy(process: subprocess.Popen[str]) -> None:
    """Wait until a process has taken more processor time than it takes to come to its computing."""
    while process.poll() is None:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > _BUSY_SECONDS:
            return
        time.sleep(0.1)
    pytest.fail(f"it ended: {process.communicate()}")


@pytest.mark.skipif(sys.platform != "linux", reason="processor times are read from /proc")
@pytest.mark.parametrize(
    ("verb", "number"),
    sample_cases(
        [*product(["partition", "verify"], [signal.SIGINT, signal.SIGTERM])],
        ("partition", signal.SIGTERM),
        ("verify", signal.SIGINT),
    ),
)
def test_onnxruntime_is_stopped_by_a_signal(
    verb: str, number: signal.Signals, folder: Path, byoc: Cli
) -> None:
    cut = ["partition", "forever.onnx", "--rules", "dla", "-o", "b"]
    arguments = cut
    if verb == "verify":
        assert byoc(*cut, "--no-verify").code == 0
        arguments = ["verify", "b"]
    with start(*arguments) as process:
        wait_until_busy(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=1200)
    assert process.returncode == 128 + number
    assert (out, err) == ("", "")
    assert {each.name for each in folder.iterdir()} - {"b"} == {"net.onnx", "forever.onnx"}
    assert (folder / "b").exists() == (verb == "verify")


@pytest.mark.skipif(sys.platform != "linux", reason="processor times are read from /proc")
def test_a_library_that_computes_on_does_not_keep_the_process(folder: Path, wreck: Wreck) -> None:
    wreck("compile compute")
    with start(*CUT, "--codegen", "wrecker") as process:
        wait_until_busy(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=1200) == 128 + signal.SIGTERM
    assert {each.name for each in folder.iterdir()} >= {"net.onnx", "forever.onnx"}
    assert not list(folder.glob(".byoc-*"))
    assert not (folder / "b").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="processor times are read from /proc")
def test_temporary_folders_go_with_a_process_that_leaves_at_once(
    folder: Path, wreck: Wreck, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tmp").mkdir()
    wreck("")
    assert byoc(*CUT, "--codegen", "wrecker").code == 0
    assert byoc("pack", "b", "-o", "b.zip").code == 0
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    wreck("run compute")
    with start("run", "b.zip", "--inputs", "random", "--no-isolate") as process:
        wait_until_busy(process)
        assert [*(folder / "tmp").iterdir()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert [*(folder / "tmp").iterdir()] == []


def test_it_is_said_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()
    lines: list[str] = []

    def show(line: str) -> None:
        lines.append(line)
        said.set()

    for name in ("_FIRST_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(long_calls, name, 0.01)
    with watch_calls(show), waiting_for("codegen acme: compile of region a"):
        assert said.wait(30)
    assert lines[0].startswith("waiting for codegen acme: compile of region a, ")
    lines.clear()
    with waiting_for("nobody is told"):
        time.sleep(0.05)
    assert not lines


def test_a_slow_codegen_is_named(
    folder: Path, wreck: Wreck, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(long_calls, name, 0.01)
    wreck("compile nap")
    ran = byoc(*CUT, "--codegen", "wrecker")
    assert ran.code == 0
    said = [line for line in ran.err.splitlines() if "compile of region dla_0" in line]
    assert said[0].startswith("byoc: waiting for codegen wrecker: compile of region dla_0, 0 s so far; ")
    own = "it cannot be stopped in byoc's own process (--call-timeout SECONDS gives it another)"
    assert said[0].endswith(own)


@pytest.mark.parametrize(
    ("flags", "limit"), [(("--isolate",), "3600"), (("--call-timeout", "77"), "77")]
)
def test_what_is_waited_for_in_another_process_is_named_with_its_limit(  # noqa: PLR0917
    flags: tuple[str, ...],
    limit: str,
    folder: Path,
    wreck: Wreck,
    byoc: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_FIRST_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(long_calls, name, 0.01)
    wreck("compile nap")
    ran = byoc(*CUT, "--codegen", "wrecker", *flags)
    assert ran.code == 0
    said = [line for line in ran.err.splitlines() if "compile of region dla_0" in line]
    end = f"s so far; it is stopped after {limit} s (--call-timeout SECONDS sets another limit)"
    assert said[0].startswith("byoc: waiting for codegen wrecker: compile of region dla_0, ")
    assert said[0].endswith(end)
    assert any("waiting for codegen wrecker: import, " in line for line in ran.err.splitlines())


def test_without_memory_for_a_thread_it_says_so(
    folder: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    ran = byoc("inspect", "net.onnx")  # the thread that hears signals is done without
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    monkeypatch.setattr("byoc.open_bundle", fail)
    ran = byoc("inspect", "net.onnx")
    assert (ran.code, ran.err) == (1, "byoc: there is not enough memory for it\n")


@pytest.mark.parametrize("place", ["_make_app", "ending_by_signals"])
def test_an_interrupt_before_signals_are_heard_is_no_traceback(
    place: str, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"byoc.cli._main.{place}", interrupt)
    assert byoc("rules").code == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_whose_exception_python_drops_is_heard_again(
    number: signal.Signals, code: int, folder: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropped:
        """An object during whose end Python drops exceptions, as in those of its own imports."""

        def __del__(self) -> None:
            signal.raise_signal(number)

    def work(*_: object, **__: object) -> None:
        Dropped()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.01)

    hook = sys.unraisablehook
    monkeypatch.setattr("byoc.open_bundle", work)
    began = time.monotonic()
    ran = byoc("inspect", "net.onnx")
    assert (ran.code, ran.out, ran.err) == (code, "", "")
    assert time.monotonic() - began < 15
    assert sys.unraisablehook is hook
