"""Processes of byoc's own that tests start by a fork, so that they need not import byoc again.

A worker of a codegen takes 0.4 s of processor time before it is ready, a process of a study a second,
nearly all of it for imports. Here a server imports the program once for each process of pytest, and
forks to start it. The fork is a process of its own with the environment, import path, working folder,
session and descriptors that byoc asks for, in which all that a codegen does is done anew. A test that
is about the start itself uses the fixture `cold_processes`.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any

import pytest

from byoc.codegen import _worker
from byoc.comparison import _case_process

# Read by the interpreter and by libraries before byoc's programs run.
_READ_AT_START = ("PYTHON", "OPENBLAS", "OMP_", "LD_", "MALLOC_", "GLIBC_")
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
                env=dict(environment),
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
        streams: tuple[int | None, int | None],
        passed: Sequence[int],
    ) -> None:
        """Start it, in a session of its own; `streams` are those of Popen, input and output."""
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        opened = [os.open(os.devnull, os.O_RDWR)]
        self._status, ended = os.pipe()
        opened.append(ended)
        given = []
        for place, stream in enumerate(streams):
            if stream == subprocess.PIPE:
                ends = os.pipe()
                opened.append(ends[place])
                mine = os.fdopen(ends[1 - place], "wb" if place == 0 else "rb")
                self.stdin, self.stdout = (mine, self.stdout) if place == 0 else (self.stdin, mine)
                given.append(ends[place])
            else:
                given.append(opened[0] if stream in {None, subprocess.DEVNULL} else stream)
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "passed": list(passed),
        }
        try:
            self.pid = server.fork(request, [*given, 2, ended, *passed])
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


class _Subprocess:
    """Stands in for the module `subprocess` where byoc starts its own programs."""

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}
        self._lock = Lock()  # studies start processes from several threads

    def Popen(self, command: Sequence[str], **given: Any) -> Any:  # noqa: N802 - as its namesake
        own = [[*_worker.OwnProgram.command[1:]], ["-P", "-c", _case_process._PROGRAM]]
        program = next((each for each in own if list(command[1 : 1 + len(each)]) == each), None)
        if command[0] != sys.executable or program is None:
            return subprocess.Popen(command, **given)
        environment = given["env"]
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        if any(Path(path, "sitecustomize.py").exists() for path in paths):
            return subprocess.Popen(command, **given)
        with self._lock:
            if program[-1] not in self._servers:
                self._servers[program[-1]] = ForkServer(program[1:], environment)
            server = self._servers[program[-1]]
        try:
            os.fstat(2)
            Path.cwd()
        except OSError:
            return subprocess.Popen(command, **given)
        if server.variables != _list_read_variables(environment):
            return subprocess.Popen(command, **given)
        streams = (given.get("stdin"), given.get("stdout"))
        arguments = command[1 + len(program) :]
        return ForkedProcess(server, arguments, environment, streams, given.get("pass_fds", ()))

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.fixture(scope="session")
def warm_processes() -> Iterator[None]:
    """Start workers of codegens, and processes of studies, by forks."""
    if not sys.platform.startswith("linux"):
        yield
        return
    instead = _Subprocess()
    with pytest.MonkeyPatch.context() as patch:
        for module in (_worker, _case_process):
            patch.setattr(module, "subprocess", instead)
        yield
    instead.close()


@pytest.fixture
def cold_processes(warm_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as byoc does, each in a fresh interpreter, for a test that is about their start."""
    for module in (_worker, _case_process):
        monkeypatch.setattr(module, "subprocess", subprocess)


def _list_read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }
