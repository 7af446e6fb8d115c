"""What a placement strategy is given: units, what they cost where, and what passes between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from byoc.placement.validation import check_costs, check_fusions, check_limits, check_order, check_shapes

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNLIMITED = 2**62
"""A number of nodes or regions that stands for no limit."""


@dataclass(frozen=True)
class Fusion:
    """Units that an accelerator may run as one, and what that saves; the placement decides.

    It counts where all members are on the device in one region and it is chosen. Chosen fusions have
    no member in common, and the graph stays acyclic when each of them is made one node.
    """

    members: tuple[int, ...]
    """Two units or more, in rising order; each can also run by itself on the device."""
    device: int
    saving: float
    """Seconds, at most those of the members together."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Units in topological order, the tensors between them, costs in seconds, and limits to keep.

    Device 0 is the host, 1..devices are the accelerators; arrays without a host column hold
    accelerator `d` at index `d - 1`. Constants are no tensors here: they travel at compile time.
    The arrays are taken as they are and never written to; the caller must not write to them either.

    Costs need not be seconds: energy, or a weighted sum, is posed in the same arrays.

    Raises ValueError where a shape, a dtype, a cost, a limit or the order of the units is wrong.
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
    must: Bools
    """bool (units,): has to run on an accelerator, whatever it costs."""
    size: Ints
    """int64 (units,): nodes of the unit, 1 or more."""
    min_nodes: Ints
    """int64 (devices,): nodes that a region there has at least; 0 = no limit."""
    max_nodes: Ints
    """int64 (devices,): nodes that a region there has at most; `UNLIMITED` = no limit."""
    max_regions: Ints
    """int64 (devices,): regions that the device may have; `UNLIMITED` = no limit."""
    memory: Floats
    """float64 (units, devices): bytes that the unit takes there as long as the model is loaded."""
    capacity: Floats
    """float64 (devices,): bytes that all units there may take together; inf = no limit."""
    fusions: tuple[Fusion, ...]
    """What may run as one, candidates that may overlap."""

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence on the first thing that is wrong."""
        check_shapes(self)
        check_costs(self)
        check_order(self)
        check_limits(self)
        check_fusions(self)

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
        must: ArrayLike | None = None,
        size: ArrayLike | None = None,
        min_nodes: ArrayLike | None = None,
        max_nodes: ArrayLike | None = None,
        max_regions: ArrayLike | None = None,
        memory: ArrayLike | None = None,
        capacity: ArrayLike | None = None,
        fusions: Iterable[Fusion] = (),
    ) -> Self:
        """Build a problem from each tensor's consuming units; one named twice counts once.

        Anything `numpy.asarray` takes will do for the arrays. What is left out limits nothing:
        regions may be disconnected, no unit must, each is one node and takes no memory.
        """
        distinct = [sorted(set(units)) for units in consumers]
        start = np.zeros(len(distinct) + 1, np.int64)
        np.cumsum([len(units) for units in distinct], out=start[1:])
        launches, costs = np.asarray(launch, np.float64), np.asarray(seconds, np.float64)
        units, devices = len(costs), launches.size
        return cls(
            seconds=costs,
            producer=np.asarray(producer, np.int64),
            consumer_start=start,
            consumers=np.array([unit for units in distinct for unit in units], np.int64),
            is_output=np.asarray(is_output, np.bool_),
            to_device=np.asarray(to_device, np.float64),
            to_host=np.asarray(to_host, np.float64),
            launch=launches,
            connected=_filled(connected, (devices,), False),
            must=_filled(must, (units,), False),
            size=_filled(size, (units,), 1),
            min_nodes=_filled(min_nodes, (devices,), 0),
            max_nodes=_filled(max_nodes, (devices,), UNLIMITED),
            max_regions=_filled(max_regions, (devices,), UNLIMITED),
            memory=_filled(memory, (units, devices), 0.0),
            capacity=_filled(capacity, (devices,), np.inf),
            fusions=tuple(
                Fusion(tuple(sorted(each.members)), each.device, each.saving) for each in fusions
            ),
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

    @cached_property
    def allowed(self) -> Bools:
        """bool (units, 1 + devices): where the unit may run, by itself: not refused, not too large.

        A unit that must be on an accelerator may not be on the host.
        """
        fits = np.isfinite(self.seconds)
        fits[:, 0] = ~self.must
        fits[:, 1:] &= self.size[:, np.newaxis] <= self.max_nodes
        fits[:, 1:] &= self.memory <= self.capacity
        fits[:, 1:] &= self.max_regions > 0
        return fits

    @cached_property
    def costs(self) -> Floats:
        """float64 (units, 1 + devices): `seconds`, infinite wherever the unit is not allowed."""
        return np.where(self.allowed, self.seconds, np.inf)


def _filled(given: ArrayLike | None, shape: tuple[int, ...], default: float) -> NDArray[Any]:
    """Return what was given in the dtype of the default, or an array full of the default."""
    dtype = {bool: np.bool_, int: np.int64, float: np.float64}[type(default)]
    return np.full(shape, default, dtype) if given is None else np.asarray(given, dtype)
