"""The executors of a worker process under numbers: loaded, bound to arrays, and their states.

This file also runs in other interpreters, from Python 3.8 on, with numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .link import read_array, write_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link import SharedMemory


# The check that an executor leaves its inputs alone.


class InputCheck:
    """An executor whose first call raises TypeError if it writes into its inputs.

    The host reads these tensors, too. A worker gets copies of them, so that such a region would be right
    there and wrong in this process. Later calls are not checked: a comparison costs two copies.
    """

    __slots__ = ("_is_checked", "_run")

    def __init__(self, run: Callable[[Mapping[str, Any]], Any]) -> None:
        """Check the executor at its first call."""
        self._run, self._is_checked = run, False

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run it. Raises TypeError as said."""
        if self._is_checked:
            return self._run(inputs)
        arrays = {
            name: value
            for name, value in inputs.items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }
        before = {name: array.tobytes() for name, array in arrays.items()}
        given = self._run(inputs)
        for name, content in before.items():
            if arrays[name].tobytes() != content:
                raise TypeError(f"it wrote into its input '{name}', which others read, too")
        self._is_checked = True
        return given

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        """Bind the executor to arrays; None where it has no `bind`. Nothing is checked then.

        A tensor that is an input and an output at once is written to by design.
        """
        bind = getattr(self._run, "bind", None)
        return None if bind is None else bind(inputs, outputs)

    def allocate(self, pairs: Mapping[str, str]) -> Any:
        """Make room for states on the device; None where the executor has no `allocate`."""
        allocate = getattr(self._run, "allocate", None)
        return None if allocate is None else allocate(pairs)


class ExecutorTable:
    """The loaded regions of a process by numbers; bound executors and states have numbers, too.

    Arrays cross in the shared memory. What the executors raise is passed on; what is no mapping raises
    TypeError.
    """

    def __init__(self, memory: SharedMemory) -> None:
        """Begin without executors."""
        self._memory = memory
        self._runs: dict[int, Callable[[Any], Any]] = {}
        self._declared: dict[int, Mapping[str, str]] = {}
        self._states: dict[int, tuple[Any, Mapping[str, str]]] = {}
        self._count = 0

    def add(self, run: Callable[[Any], Any], declared: Mapping[str, str]) -> int:
        """Keep an executor; return its number.

        `declared` has the outputs that are asked of it, with their dtypes, empty where an array says it.
        """
        self._count += 1
        self._runs[self._count], self._declared[self._count] = run, declared
        return self._count

    def release(self, numbers: Iterable[int]) -> None:
        """Forget executors and states."""
        for number in numbers:
            for kept in (self._runs, self._declared, self._states):
                kept.pop(number, None)

    def find(self, number: int) -> Callable[[Any], Any]:
        """Return an executor."""
        return self._runs[number]

    def read_inputs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays that a request has, by name."""
        return {name: read_array(entry, self._memory) for name, entry in request["inputs"]}

    def run(self, request: Mapping[str, Any]) -> list[Any]:
        """Run an executor; return names and locations of its declared outputs."""
        number = request["executor"]
        return self._write(self._runs[number](self.read_inputs(request)), self._declared[number])

    def bind(self, request: Mapping[str, Any]) -> int | None:
        """Bind an executor to arrays of this process, which are filled before each run.

        `arrays` are what they hold now; `bound_inputs` and `bound_outputs` are pairs of a name and the
        number of its array. Returns the number of the bound executor, None where it cannot be bound.
        """
        number = request["executor"]
        bind = getattr(self._runs[number], "bind", None)
        arrays = [np.array(read_array(entry, self._memory)) for entry in request["arrays"]]
        inputs = {name: arrays[place] for name, place in request["bound_inputs"]}
        outputs = {name: arrays[place] for name, place in request["bound_outputs"]}
        run = None if bind is None else bind(inputs, outputs)
        return None if run is None else self.add(_fill_before(run, inputs), self._declared[number])

    def allocate(self, request: Mapping[str, Any]) -> int | None:
        """Make room for states on the device; return their number, None where there is none."""
        number, pairs = request["executor"], dict(request["pairs"])
        allocate = getattr(self._runs[number], "allocate", None)
        state = None if allocate is None else allocate(pairs)
        if state is None:
            return None
        self._count += 1
        self._states[self._count] = state, pairs
        self._declared[self._count] = self._declared[number]
        return self._count

    def reset(self, request: Mapping[str, Any]) -> None:
        """Send values to states."""
        state, _ = self._states[request["state"]]
        state.reset(self.read_inputs(request))

    def step(self, request: Mapping[str, Any]) -> list[Any]:
        """Run a region on its states; return names and locations of the other outputs."""
        number = request["state"]
        state, pairs = self._states[number]
        kept = set(pairs.values())
        declared = {name: kind for name, kind in self._declared[number].items() if name not in kept}
        return self._write(state.step(self.read_inputs(request)), declared)

    def read(self, request: Mapping[str, Any]) -> list[Any]:
        """Return names and locations of copies of states."""
        number = request["state"]
        state, pairs = self._states[number]
        declared = self._declared[number]
        return self._write(state.read(), {past: declared.get(made, "") for past, made in pairs.items()})

    def _write(self, values: Any, declared: Mapping[str, str]) -> list[Any]:
        if not isinstance(values, Mapping):
            raise TypeError(f"it gave a {type(values).__name__} instead of outputs by name")
        self._memory.clear()
        return [
            [name, write_array(values[name], self._memory, dtype)]
            for name, dtype in declared.items()
            if name in values
        ]


def _fill_before(run: Callable[[Any], Any], bound: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return an executor that copies inputs into the arrays which they are bound to, and runs."""

    def execute(inputs: Mapping[str, Any]) -> Any:
        for name, array in bound.items():
            array[...] = inputs[name]
        return run({**inputs, **bound})

    return execute
