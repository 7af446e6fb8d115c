"""The plan of one graph: units, placement, regions; cutting of repeated blocks; regret of a plan."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import GraphProblem
from byoc.errors import Cause, CauseKind, Verdict, join_targets, refuse
from byoc.model import BoundaryNames, GraphIndex, get_operator_name
from byoc.patterns import JointUnit, NodeGroup, Unit
from byoc.placement import (
    Cost,
    Ints,
    Measure,
    Perturbation,
    PerturbedDecision,
    Placement,
    Problem,
    Robust,
    evaluate,
    find_violation,
    perturb_costs,
)
from byoc.planning._plan_data import DoubtfulUnit, PerturbedPlan, RegionNeighbour
from byoc.rules import Target

# Repeated blocks inside regions, such as a decoder's layers: cut apart, so that one is compiled.
#
# A block is a run of units after which the same units follow again: equal operators, attributes,
# and types of what they read and make. Of all ways to cut a run into blocks, the one is taken whose
# borders the fewest seconds of tensors cross. Whether blocks are the same in all else is found out
# when regions are compiled.

_LEAST_NODES = 4
"""The nodes of the smallest block: less is not worth a launch."""
_PERIODS = 8
"""How many numbers of units are tried for a block."""


@dataclass(frozen=True)
class BlockRun:
    """A run of equal blocks in a sequence: its first position, the positions of a block, the blocks."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The position behind the last block."""
        return self.start + self.period * self.count

    @property
    def borders(self) -> list[int]:
        """The position at which each block begins, and the one behind the last."""
        return list(range(self.start, self.stop + 1, self.period))


def cut_blocks(
    index: GraphIndex,
    units: Sequence[JointUnit],
    problem: Problem,
    placement: Placement,
    devices: Collection[int],
) -> Placement:
    """Return a placement whose regions on some devices are cut at the borders of repeated blocks.

    Device numbers begin with 1. A region is left whole where cutting it would break a limit of its
    target; the placement's notes say so, and what the further launches cost.
    """
    if placement.measure is not Measure.total:
        return _add_note(placement, "repeated blocks are not cut: the objective is no sum of costs")
    describe = _TokenTable(index)
    for number in range(int(placement.regions.max(initial=-1)), -1, -1):  # earlier numbers stay valid
        rows = np.flatnonzero(placement.regions == number)
        device = int(placement.labels[rows[0]])
        if device not in devices:
            continue
        tokens = [describe.find_token(units[row]) for row in rows.tolist()]
        sizes = [len(units[row].nodes) for row in rows.tolist()]
        borders = find_borders(tokens, sizes, _sum_crossings(problem, rows, device))
        if len(borders) > 1:
            placement = _cut_region(problem, placement, number, rows, borders)
    return placement


def _cut_region(
    problem: Problem, placement: Placement, number: int, rows: Ints, borders: Sequence[int]
) -> Placement:
    """Return a placement with a region cut at some positions among its rows, the first being 0."""
    regions = np.where(
        placement.regions > number, placement.regions + len(borders) - 1, placement.regions
    )
    regions[rows] = number + np.searchsorted(borders, np.arange(len(rows)), side="right") - 1
    labels, fusions = placement.labels, placement.fusions
    try:
        cost = evaluate(problem, labels, regions, fusions)
        wrong = find_violation(problem, replace(placement, regions=regions, cost=cost, bound=None))
    except ValueError as error:
        wrong = str(error)
    if wrong:
        return _add_note(placement, f"a region with repeated blocks is left whole: cut, {wrong}")
    sizes = Counter(b - a for a, b in pairwise([*borders, len(rows)]))
    size, count = max(sizes.items(), key=lambda item: (item[0] * item[1], item[0]))
    note = (
        f"a region is cut into {len(borders)}, so that its {count} blocks of {size} units can be "
        f"compiled once; the further launches take {cost.total - placement.cost.total:.3g} s"
    )
    return _add_note(replace(placement, regions=regions, cost=cost), note)


def _add_note(placement: Placement, note: str) -> Placement:
    return replace(placement, notes=(*placement.notes, note))


