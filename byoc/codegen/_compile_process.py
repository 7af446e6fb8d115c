"""Processes of vendors' tools: one that a model may crash, and one in another interpreter."""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc._dataclasses import dataclass
from byoc.codegen._emx_definitions import SingleNode, check_each_node
from byoc.codegen._interface import AnyArray, CompileError
from byoc.codegen.byoc_worker.pipes import read_array, write_arrays
from byoc.support import describe_exit

_PIPES = Path(__file__).parent / "byoc_worker" / "pipes.py"
_FORKS = Path(__file__).with_name("_fork_server.py")
_CAN_FORK = sys.platform == "linux"  # forks of macOS may not use its frameworks, and Windows has none
_END_SECONDS = 5.0  # for a process that closed its pipe to end by itself: its exit code tells why


@dataclass(frozen=True)
class CompilerAnswer:
    """The objections of a compiler to a model: none where it takes it.

    `lasting` says whether it would say so again; an end of its process may have another cause.
    """

    reason: str
    lasting: bool = True


@dataclass(frozen=True)
class CompileProcess:
    """A Python program that compiles the models of a folder.

    It is the module named `module`, run with `arguments`, FOLDER and FIRST. For each file FIRST.onnx,
    FIRST + 1.onnx, ... in the folder it prints a line: a JSON string, empty or what the compiler says
    against the model. What it writes to N.txt explains why it ended at N.onnx, else its standard error
    does. `compiler` is the compiler's name in messages, `patience` how many seconds all models of a
    folder may take.

    `preload` are modules that take long to import. On Linux a process imports them once and forks for
    each run, which so begins in the same state as a new process; the fork server is kept for further
    runs with the same environment and working directory, and ends with this process.
    """

    compiler: str
    module: str
    arguments: tuple[str, ...]
    patience: float
    preload: tuple[str, ...] = ()

    def run(self, folder: Path, number: int) -> list[CompilerAnswer]:
        """Compile the files 0.onnx, 1.onnx, ... in a folder; start again behind one that crashes.

        Return an answer for each. Raises CompileError if the compiler takes longer than `patience`.
        """
        answers: list[CompilerAnswer] = []
        while len(answers) < number:
            try:
                ran = self._run_program([*self.arguments, str(folder), str(len(answers))])
            except subprocess.TimeoutExpired:
                why = f"{self.compiler} gave no answer in {self.patience:g} s"
                raise CompileError(why, lasting=False) from None
            answers += [CompilerAnswer(json.loads(line)) for line in ran.stdout.splitlines()]
            if len(answers) < number:
                answers.append(_explain_end(folder / f"{len(answers)}.txt", ran))
        return answers

    def _run_program(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run the program once. Raises subprocess.TimeoutExpired."""
        if self.preload and _CAN_FORK:
            with _borrow_server(self.preload) as server:
                ran = server.run(self.module, arguments, self.patience)
            if ran is not None:
                return ran
        # -P: a module in the working directory may be a stranger's.
        return subprocess.run(
            [sys.executable, "-P", "-m", self.module, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=self.patience,
            check=False,
        )

    def check_nodes(
        self, model: ModelProto, prepare: Callable[[ModelProto], object] | None = None
    ) -> list[CompilerAnswer]:
        """Return the answer about each node of a model's graph, compiled alone.

        `prepare` changes the model of a node before it is written.
        """
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            numbers = count()

            def save(single: SingleNode) -> int:
                number = next(numbers)
                model = single.standard_model()
                if prepare is not None:
                    prepare(model)
                (Path(folder) / f"{number}.onnx").write_bytes(model.SerializeToString())
                return number

            order = check_each_node(model, save)
            answers = self.run(Path(folder), next(numbers))
        return [answers[number] for number in order]


def _explain_end(messages: Path, ran: "subprocess.CompletedProcess[str]") -> CompilerAnswer:
    """Return why a process ended: some compilers end it where they do not know an option."""
    text = messages.read_text(errors="replace") if messages.exists() else ran.stderr
    if ran.returncode > 0 and text.strip():
        return CompilerAnswer(text, lasting=False)
    return CompilerAnswer(f"its compiler ended with {ran.returncode}", lasting=False)


class _ForkServer:
    """A process that has imported modules, and forks for each program (`_fork_server.py`)."""

    def __init__(self, preload: Sequence[str]) -> None:
        """Start the process."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_FORKS), *preload],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def run(
        self, module: str, arguments: Sequence[str], patience: float
    ) -> "subprocess.CompletedProcess[str] | None":
        """Run a program in a fork; return what came of it, None where the server itself ended.

        Raises subprocess.TimeoutExpired after `patience` seconds.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
            files = {name: str(Path(folder) / name) for name in ("stdout", "stderr")}
            request = {"module": module, "arguments": [*arguments], "patience": patience, **files}
            try:
                self._process.stdin.write(f"{json.dumps(request)}\n".encode())
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                return None
            if not line.endswith(b"\n"):
                return None
            code = json.loads(line)
            if code is None:
                raise subprocess.TimeoutExpired(module, patience)
            texts = [Path(each) for each in files.values()]
            wrote = [each.read_text(errors="replace") if each.exists() else "" for each in texts]
        return subprocess.CompletedProcess(module, code, *wrote)

    def close(self) -> None:
        """End the process, and a fork that still runs."""
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_ServerKey = tuple[int, tuple[str, ...], str, tuple[tuple[str, str], ...]]
_idle_servers: dict[_ServerKey, list[_ForkServer]] = {}
_idle_lock = threading.Lock()


@contextmanager
def _borrow_server(preload: tuple[str, ...]) -> Iterator[_ForkServer]:
    """Lend a fork server to one thread, an idle one of the same environment if there is one.

    It is closed where it ended, or the thread was interrupted while it waited.
    """
    folder = ""
    with contextlib.suppress(OSError):  # it may have been removed
        folder = str(Path.cwd())
    key = (os.getpid(), preload, folder, tuple(sorted(os.environ.items())))
    _close_idle_servers(keep=key)
    with _idle_lock:
        idle = _idle_servers.get(key)
        server = idle.pop() if idle else None
    server = server or _ForkServer(preload)
    try:
        yield server
    except subprocess.TimeoutExpired:  # the server killed its fork, and goes on
        _return_server(key, server)
        raise
    except BaseException:
        server.close()
        raise
    _return_server(key, server)


def _return_server(key: _ServerKey, server: _ForkServer) -> None:
    if not server.runs:
        server.close()
        return
    with _idle_lock:
        _idle_servers.setdefault(key, []).append(server)


def _close_idle_servers(keep: _ServerKey | None = None) -> None:
    """Close the idle servers of this process for the same modules as a key's but in another state."""
    own = os.getpid()  # those of a process that this one is a fork of are not its own
    with _idle_lock:
        keys = [key for key in _idle_servers if key[0] == own and key != keep]
        keys = [key for key in keys if keep is None or key[1] == keep[1]]
        servers = [server for key in keys for server in _idle_servers.pop(key)]
    for server in servers:
        server.close()


