"""A worker process that runs the methods of one codegen, the limits of its calls, and how it ends.

It is a fresh interpreter in a process group of its own, which ends when byoc does: also when byoc is
killed, since the kernel then closes a pipe that the worker watches.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any, Protocol, TypeVar

from byoc._dataclasses import dataclass, field
from byoc.codegen._interface import (
    ArtifactError,
    CodegenFailedError,
    CompileError,
    NotHereError,
    ResourceError,
)
from byoc.codegen.byoc_worker.link import (
    LENGTH_BYTES,
    MOST_ANSWER_BYTES,
    BrokenMessageError,
    SharedMemory,
    parse_answer,
    read_texts,
    send_frame,
)
from byoc.errors import InputError, MissingRuntimeError, escape_unprintable
from byoc.support import LocatedError, describe_exit, name_signal

# The programs of worker processes: how one is started, and how requests to it are written.

PATH_VARIABLE = "PYTHONPATH"

_MODULE = "byoc.codegen._worker_process"


class WorkerProgram(Protocol):
    """The program that a worker process runs: how it is started, and how it takes requests.

    `command` is the command without its last arguments, the descriptors of the socket, of the shared
    memory, and of the pipe that is closed when byoc ends. Before it answers a request it may ask
    questions.
    """

    @property
    def command(self) -> Sequence[str]:
        """The command."""
        ...

    def make_environment(self) -> dict[str, str]:
        """Return the environment variables of the process."""
        ...

    def write_request(self, number: int, method: str, request: Mapping[str, Any]) -> bytes:
        """Return a request as the program reads it."""
        ...

    def answer_question(self, question: Any, memory: SharedMemory) -> bytes:
        """Return the answer to a question of the program. Raises BrokenMessageError for what is none."""
        ...


class OwnProgram:
    """byoc itself, in the same interpreter: it takes requests as pickles, and asks no questions."""

    # -P: modules in the working directory are not imported, as with the `byoc` command.
    command = (sys.executable, "-P", "-m", _MODULE)

    def make_environment(self) -> dict[str, str]:
        """Return the environment of this process, with its import path."""
        path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
        return {**os.environ, PATH_VARIABLE: path}

    def write_request(self, number: int, method: str, request: Mapping[str, Any]) -> bytes:
        """Return a request as a pickle, which byoc wrote and byoc reads."""
        return pickle.dumps((number, method, request))

    def answer_question(self, question: Any, memory: SharedMemory) -> bytes:
        """Raise BrokenMessageError."""
        raise BrokenMessageError("it asks a question")


T = TypeVar("T")
Reader = Callable[[Any, SharedMemory], T]
"""Reads the result of an answer; raises BrokenMessageError."""

_DEFAULT_SECONDS = 3600.0  # above what compilers take, below what a nightly build waits for
TRIAL_SECONDS = 120.0
"""The most seconds of a call for a finer finding, without which a run goes on: twice what compilers of
NPUs take for a network of a hundred layers."""
_LEAST_IMPORT_SECONDS = 60.0  # for importing an SDK, however short the limit of calls is
_MOST_SECONDS = 1_000_000  # sockets wait for at most 2^31 ms
_LOOK_SECONDS = 0.2  # how often it is looked whether a silent worker still runs
_END_SECONDS = 5.0  # for a worker that closed its side of the link to end
_SIGNAL_HINTS = {"SIGKILL": ", as happens when memory runs out"}
_SHOWN_METHODS = {"examine": "run"}  # what the codegen's own method is
_MOST_TRACEBACK_CHARACTERS = 20_000  # its end names the fault


@dataclass(frozen=True)
class Isolation:
    """The request to run codegens in worker processes, with limits in seconds.

    A call of a codegen takes at most `call_timeout`, an hour by default; one that compiles at most
    `compile_timeout`, if it is given. `environment` holds further environment variables. With
    `unless_trusted` codegens stay in this process for what a trusted maker made, and on systems without
    worker processes. Raises InputError for what is not a number of seconds above 0, and at most a
    million.
    """

    compile_timeout: float | None = None
    call_timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    unless_trusted: bool = False

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("compile_timeout", "call_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not (0 < seconds <= _MOST_SECONDS):
                words = name.replace("_", " ")
                raise InputError(
                    f"{words} {seconds:g}: not a number of seconds above 0, and at most {_MOST_SECONDS}"
                )

    def find_limit(self, method: str) -> float:
        """Return the most seconds that a method may take: fewer in a trial, without limits given."""
        given = [each for each in (self.compile_timeout, self.call_timeout) if each is not None]
        if method == "import" and given:  # of packages of any size, which is not what limits are for
            return max(*given, _LEAST_IMPORT_SECONDS)
        if method in {"compile", "compile_all", "take_weights"} and given:
            return given[0]
        default = TRIAL_SECONDS if _is_trial.get() and not given else _DEFAULT_SECONDS
        return default if self.call_timeout is None else self.call_timeout


_is_trial: ContextVar[bool] = ContextVar("is_trial", default=False)


@contextmanager
def limit_trial() -> Iterator[None]:
    """Limit the calls of codegens inside to `TRIAL_SECONDS`, where they are in worker processes."""
    token = _is_trial.set(True)
    try:
        yield
    finally:
        _is_trial.reset(token)


UNLESS_TRUSTED = Isolation(unless_trusted=True)
"""The default for what may come from others: worker processes unless a trusted maker made it."""


def choose_isolation(isolate: bool | None, call_timeout: float | None = None) -> Isolation | None:
    """Return the request that options for running a bundle make, None for this process.

    Without options it is `UNLESS_TRUSTED`. Raises InputError for a timeout that is none.
    """
    if isolate or (isolate is None and call_timeout is not None):
        return Isolation(call_timeout=call_timeout)
    return UNLESS_TRUSTED if isolate is None else None


def has_worker_processes() -> bool:
    """Return whether codegens can be run in worker processes on this system."""
    return hasattr(os, "killpg")


class VendorError(Exception):
    """The traceback of an exception in a worker process, as its text."""

    def __str__(self) -> str:
        """Return the traceback on lines of its own."""
        return f"in the process of the codegen:\n{self.args[0]}"


class RaisedInWorkerError(LocatedError):
    """An exception of a codegen's own in its worker; a subclass has the exception's name."""


class Worker:
    """A started process of one codegen, for one call at a time; the first that fails to answer ends it.

    `released` takes the numbers of executors that are not needed any more, for the next request.
    """

    def __init__(self, environment: Mapping[str, str], program: WorkerProgram | None = None) -> None:
        """Start the process, of byoc's own program by default, with further environment variables.

        Raises InputError when that is not possible.
        """
        self._program = program or OwnProgram()
        self.memory = _create_memory()
        self.released: list[int] = []
        self._link, theirs = socket.socketpair()
        watched, life = os.pipe()
        passed = (theirs.fileno(), self.memory.descriptor, watched)
        try:
            self._process = subprocess.Popen(
                [*self._program.command, *map(str, passed)],
                env={**self._program.make_environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=_stderr_or_null(),  # standard output is for byoc's results
                start_new_session=True,
                pass_fds=passed,
            )
        except (OSError, ValueError) as error:
            for descriptor in (life, self.memory.descriptor):
                os.close(descriptor)
            self._link.close()
            raise InputError(f"no process can be started for a codegen: {error}") from None
        finally:
            theirs.close()
            os.close(watched)
        owned = (self._process, self._link, life, self.memory.descriptor, os.getpid())
        self._end = weakref.finalize(self, _end_process, *owned)
        self._number = 0

    @property
    def is_alive(self) -> bool:
        """Whether it takes further calls."""
        return self._end.alive

    def close(self) -> None:
        """End the process and all that it started; nothing happens when it has ended."""
        self._end()

    def call(self, method: str, request: Mapping[str, Any], seconds: float, read: Reader[T]) -> T:
        """Send a request, and return what `read` makes of the result.

        Raises the exception that the answer describes. Raises CodegenFailedError, and ends the process,
        when the answer is none, when it takes longer than `seconds`, or when the process dies.
        """
        self._number += 1
        shown = _SHOWN_METHODS.get(method, method)
        content = self._program.write_request(self._number, method, request)
        deadline = monotonic() + seconds
        try:
            while True:
                answer = parse_answer(self._exchange(content, shown, deadline, seconds))
                if not isinstance(answer, dict) or answer.get("number") != self._number:
                    raise BrokenMessageError("it answers another request")
                if "question" not in answer:
                    break
                content = self._program.answer_question(answer["question"], self.memory)
            if "failure" not in answer:
                return read(answer.get("result"), self.memory)
            failure = _read_failure(answer["failure"])
        except BrokenMessageError:
            self.close()
            what = f"its process gave an answer to {method} that cannot be read"
            raise CodegenFailedError(what) from None
        except BaseException:  # the answer to an interrupted call may still come
            self.close()
            raise
        raise failure

    def _exchange(self, content: bytes, method: str, deadline: float, seconds: float) -> bytes:
        """Send a frame, and return the next one of the process."""
        try:
            self._link.settimeout(seconds)
            with suppress(BrokenPipeError, ConnectionResetError):  # it ended, and may have said why
                send_frame(self._link, content)
            length = int.from_bytes(self._receive(LENGTH_BYTES, deadline), "little")
            if length > MOST_ANSWER_BYTES:
                raise BrokenMessageError("it is too long")
            return self._receive(length, deadline)
        except TimeoutError:
            hint = (
                " (--call-timeout SECONDS allows more)"
                if seconds in {_DEFAULT_SECONDS, TRIAL_SECONDS}
                else ""
            )
            raise CodegenFailedError(
                f"{method} took longer than {seconds:g} s and was stopped{hint}", lasting=False
            ) from None
        except OSError:
            raise CodegenFailedError(self._describe_end(method)) from None

    def _receive(self, count: int, deadline: float) -> bytes:
        """Return so many bytes. Raises ConnectionError when the process ends, and TimeoutError."""
        parts: list[bytes] = []
        while count:
            left = min(deadline - monotonic(), _LOOK_SECONDS)
            if left <= 0:
                raise TimeoutError
            if not self._is_readable(left):
                # What it started may hold the other end of the link open.
                if self._process.poll() is not None and not self._is_readable(0):
                    raise ConnectionError
                continue
            part = self._link.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _is_readable(self, seconds: float) -> bool:
        """Return whether something can be read within some seconds."""
        return bool(select.select([self._link], [], [], seconds)[0])

    def _describe_end(self, method: str) -> str:
        """Describe the end of the process, as a sentence."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"its process closed the connection in {method}"
        hint = _SIGNAL_HINTS.get(name_signal(code), "") if code < 0 else ""
        return f"its process {describe_exit(code)} in {method}{hint}"


