"""Boundary tensors that are sent in a run, as the placement counts them: bytes and seconds."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from byoc.model import fix_type
from byoc.placement import Problem
from byoc.planning._graph_plan import GraphPlan, PlannedRegion


@dataclass(frozen=True, slots=True)
class SentTensor:
    """A tensor that enters or leaves a region, with the bytes and the seconds of sending it once.

    `bytes` are those of the form in which it is sent, at the planned sizes of open dimensions: of its
    shape alone where the other side asks for nothing else, and None where its size is not known. A shape
    that is sent to some readers beside the tensor is not counted.
    `seconds` are None where nothing is sent, or no cost is known.
    """

    name: str
    enters: bool
    bytes: int | None
    seconds: float | None


def find_sent_tensors(plan: GraphPlan) -> dict[str, tuple[SentTensor, ...]]:
    """Return the tensors at the boundary of each region of a graph, inputs first, by its name."""
    if not plan.regions:
        return {}
    row_of = {name: row for row, name in enumerate(plan.graph_problem.tensors)}
    return {region.name: tuple(_list_sent_tensors(plan, region, row_of)) for region in plan.regions}


def _list_sent_tensors(
    plan: GraphPlan, region: PlannedRegion, row_of: Mapping[str, int]
) -> Iterator[SentTensor]:
    posed, device = plan.graph_problem, plan.targets.index(region.target)
    inside = {plan.row_of_node[node] for unit in region.units for node in unit.nodes}
    sides = (region.interface.inputs, region.interface.outputs)
    for enters, names in zip((True, False), sides, strict=True):
        costs = posed.latency.to_device if enters else posed.latency.to_host
        for name in names:
            # Where only the shape is asked for on the other side, only that is sent.
            rows = (row_of[key] for key in (name, f"{name}:shape") if key in row_of)
            row = next((each for each in rows if _crosses(posed.latency, each, inside, enters)), None)
            if row is None:
                yield SentTensor(name, enters, 0, None)
                continue
            is_known = _is_size_known(plan, name, shape_alone=posed.tensors[row] != name)
            seconds = float(costs[row, device])
            yield SentTensor(
                name,
                enters,
                int(posed.sizes[row, device]) if is_known else None,
                seconds if seconds != float("inf") else None,
            )


def _is_size_known(plan: GraphPlan, name: str, *, shape_alone: bool) -> bool:
    """Return whether the bytes of a tensor, or of its shape, are known; problems count with some."""
    kind = plan.index.types.get(name)
    if kind is None or kind.shape is None:
        return False
    return shape_alone or fix_type(kind, plan.index.planned.sizes).bytes is not None


def _crosses(problem: Problem, row: int, inside: Collection[int], enters: bool) -> bool:
    """Return whether a tensor of a problem crosses the boundary of the region with some units."""
    start, stop = problem.consumer_start[row : row + 2].tolist()
    readers = problem.consumers[start:stop].tolist()
    if enters:
        return any(reader in inside for reader in readers)
    return bool(problem.is_output[row]) or any(reader not in inside for reader in readers)
