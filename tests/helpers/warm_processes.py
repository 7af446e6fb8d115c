"""Processes that tests start by a fork, so that they need not import byoc again.

A worker of a codegen takes 0.4 s of processor time before it is ready, a process of a study or of the
command line a second, nearly all of it for imports. Here a server imports them once for each process of
pytest, and forks to start one. The fork is a process of its own with the environment, import path,
working folder, session and descriptors that are asked for, in which all else is done anew. Processes
that byoc starts are such forks; a test starts one itself with `warm_processes.run` or `.Popen`, as with
those of `subprocess`. A test that is about the start itself uses the fixture `cold_processes`.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any

import pytest

from byoc.codegen import _worker
from byoc.comparison import _case_schedulers

# Read by the interpreter and by libraries before byoc's programs run.
_READ_AT_START = ("PYTHON", "OPENBLAS", "OMP_", "LD_", "MALLOC_", "GLIBC_")
_SET_BY_FORKS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
# Modules of codegens that start byoc, where a test has imported them.
_OF_CODEGENS = ("byoc.codegens.openvino.openvino_blob",)
# What verbs load that plan, write a bundle and run it, since doors import a name when it is first asked
# for; but not onnxruntime, which starts a thread when it is imported, and waits for it at the end of a
# fork.
_LOADED = (
    *("pytest", "byoc.cli._partition_verb", "byoc.comparison._case_schedulers", "byoc.pipeline"),
    *("byoc.pipeline._compile_stages", "byoc.pipeline._verify_stage", "byoc.pipeline._emission_stages"),
    *("byoc.placement.strategies._optimizing", "byoc.bundle._writing", "byoc.bundle._reading"),
    *("byoc.runtime._loading", "byoc.reporting._verification_document"),
    *("byoc.cli._main", "byoc.cli._run_verb", "byoc.cli._rules_verb", "byoc.pipeline._program"),
    *("byoc.reporting._report_text", "byoc.reporting._explanation_document"),
    *("byoc.codegens.dla.region_artifact", "byoc.codegens.dla.compiler", "byoc.codegens.dla.simulator"),
    *("numpy.ma", "cryptography.hazmat.primitives.asymmetric.ed25519"),
)
_IMPORTS = f"import {', '.join(_LOADED)}"
_OWN_PATH = os.environ.get("PYTHONPATH", "")
_PYTHON = sys.executable  # tests replace it by what fails
_SERVER = Path(__file__).with_name("fork_server.py")
_forked: list[float] = []


def count_forked_seconds() -> float:
    """Return the processor's seconds of the forked processes that this process waited for."""
    return sum(_forked)


