"""Cases on a Dask cluster: each worker solves them in processes of its own, one case at a time."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from byoc.comparison._case_schedulers import CaseProcess, CaseQueue, Solved
from byoc.comparison._case_solver import CRASHED, FAILED, Outcome, list_versions, make_failure
from byoc.comparison._study_file import StudyCase
from byoc.errors import InputError, describe_error

_CONNECT_SECONDS = 30.0


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
            "a cluster needs Dask: pip install 'onnx-byoc[study]', here and where the workers run"
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
