"""One run of a program: a stage runs as soon as what it reads is there, several at once if they can."""

from bisect import insort
from collections.abc import Collection, Mapping
from concurrent.futures import Executor as Pool
from contextvars import copy_context
from threading import Condition
from time import perf_counter
from typing import TYPE_CHECKING, Any

from byoc.errors import ByocError, InputError
from byoc.runtime.trace import current

if TYPE_CHECKING:
    from byoc.runtime.program import Program, Stage

MOST_AT_ONCE = 4
"""Threads that run stages of one call: the caller's and three more. Stages use threads of their own."""


class Run:
    """The state of one run: what is ready, what is running, and the values still to be read.

    The caller's thread runs stages itself, those that are ready in the order of the program; when more
    are ready than it can take, threads of the pool help. After an error no stage is begun, and the
    caller gets that of the earliest stage once those that are running have ended.
    """

    def __init__(
        self,
        program: "Program",
        values: Mapping[str, Any],
        kept: Collection[str] = (),
        pool: Pool | None = None,
    ) -> None:
        """Begin with the values from outside; those in `kept` are not freed."""
        order = program.order
        self._program, self._pool, self._trace = program, pool, current()
        self._values: dict[str, Any] = {**program.constants, **values}
        self._readers = dict(order.readers)
        for name in set(kept):
            self._readers[name] = self._readers.get(name, 0) + 1
        self._waits = list(order.waits)
        self._ready = [i for i, count in enumerate(order.waits) if not count]
        self._turns: set[str] = set()
        self._running = self._helpers = 0
        self._idle = False
        self._errors: dict[int, BaseException] = {}
        self._changed = Condition()

    def result(self) -> dict[str, Any]:
        """Run all stages and return the values that were not freed.

        Raises InputError naming the stage that failed, and whatever else a stage raised, as it is.
        """
        try:
            self._work(to_the_end=True)
        except BaseException as error:  # such as Ctrl-C while waiting: the others begin nothing more
            with self._changed:
                self._errors.setdefault(-1, error)
            raise
        if self._errors:
            number, first = min(self._errors.items())
            if isinstance(first, ByocError):
                raise InputError(f"{self._program.stages[number].name}: {first}") from first
            raise first
        return self._values

    def _work(self, to_the_end: bool) -> None:
        """Run stages until none is ready, or until all have run."""
        while True:
            with self._changed:
                number = self._take()
                while number is None:
                    if not to_the_end or not self._running:
                        self._helpers -= not to_the_end
                        return
                    self._idle = True
                    self._changed.wait()
                    self._idle = False
                    number = self._take()
                self._call_for_help()
            self._stage(number)

    def _take(self) -> int | None:
        """Return the first stage that can run now, which is then running."""
        if self._errors:
            return None
        for place, number in enumerate(self._ready):
            turn = self._program.stages[number].turn
            if turn not in self._turns:
                del self._ready[place]
                self._running += 1
                if turn:
                    self._turns.add(turn)
                return number
        return None

    def _call_for_help(self) -> None:
        """Have as many threads more as there are stages that can run, and no one to run them."""
        if self._pool is None or not self._ready:
            return
        turns = [self._program.stages[number].turn for number in self._ready]
        free = {turn for turn in turns if turn and turn not in self._turns}
        wanted = turns.count("") + len(free) - self._idle
        for _ in range(min(wanted, MOST_AT_ONCE - 1) - self._helpers):
            self._helpers += 1
            self._pool.submit(copy_context().run, self._work, to_the_end=False)

    def _stage(self, number: int) -> None:
        """Run a stage; free what nobody reads any more, and tell those that wait for it."""
        stage = self._program.stages[number]
        made: Mapping[str, Any] = {}
        failed: BaseException | None = None
        try:
            made = self._call(stage)
        except BaseException as error:  # the caller's thread raises it
            failed = error
        with self._changed:
            if failed is not None:
                self._errors[number] = failed
            self._values.update({name: made[name] for name in made if self._readers.get(name)})
            for name in set(stage.inputs):
                self._readers[name] -= 1
                if not self._readers[name]:
                    self._values.pop(name, None)
            for each in self._program.order.next[number]:
                self._waits[each] -= 1
                if not self._waits[each]:
                    insort(self._ready, each)
            self._turns.discard(stage.turn)
            self._running -= 1
            self._changed.notify()

    def _call(self, stage: "Stage") -> Mapping[str, Any]:
        given = {name: self._values[name] for name in stage.inputs}
        if self._trace is None:
            return stage.run(given)
        start = perf_counter()
        made = stage.run(given)
        self._trace.add(stage, start, perf_counter(), given, made)
        return made
