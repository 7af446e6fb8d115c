"""The search for the plans that keep each accuracy at the least predicted cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder
from byoc.quantization._choose_precision import Floats, Ints, Level, PrecisionProblem, UnitPrecisions
from byoc.quantization._precision import Budget, KeptAccuracy

if TYPE_CHECKING:
    from byoc.planning import TradePoint

# The cheapest choice of units' precisions within limits of noise: an integer program for each
# limit.

# Seconds of an ordinary computer, counted by steps, for one limit and for all (see `SearchBudget`).
# Before the first node of branch and bound the count is about ten times the seconds that pass.
_SECONDS, _ALL_SECONDS = 500.0, 5000.0
_NODES = 1000  # of branch and bound, for one limit
_GAP = 0.01  # share of the cost that a choice may be above the least: to prove the last of it takes long
_TOLERANCE = 1e-5  # share by which the solver's tolerances may exceed what is allowed


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A choice of the level of each unit, its predicted cost and its expected noise.

    `levels` is int64 `[units]`, `noise` float64 `[outputs]`. `bound` is a lower bound of the cost of
    every choice within the same limits.
    """

    levels: Ints
    cost: float
    noise: Floats
    bound: float = 0.0


@dataclass(eq=False)
class CheapestSearch:
    """Searches for the cheapest choices of a problem within limits.

    `known` are choices to begin with, one of which is without noise; those that are found are added.
    """

    problem: PrecisionProblem
    known: list[PrecisionChoice]
    found: list[tuple[Floats, PrecisionChoice]] = field(default_factory=list)
    """Limits that were searched, and the cheapest choice within each.

    It is also the cheapest within stricter limits, if it is within these.
    """
    budget: SearchBudget = field(default_factory=lambda: SearchBudget(_ALL_SECONDS))

    def find(self, allowed: Floats) -> PrecisionChoice:
        """Return the cheapest choice whose noise is at most `allowed`, float64 `[outputs]`, above 0.

        Where the budget is spent, or the solver finds none, it is the cheapest of the known ones.
        """
        for limit, choice in self.found:
            if (allowed <= limit).all() and _is_within(choice, allowed):
                return choice
        program = build_precision_program(self.problem, allowed)
        solution = program.builder.solve(
            program.constant, budget=self.budget.limit(_SECONDS), nodes=_NODES, gap=_GAP
        )
        if solution.values is not None:
            levels = program.read_levels(solution.values)
            cost = program.sum_cost(solution.values)
            self.known.append(PrecisionChoice(levels, cost, self.problem.sum_noise(levels)))
        within = [each for each in self.known if _is_within(each, allowed)]
        best = min(within, key=lambda each: each.cost)
        best = replace(best, bound=min(max(solution.bound, 0.0), best.cost))
        self.found.append((allowed, best))
        return best


def _is_within(choice: PrecisionChoice, allowed: Floats) -> bool:
    return bool((choice.noise <= allowed * (1 + _TOLERANCE)).all())


# The search for the plans that keep each accuracy at the least predicted cost.

_MOST_TRIALS = 4  # plans that are made for an accuracy, each with what was learnt from the ones before
_MOST_ACCURACIES = 40  # a decibel apart, that plans are searched for
_DECIBELS_ABOVE = 4  # accuracies above the budget, and above what all in integers keep
_MARGIN = 1.02  # by which the expected noise is stricter than what was measured last
_SLACK = 1.15  # share by which a plan may be less noisy than it has to be
_LEAST_NOISE = 1e-20  # keeps a quotient finite
_MOST_SCALE = 10.0  # by which a round may change the strictness
_SAME_COST = 0.02  # share of the cost that is as good as none


@dataclass(frozen=True, slots=True)
class PlanTrial:
    """A plan with units in some precisions: the accuracy that it keeps, and its predicted cost.

    Costs are seconds, or in the unit of another objective.
    """

    accuracy: KeptAccuracy
    cost: float


Proposals = Generator[UnitPrecisions | None, PlanTrial, None]
"""Precisions of units, each answered (`send`) with what was found; None at the end."""


