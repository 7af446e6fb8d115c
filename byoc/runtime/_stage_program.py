"""A graph ready to run: its stages, their dependencies, and one run of them."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import cached_property
from heapq import heappop, heappush
from threading import Condition, Lock, Thread, current_thread
from time import perf_counter
from typing import Any

from onnx import TypeProto

from byoc._dataclasses import dataclass
from byoc.codegen import DeviceState, OperatorTime
from byoc.errors import ByocError, InputError
from byoc.runtime._trace import current_trace

StageValues = Mapping[str, Any]

Steps = Generator[str, None, dict[str, Any]]
"""A call in steps: yields the device of the next step, is resumed on it, and returns the outputs."""

Bind = Callable[[StageValues, StageValues], Callable[[StageValues], StageValues] | None]
"""Gives the function that runs a stage which reads and writes some tensors where they lie."""

Allocate = Callable[[Mapping[str, str]], DeviceState | None]
"""Makes room on a stage's device for states, by names of inputs with those of outputs."""

Profile = Callable[[StageValues], Sequence[OperatorTime]]
"""Runs a stage on some inputs; gives the times of its operators. Raises InputError."""

HOST = "host"

MAX_AT_ONCE = 4
"""Threads that run stages of one call: the caller's and three more. A stage may use more of its own."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a program: its display name, the values it reads, and the function that runs it.

    `types` holds the known types of its outputs; `outputs` names all outputs where there are more.
    `device` is the host or a target. Stages with the same non-empty `exclusive_group` never run at the
    same time. `bind` is there where the stage may be able to read inputs and write outputs in arrays
    that stay the same from run to run, and `allocate` where it may be able to keep states on its device;
    they give None where it is not. `profile` says what a run spends on each operator, by nodes of the
    model.
    """

    name: str
    inputs: tuple[str, ...]
    run: Callable[[StageValues], StageValues]
    types: Mapping[str, TypeProto]
    outputs: tuple[str, ...] = ()
    device: str = HOST
    exclusive_group: str = ""
    bind: Bind | None = None
    allocate: Allocate | None = None
    profile: Profile | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
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
class StageProgram:
    """A graph ready to run: its stages, its stored values, and the names of its outputs in order.

    Each stage stands after those whose values it reads. `types` holds the known types of the outputs.
    """

    stages: Sequence[Stage]
    constants: StageValues
    outputs: tuple[str, ...]
    types: Mapping[str, TypeProto]

    def __call__(self, values: StageValues) -> list[Any]:
        """Return the outputs for the graph's inputs and the values it captures from around it.

        Stages run one after another. Raises InputError naming the stage that failed.
        """
        found = self.run(values)
        return [found[name] for name in self.outputs]

    def run(
        self,
        values: StageValues,
        kept: Collection[str] = (),
        pool: Callable[[], Pool] | None = None,
    ) -> dict[str, Any]:
        """Return outputs by name, and the values in `kept`; free all others after their last use.

        With a pool, stages that do not wait for one another run at the same time. Raises InputError
        naming the stage that failed; any other exception of a stage comes as it is.
        """
        if len(self.stages) == 1 and current_trace() is None:
            return self._run_single(values, kept)
        trace = current_trace()
        is_profiled = trace is not None and trace.profiles  # memory by stage: one after another
        threads = pool() if pool and self.dependencies.at_once and not is_profiled else None
        if threads is None:
            return _run_steps(self.list_steps(values, kept))
        found = _ProgramRun(self, values, kept, threads).run()
        return {name: found[name] for name in (*self.outputs, *kept)}

    def _run_single(self, values: StageValues, kept: Collection[str]) -> dict[str, Any]:
        """Run the only stage, and return outputs and the values in `kept`.

        There is nothing to free in time, so there is less to do than for several stages.
        """
        (stage,) = self.stages
        found = {**self.constants, **values}
        try:
            found |= stage.run({name: found[name] for name in stage.inputs})
        except ByocError as error:
            raise InputError(f"{stage.name}: {error}") from error
        return {name: found[name] for name in (*self.outputs, *kept)}

    def list_steps(self, values: StageValues, kept: Collection[str] = ()) -> Steps:
        """Run the stages one after another, each after its device was yielded; return as `run` does."""
        trace = current_trace()
        profiles = trace is not None and trace.profiles
        found: dict[str, Any] = {**self.constants, **values}
        for stage, needed, freed in self._lifetimes:
            yield stage.device
            inputs = {name: found[name] for name in stage.inputs}
            run = trace.profile_stage(stage, found) if profiles and trace is not None else stage.run
            start = perf_counter()
            try:
                outputs = run(inputs)
            except ByocError as error:
                raise InputError(f"{stage.name}: {error}") from error
            if trace is not None:
                trace.add_event(stage, start, perf_counter(), inputs, outputs)
            for name in needed:
                found[name] = outputs[name]
            for name in kept:
                if name in outputs:
                    found[name] = outputs[name]
            for name in freed:
                if name not in kept:
                    del found[name]
            del inputs, outputs  # what nobody reads is freed before the next stage runs
        return {name: found[name] for name in (*self.outputs, *kept)}

    @cached_property
    def _lifetimes(self) -> Sequence[tuple[Stage, tuple[str, ...], tuple[str, ...]]]:
        """Each stage, with the outputs that are needed, and the values that nobody needs after it."""
        readers = {name: i for i, stage in enumerate(self.stages) for name in stage.inputs}
        last = {name: i for name, i in readers.items() if name not in self.outputs}
        freed: list[list[str]] = [[] for _ in self.stages]
        for name, i in last.items():
            freed[i].append(name)
        return [
            (
                stage,
                tuple(n for n in stage.output_names if n in readers or n in self.outputs),
                tuple(gone),
            )
            for stage, gone in zip(self.stages, freed, strict=True)
        ]

    @cached_property
    def dependencies(self) -> Dependencies:
        """The dependencies between the stages."""
        maker = {name: i for i, stage in enumerate(self.stages) for name in stage.output_names}
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


