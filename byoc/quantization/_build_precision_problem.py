"""The choice of precision of a model, built from its plans with all units in one precision each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from byoc.model import TENSOR_KEY, GraphIndex, get_metadata, get_node_name, is_inserted, is_quantize
from byoc.placement import Fusion, Strategy
from byoc.planning import GraphPlan, name_units
from byoc.quantization._conversion_costs import ConversionCosts
from byoc.quantization._precision_problem import Floats, PrecisionProblem, SharedTensor

UnitNodes = Mapping[str, Sequence[str]]
"""The names of units, with those of their nodes."""


@dataclass(frozen=True, eq=False)
class QuantizedPlan:
    """A plan with some units in integers of a type, `dtype`.

    `units` are these, `noise` is that of each alone, float64 `[outputs]`.
    """

    plan: GraphPlan
    units: UnitNodes
    noise: Mapping[str, Floats]
    dtype: str

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of each node of the plan, by its name or first output; without byoc's own nodes."""
        return _map_nodes(self.plan)

    def find_costs(self, name: str) -> Floats | None:
        """Return the cost of a unit on each accelerator, None where it is not one unit of the plan."""
        rows = self.rows
        own = {rows[node] for node in self.units.get(name, ()) if node in rows}
        if len(own) != 1:
            return None
        (row,) = own
        return np.asarray(self.plan.graph_problem.problem.seconds[row, 1:])


def build_precision_problem(
    types: Sequence[QuantizedPlan],
    floating: GraphPlan,
    conversions: ConversionCosts,
    strategy: Strategy,
) -> PrecisionProblem:
    """Build the problem of a model from its plans with units in integers, and with none.

    The first of the `types` has all units that may be quantized, a second one those that may have 16
    bits. `conversions` are the costs of tensors that change between the two. Costs are in the unit of
    the objective.
    """
    narrow, *others = types
    wide = others[0] if others else None
    float_problem, integer_problem = floating.graph_problem.problem, narrow.plan.graph_problem.problem
    float_rows = _map_nodes(floating)
    devices = float_problem.devices
    found: dict[str, list[int]] = {}
    for name, nodes in narrow.units.items():
        own = sorted({float_rows[node] for node in nodes if node in float_rows})
        if own and narrow.find_costs(name) is not None:
            found[name] = own  # or else not one unit in both plans: the problem has no choice of it
    names = sorted(found, key=lambda name: found[name][-1])
    rows = [found[name] for name in names]
    nothing = np.full(devices, np.inf)
    costs = np.array(
        [
            [nothing if (known := each.find_costs(name)) is None else known for name in names]
            for each in types
        ]
    ).reshape(len(types), len(names), devices)
    if wide is not None:
        costs[1][~np.isfinite(costs[0])] = np.inf  # what a target takes in one type, it has in integers
    outputs = max((len(value) for value in narrow.noise.values()), default=1)
    none = np.zeros(outputs)
    noise = np.array([[each.noise.get(name, none) for name in names] for each in types])
    seconds = np.full((float_problem.units, devices), np.inf)
    for number, own in enumerate(rows):
        seconds[own] = np.where(np.isfinite(costs[0, number]), 0.0, np.inf)
        seconds[own[0]] = costs[0, number]
    unit_of_row = {row: number for number, own in enumerate(rows) for row in own}
    problem = replace(
        float_problem,
        seconds=np.concatenate([float_problem.seconds, seconds], axis=1),
        to_device=_join(floating, narrow, "to_device"),
        to_host=_join(floating, narrow, "to_host"),
        launch=np.tile(float_problem.launch, 2),
        connected=np.tile(float_problem.connected, 2),
        min_nodes=np.tile(float_problem.min_nodes, 2),
        max_nodes=np.tile(float_problem.max_nodes, 2),
        max_regions=np.tile(float_problem.max_regions, 2),
        memory=np.tile(float_problem.memory, (1, 2)),
        capacity=np.tile(float_problem.capacity, 2),
        fusions=(*float_problem.fusions, *_list_fusions(narrow, found, integer_problem.fusions)),
        occupies=float_problem.occupies * 2,
    )
    return PrecisionProblem(
        problem,
        name_units(floating.index, floating.units),
        devices,
        names,
        rows,
        costs,
        noise.reshape(len(types), len(names), outputs),
        strategy,
        () if wide is None else _list_tensors(floating, narrow, wide, unit_of_row, conversions),
    )