@dataclass(eq=False)
class TradeSearch:
    """The search for the plans that keep each whole decibel at the least predicted cost.

    `units` may be quantized, and `wide` are those of them that may have 16 bits. `build` is called once
    the `ends` were tried; it returns the problem of some of the units, with the noise of each alone.
    """

    budget: Budget
    units: Collection[str]
    build: Callable[[], PrecisionProblem]
    wide: Collection[str] = ()
    tried: dict[UnitPrecisions, PlanTrial] = field(default_factory=dict)
    gap: float = 0.0
    """The greatest share by which a plan costs more than the lower bound within its limits of noise."""

    @property
    def ends(self) -> tuple[UnitPrecisions, ...]:
        """The precisions of all units alike: as asked for, in 16 bits where they may, and in floats."""
        wide = UnitPrecisions(wide=frozenset(self.wide))
        return tuple(
            dict.fromkeys((UnitPrecisions(), wide, UnitPrecisions(in_float=frozenset(self.units))))
        )

    def propose(self) -> Proposals:
        """Yield the precisions of units, receive the trial of each, yield None at the end.

        Each trial costs the caller a plan and its runs on up to 32 samples. First come the `ends`, then
        plans for each whole decibel between these, up to a few above the budget: larger budgets try what
        smaller ones try, and more. The caller takes one of the trials (`choose`). Raises InputError
        when floating point is not enough.
        """
        for end in self.ends:
            yield from self._try(end)
        found = [self.tried[end] for end in self.ends]
        if not any(self.budget.is_met(each.accuracy) for each in found):
            raise InputError(f"accuracy budget {self.budget}: not met even with nothing quantized")
        if self.units and isfinite(found[0].accuracy.signal_to_noise):
            yield from self._try_accuracies(found[0].accuracy)
        yield None

    def _try(self, precisions: UnitPrecisions) -> Generator[UnitPrecisions, PlanTrial, None]:
        """Propose precisions, unless they were proposed before."""
        if precisions not in self.tried:
            self.tried[precisions] = yield precisions

    def _try_accuracies(self, integer: KeptAccuracy) -> Generator[UnitPrecisions, PlanTrial, None]:
        """Propose the cheapest precisions for each accuracy above that of all units in integers.

        Noises of units do not quite add up: where a plan is measured to be noisier than its limits, or
        much less noisy, the limits of the next trial are stricter or less strict, output by output.
        """
        search = self._start_search(integer)
        strictness = np.ones(search.problem.noise.shape[2])  # what limits are divided by, `[outputs]`
        for decibels in self._list_accuracies(integer.signal_to_noise):
            if self._is_enough(decibels):
                return
            limit = 10 ** (-decibels / 10)
            for _ in range(_MOST_TRIALS):
                found = search.find(limit / strictness)
                self.gap = max(self.gap, 1 - found.bound / found.cost if found.cost > 0 else 0.0)
                if not found.levels.any():  # nothing is left in integers
                    return
                precisions = search.problem.name_precisions(found.levels)
                is_new = precisions not in self.tried
                yield from self._try(precisions)
                accuracy = self.tried[precisions].accuracy
                measured = np.nan_to_num(_list_noises(accuracy), nan=np.inf)
                needed = _MARGIN * measured / np.maximum(found.noise, _LEAST_NOISE)
                if accuracy.signal_to_noise < decibels:
                    stricter = np.clip(needed, _MARGIN * strictness, _MOST_SCALE * strictness)
                    strictness = np.where(measured > limit, stricter, strictness)
                    continue
                tightest = int(np.argmax(found.noise * strictness))
                if not is_new or needed[tightest] > strictness[tightest] / _SLACK:
                    break
                strictness = np.clip(needed, strictness / _MOST_SCALE, strictness)  # it may be exact

    def _start_search(self, integer: KeptAccuracy) -> CheapestSearch:
        """Return a search that knows the `ends`, in a problem with noises in proportion.

        They are scaled by what was measured of all units in integers, over the sum of what was measured
        of each unit alone.
        """
        problem = self.build()
        expected = problem.sum_noise(problem.find_levels(UnitPrecisions()))
        ratio = _list_noises(integer) / np.maximum(expected, _LEAST_NOISE)
        scale = np.clip(ratio, 1 / _MOST_SCALE, _MOST_SCALE)
        problem = replace(problem, noise=problem.noise * scale, rounding=problem.rounding * scale)
        ends = [(problem.find_levels(end), self.tried[end].cost) for end in self.ends]
        return CheapestSearch(
            problem, [PrecisionChoice(each, cost, problem.sum_noise(each)) for each, cost in ends]
        )

    def _list_accuracies(self, least: float) -> list[float]:
        """Return the accuracies (dB) to search plans for, in rising order; all are above `least`."""
        first = floor(least) + 1
        found: set[float] = {first + number for number in range(_MOST_ACCURACIES)}
        if self.budget.measure == "dB":
            most = ceil(max(self.budget.least, least)) + _DECIBELS_ABOVE
            found = {decibels for decibels in found if decibels <= most} | {self.budget.least}
        return sorted(decibels for decibels in found if decibels > least)

    def _is_enough(self, decibels: float) -> bool:
        """Return whether a budget of classes was met by a plan some decibels below."""
        if self.budget.measure == "dB":
            return False
        most = decibels - _DECIBELS_ABOVE
        found = (each.accuracy for each in self.tried.values())
        return any(self.budget.is_met(each) and each.signal_to_noise <= most for each in found)

    @staticmethod
    def list_cheap(points: Iterable[TradePoint]) -> list[TradePoint]:
        """Return the plans that cost hardly more than the cheapest: none of them is worth a surprise."""
        found = list(points)
        least = min((point.cost for point in found), default=0.0)
        return [point for point in found if point.cost <= least * (1 + _SAME_COST)]

    @staticmethod
    def choose(points: Iterable[TradePoint]) -> TradePoint:
        """Return the plan to take of those that meet a budget.

        Of those that cost hardly more than the cheapest it is the one with the fewest units in floating
        point, then in 16 bits: quantizing is what was asked for. Raises ValueError if there is no plan.
        """
        return min(
            TradeSearch.list_cheap(points),
            key=lambda point: (len(point.in_float), len(point.wide), point.cost, -point.reached),
        )

    @staticmethod
    def list_front(points: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
        """Return the plans that keep more than every cheaper one, and the one that is taken, by cost."""
        front: list[TradePoint] = []
        most = -inf
        for each in sorted(points, key=lambda point: (point.cost, -point.reached)):
            if each not in front and (each.reached > most or each == taken):
                front.append(each)
                most = max(most, each.reached)
        return tuple(front)

    @staticmethod
    def update_front(front: Iterable[TradePoint], taken: TradePoint) -> tuple[TradePoint, ...]:
        """Return plans, by cost, with new figures of the one that has the same precisions."""
        own = taken.in_float, taken.wide
        others = (point for point in front if (point.in_float, point.wide) != own)
        return tuple(sorted((*others, taken), key=lambda point: (point.cost, point.reached)))


def _list_noises(accuracy: KeptAccuracy) -> Floats:
    """Return the noise of each output, float64 `[outputs]`."""
    return np.asarray(accuracy.noises or [accuracy.noise])


# The problem of precisions as a mixed integer program.
#
# A tensor flows from where it is made to where it is read: to the host by a transfer, from there to
# an accelerator by another, or by a conversion on the accelerator. With a variable for each of
# these the linear relaxation is hardly below the optimum. Limits of regions other than launches are
# left out, so that the program bounds the cost from below.

# A noise that is this many times what is allowed is as good as any larger one.
_TOO_NOISY = 2.0

Term = tuple[Ints, int]
"""A column in each of several rows of the program, and its factor there."""


@dataclass(frozen=True, eq=False)
class PrecisionProgram:
    """A program, the constant part of its cost, and the columns that place units.

    `placed` is int64 `[units, devices, levels]`, the columns that are 1 where a unit is on an
    accelerator in the type of a level; all are 0 where it is on the host.
    """

    builder: MilpBuilder
    constant: float
    placed: Ints

    def read_levels(self, values: Floats) -> Ints:
        """Return the level of each unit, int64 `[units]`, by the `values` of columns in a solution."""
        return np.asarray((values[self.placed] > 0.5).any(axis=1).argmax(axis=1), np.int64)

    def sum_cost(self, values: Floats) -> float:
        """Return the cost of a solution by the `values` of its columns."""
        return self.constant + float(np.concatenate(self.builder.cost) @ values)


def build_precision_program(problem: PrecisionProblem, allowed: Floats) -> PrecisionProgram:
    """Return the program whose noise is at most `allowed`, float64 `[outputs]`, above 0."""
    return _ProgramWriter(problem).write(allowed)


class _ProgramWriter:
    """Writes a program.

    `placed` is as in `PrecisionProgram`, but for each row of the problem, `[rows, devices, levels]`.
    """

    def __init__(self, problem: PrecisionProblem) -> None:
        self.problem = problem
        self.placement = problem.placement
        self.builder = MilpBuilder()
        self.levels = 1 + len(problem.costs)
        self.placed = self._add_places()

    def write(self, allowed: Floats) -> PrecisionProgram:
        for device in np.flatnonzero(self.placement.launch > 0).tolist():
            self._add_launches(device)
        self._add_flows()
        self._add_fusions()
        self._limit_noise(allowed)
        constant = float(self.placement.seconds[:, 0].sum())
        first = [rows[0] for rows in self.problem.rows]
        return PrecisionProgram(self.builder, constant, self.placed[first])

    def _add_places(self) -> Ints:
        """Add the columns that place rows; the rows of a unit share those of its integer types."""
        placement, builder = self.placement, self.builder
        host, is_open = placement.seconds[:, :1], placement.allowed[:, 1:]
        placed = np.full(
            (placement.units, placement.devices, self.levels), builder.add_columns(0.0, 0, False)
        )
        extra = np.where(is_open, placement.seconds[:, 1:] - host, 0.0)
        placed[..., Level.floating] = builder.add_columns(extra, is_open, True)
        for unit, rows in enumerate(self.problem.rows):
            costs = self.problem.costs[:, unit].T
            is_open = np.isfinite(costs)
            extra = np.where(is_open, costs - host[list(rows)].sum(), 0.0)
            placed[list(rows), :, 1:] = builder.add_columns(extra, is_open, True)
        flat = placed.reshape(placement.units, -1).T
        builder.add_rows(1, *((columns, 1) for columns in flat))
        must = np.flatnonzero(placement.must)
        builder.add_rows(-1, *((columns[must], -1) for columns in flat))
        for device in np.flatnonzero(np.isfinite(placement.capacity)).tolist():
            memory = np.repeat(placement.memory[:, device], self.levels)
            builder.add_row(float(placement.capacity[device]), placed[:, device].ravel(), memory)
        return placed

    def _add_launches(self, device: int) -> None:
        """Add the launches of a device: its regions, counted.

        Each row has the number of its region, which rises along edges, by one where a region begins.
        Floats and integers that may not share a region are counted apart.
        """
        placement, builder = self.placement, self.builder
        source, target = placement.edges
        levels = [*range(self.levels)]
        for together in [levels] if self.problem.boundary.joint[device] else [levels[:1], levels[1:]]:
            places = [self.placed[:, device, level] for level in together]
            region = builder.add_columns(np.zeros(placement.units), placement.units, False)
            count = builder.add_columns(placement.launch[device], placement.units, False)
            before, behind = (region[source], 1), (region[target], -1)
            begins = [
                (place[rows], sign) for place in places for rows, sign in ((target, 1), (source, -1))
            ]
            builder.add_rows(0, before, behind)
            builder.add_rows(0, before, *begins, behind)
            builder.add_rows(0, *((place, 1) for place in places), (region, -1))
            builder.add_rows(0, (region, 1), (np.repeat(count, placement.units), -1))

    def _add_flows(self) -> None:
        """Add the transfers and conversions that bring tensors to where they are read.

        Columns of transfers are int64 `[levels, tensors, devices]`, those of conversions
        `[levels, levels, tensors, devices]`.
        """
        placement, builder, boundary = self.placement, self.builder, self.problem.boundary
        sent, brought, converted = (
            self._add_costs(costs)
            for costs in (boundary.to_host, boundary.to_device, boundary.conversions)
        )
        is_made = placement.producer >= 0
        made, read = np.flatnonzero(is_made), placement.consumed
        from_host, from_unit = np.flatnonzero(~is_made[read]), np.flatnonzero(is_made[read])
        builder.add_rows(0, *self._list_unsent(np.flatnonzero(is_made & placement.is_output), sent))
        readers = self._list_places(placement.consumers[from_unit])
        on_device = [(columns, -1) for columns in readers]
        builder.add_rows(0, *self._list_unsent(read[from_unit], sent), *on_device)
        for device, level in np.ndindex(placement.devices, self.levels):
            place, arriving = self.placed[:, device, level], brought[level, :, device]
            builder.add_rows(1, (arriving[made], 1), *self._list_unsent(made, sent))
            # Only what is made there in a type is sent, or converted from that type.
            leaving = place[placement.producer[made]], -1
            for copies in (sent[level], *converted[level]):
                builder.add_rows(0, (copies[made, device], 1), leaving)
            # What a unit reads is brought, is made there in its type, or converted to it.
            reading = place[placement.consumers]
            builder.add_rows(0, (reading[from_host], 1), (arriving[read[from_host]], -1))
            tensors = read[from_unit]
            sources = (brought[level], *converted[:, level])
            terms = [(copies[tensors, device], -1) for copies in sources]
            own = place[placement.producer[tensors]], -1
            builder.add_rows(0, (reading[from_unit], 1), own, *terms)

    def _list_unsent(self, tensors: Ints, sent: Ints) -> list[Term]:
        """Return terms whose sum is 1 where a tensor is made on an accelerator and not sent, else 0.

        A row makes each of the tensors; `sent` are the columns of transfers to the host.
        """
        makers = self._list_places(self.placement.producer[tensors])
        copies = sent[:, tensors].transpose(0, 2, 1).reshape(makers.shape)
        return [*((columns, 1) for columns in makers), *((columns, -1) for columns in copies)]

    def _list_places(self, rows: Ints) -> Ints:
        """Return the columns of rows of the problem, if any, int64 `[devices * levels, rows]`."""
        return self.placed[rows].reshape(len(rows), self.placement.devices * self.levels).T

    def _add_costs(self, costs: Floats) -> Ints:
        """Add columns of costs; those of infinite costs are 0 in every solution."""
        finite = np.isfinite(costs)
        return self.builder.add_columns(np.where(finite, costs, 0.0), finite, False)

    def _add_fusions(self) -> None:
        """Add what fusions save: their rows are on a device, in one type, and in no other fusion."""
        chosen: dict[int, list[int]] = {}
        for fusions, level in (
            (self.placement.fusions, Level.floating),
            (self.problem.fusions, Level.narrow),
        ):
            for fusion in fusions:
                column = self.builder.add_columns(-fusion.saving, 1, True)
                members = np.asarray(fusion.members)
                places = self.placed[members, fusion.device - 1, level]
                self.builder.add_rows(0, (np.repeat(column, len(members)), 1), (places, -1))
                for member in fusion.members:
                    chosen.setdefault(member, []).append(int(column))
        for columns in chosen.values():
            self.builder.add_row(1, columns, np.ones(len(columns)))

    def _limit_noise(self, allowed: Floats) -> None:
        """Limit the noises of units and of rounded tensors together, as shares of what is allowed.

        A tensor is rounded where a unit in the type that was asked for makes or reads it.
        """
        problem, builder = self.problem, self.builder
        placed = self.placed[[rows[0] for rows in problem.rows]]
        tensors, units = problem.tensor_ends
        rounded = builder.add_columns(np.zeros(self.placement.tensors), 1, False)  # 1 where it is
        narrow = placed[units, :, Level.narrow].T
        builder.add_rows(0, *((columns, 1) for columns in narrow), (rounded[tensors], -1))
        noise = np.minimum(problem.noise / allowed, _TOO_NOISY).transpose(1, 0, 2)
        rounding = np.minimum(problem.rounding / allowed, _TOO_NOISY)
        for output in range(len(allowed)):
            shares = np.repeat(noise[:, np.newaxis, :, output], self.placement.devices, axis=1)
            columns = np.concatenate([placed[..., 1:].ravel(), rounded])
            builder.add_row(1, columns, np.concatenate([shares.ravel(), rounding[:, output]]))