def _run_steps(steps: Steps) -> dict[str, Any]:
    """Run a call in the thread of the caller; return its outputs."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outputs: dict[str, Any] = end.value
            return outputs


class _ProgramRun:
    """One run of a program: a stage starts as soon as its inputs are there.

    The caller's thread runs stages, in the order of the program; threads of the pool help while more
    stages can start. After an error no stage starts, and the error of the earliest stage is raised once
    all running stages have ended. All state is guarded by `_changed`.
    """

    def __init__(
        self,
        program: StageProgram,
        values: StageValues,
        kept: Collection[str],
        pool: Pool,
    ) -> None:
        """Start with the values from outside; those in `kept` are not freed."""
        self._stages, self._dependencies = program.stages, program.dependencies
        self._pool, self._trace = pool, current_trace()
        self._values: dict[str, Any] = {**program.constants, **values}
        self._readers = Counter(self._dependencies.readers)
        self._readers.update(set(kept))
        self._waits = list(self._dependencies.waits)
        self._ready = [i for i, count in enumerate(self._waits) if not count]
        self._turns: set[str] = set()
        self._running = self._helpers = 0
        self._errors: dict[int, BaseException] = {}
        self._changed = Condition()

    def run(self) -> dict[str, Any]:
        """Run all stages and return the values that were not freed. Raises as `StageProgram.run`."""
        try:
            self._work(wait=True)
        except BaseException as error:  # such as Ctrl-C while waiting: nothing more starts
            with self._changed:
                self._errors.setdefault(-1, error)
            raise
        if self._errors:
            number, first = min(self._errors.items())
            if isinstance(first, ByocError):
                raise InputError(f"{self._stages[number].name}: {first}") from first
            raise first
        return self._values

    def _work(self, wait: bool) -> None:
        """Run stages until none can start; with `wait`, until all have ended."""
        while True:
            with self._changed:
                number = self._startable()
                while number is None and wait and self._running:
                    self._changed.wait()
                    number = self._startable()
                if number is None:
                    self._helpers -= not wait
                    return
                self._ready.remove(number)
                self._running += 1
                self._turns |= {self._stages[number].exclusive_group} - {""}
                self._call_helper()
            self._run_stage(number)

    def _startable(self) -> int | None:
        """Return the first stage that can start now."""
        ready = () if self._errors else self._ready
        return next((i for i in ready if self._stages[i].exclusive_group not in self._turns), None)

    def _call_helper(self) -> None:
        """Have one more thread run stages, when another stage can start."""
        if self._helpers < MAX_AT_ONCE - 1 and self._startable() is not None:
            with suppress(RuntimeError):  # no thread starts, as where Python ends: the caller's runs all
                self._pool.submit(copy_context().run, self._work, wait=False)
                self._helpers += 1  # which it counts down later: `_changed` is held here

    def _run_stage(self, number: int) -> None:
        """Run a stage; free values after their last reader, and make the stage's followers ready."""
        stage = self._stages[number]
        outputs: StageValues = {}
        failure: BaseException | None = None
        try:
            inputs = {name: self._values[name] for name in stage.inputs}
            start = perf_counter()
            outputs = stage.run(inputs)
            end = perf_counter()
            if self._trace is not None:
                self._trace.add_event(stage, start, end, inputs, outputs)
        except BaseException as error:  # the caller's thread raises it
            failure = error
        with self._changed:
            if failure is not None:
                self._errors[number] = failure
            self._values.update({name: outputs[name] for name in outputs if self._readers[name]})
            for name in set(stage.inputs):
                self._readers[name] -= 1
                if not self._readers[name]:
                    self._values.pop(name, None)
            for follower in self._dependencies.followers[number]:
                self._waits[follower] -= 1
                if not self._waits[follower]:
                    insort(self._ready, follower)
            self._turns.discard(stage.exclusive_group)
            self._running -= 1
            self._changed.notify()


