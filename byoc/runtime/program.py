"""A graph made ready to run: its stages, and which of them wait for which."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnx import TypeProto

from byoc.errors import ByocError, InputError
from byoc.runtime.scheduling import Run
from byoc.runtime.trace import current

Values = Mapping[str, Any]

HOST = "host"


@dataclass(frozen=True, eq=False)
class Stage:
    """One step made ready: what it is called, what it reads, and the function that runs it.

    `types` has those of its outputs that it knows; `outputs` are all of them, where these are more.
    `device` is the host or a target. Of the stages with the same `turn`, one runs at a time.
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
class Order:
    """Which stages wait for which: how many each waits for, who waits for it, who reads each value.

    `at_once` says whether any two stages do not wait for one another.
    """

    waits: Sequence[int]
    next: Sequence[Sequence[int]]
    readers: Mapping[str, int]
    at_once: bool


@dataclass(frozen=True, eq=False)
class Program:
    """A graph made ready: its stages, the values that are stored, and its outputs in order.

    Stages stand after those whose values they read. `types` has those of the outputs that are known by
    now.
    """

    stages: Sequence[Stage]
    constants: Values
    outputs: tuple[str, ...]
    types: Mapping[str, TypeProto]

    def __call__(self, values: Values) -> list[Any]:
        """Return the outputs for the graph's inputs and what it reads from around it.

        Stages run one after another. Raises InputError naming the stage that failed.
        """
        found = self.run(values)
        return [found[name] for name in self.outputs]

    def run(
        self, values: Values, kept: Collection[str] = (), pool: Callable[[], Pool] | None = None
    ) -> dict[str, Any]:
        """Return outputs by name, and the values in `kept`; all others are freed after their last use.

        With a pool, stages that do not wait for one another run at the same time. Raises as a call does.
        """
        if current() is None and not (pool and self.order.at_once):
            found = self._in_turn(values, kept)
        else:
            found = Run(self, values, kept, pool() if pool and self.order.at_once else None).result()
        return {name: found[name] for name in (*self.outputs, *kept)}

    def _in_turn(self, values: Values, kept: Collection[str]) -> dict[str, Any]:
        """Run the stages one after another: what `Run` does, without what several threads need."""
        found = {**self.constants, **values}
        readers = Counter(self.order.readers)
        readers.update(set(kept))
        for stage in self.stages:
            try:
                made = stage.run({name: found[name] for name in stage.inputs})
            except ByocError as error:
                raise InputError(f"{stage.name}: {error}") from error
            found.update({name: made[name] for name in made if readers[name]})
            del made  # what nobody reads goes at once
            for name in set(stage.inputs):
                readers[name] -= 1
                if not readers[name]:
                    found.pop(name, None)
        return found

    @cached_property
    def order(self) -> Order:
        """Which stages wait for which."""
        maker = {name: i for i, stage in enumerate(self.stages) for name in stage.made}
        needs = [{maker[name] for name in stage.inputs if name in maker} for stage in self.stages]
        following: list[list[int]] = [[] for _ in self.stages]
        for i, earlier in enumerate(needs):
            for each in earlier:
                following[each].append(i)
        readers = Counter(name for stage in self.stages for name in set(stage.inputs))
        readers.update(set(self.outputs))
        # In an order that fits, two neighbours have nothing between them: one waits directly or not.
        at_once = any(i not in earlier for i, earlier in enumerate(needs[1:]))
        return Order([len(earlier) for earlier in needs], following, readers, at_once)