def _end_process(
    process: subprocess.Popen[bytes], link: socket.socket, life: int, memory: int, owner: int
) -> None:
    """Kill a process and all that it started, unless this is a fork of its owner."""
    link.close()
    for descriptor in (life, memory):
        os.close(descriptor)
    if os.getpid() == owner:
        with suppress(OSError):  # the group is gone with all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _create_memory() -> SharedMemory:
    if not has_worker_processes():
        raise InputError("codegens cannot be run in processes of their own on this system")
    try:
        return SharedMemory.create()
    except OSError as error:
        raise InputError(f"no process can be started for a codegen: {error}") from None


def _stderr_or_null() -> int:
    try:
        os.fstat(2)
    except OSError:  # closed
        return subprocess.DEVNULL
    return 2


def _read_failure(failure: Any) -> BaseException:
    """Return the exception that an answer describes. Raises BrokenMessageError."""
    if not isinstance(failure, dict):
        raise BrokenMessageError("a failure is missing")
    keys = ("kind", "type", "text", "region", "traceback")
    kind, name, text, region, lines = read_texts([failure.get(key) for key in keys])
    (location,) = read_texts([failure.get("location", "")])
    nodes, lasting = read_texts(failure.get("nodes")), failure.get("lasting")
    error: BaseException
    if region:
        error = ArtifactError(text, region)
    elif kind == "missing":
        error = MissingRuntimeError(*text.splitlines())
    elif kind == "not here":
        error = NotHereError(text)
    elif kind == "input":
        error = InputError(*text.splitlines())
    elif kind == "raised":
        found = {"location": escape_unprintable(location)}
        error = type(escape_unprintable(name), (RaisedInWorkerError,), found)(text)
    else:
        kinds = {"too large": ResourceError, "failed": CodegenFailedError}
        error = kinds.get(kind, CompileError)(text, nodes, lasting=lasting is True)
    shown = "\n".join(map(escape_unprintable, lines[-_MOST_TRACEBACK_CHARACTERS:].splitlines()))
    error.__cause__ = VendorError(shown) if shown else None
    return error
