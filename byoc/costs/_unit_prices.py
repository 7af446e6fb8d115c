"""Prices of a graph's units on the host and on each accelerator, and what cost models answered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import find_own_quantization
from byoc.costs._cost_model import CostModel, Price
from byoc.costs._graph_tasks import GraphTasks, build_tasks
from byoc.costs._objective import LATENCY, Objective, Policy
from byoc.costs._price_query import Prices, keep_unknown_on_host, price_device_units, price_host_units
from byoc.costs._problem_parts import PlacementDevice
from byoc.model import GraphIndex, StatePair
from byoc.patterns import JointUnit, Unit
from byoc.placement import Problem


@dataclass(frozen=True, slots=True)
class BodyCost:
    """The cost of a node's bodies for one run of the node, trip counts included."""

    host: Price
    """with the node on the host, where the bodies may contain regions"""
    devices: tuple[Price, ...]
    """with the node and its bodies on each accelerator"""
    operations: float
    estimated: float = 0.0
    """the seconds on the host of nodes with a shape or an operator that is not known"""


@dataclass(frozen=True, eq=False)
class AlternativeComposite:
    """Units that an accelerator may run as one composite, if the placement chooses so."""

    device: int
    """the accelerator, from 1"""
    rows: tuple[int, ...]
    """the numbers of the units"""
    unit: Unit


@dataclass(frozen=True, eq=False)
class CostSettings:
    """Cost models of the host and the accelerators, the policy for unknown costs, and the objective.

    `state` has the pairs of inputs and outputs that accelerators may keep between calls.
    """

    host: CostModel
    devices: Sequence[PlacementDevice]
    unknown: Policy = Policy.estimate
    objective: Objective = LATENCY
    state: Sequence[StatePair] = ()


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """The answers of a cost model about the units of a graph, and the units that it does not know."""

    model: str
    """the name of the cost model"""
    asked: int
    """number of units; no model is asked about views, which are free"""
    unknown: Mapping[str, int]
    """the reason why a cost is not known -> number of units"""

    @staticmethod
    def of(prices: Prices, rows: NDArray[np.bool_]) -> "ModelAnswers":
        """Return the answers about the marked units, bool (units,), without those that are free."""
        free = (prices.seconds == 0) & (prices.joules == 0) & ~prices.unknown
        numbers = np.flatnonzero(rows & ~free).tolist()
        return ModelAnswers(
            prices.model,
            len(numbers),
            Counter(prices.why[row] for row in numbers if prices.unknown[row]),
        )


@dataclass(frozen=True, eq=False)
class Execution:
    """Execution costs: seconds and joules are float64 (units, 1 + devices), inf where refused."""

    seconds: NDArray[np.float64]
    joules: NDArray[np.float64]
    operations: NDArray[np.float64]
    device_cost: NDArray[np.float64]
    kept_on_host: tuple[Mapping[int, str], ...]
    estimated: int
    estimated_seconds: NDArray[np.float64]
    answers: tuple[ModelAnswers, ...]