class ForkServer:
    """A process that has imported a program, and forks to run it; it ends with this process."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it with the arguments of the interpreter that start the program."""
        self.variables = _list_read_variables(environment)
        self._lock = Lock()
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SERVER), str(theirs.fileno()), *program],
                env={**environment, "PYTHONPATH": _OWN_PATH},  # its forks get theirs
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a process, and return its number."""
        with self._lock:
            socket.send_fds(self._link, [json.dumps(request).encode() + b"\n"], descriptors)
            answer = self._link.recv(64)
            if not answer:
                raise OSError("the fork server has ended")
            return int(answer)

    def close(self) -> None:
        """End it."""
        self._link.close()
        self._process.wait()


class ForkedProcess:
    """What byoc uses of `subprocess.Popen`, of a process that a `ForkServer` started."""

    def __init__(
        self,
        server: ForkServer,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int | IO[Any] | None],
        *,
        passed: Sequence[int],
        folder: Path,
    ) -> None:
        """Start it, in a session of its own; `streams` are those of Popen, input, output and error."""
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        opened = [os.open(os.devnull, os.O_RDWR)]
        self._status, ended = os.pipe()
        opened.append(ended)
        given = []
        for place, stream in enumerate(streams):
            if stream == subprocess.PIPE:
                ends = os.pipe()
                opened.append(ends[min(place, 1)])
                theirs = min(place, 1)
                mine = os.fdopen(ends[1 - theirs], "rb" if theirs else "wb")
                setattr(self, ("stdin", "stdout", "stderr")[place], mine)
                given.append(ends[theirs])
            elif stream == subprocess.DEVNULL or stream is None:
                given.append(2 if place == 2 and stream is None else opened[0])
            else:
                given.append(stream if isinstance(stream, int) else stream.fileno())
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder),
            "passed": list(passed),
        }
        try:
            self.pid = server.fork(request, [*given, ended, *passed])
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([], timeout or 0)
            told = os.read(self._status, 64).split()
            os.close(self._status)
            code, seconds = told or (b"-9", b"0")  # without an answer the server was killed, too
            self.returncode = int(code)
            _forked.append(float(seconds))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Wait for the end; return output and errors where they are pipes, at most what one holds."""
        self.wait(timeout)
        if self.stdin is not None:
            self.stdin.close()
        return _read_to_end(self.stdout), _read_to_end(self.stderr)

    def send_signal(self, number: int) -> None:
        """Send a signal; one that has ended gets none."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _read_to_end(stream: IO[bytes] | None) -> bytes:
    if stream is None or stream.closed:
        return b""
    with stream:
        return stream.read()


class WarmProcesses:
    """Stands in for the module `subprocess`: forks a server where Python is started, else starts."""

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}
        self._lock = Lock()  # studies start processes from several threads

    def Popen(self, command: Sequence[str | Path], **given: Any) -> Any:  # noqa: N802 - as its namesake
        """Start a process; of the options there are streams, `env`, `cwd` and `pass_fds`."""
        words = [*map(str, command)]
        environment = given.get("env") or dict(os.environ)
        worker = [*_worker.OwnProgram.command[1:]]
        is_worker = words[1 : 1 + len(worker)] == worker
        program = worker if is_worker else ["-c", _IMPORTS]
        keeps_numbers = given.get("pass_fds") and not is_worker  # a fork's descriptors have others
        if words[0] != _PYTHON or keeps_numbers or not self._can_fork(environment):
            return subprocess.Popen(command, **given)
        with self._lock:
            if program[-1] not in self._servers:
                self._servers[program[-1]] = ForkServer(program[-2:], environment)
            server = self._servers[program[-1]]
        if server.variables != _list_read_variables(environment):
            return subprocess.Popen(command, **given)
        return ForkedProcess(
            server,
            words[1 + len(worker) :] if is_worker else words[1:],
            environment,
            [given.get(name) for name in ("stdin", "stdout", "stderr")],
            passed=given.get("pass_fds", ()),
            folder=given.get("cwd") or Path.cwd(),
        )

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = False,
        timeout: float = 300,
        capture_output: bool = True,
        text: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a process to its end; return its exit code and, as text, output and errors."""
        assert capture_output
        assert text
        with TemporaryFile() as out, TemporaryFile() as err:
            process = self.Popen(command, stdout=out, stderr=err, env=env, cwd=cwd)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                raise
            for file in (out, err):
                file.seek(0)
            done = subprocess.CompletedProcess(command, code, out.read().decode(), err.read().decode())
        if check:
            done.check_returncode()
        return done

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.close()
        _forked.clear()  # they are among the processor's seconds of the servers now

    @staticmethod
    def _can_fork(environment: Mapping[str, str]) -> bool:
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        if any(Path(path, "sitecustomize.py").exists() for path in paths):
            return False
        try:
            os.fstat(2)
            Path.cwd()
        except OSError:
            return False
        return sys.platform.startswith("linux")


@pytest.fixture(scope="session")
def warm_processes() -> Iterator[WarmProcesses]:
    """Start workers of codegens, and processes of studies, by forks; tests may start more."""
    instead = WarmProcesses()
    with pytest.MonkeyPatch.context() as patch:
        for module in (_worker, _case_schedulers, *filter(None, map(sys.modules.get, _OF_CODEGENS))):
            patch.setattr(module, "subprocess", instead)
        yield instead
    instead.close()


@pytest.fixture
def cold_processes(warm_processes: WarmProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as byoc does, each in a fresh interpreter, for a test that is about their start."""
    for module in (_worker, _case_schedulers):
        monkeypatch.setattr(module, "subprocess", subprocess)


def _list_read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name not in _SET_BY_FORKS
    }
