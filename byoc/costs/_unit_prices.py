"""The placement problem of a graph, built from its units and cost models."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.convert import BoundaryFormat, TransposeShares, find_own_quantization
from byoc.costs._cost_model import CostModel, Price
from byoc.costs._graph_tasks import GraphTasks, build_tasks
from byoc.costs._objective import LATENCY, Objective, Policy
from byoc.costs._price_query import (
    Prices,
    ask_link_occupancy,
    keep_unknown_on_host,
    price_device_units,
    price_host_units,
    price_launch,
)
from byoc.costs._transfer_costs import (
    KeptPair,
    TransferCosts,
    UnitTensors,
    find_kept_pairs,
    find_unit_tensors,
    find_unneeded_outputs,
    price_transfers,
    zero_kept_transfers,
)
from byoc.errors import Cause, InputError
from byoc.model import GraphIndex, StatePair
from byoc.patterns import JointUnit, Unit
from byoc.placement import UNLIMITED, Fusion, Ints, Problem

# Parts of the placement problem: its limits, and its costs in seconds, joules or objective units.

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, eq=False)
class PlacementDevice:
    """An accelerator in the placement problem: its costs and its limits on regions.

    `connected` states whether a region must be connected. The limits are nodes per region, regions, and
    bytes of constants of all units together. `wants` lists the conversions needed at its boundary.
    `keeps_state` says that a decoder's state stays on it between calls.
    """

    name: str
    costs: CostModel
    connected: bool = False
    min_nodes: int = 0
    max_nodes: int = UNLIMITED
    max_regions: int = UNLIMITED
    memory: float = inf
    wants: BoundaryFormat = field(default_factory=BoundaryFormat)
    keeps_state: bool = False


def build_unpriced_problem(  # noqa: PLR0913, PLR0917 - the parts of a problem
    index: GraphIndex,
    units: Sequence[JointUnit],
    devices: Sequence[PlacementDevice],
    moved: UnitTensors,
    seconds: NDArray[np.float64],
    needed: Collection[str],
) -> Problem:
    """Return the problem with its limits; transfers and launches are still free.

    `needed` are the outputs of the graph that the host has to get.
    """
    held = any(device.memory < inf for device in devices)
    constants = np.array([_constant_bytes(index, unit) if held else 0.0 for unit in units], np.float64)
    free = np.zeros((len(moved.names), len(devices)))
    size = np.array([len(unit.nodes) for unit in units], np.int64)
    some = any(part.must for unit in units for parts in unit.on_device for part in parts)
    must = np.array([some and unit.must for unit in units], np.bool_)
    must &= np.isfinite(seconds[:, 1:]).any(axis=1)
    fits = [
        (size <= device.max_nodes) & (constants <= device.memory) & (device.max_regions > 0)
        for device in devices
    ]
    taken = np.isfinite(seconds[:, 1:]) & np.stack(fits, axis=1) if fits else np.zeros((len(units), 0))
    for row in np.flatnonzero(must & ~taken.any(axis=1)).tolist():
        raise InputError(
            f"unit '{units[row].name}' has to be on an accelerator (level: must) and is above the "
            f"limits of {' and '.join(device.name for device in devices)}"
        )
    return Problem.build(
        seconds=seconds,
        producer=moved.producers,
        consumers=moved.consumers,
        is_output=[name in needed for name in moved.names],
        to_device=free,
        to_host=free,
        launch=np.zeros(len(devices)),
        connected=[device.connected for device in devices],
        must=must,
        size=size,
        min_nodes=[device.min_nodes for device in devices],
        max_nodes=[device.max_nodes for device in devices],
        max_regions=[device.max_regions for device in devices],
        memory=np.repeat(constants.reshape(-1, 1), len(devices), axis=1),
        capacity=[device.memory for device in devices],
        occupies=[ask_link_occupancy(device.costs) for device in devices],
    )


def _constant_bytes(index: GraphIndex, unit: JointUnit) -> float:
    """Return the bytes of the constants that a unit reads, each counted once."""
    names = dict.fromkeys(name for node in unit.nodes for name in index.reads[node])
    kinds = [index.types.get(name) for name in names if index.is_constant(name)]
    return float(sum(kind.bytes or 0 for kind in kinds if kind is not None))


def set_costs(
    problem: Problem,
    execution: NDArray[np.float64],
    crossing: Sequence[TransferCosts],
    part: int,
    launch: Sequence[float],
) -> Problem:
    """Return a problem with other costs; `part` is 0 for seconds and 1 for joules of transfers."""
    return replace(
        problem,
        seconds=execution,
        to_device=stack_columns([each.to_device[:, part] for each in crossing], problem.to_device),
        to_host=stack_columns([each.to_host[:, part] for each in crossing], problem.to_host),
        launch=np.array(launch),
    )


def stack_columns(each: Sequence[NDArray[_T]], none: NDArray[_T]) -> NDArray[_T]:
    """Stack columns; return `none` if there are none."""
    return np.stack(each, axis=1) if each else none


def weigh_costs(
    latency: Problem, energy: Problem | None, objective: Objective, models: Sequence[CostModel]
) -> Problem:
    """Return the problem in the units of the objective."""
    if objective == LATENCY:
        return latency
    if energy is None and not objective.energy:
        energy = latency
    if energy is None:
        names = ", ".join(dict.fromkeys(model.name for model in models))
        raise InputError(f"objective {objective}: not all of the cost models {names} give joules")
    return replace(
        latency,
        seconds=_weigh(objective, latency.seconds, energy.seconds),
        to_device=_weigh(objective, latency.to_device, energy.to_device),
        to_host=_weigh(objective, latency.to_host, energy.to_host),
        launch=_weigh(objective, latency.launch, energy.launch),
    )


def _weigh(
    objective: Objective, seconds: NDArray[np.float64], joules: NDArray[np.float64]
) -> NDArray[np.float64]:
    refused = np.isinf(seconds)
    value = objective.combine(np.where(refused, 0, seconds), np.where(refused, 0, joules))
    return np.where(refused, inf, value)


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
    kept_on_host: tuple[Mapping[int, Cause], ...]
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
    refused: Sequence[Mapping[int, Cause]]

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
        kept: list[Mapping[int, Cause]] = []
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
    kept_on_host: tuple[Mapping[int, Cause], ...]
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
    transpose_shares: tuple[Mapping[str, TransposeShares], ...] = ()
    """for each accelerator, the images that it transposes itself at its boundary, by name"""
    kept_state: tuple[KeptPair, ...] = ()
    """the state that accelerators keep between calls where they run its unit"""

    def load_anew(
        self,
        labels: Ints,
        loaded: NDArray[np.float64],
        prices: Sequence[Price | None],
        objective: Objective,
    ) -> "GraphProblem":
        """Return the problem in which units load so many of their bytes anew in each run.

        `labels`, int64 (units,), are their devices, `loaded`, float64 (units,), the bytes, and `prices`
        what a byte costs on the device of each; a unit that loads none may have None.
        """
        rows = np.flatnonzero(loaded)
        at = labels[rows]
        paid = [price for price in (prices[row] for row in rows.tolist()) if price is not None]
        spent = loaded[rows] * np.array([price.seconds for price in paid])
        joules = loaded[rows] * np.array([price.joules for price in paid])
        memory = self.problem.memory.copy()
        memory[rows, at - 1] -= loaded[rows]

        def add(problem: Problem, costs: NDArray[np.float64]) -> Problem:
            seconds = problem.seconds.copy()
            seconds[rows, at] += costs
            return replace(problem, seconds=seconds, memory=memory)

        has_joules = self.energy is not None and not np.isnan(joules).any()
        return replace(
            self,
            problem=add(self.problem, objective.combine(spent, joules)),
            latency=add(self.latency, spent),
            energy=add(self.energy, joules) if self.energy is not None and has_joules else None,
        )


def build_problem(  # noqa: PLR0913, PLR0917 - the parts of a problem
    index: GraphIndex,
    units: Sequence[JointUnit],
    settings: CostSettings,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
    alternatives: Sequence[AlternativeComposite] = (),
    refused: Sequence[Mapping[int, Cause]] = (),
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
    pricer = UnitPricer(index, units, settings, bodies, refused)
    execution = pricer.price_units()
    moved = find_unit_tensors(index, pricer.tasks, units)
    taken = np.isfinite(execution.seconds[:, 1:])
    keeping = [device.keeps_state for device in settings.devices]
    kept = find_kept_pairs(moved, settings.state, keeping, taken)
    transfers = [
        price_transfers(
            settings.host,
            each.costs,
            each.wants,
            pricer.tasks,
            pricer.quantizing,
            moved,
            taken[:, number],
            settings.objective,
        )
        for number, each in enumerate(settings.devices)
    ]
    transfers = [zero_kept_transfers(each, number, kept) for number, each in enumerate(transfers)]
    launches = [price_launch(device.costs) for device in settings.devices]
    needed = index.outputs.keys() - find_unneeded_outputs(kept)
    latency = build_unpriced_problem(index, units, settings.devices, moved, execution.seconds, needed)
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
    useful = pricer.find_useful_alternatives(problem, alternatives)
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
        transpose_shares=tuple(each.shares for each in transfers),
        kept_state=kept,
    )


def _add_fusions(problem: Problem, prices: Sequence[tuple[AlternativeComposite, float]]) -> Problem:
    """Return a problem with the alternatives as fusions, at the given prices."""
    if not prices:
        return problem
    fusions = [
        Fusion(each.rows, each.device, max(0.0, compute_saving(problem, each, price)))
        for each, price in prices
    ]
    return replace(problem, fusions=tuple(fusions))
