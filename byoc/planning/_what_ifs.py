"""Gains of supporting more operators: what the best placement gains where refused units are allowed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from byoc.model import GraphIndex, PlannedSizes
from byoc.placement import Sensitivity, order_canonically, reorder_placement
from byoc.planning._graph_placement import name_units, plan_graphs
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._graph_units import GraphUnits, PinnedNode, PinnedNodes
from byoc.planning._plan_data import PredictionAtSizes, WhatIf
from byoc.planning._plan_settings import PlanSettings

# The predicted seconds of a placement at other sizes or costs than those it was made for.


def predict_at_ends(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits]
) -> tuple[PredictionAtSizes, ...]:
    """Return predictions for the ends and the middle of the ranges that the user gave, none without any.

    All ranges are at their least, their middle, or their largest size together. `units` has those of
    each graph, by the id of its index.
    """
    planned = root.index.planned
    if not planned.ranges:
        return ()
    ends = [{name: span[at] for name, span in planned.ranges.items()} for at in (0, 1)]
    found = [predict_at(root, settings, units, {**planned.sizes, **end}) for end in ends]
    middle = PredictionAtSizes(dict(planned.sizes), root.cost.total, root.host_only)
    return found[0], middle, found[1]


def predict_at(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits], sizes: Mapping[str, int]
) -> PredictionAtSizes:
    """Price the placement at other sizes: every node is pinned to where it is."""
    index = replace(root.index, planned=PlannedSizes(sizes))
    resized = {id(old): new for old, new in _pair_graphs(root.index, index)}
    inside = {id(new): units[old] for old, new in resized.items()}
    pins = _pin_nodes(root, {old: id(new) for old, new in resized.items()})
    plan = plan_graphs(index, replace(settings, doubt=None), inside, pins)
    return PredictionAtSizes(dict(sizes), plan.cost.total, plan.host_only)


def price_placement(
    root: GraphPlan, settings: PlanSettings, units: Mapping[int, GraphUnits]
) -> GraphPlan:
    """Return the plan that has every node where another plan has it, at the costs of these settings.

    `units` has those of each graph, by the id of its index. Raises InputError as `plan_graphs`.
    """
    same = {id(plan.index): id(plan.index) for plan in root.walk()}
    return plan_graphs(root.index, replace(settings, doubt=None), units, _pin_nodes(root, same))


def _pin_nodes(root: GraphPlan, graphs: Mapping[int, int]) -> PinnedNodes:
    """Pin every node to where it is; `graphs` has the id of each graph's index in the new plan."""
    return PinnedNodes(
        {
            graphs[id(plan.index)]: {
                node: PinnedNode(f"node {node}", label, "the placement")
                for unit, label in zip(plan.units, plan.placement.labels.tolist(), strict=True)
                for node in unit.nodes
            }
            for plan in root.walk()
        }
    )


def _pair_graphs(old: GraphIndex, new: GraphIndex) -> list[tuple[GraphIndex, GraphIndex]]:
    """Return each graph of one index with that of the other, bodies included."""
    pairs = [(old, new)]
    for node, bodies in old.bodies.items():
        for before, after in zip(bodies, new.bodies[node], strict=True):
            pairs += _pair_graphs(before.index, after.index)
    return pairs


_MAX_TRIED = 24  # reasons, those that may gain most first
_SHOWN = 10  # gains in the report
# Of minimum cuts: units and entries of tensors. Beyond them a few cuts of each graph are allowed.
_MAX_STEPS = 60_000
_LEAST_CUTS = 3  # minimum cuts, however large the graphs are
_MAX_ROUNDS = 12  # of the relaxation; fewer for large graphs
# A gain is more than the rounding of sums.
_LEAST_SHARE = 1e-9

_Key = tuple[int, str, str]
"""A device, an operator, and the reason why the device refuses it, without names."""

_QUOTED = re.compile(r" '([^']*)'")


def estimate_gains(root: GraphPlan) -> tuple[list[WhatIf], int]:
    """Return the ten best answers to "what if it were supported", the largest gain first.

    Units that are refused for the same reason count together, whatever nodes and tensors it names, and
    those in bodies by the trips of their graph. Those that may gain most are tried, 24 at most, and in
    large graphs fewer: the number of minimum cuts is limited by their size, never by a clock. What a
    refused unit would take is what its device's cost model says of it; none that gains nothing is told.
    With the answers comes the number of reasons that were left out and may gain as much.
    """
    questions = _list_questions(root)
    graphs = {id(part.graph): part.graph for question in questions for part in question.parts}
    size = sum(graph.sensitivity.round_steps for graph in graphs.values())
    limit = _MAX_STEPS + _LEAST_CUTS * size
    found: list[WhatIf] = []
    for number, question in enumerate(questions):
        found = sorted(found, key=lambda each: (-each.gain, each.operator, each.reason))[:_SHOWN]
        if len(found) == _SHOWN and question.bound <= found[-1].gain:
            break
        spent = sum(graph.sensitivity.steps for graph in graphs.values())
        if number == _MAX_TRIED or (number and spent + size > limit):
            return found, len(questions) - number
        answer = question.answer()
        if answer.gain > _LEAST_SHARE * root.placement.cost.total:
            found.append(answer)
    return sorted(found, key=lambda each: (-each.gain, each.operator, each.reason))[:_SHOWN], 0


