"""The placement problem of a graph, built from its units and cost models."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import find_own_quantization
from byoc.costs._cost_model import CostModel, Policy, Price
from byoc.costs._objective import LATENCY, Objective
from byoc.costs._price_query import (
    Prices,
    device_prices,
    host_prices,
    keep_unknown_on_host,
    launch_price,
)
from byoc.costs._problem_parts import (
    PlacementDevice,
    build_unpriced_problem,
    set_costs,
    stack_columns,
    weigh_costs,
)
from byoc.costs._task import Tasks, build_tasks
from byoc.costs._transfer_costs import find_unit_tensors, price_transfers
from byoc.model import GraphIndex
from byoc.patterns import JointUnit, Unit
from byoc.placement import Fusion, Problem


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
    """Cost models of the host and the accelerators, the policy for unknown costs, and the objective."""

    host: CostModel
    devices: Sequence[PlacementDevice]
    unknown: Policy = Policy.estimate
    objective: Objective = LATENCY


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
class GraphProblem:
    """The placement problem of a graph, and the meaning of its rows."""

    problem: Problem
    """in units of the objective"""
    latency: Problem
    """the same in seconds"""
    energy: Problem | None
    """the same in joules; None if some price has none"""
    tensors: tuple[str, ...]
    """names of the problem's tensors; `x:shape` where only the shape of `x` is sent"""
    operations: NDArray[np.float64]
    """float64 (units,): arithmetic operations"""
    estimated: int
    """number of units with an unknown cost that was estimated"""
    estimated_seconds: NDArray[np.float64]
    """float64 (units,): seconds on the host of nodes with a shape or an operator that is not known"""
    kept_on_host: tuple[Mapping[int, str], ...]
    """for each accelerator, unit -> reason why it may not run there: unknown cost, or refused"""
    sizes: NDArray[np.int64]
    """int64 (tensors, devices): bytes sent"""
    device_cost: NDArray[np.float64]
    """float64 (units, devices): cost on each accelerator in units of the objective, for refused units
    too; infinite or NaN where unknown"""
    answers: tuple[ModelAnswers, ...] = ()
    """of the host's cost model, and of each accelerator's about the units that it may run"""
    alternatives: tuple[AlternativeComposite, ...] = ()
    """the composites behind the problem's fusions, one each"""


def build_problem(  # noqa: PLR0913, PLR0917 - the parts of a problem
    index: GraphIndex,
    units: Sequence[JointUnit],
    settings: CostSettings,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
    alternatives: Sequence[AlternativeComposite] = (),
    refused: Sequence[Mapping[int, str]] = (),
) -> GraphProblem:
    """Build the placement problem of a graph's units on a host and some accelerators.

    On the host the nodes of a unit run one by one; on an accelerator a composite or a QDQ group runs as
    one, so tensors inside it cause no memory traffic. Quantization that byoc inserted costs nothing on
    the host: between two host units it is removed, and where a tensor crosses the boundary it is a
    conversion, which is part of the transfer. `bodies` maps the number of a node with bodies to their
    cost. `refused` maps, for each accelerator, units that its codegen refused to the reason.

    Raises InputError if a cost is unknown under `Policy.refuse`, or if the objective counts joules and a
    cost model gives none.
    """
    builder = _ProblemBuilder(index, units, settings, bodies, refused)
    execution = builder.price_units()
    moved = find_unit_tensors(index, builder.tasks, units)
    transfers = [
        price_transfers(settings.host, each.costs, each.wants, builder.tasks, builder.quantizing, moved)
        for each in settings.devices
    ]
    launches = [launch_price(device.costs) for device in settings.devices]
    latency = build_unpriced_problem(index, units, settings.devices, moved, execution.seconds)
    latency = set_costs(latency, execution.seconds, transfers, 0, [price.seconds for price in launches])
    joules = [
        execution.joules,
        *(side[:, 1] for each in transfers for side in (each.to_device, each.to_host)),
        np.array([price.joules for price in launches]),
    ]
    energy = None
    if not any(np.isnan(part).any() for part in joules):
        energy = set_costs(latency, execution.joules, transfers, 1, [price.joules for price in launches])
    models = (settings.host, *(device.costs for device in settings.devices))
    problem = weigh_costs(latency, energy, settings.objective, models)
    useful = builder.find_useful_alternatives(problem, alternatives)
    of = settings.objective.combine
    nothing = np.zeros((len(moved.names), 0), np.int64)
    return GraphProblem(
        problem=_add_fusions(problem, [(each, of(p.seconds, p.joules)) for each, p in useful]),
        latency=_add_fusions(latency, [(each, price.seconds) for each, price in useful]),
        energy=energy and _add_fusions(energy, [(each, price.joules) for each, price in useful]),
        alternatives=tuple(each for each, _ in useful),
        tensors=tuple(moved.names),
        operations=execution.operations,
        estimated=execution.estimated,
        estimated_seconds=execution.estimated_seconds,
        kept_on_host=execution.kept_on_host,
        sizes=stack_columns([each.sizes for each in transfers], nothing),
        device_cost=execution.device_cost,
        answers=execution.answers,
    )


