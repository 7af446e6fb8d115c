"""The placement problem of a graph, built from its units and cost models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import TransposeShares
from byoc.costs._price_query import price_launch
from byoc.costs._transfer_costs import TransferCosts, UnitTensors, find_unit_tensors, price_transfers
from byoc.costs._unit_prices import (
    AlternativeComposite,
    BodyCost,
    CostSettings,
    ModelAnswers,
    UnitPricer,
    build_unpriced_problem,
    compute_saving,
    set_costs,
    stack_columns,
    weigh_costs,
)
from byoc.errors import Cause
from byoc.model import GraphIndex, StatePair
from byoc.patterns import JointUnit
from byoc.placement import Fusion, Problem

# State that an accelerator keeps between calls, such as a decoder's cache, and what it saves.
#
# What a call gives as `present` is the `past` of the next one. Where one unit alone reads the past
# and makes the present, both are where that unit runs, and only who else reads the present gets it
# sent. That is a matter of which tensors cross, so that the placement stays an exact problem.


@dataclass(frozen=True)
class KeptPair:
    """A pair of state that some accelerators keep, and the unit that reads and makes it.

    `past` and `present` are rows of the problem's tensors, `accelerators` the numbers of those that keep
    it, 0 for the first one. `is_read` says that other units read the present.
    """

    pair: StatePair
    unit: int
    past: int
    present: int
    accelerators: tuple[int, ...]
    is_read: bool


def find_kept_pairs(
    tensors: UnitTensors,
    pairs: Sequence[StatePair],
    keeps_state: Sequence[bool],
    runs: NDArray[np.bool_],
) -> tuple[KeptPair, ...]:
    """Return the pairs of state that accelerators keep.

    `keeps_state` says which accelerators keep state; `runs`, bool (units, accelerators), which units
    each may run.
    A pair counts as sent where several units read the past, or another one makes the present; and where
    other units read the present and an accelerator may run the unit that does not keep state, since the
    host then needs it as an output as well.
    """
    rows = {name: row for row, name in enumerate(tensors.names)}
    found = []
    for pair in pairs:
        past, present = rows.get(pair.past), rows.get(pair.present)
        if past is None or present is None or not tensors.whole[past]:
            continue
        unit = tensors.producers[present]
        if unit < 0 or tensors.consumers[past] != [unit]:
            continue
        runners = np.flatnonzero(runs[unit]).tolist()
        keepers = tuple(each for each in runners if keeps_state[each])
        is_read = bool(tensors.consumers[present])
        if not keepers or (is_read and len(keepers) < len(runners)):
            continue
        found.append(KeptPair(pair, unit, past, present, keepers, is_read))
    return tuple(found)


def zero_kept_transfers(
    transfers: TransferCosts, accelerator: int, pairs: Sequence[KeptPair]
) -> TransferCosts:
    """Return the costs of an accelerator's transfers, with 0 for the state that it keeps.

    A present that others read is sent to them as before.
    """
    kept = [each for each in pairs if accelerator in each.accelerators]
    if not kept:
        return transfers
    past = [each.past for each in kept]
    present = [each.present for each in kept if not each.is_read]
    to_device, to_host = transfers.to_device.copy(), transfers.to_host.copy()
    sizes = transfers.sizes.copy()
    to_device[past] = 0
    to_host[present] = 0
    sizes[[*past, *present]] = 0
    return replace(transfers, to_device=to_device, to_host=to_host, sizes=sizes)


def find_unneeded_outputs(pairs: Sequence[KeptPair]) -> frozenset[str]:
    """Return the presents that the host does not need as outputs.

    They are those that other units read: such a pair is kept wherever its unit may run, and the present
    is sent to its readers alone. One that nothing reads may be made by an accelerator that keeps no
    state, which sends it; for those that keep it `zero_kept_transfers` makes that 0.
    """
    return frozenset(each.pair.present for each in pairs if each.is_read)


# The placement problem of a graph, built from its units and cost models.


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
