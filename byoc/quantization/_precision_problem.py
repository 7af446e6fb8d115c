"""The problem of precisions: where units run, and in which type, at the least cost within noise.

A unit is on the host, in floating point, or on an accelerator, there in floats, in integers of the type
that was asked for, or in integers of 16 bits. These are the levels, and a choice is a level for each
unit with a device for each.

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
    """The units of a plan that are in floating point, and those in 16 bits; all others are in 8."""

    in_float: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class BoundaryCosts:
    """Costs of tensors in each type: transfers, and conversions from one type to another.

    `to_device` and `to_host` are float64 `[levels, tensors, devices]`, transfers of a tensor in the
    type of a level. `conversions` is float64 `[levels, levels, tensors, devices]`, from one type to
    another on an accelerator; infinite where that is impossible, and the way goes by the host. `joint`
    is bool `[devices]`: units in floats and in integers may share a region.
    """

    to_device: Floats
    to_host: Floats
    conversions: Floats
    joint: Bools


@dataclass(frozen=True, eq=False)
class PrecisionProblem:
    """Units with their costs and noises at each level; the statement is that of the module.

    `problem` is the placement problem of the float model, whose rows are its units. `units` are the
    names of what may be quantized, in topological order; `rows` has the rows of each, which are in
    integers together. `costs` is float64 `[types, units, devices]`, in the type that was asked for and,
    if there are two, in 16 bits. Noises are powers of the error of each output over that of its signal:
    `noise` is float64 `[types, units, outputs]`, `rounding` is float64 `[tensors, outputs]`. `fusions`
    are those of rows in the type that was asked for; those of rows in floats are the problem's own.
    """

    problem: Problem
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
        found = np.full(self.problem.units, -1, np.int64)
        for unit, rows in enumerate(self.rows):
            found[list(rows)] = unit
        return found

    @cached_property
    def tensor_ends(self) -> tuple[Ints, Ints]:
        """The tensors and the units that make or read them, two int64 `[ends]`."""
        problem = self.problem
        tensors = np.concatenate([problem.consumed, np.arange(problem.tensors)])
        rows = np.concatenate([problem.consumers, problem.producer])
        units = np.where(rows >= 0, self.unit_of_row[rows], -1)
        ends = np.unique(np.stack([tensors, units], axis=1)[units >= 0], axis=0)
        return ends[:, 0], ends[:, 1]

    def sum_noise(self, levels: Ints) -> Floats:
        """Return the expected noise of units at some levels, `[outputs]`."""
        every = np.concatenate([np.zeros_like(self.noise[:1]), self.noise])
        tensors, units = self.tensor_ends
        rounded = np.unique(tensors[levels[units] == Level.narrow])
        total = every[levels, np.arange(len(levels))].sum(axis=0) + self.rounding[rounded].sum(axis=0)
        return np.asarray(total, np.float64)

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
        """Return the precisions of units at some levels."""
        named = [*zip(self.units, levels.tolist(), strict=True)]
        return UnitPrecisions(
            frozenset(name for name, level in named if level == Level.floating),
            frozenset(name for name, level in named if level == Level.wide),
        )