def find_borders(tokens: Sequence[int], sizes: Sequence[int], crossings: Sequence[float]) -> list[int]:
    """Return the positions at which a sequence of units is cut: 0, and the borders of repeated blocks.

    Units of equal `tokens` are alike; `sizes` are their nodes, and `crossings` what crosses a cut before
    each unit. Runs are found from the longest on, then to both sides of it.
    """
    borders = {0}
    waiting = [(0, len(tokens))]
    while waiting:
        first, stop = waiting.pop()
        run = _find_run(np.array(tokens[first:stop], np.int64), sizes[first:stop], crossings[first:stop])
        if run is not None:
            borders.update(first + border for border in run.borders)
            waiting += [(first, first + run.start), (first + run.stop, stop)]
    return sorted(borders - {len(tokens)})


def _find_run(tokens: Ints, sizes: Sequence[int], crossings: Sequence[float]) -> BlockRun | None:
    """Return the run of blocks of which most units need not be compiled, None without any."""
    best: tuple[int, BlockRun] | None = None
    for least in _list_periods(tokens):
        start, length = _find_longest(tokens[:-least] == tokens[least:])
        period, length = least, length + least
        while period < length and sum(sizes[start : start + period]) < _LEAST_NODES:
            period += least  # several small ones are a block
        if length < 2 * period:
            continue
        run = _choose_borders(BlockRun(start, period, 0), length, crossings)
        saved = (run.count - 1) * period
        if best is None or (saved, -period) > (best[0], -best[1].period):
            best = saved, run
    return None if best is None else best[1]


def _list_periods(tokens: Ints) -> list[int]:
    """Return the commonest distances between units that are alike, at most half of the sequence."""
    order = np.argsort(tokens, kind="stable")
    distances = np.diff(order)[np.diff(tokens[order]) == 0]
    values, counts = np.unique(distances[2 * distances <= tokens.size], return_counts=True)
    return [int(value) for value in values[np.argsort(-counts, kind="stable")][:_PERIODS]]


def _find_longest(same: np.ndarray) -> tuple[int, int]:
    """Return the start and the length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not edges.size:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _choose_borders(run: BlockRun, length: int, crossings: Sequence[float]) -> BlockRun:
    """Return the run within `length` positions at whose borders the least crosses.

    It may have a block less than would be possible.
    """
    most = length // run.period
    shifts = range(run.period if most > 2 else length % run.period + 1)
    runs = [BlockRun(run.start + shift, run.period, (length - shift) // run.period) for shift in shifts]

    def rate(each: BlockRun) -> tuple[float, int, int]:
        inner = each.borders[1:-1]
        crossing = sum(crossings[at] for at in inner) / len(inner)
        return float(f"{crossing:.6g}"), -each.count, each.start  # equal but for rounding is equal

    return min(runs, key=rate)


def _sum_crossings(problem: Problem, rows: Ints, device: int) -> list[float]:
    """Return the seconds of the region's tensors that a cut before each of its units crosses."""
    position = np.full(problem.units + 1, -1, np.int64)
    position[rows] = np.arange(len(rows))
    last = np.full(problem.tensors, -1, np.int64)
    np.maximum.at(last, problem.consumed, position[problem.consumers])
    made = position[problem.producer]
    inside = (made >= 0) & (last > made)
    seconds = (problem.to_host[:, device - 1] + problem.to_device[:, device - 1])[inside]
    change = np.zeros(len(rows) + 1)
    np.add.at(change, made[inside] + 1, seconds)
    np.add.at(change, last[inside] + 1, -seconds)
    found: list[float] = np.cumsum(change)[:-1].tolist()
    return found


