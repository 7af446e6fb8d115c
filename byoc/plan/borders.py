"""Why a region ends where it does: for each tensor at its border, what is on the other side and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from byoc.plan.data import GraphPlan, PlannedRegion


@dataclass(frozen=True, slots=True)
class Border:
    """A tensor that enters or leaves a region, a unit on the other side, and why that is not inside.

    `neighbour` and `operator` are empty where the tensor is an input or an output of the graph.
    """

    tensor: str
    enters: bool
    neighbour: str
    operator: str
    device: str
    reason: str


def borders(plan: GraphPlan, region: PlannedRegion) -> Iterator[Border]:
    """Yield what is on the other side of a region's border, tensor by tensor, inputs first."""
    index = plan.index
    rows = _rows(plan)
    inside = set(region.nodes)
    for tensor in region.border.inputs:
        maker = index.producer.get(tensor)
        if maker is None:
            yield Border(tensor, True, "", "", "host", "the graph's input")
        elif maker in rows:
            yield _border(plan, rows[maker], maker, tensor, enters=True)
    for tensor in region.border.outputs:
        readers = [n for n in index.consumers.get(tensor, ()) if n not in inside and n in rows]
        if tensor in index.outputs:
            yield Border(tensor, False, "", "", "host", "the graph's output")
        for row in dict.fromkeys(rows[reader] for reader in readers):
            reader = next(n for n in readers if rows[n] == row)
            yield _border(plan, row, reader, tensor, enters=False)


def _border(plan: GraphPlan, row: int, node: int, tensor: str, *, enters: bool) -> Border:
    label = int(plan.placement.labels[row])
    device = plan.targets[label - 1].name if label else "host"
    reason = "another region" if label else str(plan.host_reason(row))
    return Border(tensor, enters, plan.units[row].name, plan.index.nodes[node].op_type, device, reason)


def _rows(plan: GraphPlan) -> dict[int, int]:
    return {node: row for row, unit in enumerate(plan.units) for node in unit.nodes}
