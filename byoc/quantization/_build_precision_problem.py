"""The problem of precisions of a model, built from its plans with all units in one precision each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

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

Direction = Literal["to_device", "to_host"]
"""The two fields of a placement problem that have the costs of transfers."""


@dataclass(frozen=True, eq=False)
class QuantizedPlan:
    """A plan with some units in integers of a type, `dtype`.

    `units` are these, `noise` is that of each alone, float64 `[outputs]`. Rows are the numbers of units
    in the placement problem of the plan.
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
        """Return the cost of a unit on accelerators, `[devices]`, None where it is not one row."""
        rows = self.rows
        own = {rows[node] for node in self.units.get(name, ()) if node in rows}
        if len(own) != 1:
            return None
        (row,) = own
        return np.asarray(self.plan.graph_problem.problem.seconds[row, 1:])


@dataclass(frozen=True, eq=False)
class TensorFigures:
    """Figures of the float model's tensors, by name, and of accelerators.

    `rounding` is the measured noise of each tensor alone in the type that was asked for, float64
    `[outputs]`; `conversions` are its costs from one type to another, float64
    `[levels, levels, devices]`. `joint` is that of `BoundaryCosts`.
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
    rows = _find_float_rows(narrow, floating)
    names = sorted(rows, key=lambda name: rows[name][-1])
    outputs = max((len(value) for value in narrow.noise.values()), default=1)
    none = np.zeros(outputs)
    noise = np.array([[each.noise.get(name, none) for name in names] for each in types])
    tensors = floating.graph_problem.tensors
    rounding = np.array([figures.rounding.get(name, none) for name in tensors])
    built = PrecisionProblem(
        floating.graph_problem.problem,
        names,
        [rows[name] for name in names],
        _stack_costs(types, names, floating.graph_problem.problem.devices),
        noise.reshape(len(types), len(names), outputs),
        rounding.reshape(len(tensors), outputs),
        _price_boundary(types, floating, figures),
        _list_fusions(narrow, rows),
    )
    return replace(built, noise=_count_weights_alone(built))


def _find_float_rows(narrow: QuantizedPlan, floating: GraphPlan) -> dict[str, list[int]]:
    """Return the rows of units in the float plan, in rising order.

    A unit that is not one row of the quantized plan, or has none in the float plan, is left out: its
    precision is not a choice of the problem.
    """
    row_of_node = _map_nodes(floating)
    found = {}
    for name, nodes in narrow.units.items():
        own = sorted({row_of_node[node] for node in nodes if node in row_of_node})
        if own and narrow.find_costs(name) is not None:
            found[name] = own
    return found


def _stack_costs(types: Sequence[QuantizedPlan], names: Sequence[str], devices: int) -> Floats:
    """Return the costs of units in each type on accelerators, `[types, units, devices]`.

    They are infinite where a type is not taken. A device has 16 bits for those units alone that it takes
    in the type that was asked for.
    """
    nothing = np.full(devices, np.inf)
    costs = np.array(
        [
            [nothing if (known := each.find_costs(name)) is None else known for name in names]
            for each in types
        ]
    ).reshape(len(types), len(names), devices)
    costs[1:, ~np.isfinite(costs[0])] = np.inf
    return costs


def _count_weights_alone(problem: PrecisionProblem) -> Floats:
    """Return the noise of units without that of tensors, which the problem counts by itself.

    What was measured of a unit alone in the type that was asked for has the rounding of each tensor that
    it reads, and of what it makes where something in floating point reads that. Without these its
    weights are left, which are as noisy in 16 bits: the result is not below the noise there.
    """
    noise, placement = problem.noise.copy(), problem.placement
    readers = problem.unit_of_row[placement.consumers]
    is_read_in_float = placement.is_output.copy()
    is_read_in_float[placement.consumed[readers < 0]] = True
    is_read_in_float &= placement.producer >= 0
    tensors = np.concatenate([placement.consumed, np.flatnonzero(is_read_in_float)])
    units = np.concatenate([readers, problem.unit_of_row[placement.producer[is_read_in_float]]])
    tensors, units = np.unique(np.stack([tensors, units])[:, units >= 0], axis=1)
    np.subtract.at(noise[0], units, problem.rounding[tensors])
    noise[0] = noise.max(axis=0, initial=0.0)
    return noise


def _price_boundary(
    types: Sequence[QuantizedPlan], floating: GraphPlan, figures: TensorFigures
) -> BoundaryCosts:
    """Return the costs of transfers and conversions of the float plan's tensors, in each type.

    Tensors with several scales are not converted to floats or from them on accelerators.
    """
    problem = floating.graph_problem.problem
    levels, devices = 1 + len(types), problem.devices
    unknown = np.full((levels, levels, devices), np.inf)
    tensors = floating.graph_problem.tensors
    conversions = np.array([figures.conversions.get(name, unknown) for name in tensors])
    conversions = conversions.reshape(len(tensors), levels, levels, devices)
    for level, each in enumerate(types, 1):
        names = _find_channel_scaled(each)
        scaled = [number for number, name in enumerate(tensors) if name in names]
        conversions[scaled, Level.floating, level] = conversions[scaled, level, Level.floating] = np.inf
    to_device = [problem.to_device, *(_find_transfers(floating, each, "to_device") for each in types)]
    to_host = [problem.to_host, *(_find_transfers(floating, each, "to_host") for each in types)]
    return BoundaryCosts(
        np.stack(to_device), np.stack(to_host), conversions.transpose(1, 2, 0, 3), figures.joint
    )


def _list_fusions(narrow: QuantizedPlan, rows: Mapping[str, Sequence[int]]) -> list[Fusion]:
    """Return the fusions of units in integers; each unit stands for itself by its first float row."""
    first = {narrow.rows[node]: own[0] for name, own in rows.items() for node in narrow.units[name]}
    return [
        Fusion(tuple(sorted(first[row] for row in each.members)), each.device, each.saving)
        for each in narrow.plan.graph_problem.problem.fusions
        if all(row in first for row in each.members)
    ]


def _find_transfers(floating: GraphPlan, quantized: QuantizedPlan, direction: Direction) -> Floats:
    """Return the transfers of the float plan's tensors in the type of a quantized one.

    They are float64 `[tensors, devices]`, the field `direction` of placement problems. Tensors that are
    not quantized there cost as floats.
    """
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
    """Return the tensors, by their names in the float model, that some unit has several scales for."""
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
