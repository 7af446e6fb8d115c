"""The placement problem with a choice of precision: each accelerator is two devices of it.

One computes in floating point, the other in integers, of 8 bits or of 16. What crosses between the two
goes by the host, as in the plan that is then made. The noise of a unit counts where it is in integers.

On the device of integers a unit first has the type that is cheaper, conversions left out, which bounds
the cost from below. Then the types of the units there are chosen with the conversions between them: a
problem of the same kind, in which the two types are the devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from byoc.placement import Problem, Strategy, solve_problem

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Level(IntEnum):
    """The precision of a unit: floating point, integers of the type that was asked for, or 16 bits."""

    floating = 0
    narrow = 1
    wide = 2


@dataclass(frozen=True)
class UnitPrecisions:
    """The units of a plan that are in floating point, and those in 16 bits; all others are in 8."""

    in_float: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


Fixed = Mapping[int, int]
"""Units by number, and the level that each is fixed at."""


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A choice of the level of each unit, int64 `[units]`.

    `cost` is the predicted one, `noise` the expected noise `[outputs]`. `bound` is a lower bound of the
    cost with the weighted noise of any other choice.
    """

    levels: Ints
    cost: float
    noise: Floats
    bound: float


@dataclass(frozen=True, eq=False)
class SharedTensor:
    """A tensor that units read which may be in integers, and the cost of its types, `[devices]`.

    `maker` and `readers` are units by number, -1 for what is no such unit. `to_wide` and `to_narrow` are
    the costs of a conversion, `more_to_host` and `more_to_device` what crosses more in 16 bits.
    """

    maker: int
    readers: tuple[int, ...]
    leaves: bool
    """Whether something that is no such unit reads it, too."""
    to_wide: Floats
    to_narrow: Floats
    more_to_host: Floats
    more_to_device: Floats


