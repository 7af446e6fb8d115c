"""The problem of precisions as a mixed integer program.

A tensor flows from where it is made to where it is read: to the host by a transfer, from there to an
accelerator by another, or by a conversion on the accelerator. With a variable for each of these the
linear relaxation is hardly below the optimum. Limits of regions other than launches are left out, so
that the program bounds the cost from below.
"""

from dataclasses import dataclass

import numpy as np

from byoc.numerics.solvers import MilpBuilder
from byoc.quantization._precision_problem import Floats, Ints, Level, PrecisionProblem

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