atexit.register(_close_idle_servers)


class ProcessEndedError(Exception):
    """A process ended, or wrote what is no answer; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        """Remember the code."""
        super().__init__(f"the process {describe_exit(code)}")
        self.code = code


class PipeProcess:
    """A file of Python that answers requests in an interpreter of its own, kept alive over requests.

    The interpreter needs numpy and nothing of byoc. `worker` defines `answer(request, arrays)`, which
    returns the fields of an answer and arrays (`byoc_worker/pipes.py` calls it). Its working directory
    is `folder`, by default that of this process. One thread may ask at a time.
    """

    def __init__(self, python: str, worker: Path, folder: Path | None = None) -> None:
        """Remember what to start."""
        self._command = [python, "-I", str(_PIPES), str(worker)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        atexit.register(self.close)

    @property
    def life(self) -> int:
        """The number of times that it was started, or 0 while it does not run."""
        return 0 if self._process is None or self._process.poll() is not None else self._starts

    def start(self) -> int:
        """Start the process where it does not run, and return its `life`. Raises OSError."""
        if not self.life:
            self.close()
            pipe, lost = subprocess.PIPE, subprocess.DEVNULL
            # A group of its own: what it starts has its pipes as well, and ends with it.
            self._process = subprocess.Popen(
                self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=lost,
                cwd=self._folder,
                start_new_session=True,
            )
            self._starts += 1
        return self._starts

    def ask(
        self, request: Mapping[str, Any], arrays: Sequence[AnyArray], timeout: float | None = None
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        """Send a request to the running process; return the fields of its answer, and the arrays.

        The process is ended, and TimeoutError raised, after `timeout` seconds, and ProcessEndedError
        where it gives no answer.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = inf if timeout is None else time.monotonic() + timeout
        killer = threading.Timer(timeout or 0.0, _kill_group, (process,))
        if timeout is not None:
            killer.start()
        try:
            write_arrays(process.stdin, request, [np.asarray(array) for array in arrays])
            fields: dict[str, Any] = json.loads(process.stdout.readline())
            made = [read_array(process.stdout, *kind).copy() for kind in fields.pop("arrays")]
        except (OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            self.close()
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            raise ProcessEndedError(process.returncode) from None
        finally:
            killer.cancel()
        return fields, made

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _kill_group(process)
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):  # what was to be written has no reader
                    pipe.close()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that has a session of its own, and all that it started."""
    if process.poll() is not None:
        return
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def find_version_in(python: str, module: str, distribution: str) -> str | None:
    """Return the version of a module's distribution in an interpreter, None without the module.

    Without the distribution's metadata it is empty. `PipeProcess` needs numpy there as well.
    """
    code = (
        f"import importlib.metadata as m, importlib.util as u; assert u.find_spec({module!r}); "
        f"assert u.find_spec('numpy'); found = [*m.distributions(name={distribution!r})]; "
        "print(found[0].version if found else '')"
    )
    try:
        ran = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