@dataclass(frozen=True, eq=False)
class PrecisionProblem:
    """A placement problem in which accelerators `1..devices` compute in floats, the others in integers.

    A row of the problem is a unit of the float model, and `names` has the names of all rows. `units` are
    the names of what may be quantized, in topological order; `rows` has the rows of each, the first of
    which has its cost in integers. `costs` is float64 `[types, units, devices]`, in the type that was
    asked for and, if there are two, in 16 bits; `noise` is float64 `[types, units, outputs]`, the power
    of the error of each output over that of its signal; noises of units are expected to add up.
    """

    problem: Problem
    names: Sequence[str]
    devices: int
    units: Sequence[str]
    rows: Sequence[Sequence[int]]
    costs: Floats
    noise: Floats
    strategy: Strategy
    tensors: Sequence[SharedTensor] = ()
    first_rows: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Collect the first row of each unit."""
        first = np.asarray([rows[0] for rows in self.rows], np.int64)
        object.__setattr__(self, "first_rows", first)

    def list_levels(self, unit: int) -> list[int]:
        """Return the levels that a unit may have."""
        types = np.flatnonzero(np.isfinite(self.costs[:, unit]).any(axis=1))
        return [Level.floating, *(1 + int(each) for each in types)]

    def name_precisions(self, levels: Ints) -> UnitPrecisions:
        """Return the precisions of units at some levels."""
        named = [*zip(self.units, levels.tolist(), strict=True)]
        return UnitPrecisions(
            frozenset(name for name, level in named if level == Level.floating),
            frozenset(name for name, level in named if level == Level.wide),
        )

    def list_noise(self, levels: Ints) -> Floats:
        """Return the noise of each unit at its level, `[units, outputs]`."""
        every = np.concatenate([np.zeros_like(self.noise[:1]), self.noise])
        return np.asarray(every[levels, np.arange(len(levels))])

    def solve(self, weights: Floats, fixed: Fixed) -> PrecisionChoice:
        """Return the choice of the least cost plus weighted noise that is found.

        `weights` is float64 `[outputs]`; `fixed` says of some units at which level they are. Where units
        of both types are chosen, and none is fixed, those with as many as may be of one type are tried,
        too.
        """
        priced = self.costs + (self.noise @ weights)[..., np.newaxis]
        for unit, level in fixed.items():
            priced[np.arange(len(priced)) != level - 1, unit] = np.inf
        levels, value, bound = self._place(priced, fixed)
        if not fixed and np.unique(levels[levels > 0]).size > 1:
            alone = [_prefer_type(priced, number) for number in range(len(priced))]
            tried = [self._place(each, fixed)[:2] for each in alone]
            levels, value = min([(levels, value), *tried], key=lambda each: each[1])
        noise = self.list_noise(levels).sum(axis=0)
        return PrecisionChoice(levels, value - float(weights @ noise), noise, bound)

    def _place(self, priced: Floats, fixed: Fixed) -> tuple[Ints, float, float]:
        """Return levels, what they cost with the price of noise, and a lower bound of that of any.

        `priced` is `[types, units, devices]`, with the price of noise.
        """
        problem, integers = self.problem, 1 + self.devices
        seconds, must = problem.seconds.copy(), problem.must.copy()
        cheapest = priced.min(axis=0)
        seconds[self.first_rows, integers:] = cheapest
        for unit, level in fixed.items():
            rows = list(self.rows[unit])
            if level:
                must[rows] = True
                seconds[rows, 1:integers] = np.inf
            else:
                seconds[rows, integers:] = np.inf
        fusions = [
            replace(each, saving=min(each.saving, float(members.sum())))
            for each in problem.fusions
            if np.isfinite(members := seconds[list(each.members), each.device]).all()  # not fixed apart
        ]
        changed = problem
        if must.any() or fusions != [*problem.fusions]:
            changed = replace(problem, must=must, fusions=tuple(fusions))
        found = solve_problem(changed.replace_seconds(seconds), self.strategy, list(self.names))
        devices = found.labels[self.first_rows] - integers
        levels, value = self._choose_types(priced, devices)
        value += found.value - float(_take_devices(cheapest, devices).sum())
        return levels, value, found.bound or 0.0

    def _choose_types(self, priced: Floats, devices: Ints) -> tuple[Ints, float]:
        """Return the levels of units whose devices are given, and what they cost with conversions.

        `devices` are negative for units that are not in integers.
        """
        each = np.stack([_take_devices(costs, devices) for costs in priced])
        levels = np.where(devices < 0, Level.floating, 1 + each.argmin(axis=0))
        if np.unique(levels[devices >= 0]).size < 2:
            return levels, float(each.min(axis=0).sum())
        conversions = self._build_conversions(each, devices)
        found = solve_problem(conversions, self.strategy, list(self.units))
        return np.where(devices < 0, Level.floating, 1 + found.labels), found.value

    def _build_conversions(self, each: Floats, devices: Ints) -> Problem:
        """Return the problem which units are in 16 bits: the host of it is the narrow type.

        `each` is the cost of units in each type, `[2, units]`.
        """
        narrow, wide = each.copy()
        producer: list[int] = []
        consumers: list[list[int]] = []
        moved: list[tuple[float, float]] = []
        for tensor in self.tensors:
            maker = tensor.maker
            home = int(devices[maker]) if maker >= 0 else -1
            by_device: dict[int, list[int]] = {}
            for reader in tensor.readers:
                by_device.setdefault(int(devices[reader]), []).append(reader)
            if home >= 0 and (tensor.leaves or by_device.keys() - {home}):
                wide[maker] += tensor.more_to_host[home]
            for device, readers in by_device.items():
                if device < 0:
                    continue
                own = device == home
                producer.append(maker if own else -1)
                consumers.append(readers)
                costs = tensor.to_wide if own else tensor.more_to_device
                moved.append((costs[device], tensor.to_narrow[device] if own else 0.0))
        both = np.isfinite(narrow)
        to_device, to_host = np.asarray(moved, np.float64).reshape(-1, 2).T[..., np.newaxis]
        return Problem.build(
            seconds=np.stack([np.where(both, narrow, 0.0), wide], axis=1),
            producer=producer,
            consumers=consumers,
            is_output=[False] * len(producer),
            to_device=to_device,
            to_host=to_host,
            launch=[0.0],
            must=~both,
        )


def _prefer_type(priced: Floats, number: int) -> Floats:
    """Return costs, `[types, units, devices]`, with one type alone for units that may have it."""
    others = np.arange(len(priced)) != number
    has = np.isfinite(priced[number]).any(axis=1)
    return np.where(others[:, np.newaxis, np.newaxis] & has[:, np.newaxis], np.inf, priced)


def _take_devices(costs: Floats, devices: Ints) -> Floats:
    """Return the cost of each unit on its device, 0 where that is negative.

    `costs` is float64 `[units, devices]`.
    """
    found = costs[np.arange(len(devices)), np.maximum(devices, 0)]
    return np.where(devices < 0, 0.0, found)
