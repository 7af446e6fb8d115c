"""What a placement strategy is given: units, what they cost where, and what passes between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """Units in topological order, the tensors between them, and every cost in seconds.

    Device 0 is the host, 1..devices are the accelerators; arrays without a host column hold
    accelerator `d` at index `d - 1`. Constants are no tensors here: they travel at compile time.
    The arrays are taken as they are and never written to; the caller must not write to them either.

    Raises ValueError where a shape, a dtype, a cost or the order of the units is wrong.
    """

    seconds: Floats
    """float64 (units, 1 + devices): execution; inf = refused there, the host column is finite."""
    producer: Ints
    """int64 (tensors,): the producing unit, or -1 for the host (a graph input)."""
    consumer_start: Ints
    """int64 (tensors + 1,): tensor `t` is consumed by `consumers[start[t]:start[t + 1]]`."""
    consumers: Ints
    """int64 (entries,): the consuming units, each once per tensor."""
    is_output: Bools
    """bool (tensors,): wanted by the host as a graph output."""
    to_device: Floats
    """float64 (tensors, devices): host to accelerator, once per tensor; inf = cannot be sent."""
    to_host: Floats
    """float64 (tensors, devices): accelerator to host, once per tensor; inf = cannot be sent."""
    launch: Floats
    """float64 (devices,): finite, per region."""
    connected: Bools
    """bool (devices,): regions must be connected there, else disconnected branches share one."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence on the first thing that is wrong."""
        _check_shapes(self)
        _check_costs(self)
        _check_order(self)

    @classmethod
    def build(  # noqa: PLR0913
        cls,
        *,
        seconds: ArrayLike,
        producer: ArrayLike,
        consumers: Sequence[Iterable[int]],
        is_output: ArrayLike,
        to_device: ArrayLike,
        to_host: ArrayLike,
        launch: ArrayLike,
        connected: ArrayLike | None = None,
    ) -> Self:
        """Build a problem from each tensor's consuming units; one named twice counts once.

        Anything `numpy.asarray` takes will do for the arrays. `connected` defaults to all False.
        """
        distinct = [sorted(set(units)) for units in consumers]
        start = np.zeros(len(distinct) + 1, np.int64)
        np.cumsum([len(units) for units in distinct], out=start[1:])
        launches = np.asarray(launch, np.float64)
        return cls(
            seconds=np.asarray(seconds, np.float64),
            producer=np.asarray(producer, np.int64),
            consumer_start=start,
            consumers=np.array([unit for units in distinct for unit in units], np.int64),
            is_output=np.asarray(is_output, np.bool_),
            to_device=np.asarray(to_device, np.float64),
            to_host=np.asarray(to_host, np.float64),
            launch=launches,
            connected=np.zeros(launches.shape, np.bool_)
            if connected is None
            else np.asarray(connected, np.bool_),
        )

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.seconds)

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return len(self.producer)

    @property
    def devices(self) -> int:
        """Number of accelerators: the host is not counted."""
        return len(self.launch)

    @cached_property
    def consumed(self) -> Ints:
        """int64 (entries,): the tensor that each entry of `consumers` consumes."""
        return np.repeat(np.arange(self.tensors), np.diff(self.consumer_start))

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Producing and consuming unit of every unit-to-unit edge, each edge once, in that order.

        Two int64 (edges,), sorted by producing and then by consuming unit.
        """
        producer = self.producer[self.consumed]
        between = producer >= 0
        key = np.unique(producer[between] * self.units + self.consumers[between])
        return key // max(self.units, 1), key % max(self.units, 1)


def _check_shapes(problem: Problem) -> None:
    devices, tensors = problem.launch.size, problem.producer.size
    expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "seconds": (np.float64, (len(problem.seconds), 1 + devices)),
        "producer": (np.int64, (tensors,)),
        "consumer_start": (np.int64, (tensors + 1,)),
        "consumers": (np.int64, (problem.consumers.size,)),
        "is_output": (np.bool_, (tensors,)),
        "to_device": (np.float64, (tensors, devices)),
        "to_host": (np.float64, (tensors, devices)),
        "launch": (np.float64, (devices,)),
        "connected": (np.bool_, (devices,)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(problem, name)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{name} is {array.dtype} of shape {array.shape}; {np.dtype(dtype)} of shape "
                f"{shape} is needed for {tensors} tensors and {devices} devices beside the host"
            )


def _check_costs(problem: Problem) -> None:
    for name in ("seconds", "to_device", "to_host", "launch"):
        costs = getattr(problem, name)
        # Written so that a NaN fails too.
        if not (costs >= 0).all():
            place = [int(index) for index in np.argwhere(~(costs >= 0))[0]]
            raise ValueError(f"{name}{place} is {costs[tuple(place)]}; a cost is 0 or more seconds")
    if not np.isfinite(problem.launch).all():
        raise ValueError("launch is infinite; refuse the units of that device instead")
    stranded = np.flatnonzero(np.isinf(problem.seconds[:, 0]))
    if stranded.size:
        raise ValueError(f"unit {stranded[0]}: the host must be able to run every unit")


def _check_order(problem: Problem) -> None:
    start, units = problem.consumer_start, problem.units
    if start[0] != 0 or start[-1] != len(problem.consumers) or (np.diff(start) < 0).any():
        raise ValueError("consumer_start must rise from 0 to the number of consumers")
    if ((problem.producer < -1) | (problem.producer >= units)).any():
        raise ValueError(f"a producer is -1 (the host) or one of the {units} units")
    if ((problem.consumers < 0) | (problem.consumers >= units)).any():
        raise ValueError(f"a consumer is one of the {units} units")
    if len(np.unique(problem.consumed * units + problem.consumers)) < len(problem.consumers):
        raise ValueError("a tensor names a consumer twice")
    late = np.flatnonzero(problem.producer[problem.consumed] >= problem.consumers)
    if late.size:
        tensor, consumer = problem.consumed[late[0]], problem.consumers[late[0]]
        raise ValueError(
            f"tensor {tensor}: its producer, unit {problem.producer[tensor]}, does not come before "
            f"its consumer, unit {consumer}; units must stand in topological order"
        )