@dataclass(frozen=True, eq=False)
class _PlacedGraph:
    """A placed graph and the sensitivity of its placement; units are numbered as in the plan."""

    plan: GraphPlan

    @cached_property
    def _order(self) -> tuple[Sensitivity, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
        plan = self.plan
        problem = plan.graph_problem.problem
        ordered, order = order_canonically(problem, name_units(plan.index, plan.units))
        known = reorder_placement(problem, plan.placement, order)
        position = np.empty(problem.units, np.int64)
        position[order] = np.arange(problem.units)
        steps = problem.devices * (problem.units + len(problem.consumers))
        rounds = min(_MAX_ROUNDS, max(1, _MAX_STEPS // (2 * steps)))
        return Sensitivity(ordered, known, rounds), position

    @property
    def sensitivity(self) -> Sensitivity:
        return self._order[0]

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of the graph's nodes and tensors."""
        index = self.plan.index
        return frozenset([*(node.name for node in index.nodes), *index.producers, *index.type_protos])

    def find_refused(self) -> Mapping[_Key, list[tuple[int, str]]]:
        """Return the units that a device refuses for a reason and that have a cost there.

        With each unit comes the reason with the names in it.
        """
        groups: dict[_Key, list[tuple[int, str]]] = {}
        plan, inserted = self.plan, self.plan.index.inserted_nodes
        texts: dict[int, tuple[str, str]] = {}  # many units have one verdict
        known = np.isfinite(plan.graph_problem.device_cost).tolist()
        for row, unit in enumerate(plan.units):
            for device, verdict in enumerate(unit.verdicts, 1):
                if verdict.reasons and known[row][device - 1]:
                    if inserted and inserted.issuperset(unit.nodes):
                        break  # what byoc puts at borders costs nothing, and goes with its neighbours
                    if id(verdict) not in texts:
                        texts[id(verdict)] = str(verdict), self._leave_out_names(str(verdict))
                    reason, general = texts[id(verdict)]
                    key = device, _name_unit(plan, row, device), general
                    groups.setdefault(key, []).append((row, reason))
        return groups

    def _leave_out_names(self, reason: str) -> str:
        """Return a reason without the names of nodes and tensors: they differ from unit to unit."""
        if "'" not in reason:
            return reason
        return _QUOTED.sub(lambda found: " '...'" if found[1] in self._names else found[0], reason)

    def bound_gain(self, rows: Sequence[int], device: int) -> float:
        """Return about the most that can be gained in a run of the model."""
        sensitivity, position = self._order
        seconds = self.plan.graph_problem.device_cost[rows, device - 1]
        return self.plan.trips * sensitivity.bound_gain(position[rows].tolist(), device, seconds)

    def allow_units(self, rows: Sequence[int], device: int) -> tuple[float, int]:
        """Return the gain in a run of the model, and how many more nodes are then offloaded."""
        sensitivity, position = self._order
        seconds = self.plan.graph_problem.device_cost[rows, device - 1]
        before = sensitivity.best
        after = sensitivity.solve_changed(position[rows].tolist(), device, seconds)
        size = sensitivity.problem.size
        more = int(size[after.labels > 0].sum() - size[before.labels > 0].sum())
        return self.plan.trips * (before.cost.total - after.cost.total), more


@dataclass(frozen=True, eq=False)
class _Part:
    """The units of a question in one graph, by number."""

    graph: _PlacedGraph
    rows: list[int]


@dataclass(frozen=True, eq=False)
class _Question:
    """The units that a device refuses for one reason, and about the most that they can gain.

    `reason` names nodes and tensors only where all units are refused for the same ones.
    """

    key: _Key
    reason: str
    parts: list[_Part]
    bound: float

    def answer(self) -> WhatIf:
        device, operator, _ = self.key
        gains = [part.graph.allow_units(part.rows, device) for part in self.parts]
        nodes = sum(len(part.graph.plan.units[row].nodes) for part in self.parts for row in part.rows)
        target = self.parts[0].graph.plan.targets[device - 1].name
        more = sum(offloaded for _, offloaded in gains)
        return WhatIf(target, operator, self.reason, nodes, sum(gain for gain, _ in gains), more)


def _list_questions(root: GraphPlan) -> list[_Question]:
    """Return the questions that a plan raises, those that may gain most first."""
    parts: dict[_Key, list[_Part]] = {}
    reasons: dict[_Key, set[str]] = {}
    for plan in root.walk():
        graph = _PlacedGraph(plan)
        for key, units in graph.find_refused().items():
            parts.setdefault(key, []).append(_Part(graph, [row for row, _ in units]))
            reasons.setdefault(key, set()).update(reason for _, reason in units)
    questions = [
        _Question(
            key,
            next(iter(reasons[key])) if len(reasons[key]) == 1 else key[2],
            each,
            _sum_bounds(each, key[0]),
        )
        for key, each in parts.items()
    ]
    return sorted(questions, key=lambda question: -question.bound)


def _sum_bounds(parts: Sequence[_Part], device: int) -> float:
    return sum(part.graph.bound_gain(part.rows, device) for part in parts)


def _name_unit(plan: GraphPlan, row: int, device: int) -> str:
    """Return the composite of a unit on a device, or the operators that it is made of there."""
    kinds = plan.index.node_kinds
    units = plan.units[row].on_device[device - 1]
    names = [unit.composite or kinds[unit.nodes[-1]].operator for unit in units]
    return names[0] if len(names) == 1 else " and ".join(dict.fromkeys(names))