@dataclass(frozen=True, eq=False)
class _Execution:
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
class _ProblemBuilder:
    """The prices of a graph's units on the host and on each accelerator."""

    index: GraphIndex
    units: Sequence[JointUnit]
    settings: CostSettings
    bodies: Mapping[int, BodyCost]
    refused: Sequence[Mapping[int, str]]

    @cached_property
    def tasks(self) -> Tasks:
        return build_tasks(self.index)

    @cached_property
    def device_tasks(self) -> list[Tasks]:
        """The tasks of each accelerator, in the type that its regions compute in."""
        types = [device.wants.compute for device in self.settings.devices]
        return [build_tasks(self.index, compute) if compute else self.tasks for compute in types]

    @cached_property
    def quantizing(self) -> frozenset[int]:
        return find_own_quantization(self.index)

    @cached_property
    def has_bodies(self) -> NDArray[np.bool_]:
        """bool (units,): the unit is a node with bodies, whose cost is given."""
        return np.array([unit.nodes[0] in self.bodies for unit in self.units], np.bool_)

    def price_units(self) -> _Execution:
        host, guessed = host_prices(self.settings.host, self.tasks, self.units, self.quantizing)
        self._require(host, ~self.has_bodies)
        columns = [(host.seconds, host.joules)]
        estimated = host.unknown & ~self.has_bodies
        answers = [ModelAnswers.of(host, ~self.has_bodies)]
        willing = np.empty((len(self.units), len(self.settings.devices)))
        kept: list[Mapping[int, str]] = []
        for number, device in enumerate(self.settings.devices):
            prices = _joint_prices(device.costs, self.device_tasks[number], self.units, number)
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
        operations = self.tasks.unit_operations(self.units, self.quantizing)
        willing[self.has_bodies] = inf
        for row in np.flatnonzero(self.has_bodies).tolist():
            body = self.bodies[self.units[row].nodes[0]]
            for column, price in enumerate((body.host, *body.devices)):
                if np.isfinite(seconds[row, column]) or not column:
                    seconds[row, column], joules[row, column] = price.seconds, price.joules
            operations[row] = body.operations
            guessed[row] = body.estimated
        return _Execution(
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
            prices = device_prices(
                self.settings.devices[device].costs, self.device_tasks[device], [each.unit]
            )
            price = Price(float(prices.seconds[0]), float(prices.joules[0]))
            if (
                _compute_saving(
                    problem, each, self.settings.objective.combine(price.seconds, price.joules)
                )
                > 0
            ):
                found.append((each, price))
        return found


def _compute_saving(problem: Problem, alternative: AlternativeComposite, fused: float) -> float:
    """Return the saving of units that run as one; 0 if one of them may not run there."""
    saving = float(problem.seconds[list(alternative.rows), alternative.device].sum()) - fused
    return saving if saving < inf else 0.0


def _add_fusions(problem: Problem, prices: Sequence[tuple[AlternativeComposite, float]]) -> Problem:
    """Return a problem with the alternatives as fusions, at the given prices."""
    if not prices:
        return problem
    fusions = [
        Fusion(each.rows, each.device, max(0.0, _compute_saving(problem, each, price)))
        for each, price in prices
    ]
    return replace(problem, fusions=tuple(fusions))


def _joint_prices(costs: CostModel, works: Tasks, units: Sequence[JointUnit], number: int) -> Prices:
    """Return the price of each joint unit on an accelerator: the sum over its units there."""
    parts = [unit.on_device[number] for unit in units]
    each = device_prices(costs, works, [part for group in parts for part in group])
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