class _TokenTable:
    """Numbers of units that are alike, by what their nodes are."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._tokens: dict[Hashable, int] = {}

    def find_token(self, unit: JointUnit) -> int:
        """Return the number of a unit, the same for units whose nodes are alike."""
        key = tuple(map(self._describe_node, unit.nodes))
        return self._tokens.setdefault(key, len(self._tokens))

    def _describe_node(self, number: int) -> Hashable:
        index = self._index
        node = index.nodes[number]
        attributes = sorted(each.SerializeToString(deterministic=True) for each in node.attribute)
        reads = [(index.types.get(name), index.is_constant(name)) for name in index.node_inputs[number]]
        makes = [index.types.get(name) for name in index.node_outputs[number]]
        return (node.domain, node.op_type, tuple(attributes), tuple(reads), tuple(makes))


# The regret of a plan at perturbed costs, and the units that change their device there.


@dataclass(frozen=True, slots=True)
class CostDoubt:
    """The perturbation of costs, and the regret that a robust placement minimises, None without one."""

    perturbation: Perturbation
    robust: Robust | None = None


def perturb_graph(  # noqa: PLR0913, PLR0917 - a graph, its problem, and the answer
    index: GraphIndex,
    units: Sequence[NodeGroup],
    names: Sequence[str],
    problem: Problem,
    placement: Placement,
    doubt: CostDoubt,
) -> PerturbedDecision:
    """Perturb the costs of a graph's placement; the kind of a unit is that of its operators."""
    kinds = [" ".join(get_operator_name(index.nodes[node]) for node in unit.nodes) for unit in units]
    return perturb_costs(problem, placement, names, kinds, doubt.perturbation, doubt.robust)


def describe_decision(
    index: GraphIndex,
    units: Sequence[NodeGroup],
    targets: Sequence[str],
    decision: PerturbedDecision,
    doubt: CostDoubt,
) -> PerturbedPlan:
    """Return a decision as data; units in doubt come by falling share."""
    devices, rows = ("host", *targets), np.argsort(-decision.moved, kind="stable")
    return PerturbedPlan(
        sigma=doubt.perturbation.sigma,
        samples=doubt.perturbation.samples,
        seed=doubt.perturbation.seed,
        proven=decision.proven,
        candidates=decision.candidates,
        nominal=decision.nominal,
        robust=None if doubt.robust is None else doubt.robust.value,
        chosen=decision.chosen,
        units=tuple(
            DoubtfulUnit(
                unit=units[row].name,
                operators=tuple(
                    dict.fromkeys(get_operator_name(index.nodes[node]) for node in units[row].nodes)
                ),
                nodes=len(units[row].nodes),
                device=devices[int(decision.placement.labels[row])],
                share=float(decision.moved[row]),
                elsewhere=devices[int(decision.elsewhere[row])],
            )
            for row in rows.tolist()
            if decision.moved[row]
        ),
    )