def _list_fusions(
    narrow: QuantizedPlan, found: Mapping[str, Sequence[int]], fusions: Sequence[Fusion]
) -> list[Fusion]:
    """Return the fusions of units in integers, by the first rows of units."""
    first = {narrow.rows[node]: own[0] for name, own in found.items() for node in narrow.units[name]}
    devices = narrow.plan.graph_problem.problem.devices
    return [
        Fusion(tuple(sorted(first[row] for row in each.members)), devices + each.device, each.saving)
        for each in fusions
        if all(row in first for row in each.members)
    ]


def _join(floating: GraphPlan, narrow: QuantizedPlan, direction: str) -> Floats:
    """Return transfers `[tensors, 2 * devices]`, in floats and then as the quantized tensor."""
    floats: Floats = getattr(floating.graph_problem.problem, direction)
    return np.concatenate([floats, _find_transfers(floating, narrow, direction)], axis=1)


def _find_transfers(floating: GraphPlan, quantized: QuantizedPlan, direction: str) -> Floats:
    """Return the transfers of the tensors of the float plan as they are quantized in another one."""
    floats: Floats = getattr(floating.graph_problem.problem, direction)
    integers: Floats = getattr(quantized.plan.graph_problem.problem, direction)
    numbers = _map_quantized_tensors(quantized)
    found = [
        integers[numbers[name]] if name in numbers else floats[number]
        for number, name in enumerate(floating.graph_problem.tensors)
    ]
    return np.asarray(found, np.float64).reshape(floats.shape)


def _list_tensors(
    floating: GraphPlan,
    narrow: QuantizedPlan,
    wide: QuantizedPlan,
    unit_of_row: Mapping[int, int],
    conversions: ConversionCosts,
) -> list[SharedTensor]:
    """Return the tensors that units read which may be in integers."""
    problem = floating.graph_problem.problem
    more = {}
    for direction in ("to_host", "to_device"):
        difference = _find_transfers(floating, wide, direction) - _find_transfers(
            floating, narrow, direction
        )
        more[direction] = np.maximum(np.nan_to_num(difference), 0.0)
    found = []
    for number, name in enumerate(floating.graph_problem.tensors):
        start, end = problem.consumer_start[number : number + 2]
        rows = problem.consumers[start:end].tolist()
        readers = dict.fromkeys(unit_of_row[row] for row in rows if row in unit_of_row)
        maker = unit_of_row.get(int(problem.producer[number]), -1)
        readers.pop(maker, None)
        if not readers:
            continue
        crossing = problem.to_host[number] + problem.to_device[number] + problem.launch
        to_wide, to_narrow = conversions.find(name, crossing)
        leaves = bool(problem.is_output[number]) or any(row not in unit_of_row for row in rows)
        found.append(
            SharedTensor(
                maker,
                tuple(readers),
                leaves,
                to_wide,
                to_narrow,
                more["to_host"][number],
                more["to_device"][number],
            )
        )
    return found


def _map_nodes(plan: GraphPlan) -> dict[str, int]:
    """Return the row of each node of a plan, by its name or first output; without byoc's own nodes."""
    return {
        get_node_name(plan.index.nodes[number]): row
        for number, row in plan.row_of_node.items()
        if not is_inserted(plan.index.nodes[number])
    }


def _map_quantized_tensors(quantized: QuantizedPlan) -> dict[str, int]:
    """Return the numbers of quantized tensors of a type by their names in the float model."""
    index: GraphIndex = quantized.plan.index
    found = {}
    for number, name in enumerate(quantized.plan.graph_problem.tensors):
        maker = index.producers.get(name)
        if maker is None or index.get_dtype(name) != quantized.dtype:
            continue
        if is_quantize(index.nodes[maker]) and is_inserted(index.nodes[maker]):
            found[get_metadata(index.nodes[maker], TENSOR_KEY)] = number
    return found
