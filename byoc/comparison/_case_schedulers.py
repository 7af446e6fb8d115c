"""Schedulers: where the cases of a study are solved, here, in processes, or on a Dask cluster."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from byoc.comparison._case_process import CaseProcess
from byoc.comparison._case_solver import CaseSolver, Outcome
from byoc.comparison._study_case import StudyCase

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
