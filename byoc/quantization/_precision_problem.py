"""The placement problem with a choice of precision: each accelerator is two devices of it.

One computes in floating point, the other in integers. What crosses between the two goes by the host, as
in the plan that is then made. The noise of a unit counts where it is in integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from byoc.model import TENSOR_KEY, GraphIndex, get_metadata, get_node_name, is_inserted, is_quantize
from byoc.placement import Fusion, Problem, Strategy, solve_problem
from byoc.planning import GraphPlan, name_units

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PrecisionChoice:
    """A choice of the units in integers, `in_integers`, bool `[units]`.

    `cost` is the predicted one, `noise` the expected noise `[outputs]`. `bound` is a lower bound of the
    cost with the weighted noise of any other choice.
    """

    in_integers: Bools
    cost: float
    noise: Floats
    bound: float


@dataclass(frozen=True, eq=False)
class PrecisionProblem:
    """A placement problem in which accelerators `1..devices` compute in floats, the others in integers.

    A row of the problem is a unit of the float model, and `names` has the names of all rows. `units` are
    the names of what may be quantized; `rows` has the rows of each, the first of which has its cost in
    integers. `noise` is float64 `[units, outputs]`, the power of the error of each output over that of
    its signal; noises of units are expected to add up.
    """

    problem: Problem
    names: Sequence[str]
    devices: int
    units: Sequence[str]
    rows: Sequence[Sequence[int]]
    noise: Floats
    strategy: Strategy
    first_rows: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the first row of each unit."""
        first = np.asarray([rows[0] for rows in self.rows], np.int64)
        object.__setattr__(self, "first_rows", first)

    def solve(self, weights: Floats, fixed: Mapping[int, bool]) -> PrecisionChoice:
        """Return the choice of the least cost plus weighted noise.

        `weights` is float64 `[outputs]`; `fixed` says of some units whether they are in integers.
        """
        problem, integers = self.problem, 1 + self.devices
        seconds = problem.seconds.copy()
        seconds[self.first_rows, integers:] += (self.noise @ weights)[:, np.newaxis]
        must = problem.must.copy()
        for unit, in_integers in fixed.items():
            rows = list(self.rows[unit])
            if in_integers:
                must[rows] = True
                seconds[rows, 1:integers] = np.inf
            else:
                seconds[rows, integers:] = np.inf
        fusions = [
            each
            for each in problem.fusions
            if np.isfinite(seconds[list(each.members), each.device]).all()  # none of them is fixed apart
        ]
        changed = problem
        if must.any() or len(fusions) < len(problem.fusions):
            changed = replace(problem, must=must, fusions=tuple(fusions))
        found = solve_problem(changed.replace_seconds(seconds), self.strategy, list(self.names))
        chosen = found.labels[self.first_rows] >= integers
        noise = self.noise[chosen].sum(axis=0)
        cost = found.value - float(weights @ noise)
        return PrecisionChoice(chosen, cost, noise, found.bound or 0.0)


def build_precision_problem(
    integer: GraphPlan,
    floating: GraphPlan,
    units: Mapping[str, Sequence[str]],
    noise: Mapping[str, Floats],
    strategy: Strategy,
) -> PrecisionProblem:
    """Build the problem of a model from its plans with all units quantized, and with none.

    `units` are those that may be quantized, with the names of their nodes; `noise` is that of each
    alone, `[outputs]`. Costs are in the unit of the objective.
    """
    float_problem, integer_problem = floating.graph_problem.problem, integer.graph_problem.problem
    float_rows, integer_rows = _map_nodes(floating), _map_nodes(integer)
    devices = float_problem.devices
    seconds = np.full((float_problem.units, devices), np.inf)
    names, rows = [], []
    float_row_of: dict[int, int] = {}
    for name, nodes in units.items():
        float_own = sorted({float_rows[node] for node in nodes if node in float_rows})
        integer_own = {integer_rows[node] for node in nodes if node in integer_rows}
        if len(integer_own) != 1 or not float_own:
            continue  # not one unit in both plans: the problem has no choice of it
        (row,) = integer_own
        costs = integer_problem.seconds[row, 1:]
        seconds[float_own] = np.where(np.isfinite(costs), 0.0, np.inf)
        seconds[float_own[0]] = costs
        float_row_of[row] = float_own[0]
        names.append(name)
        rows.append(float_own)
    quantized = _map_quantized_tensors(integer.index, integer.graph_problem.tensors)
    tensors = floating.graph_problem.tensors

    def join(floats: Floats, integers: Floats) -> Floats:
        """Return transfers `[tensors, 2 * devices]`, in floats and then as the quantized tensor."""
        found = [
            integers[quantized[name]] if name in quantized else floats[number]
            for number, name in enumerate(tensors)
        ]
        return np.concatenate([floats, np.asarray(found, np.float64).reshape(floats.shape)], axis=1)

    fusions = [
        Fusion(
            tuple(sorted(float_row_of[row] for row in each.members)),
            devices + each.device,
            each.saving,
        )
        for each in integer_problem.fusions
        if all(row in float_row_of for row in each.members)
    ]
    problem = replace(
        float_problem,
        seconds=np.concatenate([float_problem.seconds, seconds], axis=1),
        to_device=join(float_problem.to_device, integer_problem.to_device),
        to_host=join(float_problem.to_host, integer_problem.to_host),
        launch=np.tile(float_problem.launch, 2),
        connected=np.tile(float_problem.connected, 2),
        min_nodes=np.tile(float_problem.min_nodes, 2),
        max_nodes=np.tile(float_problem.max_nodes, 2),
        max_regions=np.tile(float_problem.max_regions, 2),
        memory=np.tile(float_problem.memory, (1, 2)),
        capacity=np.tile(float_problem.capacity, 2),
        fusions=(*float_problem.fusions, *fusions),
        occupies=float_problem.occupies * 2,
    )
    matrix = np.stack([noise[name] for name in names]) if names else np.zeros((0, 1))
    row_names = name_units(floating.index, floating.units)
    return PrecisionProblem(problem, row_names, devices, names, rows, matrix, strategy)


def _map_nodes(plan: GraphPlan) -> dict[str, int]:
    """Return the row of each node of a plan, by its name or first output; without byoc's own nodes."""
    return {
        get_node_name(plan.index.nodes[number]): row
        for number, row in plan.row_of_node.items()
        if not is_inserted(plan.index.nodes[number])
    }


def _map_quantized_tensors(index: GraphIndex, tensors: Sequence[str]) -> dict[str, int]:
    """Return the numbers of quantized tensors by their names in the float model."""
    found = {}
    for number, name in enumerate(tensors):
        maker = index.producers.get(name)
        if maker is not None and is_quantize(index.nodes[maker]) and is_inserted(index.nodes[maker]):
            found[get_metadata(index.nodes[maker], TENSOR_KEY)] = number
    return found