@dataclass(frozen=True, eq=False)
class UnitPricer:
    """The prices of a graph's units on the host and on each accelerator."""

    index: GraphIndex
    units: Sequence[JointUnit]
    settings: CostSettings
    bodies: Mapping[int, BodyCost]
    refused: Sequence[Mapping[int, str]]

    @cached_property
    def tasks(self) -> GraphTasks:
        """The tasks of the host."""
        return build_tasks(self.index)

    @cached_property
    def device_tasks(self) -> list[GraphTasks]:
        """The tasks of each accelerator, in the type that its regions compute in."""
        types = [device.wants.compute for device in self.settings.devices]
        return [build_tasks(self.index, compute) if compute else self.tasks for compute in types]

    @cached_property
    def quantizing(self) -> frozenset[int]:
        """The nodes of quantization that byoc inserted."""
        return find_own_quantization(self.index)

    @cached_property
    def has_bodies(self) -> NDArray[np.bool_]:
        """bool (units,): the unit is a node with bodies, whose cost is given."""
        return np.array([unit.nodes[0] in self.bodies for unit in self.units], np.bool_)

    def price_units(self) -> Execution:
        """Return the prices of all units. Raises InputError as `build_problem`."""
        host, guessed = price_host_units(self.settings.host, self.tasks, self.units, self.quantizing)
        self._require(host, ~self.has_bodies)
        columns = [(host.seconds, host.joules)]
        estimated = host.unknown & ~self.has_bodies
        answers = [ModelAnswers.of(host, ~self.has_bodies)]
        willing = np.empty((len(self.units), len(self.settings.devices)))
        kept: list[Mapping[int, str]] = []
        for number, device in enumerate(self.settings.devices):
            prices = _price_joint_units(device.costs, self.device_tasks[number], self.units, number)
            willing[:, number] = self.settings.objective.combine(prices.seconds, prices.joules)
            accepted = np.array([unit.is_supported(number) for unit in self.units], np.bool_)
            refused = self.refused[number] if self.refused else {}
            out = {row: why for row, why in refused.items() if accepted[row]}
            accepted[list(out)] = False
            self._require(prices, accepted & ~self.has_bodies)
            answers.append(ModelAnswers.of(prices, accepted & ~self.has_bodies))
            out |= keep_unknown_on_host(
                prices, self.settings.unknown, (accepted & ~self.has_bodies).tolist()
            )
            accepted[list(out)] = False
            kept.append(out)
            estimated |= prices.unknown & accepted & ~self.has_bodies
            columns.append(
                (np.where(accepted, prices.seconds, inf), np.where(accepted, prices.joules, inf))
            )
        seconds, joules = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
        operations = self.tasks.sum_unit_operations(self.units, self.quantizing)
        willing[self.has_bodies] = inf
        for row in np.flatnonzero(self.has_bodies).tolist():
            body = self.bodies[self.units[row].nodes[0]]
            for column, price in enumerate((body.host, *body.devices)):
                if np.isfinite(seconds[row, column]) or not column:
                    seconds[row, column], joules[row, column] = price.seconds, price.joules
            operations[row] = body.operations
            guessed[row] = body.estimated
        return Execution(
            seconds,
            joules,
            operations,
            willing,
            tuple(kept),
            int(estimated.sum()),
            guessed,
            tuple(answers),
        )

    def _require(self, prices: Prices, rows: NDArray[np.bool_]) -> None:
        """Raise InputError under `Policy.refuse` if a price of the marked units is unknown."""
        if self.settings.unknown is Policy.refuse:
            prices.require_known(np.flatnonzero(rows), [unit.name for unit in self.units])

    def find_useful_alternatives(
        self, problem: Problem, alternatives: Sequence[AlternativeComposite]
    ) -> list[tuple[AlternativeComposite, Price]]:
        """Return the composites that save something, with their prices."""
        found = []
        for each in alternatives:
            device = each.device - 1
            prices = price_device_units(
                self.settings.devices[device].costs, self.device_tasks[device], [each.unit]
            )
            price = Price(float(prices.seconds[0]), float(prices.joules[0]))
            if (
                compute_saving(
                    problem, each, self.settings.objective.combine(price.seconds, price.joules)
                )
                > 0
            ):
                found.append((each, price))
        return found


def compute_saving(problem: Problem, alternative: AlternativeComposite, fused: float) -> float:
    """Return the saving of units that run as one; 0 if one of them may not run there."""
    saving = float(problem.seconds[list(alternative.rows), alternative.device].sum()) - fused
    return saving if saving < inf else 0.0


def _price_joint_units(
    costs: CostModel, tasks: GraphTasks, units: Sequence[JointUnit], number: int
) -> Prices:
    """Return the price of each joint unit on an accelerator: the sum over its units there."""
    parts = [unit.on_device[number] for unit in units]
    each = price_device_units(costs, tasks, [part for group in parts for part in group])
    if all(len(group) == 1 for group in parts):
        return each
    row = np.repeat(np.arange(len(parts)), [len(group) for group in parts])
    why: list[str] = [""] * len(parts)
    for unit, reason in zip(row.tolist(), each.why, strict=True):
        why[unit] = why[unit] or reason
    return Prices(
        each.model,
        np.bincount(row, each.seconds, len(parts)).astype(np.float64),
        np.bincount(row, each.joules, len(parts)).astype(np.float64),
        np.array([bool(reason) for reason in why], np.bool_),
        why,
    )