@lru_cache
def explain_form_change(form: str) -> Verdict:
    """Return the reason of a node on the host that byoc inserted for nodes in another form."""
    text = f"a conversion that byoc added for what it brought into another form ({form})"
    return refuse(Cause(CauseKind.CONVERSION, text))


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """The bytes that a region needs on its accelerator: for constants, and for its arena while it runs.

    `activations`, the bytes of the arena, is None where extents are not known: none is planned then.
    """

    constants: float
    activations: int | None

    @property
    def total(self) -> float:
        """The bytes of both together."""
        return self.constants + (self.activations or 0)


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """A region of a graph: its target, its units there, and the tensors at its boundary.

    `seconds` are the predicted ones of a single run, launch included; `trips` is how often it is
    expected to run for one run of the model. `memory` is what `limits.memory` of the target's rule file
    is compared with, None where it has no such limit.
    """

    name: str
    target: Target
    index: GraphIndex
    units: tuple[Unit, ...]
    interface: BoundaryNames
    seconds: float
    trips: float
    memory: RegionMemory | None = None

    @property
    def nodes(self) -> list[int]:
        """The node numbers of the region, in topological order; constant nodes are not among them."""
        return sorted(node for unit in self.units for node in unit.nodes)


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """The plan of a graph: the main one, or a body of an If, Loop or Scan that stays on the host.

    `path` is its graph path (`Loop_0/body`), empty for the main graph. `trips` is how often the
    graph is expected to run for one run of the model. `placement` is in the units of the objective;
    `cost` is the same in seconds and `joules` in joules, None where these are not known. `host_only` are
    the seconds of one run of it with everything on the host, `bodies` the plans of what is inside its
    host nodes; `perturbed` says how the placement depends on the costs, where that was asked for.
    `limits` are the hard limits of rule files that keep supported units on the host, by their numbers.
    """

    targets: tuple[Target, ...]
    index: GraphIndex
    path: str
    trips: float
    units: tuple[JointUnit, ...]
    graph_problem: GraphProblem
    placement: Placement
    cost: Cost
    joules: float | None
    host_only: float
    regions: tuple[PlannedRegion, ...]
    bodies: Mapping[int, tuple["GraphPlan", ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    perturbed: PerturbedPlan | None = None
    limits: Mapping[int, tuple[Cause, ...]] = field(default_factory=dict)

    def walk(self) -> Iterator["GraphPlan"]:
        """Yield this plan and those of all bodies inside, in the order of the nodes."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.walk()

    @cached_property
    def row_of_node(self) -> Mapping[int, int]:
        """The number of the unit that each node is part of; constant nodes are in none."""
        return {node: row for row, unit in enumerate(self.units) for node in unit.nodes}

    @property
    def device_of_node(self) -> dict[int, str]:
        """The name of the device that each node is on, `host` or a target; constant nodes have none."""
        names = ("host", *(target.name for target in self.targets))
        labels = self.placement.labels.tolist()
        pairs = zip(self.units, labels, strict=True)
        return {node: names[label] for unit, label in pairs for node in unit.nodes}

    @cached_property
    def host_units(self) -> list[tuple[JointUnit, Verdict]]:
        """The units of this graph that stay on the host, each with the reason."""
        rows = (row for row, label in enumerate(self.placement.labels.tolist()) if label == 0)
        return [(self.units[row], self.host_reason(row)) for row in rows]

    @cached_property
    def _supported(self) -> tuple[Verdict, Verdict]:
        """Why supported units are on the host where the strategy chose it, and where it was given."""
        given = "supported, but the placement that this plan follows has it on the host"
        chosen = Cause(CauseKind.COST, f"supported, but {self.placement.why_host}")
        return refuse(chosen), refuse(Cause(CauseKind.GIVEN, given))

    @cached_property
    def _has_kept(self) -> bool:
        return any(self.graph_problem.kept_on_host)

    def host_reason(self, row: int) -> Verdict:
        """Return the reason why a unit is on the host."""
        changes = self.index.form_changes
        if changes and all(node in changes for node in self.units[row].nodes):
            return explain_form_change(changes[self.units[row].nodes[0]])
        verdicts = self.units[row].verdicts
        if len(verdicts) == 1 and verdicts[0].reasons:  # as most have it
            return verdicts[0]
        if self._has_kept:
            verdicts = tuple(
                refuse(kept[row]) if row in kept else verdict
                for kept, verdict in zip(self.graph_problem.kept_on_host, verdicts, strict=True)
            )
        if any(not verdict.reasons for verdict in verdicts):
            if row in self.limits:
                return refuse(*self.limits[row])
            return self._supported[row in self.pins]
        if len(self.targets) == 1:
            return verdicts[0]
        each = zip(self.targets, verdicts, strict=True)
        return join_targets([(target.name, verdict) for target, verdict in each])

    @property
    def operations(self) -> tuple[float, float]:
        """The operations of one run on accelerators, and all of them; a body counts in its own plan."""
        done = total = 0.0
        rows = zip(self.units, self.placement.labels, self.graph_problem.operations, strict=True)
        for unit, label, count in rows:
            if label == 0 and unit.nodes[0] in self.bodies:
                continue
            total += count
            done += count if label else 0.0
        return done, total

    @property
    def offloaded_operations(self) -> tuple[float, float]:
        """The operations on accelerators, and all, of one run; those of bodies by their trips."""
        each = [(graph.trips, *graph.operations) for graph in self.walk()]
        return sum(t * done for t, done, _ in each), sum(t * total for t, _, total in each)

    @property
    def whole_cost(self) -> Cost:
        """The predicted seconds of one run, bodies by their trips."""
        graphs = list(self.walk())
        transfer = sum(graph.trips * graph.cost.transfer for graph in graphs)
        launch = sum(graph.trips * graph.cost.launch for graph in graphs)
        return Cost(self.cost.total - transfer - launch, transfer, launch)

    @property
    def host_seconds(self) -> tuple[float, float]:
        """The seconds of one run on the host: those that are estimates, and all.

        A body with a plan counts there.
        """
        counted = [unit.nodes[0] not in self.bodies for unit in self.units]
        return (
            float(self.graph_problem.estimated_seconds[counted].sum()),
            float(self.graph_problem.latency.seconds[counted, 0].sum()),
        )


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
