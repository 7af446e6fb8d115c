"""Conditions of a placement problem: shared engines, contention, direct links, several networks.

A unit's alternatives are the columns of a problem. A column need not be a processor of its own: it may
be a frequency state of one, a split of the work over two, a pipeline stage that several share in turn,
or a device whose weights are loaded anew in each run. What it occupies is a row of `Conditions.engines`.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, replace

if TYPE_CHECKING:
    from byoc.placement._problem import Problem

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_INFERENCES = 1024
"""Largest number of inferences of all networks in a hyperperiod, which are simulated one by one."""
# A period is the nearest fraction of a second with such a denominator, so that there is a hyperperiod.
_DENOMINATOR = 10**9


@dataclass(frozen=True)
class PlacedNetwork:
    """One of several networks that are placed together: its rate, its deadline, its weight."""

    name: str = ""
    period: float = inf
    """Seconds from one inference to the next; inf where it runs once in a round."""
    deadline: float = inf
    """Seconds from the release of an inference within which it has to end; the period unless given."""
    weight: float = 1.0
    """Factor on the time at which it ends, in the makespan of a round."""

    @property
    def response(self) -> float:
        """Seconds within which an inference has to end: the deadline, else the period."""
        return self.period if self.deadline == inf else self.deadline


@dataclass(frozen=True, eq=False)
class Conditions:
    """Conditions beyond the sums and limits of a problem; one that is left out changes nothing.

    The arrays are copied and cannot be written to.
    """

    engines: Floats | None = None
    """float64 (1 + devices, engines): the share of a device's seconds for which it occupies an engine,
    from 0 to 1. Two devices that occupy one engine never run at once (frequency states, shared engines).
    A device that occupies two is an operator split over both; with shares of a half it is a stage of a
    pipeline with two replicas, of which each takes every second input. None: one for each device."""
    slowdown: Floats | None = None
    """float64 (engines, engines): how many times as long work on one engine (row) takes while another
    one (column) computes; 1 or more. Of several others the excesses over 1 add up."""
    direct: Floats | None = None
    """float64 (tensors, devices, devices): seconds of a tensor from one accelerator (row) to another one
    without the host; inf = only by way of the host."""
    reload: Floats | None = None
    """float64 (devices,): seconds for each byte of a unit's memory beyond the capacity of its device,
    which is loaded anew in each run; inf = the capacity is a limit."""
    networks: tuple[PlacedNetwork, ...] = ()
    network_of: Ints | None = None
    """int64 (units,): the network of each unit. No region and no tensor is of two networks."""
    other: "Problem | None" = None
    """The same units, tensors and devices with other costs, joules for instance."""
    most: float = inf
    """The most that a placement may cost by `other`, all costs added up; fusions save nothing there."""
    other_name: str = "the other cost"
    """What `other` counts, in messages."""
    other_unit: str = ""
    """The unit of `other` in messages, empty for none."""

    def __post_init__(self) -> None:
        """Copy the arrays."""
        for name in ("engines", "slowdown", "direct", "reload", "network_of"):
            array = getattr(self, name)
            if array is not None:
                copied = np.array(array, np.int64 if name == "network_of" else np.float64)
                copied.setflags(write=False)
                object.__setattr__(self, name, copied)

    def reorder(self, units: Ints, tensors: Ints, other: "Problem | None") -> Self:
        """Return the conditions for rows in another order, in which `other` is already."""
        direct = None if self.direct is None else self.direct[tensors]
        network_of = None if self.network_of is None else self.network_of[units]
        return replace(self, direct=direct, network_of=network_of, other=other)

    def without_reload(self) -> "Conditions | None":
        """Return the conditions without weights that are loaded anew; None if no other is left."""
        has_others = any(
            each is not None
            for each in (self.engines, self.slowdown, self.direct, self.network_of, self.other)
        )
        return replace(self, reload=None) if has_others else None

    def affects_sums(self, problem: "Problem") -> bool:
        """Return whether sums of costs, or limits that hold for them, are others than without these."""
        has_shared_bytes = self.engines is not None and bool(np.isfinite(problem.capacity).any())
        return (
            bool(self.networks) or self.direct is not None or self.other is not None or has_shared_bytes
        )

    @property
    def has_rates(self) -> bool:
        """Whether a network has a period or a deadline."""
        return any(each.response < inf for each in self.networks)


def check_conditions(problem: "Problem", given: Conditions) -> None:
    """Raise ValueError that describes the first condition that does not fit its problem."""
    devices, tensors = problem.devices, problem.tensors
    count = 1 + devices if given.engines is None else given.engines.shape[-1]
    for name, shape, least, largest in (
        ("engines", (1 + devices, count), 0.0, 1.0),
        ("slowdown", (count, count), 1.0, 1e6),
        ("direct", (tensors, devices, devices), 0.0, inf),
        ("reload", (devices,), 0.0, inf),
    ):
        array = getattr(given, name)
        if array is None:
            continue
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, and {shape} is needed")
        if not ((array >= least) & (array <= largest)).all():
            raise ValueError(f"{name} has a number that is not from {least:g} to {largest:g}")
    if given.engines is not None and not (given.engines.max(axis=1, initial=0.0) > 0).all():
        raise ValueError("engines: each device occupies an engine or more")
    _check_networks(problem, given)
    other = given.other
    if given.reload is not None and np.isfinite(given.reload).any():
        sharing = find_sharing_pairs(given.engines)
        if sharing is not None and not np.array_equal(sharing, sharing @ sharing):
            raise ValueError(
                "weights are loaded anew on devices of which two share an engine with a third, and none "
                "with one another, so that their memories are not known"
            )
        if other is not None:
            raise ValueError("a limit on other costs does not count weights that are loaded anew")
    if other is None:
        return
    if other.conditions is not None or not given.most >= 0:
        raise ValueError(
            "the other costs have no conditions of their own, and at most 0 or more is spent"
        )
    same = ("producer", "consumer_start", "consumers", "is_output")
    alike = all(np.array_equal(getattr(problem, name), getattr(other, name)) for name in same)
    members = [[(each.members, each.device) for each in one.fusions] for one in (problem, other)]
    if not alike or problem.seconds.shape != other.seconds.shape or members[0] != members[1]:
        raise ValueError("the other costs are of other units, tensors, devices or fusions")


def _check_networks(problem: "Problem", given: Conditions) -> None:
    if not given.networks:
        if given.network_of is not None:
            raise ValueError("units are of networks, and there are none")
        return
    of = given.network_of
    if of is None or of.shape != (problem.units,) or ((of < 0) | (of >= len(given.networks))).any():
        raise ValueError(f"each unit is of one of the {len(given.networks)} networks")
    source, target = problem.edges
    if (of[source] != of[target]).any():
        raise ValueError("a tensor passes from one network to another")
    for each in given.networks:
        if not (each.period > 0 and each.deadline > 0 and 0 < each.weight < inf):
            raise ValueError(f"network {each.name}: periods, deadlines and weights are above 0")
    if given.has_rates:
        if any(each.period == inf for each in given.networks):
            raise ValueError("either all networks have a rate, or none has a rate or a deadline")
        find_hyperperiod(given.networks)


def find_hyperperiod(networks: Sequence[PlacedNetwork]) -> tuple[float, list[int]]:
    """Return the seconds after which all releases repeat, and the inferences of each network in them.

    Raises ValueError where these are more than `MOST_INFERENCES`, and for a period below a nanosecond.
    """
    for each in networks:
        if each.period * _DENOMINATOR < 1 - 1e-6:  # its nearest fraction is 0, or a longer period
            raise ValueError(f"network {each.name}: a period is at least {1 / _DENOMINATOR:g} s")
    periods = [Fraction(each.period).limit_denominator(_DENOMINATOR) for each in networks]
    below = math.lcm(*(each.denominator for each in periods))
    whole = math.lcm(*(int(each * below) for each in periods))
    counts = [int(Fraction(whole, below) / each) for each in periods]
    if sum(counts) > MOST_INFERENCES:
        raise ValueError(
            f"the releases of all networks repeat after {sum(counts)} inferences, and at most "
            f"{MOST_INFERENCES} are simulated: choose rates with a smaller common multiple"
        )
    return whole / below, counts


# What follows from the conditions of a problem.


def find_sharing_devices(problem: "Problem") -> Bools | None:
    """Return the pairs of accelerators that share an engine, bool (devices, devices); None for none."""
    return find_sharing_pairs(None if problem.conditions is None else problem.conditions.engines)


def find_sharing_pairs(engines: Floats | None) -> Bools | None:
    """Return the pairs of accelerators that share an engine, as `find_sharing_devices`."""
    if engines is None:
        return None
    used = engines[1:] > 0
    return used.astype(np.int64) @ used.T.astype(np.int64) > 0


def relax(problem: "Problem") -> "Problem":
    """Return a problem without conditions, in which no placement costs or takes more.

    Where there are direct links, a transfer to the host and one from it are made so cheap that both
    together take no longer than a direct one.
    """
    conditions = problem.conditions
    if conditions is None:
        return problem
    problem = price_reloads(problem, np.zeros(len(list_reloading(problem))))
    if conditions.direct is None:
        return replace(problem, conditions=None)
    both = problem.to_host[:, :, np.newaxis] + problem.to_device[:, np.newaxis, :]
    direct = np.minimum(conditions.direct, both)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(both > 0, direct / both, 1.0)
    part[np.isinf(both) & np.isinf(direct)] = 1.0
    own = np.arange(problem.devices)
    part[:, own, own] = 1.0
    return replace(
        problem,
        conditions=None,
        to_host=_scale(problem.to_host, part.min(axis=2, initial=1.0)),
        to_device=_scale(problem.to_device, part.min(axis=1, initial=1.0)),
    )


def _scale(costs: Floats, part: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(costs) & (part < 1), 0.0, costs * part)


def add_costs(problem: "Problem", other: "Problem", factor: float) -> "Problem":
    """Return a problem whose costs are its own plus `factor` times others, without conditions."""
    if not factor:
        return problem.plain
    fusions = tuple(
        replace(one, saving=one.saving + factor * two.saving)
        for one, two in zip(problem.fusions, other.fusions, strict=True)
    )
    names = ("seconds", "to_device", "to_host", "launch")
    arrays = {name: getattr(problem, name) + factor * getattr(other, name) for name in names}
    return replace(problem, conditions=None, fusions=fusions, **arrays)


def sum_direct_transfers(problem: "Problem", leaving: Ints, home: Ints, wanted: Bools) -> float | None:
    """Return the seconds of all transfers where direct links may be taken; None without such links.

    `leaving`, `home` and `wanted` are what `find_transfers` returns. A tensor leaves by way of the host
    where that is cheaper for all that want it together, or the host wants it, too.
    """
    direct = None if problem.conditions is None else problem.conditions.direct
    if direct is None:
        return None
    parts = problem.to_device[(home == 0)[:, np.newaxis] & wanted[:, 1:]].tolist()
    for tensor in leaving.tolist():
        at = int(home[tensor]) - 1
        up = float(problem.to_host[tensor, at])
        ends = np.flatnonzero(wanted[tensor, 1:])
        straight, down = direct[tensor, at, ends], problem.to_device[tensor, ends]
        by_host = up + math.fsum(np.minimum(straight, down))
        parts.append(by_host if wanted[tensor, 0] else min(by_host, math.fsum(straight)))
    return math.fsum(parts)


# Weights beyond the memory of an accelerator, which are loaded anew in each run.
#
# A unit has two alternatives on such a device: its bytes are held there, or they are loaded in each run,
# at the device's seconds for each byte, also in part. Of a placement the least to load is what is
# beyond the capacity. That is the largest, over all prices of a byte from 0 to that of loading one, of
# the price times the bytes beyond, so that each price gives a lower bound: a problem without a capacity.


def list_reloading(problem: "Problem") -> list[tuple[Ints, float]]:
    """Return the accelerators that load weights anew, by position, and the bytes they hold at most.

    Those that share an engine are together, with the least of their capacities; an engine on which one
    cannot load anew has a limit.
    """
    reload = None if problem.conditions is None else problem.conditions.reload
    if reload is None:
        return []
    sharing = find_sharing_devices(problem)
    together = np.eye(problem.devices, dtype=np.bool_) if sharing is None else sharing
    found = []
    for row in np.unique(together, axis=0):
        devices = np.flatnonzero(row)
        capacity = float(problem.capacity[devices].min())
        if np.isfinite(reload[devices]).all() and capacity < inf:
            found.append((devices, capacity))
    return found


def find_loaded_bytes(problem: "Problem", labels: Ints) -> Floats:
    """Return the bytes of each unit that its device loads anew in each run, float64 (units,).

    What is cheapest to load is loaded, then the largest; the last unit may be loaded in part.
    """
    loaded = np.zeros(problem.units)
    for devices, capacity in list_reloading(problem):
        assert problem.conditions is not None
        assert problem.conditions.reload is not None
        rows = np.flatnonzero(np.isin(labels, devices + 1))
        taken = problem.memory[rows, labels[rows] - 1]
        beyond = math.fsum(taken) - capacity
        if beyond <= capacity * 2.0**-40:
            continue
        order = np.lexsort((rows, -taken, problem.conditions.reload[labels[rows] - 1]))
        before = np.cumsum(taken[order]) - taken[order]
        loaded[rows[order]] = np.clip(beyond - before, 0.0, taken[order])
    return loaded


def describe_reloads(
    problem: "Problem", fixed: "Problem", labels: Ints, names: Sequence[str]
) -> list[str]:
    """Return a sentence on each accelerator, by its name, that loads weights anew with these labels.

    `fixed` is the problem without what is loaded (`fix_reloads`).
    """
    found = []
    for number, name in enumerate(names):
        here = labels == 1 + number
        held = math.fsum(fixed.memory[here, number])
        anew = math.fsum(problem.memory[here, number]) - held
        if anew > 0:
            found.append(
                f"{name} holds {held:.0f} bytes of weights and loads {anew:.0f} bytes anew in each run"
            )
    return found


def fix_reloads(problem: "Problem", labels: Ints) -> "Problem":
    """Return the problem in which units load the bytes that they do with these labels, and no others."""
    conditions = problem.conditions
    if conditions is None or conditions.reload is None:
        return problem
    loaded = find_loaded_bytes(problem, labels)
    rows = np.flatnonzero(loaded)
    at = labels[rows]
    seconds, memory = problem.seconds.copy(), problem.memory.copy()
    seconds[rows, at] += loaded[rows] * conditions.reload[at - 1]
    memory[rows, at - 1] -= loaded[rows]
    return replace(problem, seconds=seconds, memory=memory, conditions=conditions.without_reload())


def price_reloads(problem: "Problem", prices: Floats) -> "Problem":
    """Return the problem in which a byte has a price, without the capacities of devices that load anew.

    `prices`, float64, has one for each entry of `list_reloading`, where it is at most that of loading
    one; inf = nothing is loaded, and the capacity is a limit.
    """
    conditions = problem.conditions
    if conditions is None or conditions.reload is None:
        return problem
    seconds, capacity = problem.seconds.copy(), problem.capacity.copy()
    for (devices, _), price in zip(list_reloading(problem), prices.tolist(), strict=True):
        if price < inf:
            capacity[devices] = inf
            seconds[:, 1 + devices] += problem.memory[:, devices] * np.minimum(
                price, conditions.reload[devices]
            )
    return replace(
        problem,
        seconds=seconds,
        capacity=capacity,
        conditions=conditions.without_reload(),
    )


# Operators that two accelerators share along an axis: one more column.


def add_split(problem: "Problem", pair: tuple[int, int], extents: Sequence[int]) -> "Problem":
    """Return the problem with one more accelerator, on which two compute a part of a unit each.

    `pair` are the two accelerators, from 1. `extents` has for each unit the extent of the axis that it
    may be split along, the output channels for instance, and 0 or 1 where it may not be. Each part is a
    whole number of it, takes that share of the unit's seconds, and the parts are those that end
    soonest. Of memory the larger part counts on both, which is on the safe side: a placement may be
    refused that fits. Both accelerators need all inputs, are launched, and are occupied until both end.
    Each sends its part of the results to the host, and gets the other one's: that is in the seconds of
    the unit, so that results are where any unit may read them. Raises ValueError where the two share an
    engine, for limits on other costs, and where weights are loaded anew.
    """
    conditions = problem.conditions or Conditions()
    first, second = (each - 1 for each in pair)
    if not (0 <= first < problem.devices and 0 <= second < problem.devices and first != second):
        raise ValueError(f"an operator is split over two of {problem.devices} accelerators")
    rows = problem.engines[[1 + first, 1 + second]]
    if (rows.min(axis=0) > 0).any():
        raise ValueError("two accelerators that share an engine do not work on an operator at once")
    if conditions.other is not None:
        raise ValueError("a limit on other costs does not know operators that are split")
    if conditions.reload is not None and np.isfinite(conditions.reload).any():
        raise ValueError("operators are not split where weights are loaded anew")
    share, seconds = _find_shares(problem.seconds[:, 1 + first], problem.seconds[:, 1 + second], extents)
    shares = np.stack([share, 1 - share], axis=1)
    ends = [first, second]
    made = np.flatnonzero(problem.producer >= 0)
    part = shares[problem.producer[made]]
    gathered = (part * (problem.to_host[made][:, ends] + problem.to_device[made][:, ends[::-1]])).sum(1)
    np.add.at(seconds, problem.producer[made], gathered)
    arriving = problem.to_device[:, ends].sum(axis=1)
    bytes_there = (shares * problem.memory[:, ends]).max(axis=1)
    engines = np.vstack([problem.engines, rows.max(axis=0)])
    direct = conditions.direct
    if direct is not None:
        direct = np.pad(direct, ((0, 0), (0, 1), (0, 1)), constant_values=inf)
    return replace(
        problem,
        seconds=np.column_stack([problem.seconds, seconds]),
        to_device=np.column_stack([problem.to_device, arriving]),
        to_host=np.column_stack([problem.to_host, np.zeros(problem.tensors)]),
        launch=np.append(problem.launch, problem.launch[ends].sum()),
        connected=np.append(problem.connected, problem.connected[ends].any()),
        min_nodes=np.append(problem.min_nodes, 0),
        max_nodes=np.append(problem.max_nodes, problem.max_nodes[ends].min()),
        max_regions=np.append(problem.max_regions, problem.max_regions[ends].min()),
        memory=np.column_stack([problem.memory, bytes_there]),
        capacity=np.append(problem.capacity, inf),
        occupies=(*problem.occupies, problem.occupies[first]),
        conditions=replace(conditions, engines=engines, direct=direct, reload=None),
    )


def _find_shares(one: Floats, other: Floats, extents: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the share of the first of two accelerators, and when both end, float64 (units,) each.

    Infinite where a unit may not be split.
    """
    whole = np.asarray(extents, np.float64)
    split = (whole >= 2) & np.isfinite(one) & np.isfinite(other)
    a, b = np.where(split, one, 1.0), np.where(split, other, 1.0)
    total = np.where(a + b > 0, a + b, 1.0)
    even = np.where(a + b > 0, whole * b / total, whole / 2)  # both would end at once
    count = np.where(split, whole, 2.0)
    best, share = np.full(len(a), inf), np.full(len(a), 0.5)
    for parts in (np.floor(even), np.ceil(even)):
        own = np.clip(parts, 1, count - 1) / count
        ends = np.maximum(a * own, b * (1 - own))
        share = np.where(ends < best, own, share)
        best = np.minimum(ends, best)
    return share, np.where(split, best, inf)
