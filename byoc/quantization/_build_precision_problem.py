"""The problem of precisions of a model, built from its plans with all units in one precision each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from byoc.model import TENSOR_KEY, GraphIndex, get_metadata, get_node_name, is_inserted, is_quantize
from byoc.placement import Fusion
from byoc.planning import GraphPlan
from byoc.quantization._precision_problem import (
    Bools,
    BoundaryCosts,
    Floats,
    Level,
    PrecisionProblem,
)

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


@dataclass(frozen=True, eq=False)
class TensorFigures:
    """Measured noises of tensors and costs of their conversions, by name.

    `rounding` is the noise of each tensor alone in the type that was asked for, float64 `[outputs]`;
    `conversions` are its costs from one type to another on accelerators, float64
    `[levels, levels, devices]`. `joint` is bool `[devices]`: units in floats and in integers may share a
    region.
    """

    rounding: Mapping[str, Floats]
    conversions: Mapping[str, Floats]
    joint: Bools


def build_precision_problem(
    types: Sequence[QuantizedPlan], floating: GraphPlan, figures: TensorFigures
) -> PrecisionProblem:
    """Build the problem of a model from its plans with units in integers, and with none.

    The first of the `types` has all units that may be quantized, a second one those that may have 16
    bits. Costs are in the unit of the objective.
    """
    narrow = types[0]
    problem = floating.graph_problem.problem
    float_rows = _map_nodes(floating)
    found: dict[str, list[int]] = {}
    for name, nodes in narrow.units.items():
        own = sorted({float_rows[node] for node in nodes if node in float_rows})
        if own and narrow.find_costs(name) is not None:
            found[name] = own  # or else not one unit in both plans: the problem has no choice of it
    names = sorted(found, key=lambda name: found[name][-1])
    nothing = np.full(problem.devices, np.inf)
    costs = np.array(
        [
            [nothing if (known := each.find_costs(name)) is None else known for name in names]
            for each in types
        ]
    ).reshape(len(types), len(names), problem.devices)
    costs[1:, ~np.isfinite(costs[0])] = np.inf  # what a target takes in one type, it has in integers
    outputs = max((len(value) for value in narrow.noise.values()), default=1)
    none = np.zeros(outputs)
    noise = np.array([[each.noise.get(name, none) for name in names] for each in types])
    tensors = floating.graph_problem.tensors
    rounding = np.array([figures.rounding.get(name, none) for name in tensors])
    built = PrecisionProblem(
        problem,
        names,
        [found[name] for name in names],
        costs,
        noise.reshape(len(types), len(names), outputs),
        rounding.reshape(len(tensors), outputs),
        _price_boundary(types, floating, figures),
        _list_fusions(narrow, found),
    )
    return replace(built, noise=_count_weights_alone(built))


def _count_weights_alone(problem: PrecisionProblem) -> Floats:
    """Return the noise of units without that of tensors, which the problem counts by itself.

    A unit alone in the type that was asked for has what it reads rounded to it, and what it makes where
    something in floating point reads that. Its weights are as noisy in 16 bits: at least what it has
    there is left.
    """
    noise, placed = problem.noise.copy(), problem.problem
    readers = problem.unit_of_row[placed.consumers]
    leaves = placed.is_output.copy()
    leaves[placed.consumed[readers < 0]] = True
    leaves &= placed.producer >= 0
    tensors = np.concatenate([placed.consumed, np.flatnonzero(leaves)])
    units = np.concatenate([readers, problem.unit_of_row[placed.producer[leaves]]])
    tensors, units = np.unique(np.stack([tensors, units])[:, units >= 0], axis=1)
    np.subtract.at(noise[0], units, problem.rounding[tensors])
    noise[0] = noise.max(axis=0, initial=0.0)
    return noise


def _price_boundary(
    types: Sequence[QuantizedPlan], floating: GraphPlan, figures: TensorFigures
) -> BoundaryCosts:
    """Return the costs of transfers and conversions of the float plan's tensors, in each type."""
    levels, devices = 1 + len(types), floating.graph_problem.problem.devices
    unknown = np.full((levels, levels, devices), np.inf)
    tensors = floating.graph_problem.tensors
    conversions = np.array([figures.conversions.get(name, unknown) for name in tensors])
    conversions = conversions.reshape(len(tensors), levels, levels, devices)
    for level, each in enumerate(types, 1):
        scaled = _find_channel_scaled(each)
        apart = [number for number, name in enumerate(tensors) if name in scaled]
        conversions[apart, Level.floating, level] = conversions[apart, level, Level.floating] = np.inf
    to_device, to_host = (
        np.stack(
            [
                getattr(floating.graph_problem.problem, direction),
                *(_find_transfers(floating, each, direction) for each in types),
            ]
        )
        for direction in ("to_device", "to_host")
    )
    return BoundaryCosts(to_device, to_host, conversions.transpose(1, 2, 0, 3), figures.joint)


def _list_fusions(narrow: QuantizedPlan, found: Mapping[str, Sequence[int]]) -> list[Fusion]:
    """Return the fusions of units in integers, by the first rows of units."""
    first = {narrow.rows[node]: own[0] for name, own in found.items() for node in narrow.units[name]}
    return [
        Fusion(tuple(sorted(first[row] for row in each.members)), each.device, each.saving)
        for each in narrow.plan.graph_problem.problem.fusions
        if all(row in first for row in each.members)
    ]


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


def _map_nodes(plan: GraphPlan) -> dict[str, int]:
    """Return the row of each node of a plan, by its name or first output; without byoc's own nodes."""
    return {
        get_node_name(plan.index.nodes[number]): row
        for number, row in plan.row_of_node.items()
        if not is_inserted(plan.index.nodes[number])
    }


def _find_channel_scaled(quantized: QuantizedPlan) -> set[str]:
    """Return the tensors, by their names in the float model, that some unit has several scales for.

    On accelerators these are not converted from floats, or to them.
    """
    index: GraphIndex = quantized.plan.index
    found = set()
    for node in index.nodes:
        if is_quantize(node) and is_inserted(node):
            scale = index.types.get(node.input[1])
            if scale is None or scale.elements != 1:
                found.add(get_metadata(node, TENSOR_KEY))
    return found


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
