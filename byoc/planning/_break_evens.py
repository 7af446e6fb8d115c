"""Break-evens: what would have to change where the host runs supported units more cheaply."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from byoc.costs import PlacementDevice, transfer_prices
from byoc.model import fix_type
from byoc.placement import Ints, Placement, Problem, count_transferred_bytes, evaluate, find_components
from byoc.planning._graph_plan import GraphPlan, PlannedRegion
from byoc.planning._plan_data import BreakEven

# Boundary tensors that are sent in a run, as the placement counts them: bytes and seconds.


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


# The groups of units that take longest on the host; those that hardly matter are left out.
_MAX_TRIED = 12
_SHOWN = 5  # break-even points of a plan in its report
_LEAST_SHARE = 1e-3  # of the plan's cost, for a group to be told
# Units of the graphs whose placements are tried; two groups are tried however large their graphs are.
_MAX_STEPS = 12_000
_LEAST_TRIED = 2  # groups, however large their graphs are


def find_break_evens(root: GraphPlan, devices: Sequence[PlacementDevice]) -> list[BreakEven]:
    """Return the break-evens of units that devices support and that stay on the host.

    Units that are connected count together. Told are the bandwidth of the link, and the speed of the
    device at these units, from which on moving all of them would cost no more than leaving them, all
    else as it is. Groups for which neither is enough are left out: a launch alone costs more. The
    seconds of a run of the model count, whatever the objective.
    """
    least = _LEAST_SHARE * root.cost.total
    graphs = [
        _SupportedUnits(plan, number, device)
        for plan in root.walk()
        for number, device in enumerate(devices, 1)
    ]
    groups = [(graph, *group) for graph in graphs for group in graph.find_groups()]
    groups = [group for group in groups if group[2] > least]
    found: dict[tuple[object, ...], BreakEven] = {}
    steps = 0
    for number, (graph, rows, _) in enumerate(sorted(groups, key=lambda group: -group[2])):
        if number == _MAX_TRIED or (number >= _LEAST_TRIED and steps > _MAX_STEPS):
            break
        steps += len(graph.plan.units)
        each = graph.find_break_even(rows)
        if each is None:
            continue
        alike = each.target, each.operators, each.nodes, f"{each.link or 0:.3g} {each.faster or 0:.3g}"
        before = found.get(alike)
        found[alike] = each if before is None else replace(before, groups=before.groups + 1)
    return list(found.values())[:_SHOWN]


@dataclass(frozen=True, eq=False)
class _SupportedUnits:
    """The units of a graph on the host that a device supports; `number` is the device's label."""

    plan: GraphPlan
    number: int
    device: PlacementDevice

    def find_groups(self) -> Iterator[tuple[Ints, float]]:
        """Yield connected units, with their seconds on the host in a run of the model."""
        plan, problem = self.plan, self.plan.graph_problem.latency
        able = (plan.placement.labels == 0) & problem.allowed[:, self.number]
        able[list(plan.pins)] = False
        if plan.index.bodies:
            able[[row for row, unit in enumerate(plan.units) if unit.nodes[0] in plan.index.bodies]] = 0
        source, target = problem.edges
        inside = able[source] & able[target]
        _, component = find_components(problem.units, source[inside], target[inside], "weak")
        rows = np.flatnonzero(able)
        rows = rows[np.argsort(component[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(component[rows])) + 1
        for each in np.split(rows, starts) if rows.size else ():
            yield each, plan.trips * float(problem.seconds[each, 0].sum())

    def find_break_even(self, rows: Ints) -> BreakEven | None:
        """Return the break-even of some units, None if nothing is enough."""
        plan, problem = self.plan, self.plan.graph_problem.latency
        labels = plan.placement.labels.copy()
        labels[rows] = self.number
        loss = Placement.from_labels(problem, labels).cost.total - plan.cost.total
        if not 0 < loss < np.inf:
            return None
        there = float(problem.seconds[rows, self.number].sum())
        after, before = self._send(labels), self._sent
        sent, sending = after[0] - before[0], after[1] - before[1]
        # The link has to save the loss of what these bytes take.
        link = sent / (sending - loss) if sending > loss and sent > 0 else None
        faster = there / (there - loss) if there > loss else None
        if link is None and faster is None:
            return None
        nodes = [node for row in rows.tolist() for node in plan.units[row].nodes]
        operators = dict.fromkeys(plan.index.node_kinds[node].operator for node in nodes)
        return BreakEven(
            target=plan.targets[self.number - 1].name,
            unit=plan.units[int(rows[0])].name,
            operators=tuple(operators),
            nodes=len(nodes),
            loss=plan.trips * loss,
            link=link,
            faster=faster,
        )

    @cached_property
    def _sending(self) -> Problem:
        """The problem in which a transfer takes what its bytes take; conversions take nothing."""
        sizes, problem = self.plan.graph_problem.sizes, self.plan.graph_problem.latency
        empty = transfer_prices(self.device.costs, [0])[0]
        each = [transfer_prices(self.device.costs, column.tolist())[0] - empty for column in sizes.T]
        seconds = np.maximum(np.stack(each, axis=1), 0.0)
        return replace(problem, to_device=seconds, to_host=seconds)

    @cached_property
    def _sent(self) -> tuple[int, float]:
        return self._send(self.plan.placement.labels)

    def _send(self, labels: Ints) -> tuple[int, float]:
        """Return the bytes that are sent with some labels, and the seconds of these bytes."""
        sending = self._sending
        apart = np.where(labels > 0, np.arange(sending.units), -1)
        sent = count_transferred_bytes(sending, labels, self.plan.graph_problem.sizes)
        return sent, evaluate(sending, labels, apart).transfer
