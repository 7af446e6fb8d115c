"""The placement problem: units, their costs on each device, and the tensors between them."""

from collections.abc import Iterable, Sequence
from copy import copy
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from byoc._dataclasses import dataclass, replace
from byoc.placement._conditions import Conditions, check_conditions, list_reloading, relax

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNLIMITED = 2**62
"""Number of nodes or regions that means "no limit"."""


class Occupancy(StrEnum):
    """The resource that a transfer to or from an accelerator keeps busy for its seconds."""

    nothing = "nothing"
    """none: a transfer is a latency alone"""
    link = "link"
    """the link of the accelerator, in both directions; host and accelerator compute meanwhile"""
    device = "device"
    """the accelerator, which is called with its inputs and returns with its outputs"""
    host = "host"
    """the host, which copies"""


@dataclass(frozen=True)
class Fusion:
    """Units that an accelerator can run as one operation, and the time that saves.

    The placement decides whether to choose it. A chosen fusion counts if all members are on its device
    and in one region. Chosen fusions share no member, and contracting each of them leaves the graph
    acyclic.
    """

    members: tuple[int, ...]
    """Two or more units, in rising order; each can also run by itself on the device."""
    device: int
    saving: float
    """Seconds, at most the sum of the members' seconds on the device."""


class ProblemLimits(TypedDict, total=False):
    """Optional arguments of `Problem.build`; see the fields of `Problem` for shapes and units."""

    connected: ArrayLike | None
    must: ArrayLike | None
    size: ArrayLike | None
    min_nodes: ArrayLike | None
    max_nodes: ArrayLike | None
    max_regions: ArrayLike | None
    memory: ArrayLike | None
    capacity: ArrayLike | None
    fusions: Iterable[Fusion]
    occupies: Iterable[Occupancy]
    cores: int
    conditions: Conditions | None


