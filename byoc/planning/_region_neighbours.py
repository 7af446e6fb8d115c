"""The tensors at the boundary of a region, with the units on the other side and why they are there."""

from collections.abc import Iterator
from dataclasses import dataclass

from byoc.planning._graph_plan import GraphPlan, PlannedRegion


@dataclass(frozen=True, slots=True)
class RegionNeighbour:
    """A tensor that enters or leaves a region, and a unit on the other side with why it is not inside.

    `neighbour` and `operator` are empty where the tensor is an input or an output of the graph.
    """

    tensor: str
    enters: bool
    neighbour: str
    operator: str
    device: str
    reason: str


def find_neighbours(plan: GraphPlan, region: PlannedRegion) -> Iterator[RegionNeighbour]:
    """Yield the tensors at a region's boundary with the units on the other side, inputs first."""
    index = plan.index
    rows = plan.row_of_node
    inside = set(region.nodes)
    for tensor in region.interface.inputs:
        maker = index.producers.get(tensor)
        if maker is None:
            yield RegionNeighbour(tensor, True, "", "", "host", "the graph's input")
        elif maker in rows:
            yield _describe_neighbour(plan, rows[maker], maker, tensor, enters=True)
    for tensor in region.interface.outputs:
        readers = [n for n in index.consumers.get(tensor, ()) if n not in inside and n in rows]
        if tensor in index.outputs:
            yield RegionNeighbour(tensor, False, "", "", "host", "the graph's output")
        for row in dict.fromkeys(rows[reader] for reader in readers):
            reader = next(n for n in readers if rows[n] == row)
            yield _describe_neighbour(plan, row, reader, tensor, enters=False)


def _describe_neighbour(
    plan: GraphPlan, row: int, node: int, tensor: str, *, enters: bool
) -> RegionNeighbour:
    label = int(plan.placement.labels[row])
    device = plan.targets[label - 1].name if label else "host"
    reason = "another region" if label else str(plan.host_reason(row))
    return RegionNeighbour(
        tensor, enters, plan.units[row].name, plan.index.nodes[node].op_type, device, reason
    )