# Several inputs in flight at once, each device with a thread of its own.


class _Call:
    """A call whose steps run on the threads of devices; `number` says when it came."""

    def __init__(self, number: int, steps: Steps) -> None:
        """Let it begin on the host, in the context of the caller."""
        self.number, self.device = number, HOST
        self.outputs: Future[dict[str, Any]] = Future()
        self._steps, self._context = steps, copy_context()

    def advance(self) -> bool:
        """Run one step; return whether there is another, which is on `device`."""
        try:
            self.device = self._context.run(next, self._steps)
        except StopIteration as end:
            self.outputs.set_result(end.value)
        except BaseException as error:  # who waits for the outputs raises it
            self.outputs.set_exception(error)
        else:
            return True
        return False

    def close(self) -> None:
        """Give up the steps that were not run."""
        self._context.run(self._steps.close)


class _DeviceThreads:
    """A thread for each device, which runs one step at a time, those of earlier calls first.

    More threads than devices would only wait for one another, and where other programs use the
    processors, each that wakes may be put on that of a step which is running. All state is guarded by
    one lock; a device's condition has it, too.
    """

    def __init__(self) -> None:
        """Start without threads."""
        self._lock = Lock()
        self._waiting: dict[str, list[tuple[int, _Call]]] = {}
        self._changed: dict[str, Condition] = {}
        self._threads: list[Thread] = []
        self._is_closing = False

    def __enter__(self) -> "_DeviceThreads":
        """Return these threads."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the steps that are running; begin no more."""
        with self._lock:
            self._is_closing = True
            for each in self._changed.values():
                each.notify()
        for thread in self._threads:
            if thread is not current_thread():  # it may collect a pipeline that nobody reads
                thread.join()
        for waiting in self._waiting.values():
            for _number, call in waiting:
                call.close()

    def add(self, call: _Call) -> None:
        """Let a call wait for the device of its next step; a call waits for one at a time.

        Raises RuntimeError where no thread can be started for the device.
        """
        device = call.device
        with self._lock:
            if device not in self._waiting:
                self._waiting[device], self._changed[device] = [], Condition(self._lock)
                if not self._is_closing:
                    name = f"byoc {device}"
                    thread = Thread(target=self._serve, args=(device,), name=name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        del self._waiting[device], self._changed[device]
                        call.close()
                        raise
                    except BaseException:  # Ctrl-C: if it began by then, it finds that all ends
                        call.close()
                        raise
                    self._threads.append(thread)
            heappush(self._waiting[device], (call.number, call))
            self._changed[device].notify()

    def _serve(self, device: str) -> None:
        """Run the steps of a device."""
        while call := self._take(device):
            if call.advance():
                try:
                    self.add(call)
                except BaseException as error:  # no thread can be started: its caller is told
                    call.outputs.set_exception(error)
            del call  # with outputs that others have by now

    def _take(self, device: str) -> _Call | None:
        """Return the earliest call that waits for a device, None at the end."""
        waiting = self._waiting[device]
        with self._lock:
            while not waiting and not self._is_closing:
                self._changed[device].wait()
            return None if self._is_closing else heappop(waiting)[1]


def run_in_pipeline(
    list_steps: Callable[[StageValues], Steps], inputs: Iterable[StageValues], in_flight: int
) -> Iterator[dict[str, Any]]:
    """Yield the outputs for each of several inputs, in their order, with several in flight.

    Raises InputError when `in_flight` is below 1, and as the steps do in place of an input's outputs.
    """
    if in_flight < 1:
        raise InputError(f"{in_flight} inputs in flight: it takes at least 1")
    return _run_in_flight(list_steps, inputs, in_flight)


def _run_in_flight(
    list_steps: Callable[[StageValues], Steps], inputs: Iterable[StageValues], in_flight: int
) -> Iterator[dict[str, Any]]:
    running: deque[Future[dict[str, Any]]] = deque()
    with _DeviceThreads() as threads:
        for number, given in enumerate(inputs):
            call = _Call(number, list_steps(given))
            running.append(call.outputs)
            threads.add(call)
            del call
            if len(running) == in_flight:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
