"""The problem of precisions: where units run, and in which type, at the least cost within noise.

A unit is on the host, in floating point, or on an accelerator, there in floats, in integers of the type
that was asked for, or in integers of 16 bits. These three precisions are the levels. A choice gives each
unit a level and a device.

The cost of a choice is the sum of
- the execution of each unit on its device in its type,
- transfers: a tensor that the host and an accelerator share crosses once in each direction and type,
- conversions: where units on one accelerator share a tensor in two types, once for each pair of types,
- a launch for each region,
less what fusions save. The noise of a choice, for each output, is expected to be the sum of
- the noise of each unit in integers in its type,
- the noise of each tensor that a unit in the type that was asked for makes or reads: it is rounded to
  that type, and a reader in 16 bits cannot undo that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from byoc.placement import Fusion, Problem

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
    """The units of a plan that are in floating point, and those in 16 bits.

    All others are in the type that was asked for.
    """

    in_float: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class BoundaryCosts:
    """Costs of tensors in each type: transfers, and conversions from one type to another.

    Devices are the accelerators, levels those of `Level`, of which there are two or three. `to_device`
    and `to_host` are float64 `[levels, tensors, devices]`, transfers of a tensor in the type of a level.
    `conversions` is float64 `[levels, levels, tensors, devices]`, from the type of the first level to
    that of the second on an accelerator; infinite where the accelerator cannot do it, so that the tensor
    goes by the host. `joint` is bool `[devices]`: units in floats and in integers may share a region.
    """

    to_device: Floats
    to_host: Floats
    conversions: Floats
    joint: Bools


@dataclass(frozen=True, eq=False)
class PrecisionProblem:
    """Units with their costs and noises at each level; the statement is that of the module.

    `placement` is the placement problem of the float model; what it calls units are called rows here, as
    they are rows of its arrays. `units` are the names of what may be quantized, in topological order;
    `rows` has the rows of each, which are in integers together. Types are the levels from
    `Level.narrow` on, one or two. `costs` is float64 `[types, units, devices]` of execution on
    accelerators. Noises are powers of the error of each output over that of its signal: `noise`, of
    units, is float64 `[types, units, outputs]`, `rounding`, of tensors, is float64 `[tensors, outputs]`.
    `fusions` are those of rows in the type that was asked for; those of rows in floats are the
    placement problem's own.
    """

    placement: Problem
    units: Sequence[str]
    rows: Sequence[Sequence[int]]
    costs: Floats
    noise: Floats
    rounding: Floats
    boundary: BoundaryCosts
    fusions: Sequence[Fusion] = ()

    @cached_property
    def unit_of_row(self) -> Ints:
        """The number of the unit of each row, -1 for none; int64 `[rows]`."""
        found = np.full(self.placement.units, -1, np.int64)
        for unit, rows in enumerate(self.rows):
            found[list(rows)] = unit
        return found

    @cached_property
    def tensor_ends(self) -> tuple[Ints, Ints]:
        """The pairs of a tensor and a unit that makes or reads it: two int64 `[pairs]` of numbers."""
        placement = self.placement
        tensors = np.concatenate([placement.consumed, np.arange(placement.tensors)])
        rows = np.concatenate([placement.consumers, placement.producer])
        units = np.where(rows >= 0, self.unit_of_row[rows], -1)
        pairs = np.unique(np.stack([tensors, units], axis=1)[units >= 0], axis=0)
        return pairs[:, 0], pairs[:, 1]

    def sum_noise(self, levels: Ints) -> Floats:
        """Return the expected noise, float64 `[outputs]`, with units at `levels`, int64 `[units]`."""
        by_level = np.concatenate([np.zeros_like(self.noise[:1]), self.noise])
        tensors, units = self.tensor_ends
        rounded = np.unique(tensors[levels[units] == Level.narrow])
        of_units = by_level[levels, np.arange(len(levels))].sum(axis=0)
        return np.asarray(of_units + self.rounding[rounded].sum(axis=0), np.float64)

    def find_levels(self, precisions: UnitPrecisions) -> Ints:
        """Return the levels of units in some precisions, int64 `[units]`."""
        levels = [
            Level.floating
            if name in precisions.in_float
            else Level.wide
            if name in precisions.wide
            else Level.narrow
            for name in self.units
        ]
        return np.asarray(levels, np.int64)

    def name_precisions(self, levels: Ints) -> UnitPrecisions:
        """Return the precisions of units at `levels`, int64 `[units]`."""
        named = [*zip(self.units, levels.tolist(), strict=True)]
        return UnitPrecisions(
            frozenset(name for name, level in named if level == Level.floating),
            frozenset(name for name, level in named if level == Level.wide),
        )
