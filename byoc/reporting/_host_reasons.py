"""Why nodes are on the host: reasons with their share of the work, and a remedy if one is known."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from byoc.bundle import HostReason
from byoc.model import GraphIndex
from byoc.planning import GraphPlan, Plan
from byoc.reporting._remedies import describe_remedy


@dataclass
class _ReasonTotals:
    """The nodes on the host for one reason, and the host's seconds of them in a run of the model."""

    nodes: int = 0
    work: float = 0.0
    largest: tuple[float, str] = (-1.0, "")
    operators: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def list_host_reasons(plan: Plan) -> tuple[HostReason, ...]:
    """Return the reasons for staying on the host, the one with the largest share of the work first.

    Work is counted in seconds of the host, those of bodies times their trip counts; if all of these
    are 0, in operations.
    """
    graphs = [(graph, _measure_work(graph)) for graph in plan.root.walk()]
    names = [target.name for target in plan.targets]
    number = 0 if any(work[0].any() for _, work in graphs) else 1
    whole = float(sum(work[number].sum() for _, work in graphs))
    totals: defaultdict[str, _ReasonTotals] = defaultdict(_ReasonTotals)
    for graph, works in graphs:
        _add_graph(totals, graph, works[number].tolist())
    rows = [
        HostReason(
            reason=reason,
            nodes=each.nodes,
            share=each.work / whole if whole else 0.0,
            largest=each.largest[1],
            operators=tuple(sorted(each.operators, key=lambda name: (-each.operators[name], name))),
            remedy=describe_remedy(reason, names),
        )
        for reason, each in totals.items()
        if each.nodes  # without those of conversions alone
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.share or 0.0), -row.nodes, row.reason)))


def _measure_work(graph: GraphPlan) -> "tuple[np.ndarray, np.ndarray]":
    """Return the host's seconds and the operations of each unit.

    A unit whose body is planned by itself has 0: its work counts in the body's plan.
    """
    counted = np.array([unit.nodes[0] not in graph.bodies for unit in graph.units], bool)
    problem = graph.graph_problem
    columns = (problem.latency.seconds[:, 0], problem.operations)
    seconds, operations = (np.where(counted, column, 0.0) * graph.trips for column in columns)
    return seconds, operations


def _add_graph(totals: "defaultdict[str, _ReasonTotals]", graph: GraphPlan, work: list[float]) -> None:
    """Add the units of a graph that are on the host to the totals of their reasons."""
    texts: dict[int, str] = {}  # many units have one verdict
    kinds = graph.index.node_kinds
    rows = np.flatnonzero(graph.placement.labels == 0).tolist()
    for row, (unit, verdict) in zip(rows, graph.host_units, strict=True):
        if id(verdict) not in texts:
            texts[id(verdict)] = str(verdict)
        each = totals[texts[id(verdict)]]
        each.nodes += count_user_nodes(graph.index, unit.nodes)
        each.work += work[row]
        if work[row] > each.largest[0]:
            each.largest = (work[row], unit.name)
        for node in unit.nodes:
            each.operators[kinds[node].operator] += work[row] / len(unit.nodes)


def count_user_nodes(index: GraphIndex, nodes: Collection[int]) -> int:
    """Count the nodes that byoc did not insert, of some that are distinct."""
    return len(nodes) - (len(index.inserted_nodes.intersection(nodes)) if index.inserted_nodes else 0)