@dataclass(frozen=True, eq=False)
class Problem:
    """Units in topological order, the tensors between them, their costs, and the hard limits.

    Device 0 is the host and 1..devices are the accelerators; arrays without a host column hold
    accelerator `d` at index `d - 1`. Constants are not tensors here, as they are sent at compile time.
    The arrays are not copied and never written to; the caller must not write to them either.

    Costs are in seconds unless another objective is minimised: joules or a weighted sum take the same
    arrays.

    Raises ValueError if a shape, a dtype, a cost, a limit or the order of the units is wrong.

    Attributes:
        seconds: float64 (units, 1 + devices): execution; inf = refused by the device. The host's is
            finite.
        producer: int64 (tensors,): the producing unit, or -1 for the host (a graph input).
        consumer_start: int64 (tensors + 1,): the consumers of tensor `t` are those from `[t]` up to `[t
            + 1]`.
        consumers: int64 (entries,): the consuming units, each once per tensor.
        is_output: bool (tensors,): the host needs it as a graph output.
        to_device: float64 (tensors, devices): host to accelerator, once per tensor; inf = cannot be
            sent.
        to_host: float64 (tensors, devices): accelerator to host, once per tensor; inf = cannot be sent.
        launch: float64 (devices,): launch cost of a region; finite.
        connected: bool (devices,): regions must be connected; if not, disconnected branches may share a
            region.
        must: bool (units,): must run on an accelerator, whatever the cost.
        size: int64 (units,): number of nodes of the unit, at least 1.
        min_nodes: int64 (devices,): least number of nodes of a region; 0 = no limit.
        max_nodes: int64 (devices,): largest number of nodes of a region; `UNLIMITED` = no limit.
        max_regions: int64 (devices,): largest number of regions; `UNLIMITED` = no limit.
        memory: float64 (units, devices): bytes that the unit occupies while the model is loaded.
        capacity: float64 (devices,): bytes available to all units together; inf = no limit.
        fusions: Candidates, which may overlap.
        occupies: (devices,): the resource that transfers of each accelerator occupy. Matters where
            several units run at the same time: for the makespan and the throughput, not for the sum of
            all costs.
        cores: Number of units that the host runs at the same time, at least 1; `UNLIMITED` = no limit.
        conditions: Shared engines, contention, direct links, weights loaded anew, several networks, a
            budget; None = none.
    """

    seconds: Floats
    producer: Ints
    consumer_start: Ints
    consumers: Ints
    is_output: Bools
    to_device: Floats
    to_host: Floats
    launch: Floats
    connected: Bools
    must: Bools
    size: Ints
    min_nodes: Ints
    max_nodes: Ints
    max_regions: Ints
    memory: Floats
    capacity: Floats
    fusions: tuple[Fusion, ...]
    occupies: tuple[Occupancy, ...]
    cores: int
    conditions: Conditions | None = None

    def __post_init__(self) -> None:
        """Raise ValueError that describes the first mistake."""
        check_problem(self)

    @classmethod
    def build(  # noqa: PLR0913 - one for each array
        cls,
        *,
        seconds: ArrayLike,
        producer: ArrayLike,
        consumers: Sequence[Iterable[int]],
        is_output: ArrayLike,
        to_device: ArrayLike,
        to_host: ArrayLike,
        launch: ArrayLike,
        **limits: Unpack[ProblemLimits],
    ) -> Self:
        """Build a problem from the consuming units of each tensor; duplicates count once.

        Arrays are converted by `numpy.asarray`. Limits that are not given restrict nothing: regions may
        be disconnected, no unit must be on an accelerator, each unit has one node and takes no memory.
        Transfers occupy nothing, and the host has one core.
        """
        distinct = [sorted(set(units)) for units in consumers]
        start = np.zeros(len(distinct) + 1, np.int64)
        np.cumsum([len(units) for units in distinct], out=start[1:])
        launches, costs = np.asarray(launch, np.float64), np.asarray(seconds, np.float64)
        units, devices = len(costs), launches.size

        def array(name: str, shape: tuple[int, ...], default: float) -> NDArray[Any]:
            given: Any = limits.get(name)
            dtype = {bool: np.bool_, int: np.int64, float: np.float64}[type(default)]
            return np.full(shape, default, dtype) if given is None else np.asarray(given, dtype)

        return cls(
            seconds=costs,
            producer=np.asarray(producer, np.int64),
            consumer_start=start,
            consumers=np.array([unit for units in distinct for unit in units], np.int64),
            is_output=np.asarray(is_output, np.bool_),
            to_device=np.asarray(to_device, np.float64),
            to_host=np.asarray(to_host, np.float64),
            launch=launches,
            connected=array("connected", (devices,), False),
            must=array("must", (units,), False),
            size=array("size", (units,), 1),
            min_nodes=array("min_nodes", (devices,), 0),
            max_nodes=array("max_nodes", (devices,), UNLIMITED),
            max_regions=array("max_regions", (devices,), UNLIMITED),
            memory=array("memory", (units, devices), 0.0),
            capacity=array("capacity", (devices,), np.inf),
            fusions=tuple(
                Fusion(tuple(sorted(each.members)), each.device, each.saving)
                for each in limits.get("fusions", ())
            ),
            occupies=tuple(map(Occupancy, limits.get("occupies", ("nothing",) * devices))),
            cores=limits.get("cores", 1),
            conditions=limits.get("conditions"),
        )

    @classmethod
    def join(cls, parts: Sequence[Self], conditions: Conditions) -> Self:
        """Return the problem of all units of several problems on the same devices, side by side.

        Limits of devices are those of the first one, and hold for all units together. Raises ValueError
        where the conditions do not fit.
        """
        offsets = np.cumsum([0, *(part.units for part in parts[:-1])]).tolist()
        first = parts[0]
        consumers, fusions = [], []
        for part, offset in zip(parts, offsets, strict=True):
            start = part.consumer_start.tolist()
            read = (part.consumers + offset).tolist()
            consumers += [read[start[t] : start[t + 1]] for t in range(part.tensors)]
            fusions += [
                replace(each, members=tuple(m + offset for m in each.members)) for each in part.fusions
            ]
        producers = [
            np.where(part.producer < 0, -1, part.producer + offset)
            for part, offset in zip(parts, offsets, strict=True)
        ]
        rows = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("seconds", "is_output", "to_device", "to_host", "must", "size", "memory")
        }
        return cls.build(
            producer=np.concatenate(producers),
            consumers=consumers,
            launch=first.launch,
            connected=first.connected,
            min_nodes=first.min_nodes,
            max_nodes=first.max_nodes,
            max_regions=first.max_regions,
            capacity=first.capacity,
            fusions=fusions,
            occupies=first.occupies,
            cores=first.cores,
            conditions=conditions,
            **rows,
        )

    @property
    def engines(self) -> Floats:
        """The shares of engines that devices occupy, float64 (1 + devices, engines)."""
        given = None if self.conditions is None else self.conditions.engines
        return np.eye(1 + self.devices) if given is None else given

    @cached_property
    def plain(self) -> Self:
        """The problem without its conditions."""
        return self if self.conditions is None else replace(self, conditions=None)

    @cached_property
    def relaxed(self) -> "Problem":
        """A problem without conditions, a bound of which is one of this one."""
        return relax(self)

    @cached_property
    def without_fusions(self) -> Self:
        """The problem without fusions, in which each unit saves the most that any fusion may save of it.

        It has no conditions where there are fusions. A fusion's saving is shared out by the seconds of
        its members. So nothing costs more here than with its fusions, in all, along any path or on any
        device: a bound of this is one of the problem.
        """
        if not self.fusions:
            return self
        seconds = self.seconds.copy()
        for fusion in self.fusions:
            members = list(fusion.members)
            alone = self.seconds[members, fusion.device]
            left = alone * (1 - fusion.saving / alone.sum()) if alone.any() else alone
            seconds[members, fusion.device] = np.minimum(seconds[members, fusion.device], left)
        return replace(self.plain, seconds=np.maximum(seconds, 0.0), fusions=())

    def replace_seconds(self, seconds: Floats) -> Self:
        """Return the problem with other seconds of units, float64 (units, 1 + devices).

        Raises ValueError as a new problem does.
        """
        other = copy(self)  # what follows from the other fields stays as it is
        vars(other).pop("allowed", None)
        vars(other).pop("costs", None)
        vars(other).pop("plain", None)
        vars(other).pop("relaxed", None)
        vars(other)["seconds"] = seconds
        check_seconds(other)
        return other

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
        """Number of accelerators, the host not counted."""
        return len(self.launch)

    @cached_property
    def consumed(self) -> Ints:
        """int64 (entries,): the tensor that each entry of `consumers` consumes."""
        return np.repeat(np.arange(self.tensors), np.diff(self.consumer_start))

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Producing and consuming units of the distinct edges between units.

        Two int64 (edges,), sorted by producing and then by consuming unit.
        """
        producer = self.producer[self.consumed]
        between = producer >= 0
        key = np.unique(producer[between] * self.units + self.consumers[between])
        source, target = np.divmod(key, self.units)
        return source, target

    @cached_property
    def listed_edges(self) -> tuple[list[int], list[int]]:
        """The same as `edges`, as lists: loops in Python are faster over these."""
        source, target = self.edges
        return source.tolist(), target.tolist()

    @cached_property
    def bars_transfers(self) -> bool:
        """Whether some tensor cannot be sent to, or from, some accelerator."""
        return bool(np.isinf(self.to_device).any() or np.isinf(self.to_host).any())

    @cached_property
    def allowed(self) -> Bools:
        """bool (units, 1 + devices): the device takes the unit by itself: not refused, not too large.

        False for the host where the unit must be on an accelerator.
        """
        fits = np.isfinite(self.seconds)
        fits[:, 0] = ~self.must
        fits[:, 1:] &= self.size[:, np.newaxis] <= self.max_nodes
        capacity = self.capacity.copy()
        for devices, _ in list_reloading(self):
            capacity[devices] = np.inf
        fits[:, 1:] &= self.memory <= capacity
        fits[:, 1:] &= self.max_regions > 0
        return fits

    @cached_property
    def costs(self) -> Floats:
        """float64 (units, 1 + devices): `seconds`, infinite wherever the unit is not allowed."""
        return np.where(self.allowed, self.seconds, np.inf)


# Checks of a placement problem: shapes, costs, the order of the units, limits, fusions.


def check_problem(problem: Problem) -> None:
    """Raise ValueError that describes the first mistake."""
    _check_shapes(problem)
    _check_costs(problem, "seconds", "to_device", "to_host", "launch")
    _check_order(problem)
    if problem.conditions is not None:
        check_conditions(problem, problem.conditions)
    _check_limits(problem)
    _check_fusions(problem)


def check_seconds(problem: Problem) -> None:
    """Raise ValueError as `check_problem` where nothing but the seconds of units may be wrong."""
    shape = len(problem.size), 1 + problem.devices  # `units` is the number of rows of these seconds
    if problem.seconds.dtype != np.float64 or problem.seconds.shape != shape:
        raise ValueError(f"seconds are {problem.seconds.dtype} of shape {problem.seconds.shape}")
    _check_costs(problem, "seconds")
    _check_homes(problem)
    _check_fusions(problem)


def _check_shapes(problem: Problem) -> None:
    """Raise ValueError if an array does not have the documented shape and dtype."""
    units, devices, tensors = len(problem.seconds), problem.launch.size, problem.producer.size
    expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "seconds": (np.float64, (units, 1 + devices)),
        "producer": (np.int64, (tensors,)),
        "consumer_start": (np.int64, (tensors + 1,)),
        "consumers": (np.int64, (problem.consumers.size,)),
        "is_output": (np.bool_, (tensors,)),
        "to_device": (np.float64, (tensors, devices)),
        "to_host": (np.float64, (tensors, devices)),
        "launch": (np.float64, (devices,)),
        "connected": (np.bool_, (devices,)),
        "must": (np.bool_, (units,)),
        "size": (np.int64, (units,)),
        "min_nodes": (np.int64, (devices,)),
        "max_nodes": (np.int64, (devices,)),
        "max_regions": (np.int64, (devices,)),
        "memory": (np.float64, (units, devices)),
        "capacity": (np.float64, (devices,)),
    }
    for name, (dtype, shape) in expected.items():
        array = getattr(problem, name)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{name} is {array.dtype} of shape {array.shape}; {np.dtype(dtype)} of shape "
                f"{shape} is needed for {tensors} tensors and {devices} devices beside the host"
            )


def _check_costs(problem: Problem, *names: str) -> None:
    """Raise ValueError if a cost is negative, not a number, or infinite where that is not allowed."""
    for name in names:
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
    """Raise ValueError if a tensor names a missing unit, or units are not in topological order."""
    start, units = problem.consumer_start, problem.units
    if start[0] != 0 or start[-1] != len(problem.consumers) or (np.diff(start) < 0).any():
        raise ValueError("consumer_start must rise from 0 to the number of consumers")
    if ((problem.producer < -1) | (problem.producer >= units)).any():
        raise ValueError(f"a producer is -1 (the host) or one of the {units} units")
    if ((problem.consumers < 0) | (problem.consumers >= units)).any():
        raise ValueError(f"a consumer is one of the {units} units")
    entries = problem.consumed * units + problem.consumers
    rising = bool((entries[1:] > entries[:-1]).all())  # as they mostly are, and then distinct
    if not rising and len(np.unique(entries)) < len(entries):
        raise ValueError("a tensor names a consumer twice")
    late = np.flatnonzero(problem.producer[problem.consumed] >= problem.consumers)
    if late.size:
        tensor, consumer = problem.consumed[late[0]], problem.consumers[late[0]]
        raise ValueError(
            f"tensor {tensor}: its producer, unit {problem.producer[tensor]}, does not come before "
            f"its consumer, unit {consumer}; units must stand in topological order"
        )


def _check_limits(problem: Problem) -> None:
    """Raise ValueError if a limit is negative."""
    if (problem.size < 1).any():
        raise ValueError("a unit has a size of 1 node or more")
    for name in ("min_nodes", "max_nodes", "max_regions", "capacity"):
        if not (getattr(problem, name) >= 0).all():
            raise ValueError(f"{name} is negative or not a number")
    finite = np.isfinite(problem.memory)
    if not (finite & (problem.memory >= 0)).all():
        unit, device = (int(index) for index in np.argwhere(~(finite & (problem.memory >= 0)))[0])
        raise ValueError(f"memory[{unit}, {device}] is not 0 or more bytes")
    if len(problem.occupies) != problem.devices or problem.cores < 1:
        raise ValueError("each accelerator's transfers occupy one resource; the host has a core or more")
    _check_homes(problem)


def _check_homes(problem: Problem) -> None:
    """Raise ValueError if no accelerator takes a unit that needs one."""
    homeless = np.flatnonzero(problem.must & ~problem.allowed[:, 1:].any(axis=1))
    if homeless.size:
        raise ValueError(f"unit {homeless[0]} must be on an accelerator, and none takes it")


def _check_fusions(problem: Problem) -> None:
    """Raise ValueError if a device refuses a member of a fusion, or the fusion saves too much."""
    for number, fusion in enumerate(problem.fusions):
        members = fusion.members
        if len(set(members)) < 2 or tuple(sorted(set(members))) != members:
            raise ValueError(f"fusion {number}: two members or more, in rising order, are needed")
        if members[0] < 0 or members[-1] >= problem.units:
            raise ValueError(f"fusion {number}: a member is one of the {problem.units} units")
        if not 1 <= fusion.device <= problem.devices:
            raise ValueError(f"fusion {number}: a device is one of {problem.devices} accelerators")
        apart = float(problem.seconds[list(members), fusion.device].sum())
        if not np.isfinite(apart):
            raise ValueError(f"fusion {number}: device {fusion.device} refuses one of its members")
        if not 0 <= fusion.saving <= apart:
            raise ValueError(
                f"fusion {number}: saves {fusion.saving:g} s; its members take {apart:g} s apart"
            )


@dataclass(frozen=True, slots=True)
class Regret:
    """The cost of a placement over that of the best known one; 1 where it is the best.

    `best` is the share of samples in which it is.
    """

    mean: float
    worst: float
    best: float
