"""The placement problem of a graph, built from its units and cost models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import TransposeShares
from byoc.costs._kept_state import KeptPair, find_kept_pairs, find_unneeded_outputs, zero_kept_transfers
from byoc.costs._price_query import price_launch
from byoc.costs._problem_parts import build_unpriced_problem, set_costs, stack_columns, weigh_costs
from byoc.costs._transfer_costs import find_unit_tensors, price_transfers
from byoc.costs._unit_prices import (
    AlternativeComposite,
    BodyCost,
    CostSettings,
    ModelAnswers,
    UnitPricer,
    compute_saving,
)
from byoc.model import GraphIndex
from byoc.patterns import JointUnit
from byoc.placement import Fusion, Problem


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
    transpose_shares: tuple[Mapping[str, TransposeShares], ...] = ()
    """for each accelerator, the images that it transposes itself at its boundary, by name"""
    kept_state: tuple[KeptPair, ...] = ()
    """the state that accelerators keep between calls where they run its unit"""


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
