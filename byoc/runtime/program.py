"""A graph ready to run: its stages, their dependencies, and one run of them."""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from onnx import TypeProto

from byoc.errors import ByocError, InputError
from byoc.runtime.trace import current

Values = Mapping[str, Any]

HOST = "host"

MOST_AT_ONCE = 4
"""The most stages of one call that run at the same time; a stage may use threads of its own."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a program: its display name, the values it reads, and the function that runs it.

    `types` holds the known types of its outputs; `outputs` names all outputs where there are more.
    `device` is the host or a target. Stages with the same non-empty `turn` never run at the same time.
    """

    name: str
    inputs: tuple[str, ...]
    run: Callable[[Values], Values]
    types: Mapping[str, TypeProto]
    outputs: tuple[str, ...] = ()
    device: str = HOST
    turn: str = ""

    @property
    def made(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return self.outputs or tuple(self.types)


@dataclass(frozen=True)
class Dependencies:
    """The dependencies between the stages of a program.

    `waits` counts, for each stage, the stages it waits for; `followers` lists the stages that wait for
    it. `readers` counts the readers of each value, the caller included for an output. `at_once` is True
    when some two stages do not wait for one another.
    """

    waits: Sequence[int]
    followers: Sequence[Sequence[int]]
    readers: Mapping[str, int]
    at_once: bool


@dataclass(frozen=True, eq=False)
class Program:
    """A graph ready to run: its stages, its stored values, and the names of its outputs in order.

    Each stage stands after those whose values it reads. `types` holds the known types of the outputs.
    """

    stages: Sequence[Stage]
    constants: Values
    outputs: tuple[str, ...]
    types: Mapping[str, TypeProto]

    def __call__(self, values: Values) -> list[Any]:
        """Return the outputs for the graph's inputs and the values it captures from around it.

        Stages run one after another. Raises InputError naming the stage that failed.
        """
        found = self.run(values)
        return [found[name] for name in self.outputs]

    def run(
        self, values: Values, kept: Collection[str] = (), pool: Callable[[], Pool] | None = None
    ) -> dict[str, Any]:
        """Return outputs by name, and the values in `kept`; free all others after their last use.

        With a pool, stages that do not wait for one another run at the same time. Raises InputError
        naming the stage that failed; any other exception of a stage comes as it is.
        """
        threads = pool() if pool and self.dependencies.at_once else None
        found = _Run(self, values, kept, threads).values()
        return {name: found[name] for name in (*self.outputs, *kept)}

    @cached_property
    def dependencies(self) -> Dependencies:
        """The dependencies between the stages."""
        maker = {name: i for i, stage in enumerate(self.stages) for name in stage.made}
        needs = [{maker[name] for name in stage.inputs if name in maker} for stage in self.stages]
        followers: list[list[int]] = [[] for _ in self.stages]
        for i, earlier in enumerate(needs):
            for each in earlier:
                followers[each].append(i)
        readers = Counter(name for stage in self.stages for name in set(stage.inputs))
        readers.update(set(self.outputs))
        # In a topological order nothing lies between two neighbours: one waits for the other directly,
        # or not at all.
        at_once = any(i not in earlier for i, earlier in enumerate(needs[1:]))
        return Dependencies([len(earlier) for earlier in needs], followers, readers, at_once)


class _Run:
    """One run of a program: a stage starts as soon as its inputs are there.

    A stage that has nothing to run beside it runs on the caller's thread; otherwise stages run on the
    pool, and the caller waits. After an error no stage starts; the error of the earliest stage is raised
    once all running stages have ended.
    """

    def __init__(
        self, program: Program, values: Values, kept: Collection[str], pool: Pool | None
    ) -> None:
        """Start with the values from outside; those in `kept` are not freed."""
        self._stages, self._dependencies = program.stages, program.dependencies
        self._pool, self._trace = pool, current()
        self._values: dict[str, Any] = {**program.constants, **values}
        self._readers = Counter(self._dependencies.readers)
        self._readers.update(set(kept))
        self._waits = list(self._dependencies.waits)
        self._ready = [i for i, count in enumerate(self._waits) if not count]
        self._running: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._ended: SimpleQueue[tuple[int, Values | BaseException]] = SimpleQueue()

    def values(self) -> dict[str, Any]:
        """Run all stages and return the values that were not freed. Raises as `Program.run`."""
        while True:
            starting = list(self._startable())
            alone = len(starting) == 1 and not self._running
            for number in starting:
                self._ready.remove(number)
                self._running.add(number)
                if alone or self._pool is None:
                    self._run_stage(number)
                else:
                    self._pool.submit(copy_context().run, self._run_stage, number)
            if not self._running:
                break
            self._finish(*self._ended.get())
        if self._errors:
            number, first = min(self._errors.items())
            if isinstance(first, ByocError):
                raise InputError(f"{self._stages[number].name}: {first}") from first
            raise first
        return self._values

    def _startable(self) -> Iterator[int]:
        """Yield the stages that can start now, in the order of the program."""
        if self._errors:
            return
        turns = {self._stages[number].turn for number in self._running} - {""}
        free = (MOST_AT_ONCE if self._pool else 1) - len(self._running)
        for number in self._ready:
            turn = self._stages[number].turn
            if free > 0 and turn not in turns:
                yield number
                free -= 1
                turns |= {turn} - {""}

    def _run_stage(self, number: int) -> None:
        """Run a stage, on whichever thread this is, and report its outputs or its error."""
        stage = self._stages[number]
        try:
            inputs = {name: self._values[name] for name in stage.inputs}
            start = perf_counter()
            outputs = stage.run(inputs)
            if self._trace is not None:
                self._trace.add(stage, start, perf_counter(), inputs, outputs)
        except BaseException as error:  # the caller's thread raises it
            self._ended.put((number, error))
        else:
            self._ended.put((number, outputs))

    def _finish(self, number: int, result: Values | BaseException) -> None:
        """Keep the outputs that are still read, free values after their last reader, ready followers."""
        self._running.remove(number)
        if isinstance(result, BaseException):
            self._errors[number] = result
            return
        self._values.update({name: result[name] for name in result if self._readers[name]})
        for name in set(self._stages[number].inputs):
            self._readers[name] -= 1
            if not self._readers[name]:
                self._values.pop(name, None)
        for follower in self._dependencies.followers[number]:
            self._waits[follower] -= 1
            if not self._waits[follower]:
                insort(self._ready, follower)
