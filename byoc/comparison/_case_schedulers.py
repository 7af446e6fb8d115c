"""Schedulers: where the cases of a study are solved, here, in processes, or on a Dask cluster."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from byoc._dataclasses import dataclass, field
from byoc.comparison._case_solver import (
    CRASHED,
    FAILED,
    TIMED_OUT,
    CaseSolver,
    Outcome,
    list_versions,
    make_failure,
)
from byoc.comparison._study_file import StudyCase
from byoc.errors import InputError, describe_error
from byoc.support import describe_exit, install_command

# A process that solves cases one at a time: it may crash, or be killed when it takes too long.

_PROGRAM = "from byoc.comparison._case_schedulers import serve_cases; serve_cases()"
_END_SECONDS = 10.0  # for a process to end by itself before it is killed


class CaseProcess:
    """A process that solves cases; a new one is started after one has died."""

    def __init__(self) -> None:
        """Make it; the process starts with the first case."""
        self._process: subprocess.Popen[bytes] | None = None
        self._expired = False
        self._closed = False

    def solve(self, case: StudyCase) -> Outcome:
        """Return the outcome of a case; a process that dies, or takes too long, is an outcome.

        The seconds of the case count from the process being ready.
        """
        process = self._start()
        if process.poll() is not None:  # it died between cases, and so of none
            self.close()
            process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        self._expired = False
        timer = None
        if case.case_seconds is not None:
            timer = threading.Timer(case.case_seconds, self._expire, [process])
            timer.daemon = True
            timer.start()
        try:
            process.stdin.write(case.to_json().encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        finally:
            if timer is not None:
                timer.cancel()
        if answer.endswith(b"\n"):
            outcome: Outcome = json.loads(answer)
            return outcome
        reason = self._describe_end(process)
        self.close()
        if self._expired:
            return make_failure(TIMED_OUT, f"stopped after {case.case_seconds:g} s")
        return make_failure(CRASHED, reason)

    def close(self) -> None:
        """End the process and what it started. Another case would start a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)

    def _expire(self, process: "subprocess.Popen[bytes]") -> None:
        self._expired = True
        _kill(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            path = os.pathsep.join(dict.fromkeys(filter(None, [*before, *sys.path])))
            self._process = subprocess.Popen(
                # -P: modules in the working directory are not imported, as with the `byoc` command.
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # an interrupt of the terminal is for the study
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it is ready, or dead
        return self._process

    def _describe_end(self, process: "subprocess.Popen[bytes]") -> str:
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        return f"its process {describe_exit(code)}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):  # it is gone
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def serve_cases() -> None:
    """Solve the cases on standard input, a line of JSON each, until it is closed.

    Outcomes are lines on what was standard output; what plug-ins print goes to standard error. When the
    study is gone the process ends at once, in the middle of a case.
    """
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(sys.stdin.buffer, lines), daemon=True).start()
    solver = CaseSolver()
    _write(results, {})
    while True:
        outcome = solver.solve(StudyCase.from_json(lines.get().decode()))
        _write(results, outcome)


def _read_lines(source: IO[bytes], lines: "queue.SimpleQueue[bytes]") -> None:
    while line := source.readline():
        lines.put(line)
    os._exit(0)


def _write(results: IO[bytes], content: dict[str, Any]) -> None:
    try:
        results.write(json.dumps(content).encode() + b"\n")
        results.flush()
    except OSError:
        os._exit(0)


Solved = tuple[StudyCase, Outcome]
"""A case with its outcome."""

Scheduler = Callable[[Sequence[StudyCase]], Iterator[Solved]]
"""Yields each case with its outcome, as they are solved. Closing it ends what it has started."""


def solve_here(cases: Sequence[StudyCase]) -> Iterator[Solved]:
    """Solve cases in this process, in their order; nothing is limited by the clock."""
    solver = CaseSolver()
    for case in cases:
        yield case, solver.solve(case)


def solve_in_processes(cases: Sequence[StudyCase], jobs: int | None = None) -> Iterator[Solved]:
    """Solve cases in `jobs` processes, as many as there are processors unless given."""
    waiting = CaseQueue(cases)
    count = min(jobs or os.cpu_count() or 1, len(cases))
    solved: queue.SimpleQueue[Solved | BaseException] = queue.SimpleQueue()
    processes = [CaseProcess() for _ in range(count)]
    stopped = threading.Event()

    def run(slot: int) -> None:
        try:
            while not stopped.is_set() and (case := waiting.take(slot)) is not None:
                solved.put((case, processes[slot].solve(case)))
        except BaseException as error:  # no process can be started
            solved.put(error)

    threads = [threading.Thread(target=run, args=(slot,), daemon=True) for slot in range(count)]
    try:
        for thread in threads:
            thread.start()
        for _ in cases:
            found = solved.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        stopped.set()
        for process in processes:
            process.close()


@dataclass
class CaseQueue:
    """Cases that wait, dealt out so that a slot goes on with the model that it has read."""

    cases: Sequence[StudyCase]
    _groups: dict[str, deque[StudyCase]] = field(default_factory=dict)
    _group_of: dict[object, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Sort the cases by what is made once for all of them."""
        for case in self.cases:
            self._groups.setdefault(case.preparation_key, deque()).append(case)

    def take(self, slot: object) -> StudyCase | None:
        """Return the next case for a slot, None where there are no more.

        It is one of the same model as the last if there is one, else one of a model that no slot is at,
        else one of the model with most left.
        """
        with self._lock:
            own = self._group_of.get(slot)
            if own not in self._groups:
                taken = set(self._group_of.values())
                free = (key for key in self._groups if key not in taken)
                most = max(self._groups, key=lambda key: len(self._groups[key]), default=None)
                own = next(free, most)
            if own is None:
                self._group_of.pop(slot, None)
                return None
            self._group_of[slot] = own
            case = self._groups[own].popleft()
            if not self._groups[own]:
                del self._groups[own]
            return case


# Cases on a Dask cluster: each worker solves them in processes of its own, one case at a time.

_CONNECT_SECONDS = 30.0  # a cluster that starts takes some; one that is gone is told soon


def solve_on_cluster(cases: Sequence[StudyCase], address: str) -> Iterator[Solved]:
    """Solve cases on the workers of the Dask scheduler at an address, such as `tcp://host:8786`.

    Each thread of a worker has one case at a time, so that what a worker that dies had solved is here.
    The case that it was at is solved by another worker. Raises InputError when there is no such
    scheduler, when it is lost, and when a worker has other versions of byoc or what it stands on.
    """
    try:
        import distributed  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise InputError(
            f"a cluster needs Dask: {install_command('study')}, here and where the workers run"
        ) from None
    try:
        dask: Any = distributed  # most of it has no types
        client = dask.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"scheduler {address}: {describe_error(error)}") from None
    with client:
        _compare_versions(client, address)
        yield from _solve_with(dask, client, cases, address)


def _compare_versions(client: Any, address: str) -> None:
    """Raise InputError where there is no worker, or one has other versions."""
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        found = client.run(list_versions)
    except Exception as error:  # as a worker without byoc
        raise InputError(f"scheduler {address}: {describe_error(error)}") from None
    own = list_versions()
    for worker, versions in found.items():
        for name in own:
            if versions.get(name) != own[name]:
                raise InputError(
                    f"Dask worker {worker}: it has {name} {versions.get(name)}, and here is {own[name]}"
                )


def _solve_with(dask: Any, client: Any, cases: Sequence[StudyCase], address: str) -> Iterator[Solved]:
    waiting, asked = CaseQueue(cases), {}
    done = dask.as_completed(loop=client.loop)
    done_count = 0
    busy: dict[str, int] = {}

    def submit() -> None:
        """Give each worker as many cases as it has threads."""
        threads = client.nthreads()
        for worker, most in threads.items():
            while busy.get(worker, 0) < most:
                case = waiting.take((worker, busy.get(worker, 0)))
                if case is None:
                    return
                future = client.submit(
                    solve_on_worker,
                    case.to_json(),
                    key=f"byoc-{case.key}",
                    workers=[worker],
                    allow_other_workers=True,
                    pure=False,
                )
                asked[future.key] = case, worker
                busy[worker] = busy.get(worker, 0) + 1
                done.add(future)

    try:
        while done_count < len(cases):
            submit()
            if not asked:  # all workers have left
                client.wait_for_workers(1)
                continue
            future = next(done)
            case, worker = asked.pop(future.key)
            busy[worker] -= 1
            done_count += 1
            yield case, _get_outcome(dask, future, address)
            future.release()
    finally:
        client.cancel(list(done.futures))
        with suppress(Exception):  # a worker may leave just now
            client.run(close_idle_processes)


def _get_outcome(dask: Any, future: Any, address: str) -> Outcome:
    if future.status == "cancelled":
        raise InputError(f"scheduler {address}: it was lost, or gave up a case; what is done is kept")
    error = future.exception()
    if error is None:
        outcome: Outcome = future.result()
        return outcome
    if isinstance(error, dask.KilledWorker):
        return make_failure(CRASHED, "the workers that it was given to died")
    return make_failure(FAILED, f"failed with {describe_error(error)}")


_IDLE: list[CaseProcess] = []
_IDLE_LOCK = threading.Lock()


def solve_on_worker(line: str) -> Outcome:
    """Solve a case, given as JSON, in a process of this worker that is idle, or a new one."""
    with _IDLE_LOCK:
        process = _IDLE.pop() if _IDLE else CaseProcess()
    try:
        return process.solve(StudyCase.from_json(line))
    finally:
        with _IDLE_LOCK:
            _IDLE.append(process)


def close_idle_processes() -> None:
    """End the processes of this worker that have no case."""
    with _IDLE_LOCK:
        while _IDLE:
            _IDLE.pop().close()
