"""Gains of supporting more operators: what the best placement gains where refused units are allowed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.errors import Cause, CauseKind, Verdict, list_causes, refuse
from byoc.model import GraphIndex, PlannedSizes, has_function_body
from byoc.placement import (
    CHEAPER_ON_HOST,
    Measure,
    Sensitivity,
    order_canonically,
    reorder_placement,
)
from byoc.planning._break_evens import LIMITS, ActionFinder, edit_targets, measure_need
from byoc.planning._cleaned_graphs import GraphUnits, PinnedNode, PinnedNodes
from byoc.planning._graph_placement import name_units, plan_graphs
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._plan_data import Action, ActionKind, PredictionAtSizes, WhatIf
from byoc.planning._plan_settings import PlanSettings
from byoc.rules import Annotator, Target

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


_MAX_TRIED = 24  # sets of actions, those that may gain most first
# Of minimum cuts: units and entries of tensors. Beyond them a few cuts of each graph are allowed.
_MAX_STEPS = 60_000
_LEAST_CUTS = 3  # minimum cuts, however large the graphs are
_MAX_ROUNDS = 12  # of the relaxation; fewer for large graphs
# A gain is more than the rounding of sums.
_LEAST_SHARE = 1e-9
LEAST_GAIN = 1e-3
"""The share of the objective from which on a gain stands in the summary; less is in the JSON only."""
# Plans with actions done: the summary has as many gains on a screen. Of tiny graphs there are more:
# plans that have so many units together take a few milliseconds.
_MAX_PLANS = 3
_FEW_UNITS = 150  # of all such plans of a tiny graph together
# Units of all these plans together: they take about as long as planning a graph of so many.
_MAX_TRIED_UNITS = 1_000
_OPERATORS = 3  # that are named of units of several

PlanWith = Callable[[Sequence[Action]], GraphPlan | None]
"""Makes the plan of the main graph with some actions done, None where it cannot be made."""

_Key = tuple[int, frozenset[Action] | tuple[str, ...]]
"""A device, and the actions after which it takes units, or what keeps them where none are known."""


def estimate_gains(root: GraphPlan, plan_with: PlanWith | None = None) -> tuple[list[WhatIf], int]:
    """Return the answers to "what if it were supported", the largest gain first.

    Units count together that the same actions settle: a flag, a constraint, a missing rule. Where
    nothing is known that a user can do, those do that are refused for the same reason, whatever nodes
    and tensors it names. Those in bodies count by the trips of their graph. Questions that may gain most
    are asked, 24 at most, and in large graphs fewer: minimum cuts are limited by their size, never by a
    clock. What a refused unit would take is what its device's cost model says of it; none
    that gains nothing is told. With `plan_with` the gain of actions is that of the plan with them done,
    for three of those that may gain a thousandth of the objective, unless the graph is large. With the
    answers comes the number of questions that were left out and may gain as much.
    """
    questions = _list_questions(root)
    graphs = {id(part.graph): part.graph for question in questions for part in question.parts}
    size = sum(graph.sensitivity.round_steps for graph in graphs.values())
    limit = _MAX_STEPS + _LEAST_CUTS * size
    answers: list[tuple[_Question, WhatIf]] = []
    left = 0
    for number, question in enumerate(questions):
        spent = sum(graph.sensitivity.steps for graph in graphs.values())
        if number == _MAX_TRIED or (number and spent + size > limit):
            left = len(questions) - number
            break
        answers.append((question, question.answer()))
    found = [each for _, each in answers]
    if plan_with is not None:
        found = list(_try_actions(root, answers, plan_with))
    least = _LEAST_SHARE * root.placement.cost.total
    told = [each for each in found if each.gain > least]
    told = [each for each in told if not any(_does_with_less(other, each) for other in told)]
    return sorted(told, key=lambda each: (-each.gain, each.operator, each.reason)), left


def _does_with_less(one: WhatIf, other: WhatIf) -> bool:
    """Return whether one answer gains what another does, with some of its actions."""
    fewer = 0 < len(one.actions) < len(other.actions) and {*one.actions} < {*other.actions}
    return fewer and one.target == other.target and one.gain >= other.gain * (1 - _LEAST_SHARE)


def _try_actions(
    root: GraphPlan, answers: Sequence[tuple["_Question", WhatIf]], plan_with: PlanWith
) -> Iterator[WhatIf]:
    """Yield answers with the gains of plans with the actions done, as far as units allow.

    A plan is made where it may gain what the summary tells, and where more changes than what the units
    cost on the device: else it gains what the answer says.
    """
    size = sum(len(graph.units) for graph in root.walk())
    before, least = _count_offloaded(root), LEAST_GAIN * root.placement.cost.total
    tried = 0
    # Of a limit nothing is known but by a plan without it.
    order = sorted(answers, key=lambda each: (not any(map(_is_limit, each[1].actions)), -_rate(*each)))
    for question, each in order:
        is_worth = any(map(_is_limit, each.actions)) or _rate(question, each) >= least
        if each.actions and (is_worth or each.gain > 0) and question.is_known:
            yield each
            continue
        if each.actions and not is_worth:
            continue  # it is not sure, and too little for a plan
        units = (tried + 1) * size
        fits = units <= _FEW_UNITS or (tried < _MAX_PLANS and units <= _MAX_TRIED_UNITS)
        plan = plan_with(each.actions) if each.actions and is_worth and fits else None
        tried += bool(each.actions and is_worth and fits)
        if plan is None:
            yield each
            continue
        names = [target.name for target in plan.targets]
        needs = (
            replace(action, value=str(_measure(action, plan, names))) if _is_limit(action) else action
            for action in each.actions
        )
        gain = root.placement.cost.total - plan.placement.cost.total
        more = _count_offloaded(plan) - before
        yield replace(each, gain=gain, offloaded=more, actions=tuple(needs), tried=True)


def _rate(question: "_Question", answer: WhatIf) -> float:
    """Return about the most that the plan with the actions of an answer gains."""
    return answer.gain if question.is_settled else max(answer.gain, question.bound)


def _is_limit(action: Action) -> bool:
    """Return whether an action sets a limit on placements, whose value is what the plan needs."""
    return action.kind is ActionKind.LIMIT and action.constraint.rpartition(".")[2] in LIMITS


def _measure(action: Action, plan: GraphPlan, names: Sequence[str]) -> int:
    key = action.constraint.rpartition(".")[2]
    return measure_need(key, list(plan.walk()), names.index(action.target))


def _count_offloaded(root: GraphPlan) -> int:
    """Count the nodes on accelerators but for those that byoc inserted."""
    return sum(
        node not in graph.index.inserted_nodes
        for graph in root.walk()
        for region in graph.regions
        for node in region.nodes
    )


@dataclass(frozen=True, eq=False)
class _RefusedUnit:
    """A unit that a device does not take, by number, with the causes and how much work it is."""

    row: int
    causes: tuple[Cause, ...]
    text: str
    seconds: float


@dataclass(frozen=True, eq=False)
class _PlacedGraph:
    """A placed graph and the sensitivity of its placement; units are numbered as in the plan."""

    plan: GraphPlan
    finder: ActionFinder

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

    def find_refused(self) -> Mapping[_Key, list[_RefusedUnit]]:
        """Return the units that a device refuses and that have a cost there, by what would settle it."""
        groups: dict[_Key, list[_RefusedUnit]] = {}
        plan, index = self.plan, self.plan.index
        inserted = index.inserted_nodes | index.form_changes.keys()
        outputs = plan.index.node_outputs
        known = np.isfinite(plan.graph_problem.device_cost).tolist()
        seconds = plan.graph_problem.latency.seconds[:, 0].tolist()
        # Many units have one verdict; it is kept, so that no other gets its identity.
        keys: dict[tuple[int, int, str], tuple[_Key, Verdict]] = {}
        for row, unit in enumerate(plan.units):
            refusing = self._find_refusing(row)
            if not refusing or (inserted and inserted.issuperset(unit.nodes)):
                continue  # what byoc puts at borders costs nothing, and goes with its neighbours
            if not any(plan.index.is_used(name) for node in unit.nodes for name in outputs[node]):
                continue  # nothing reads it, and no accelerator gets it
            for device, verdict in refusing:
                if not known[row][device - 1]:
                    continue
                causes, name = list_causes(verdict), _name_unit(plan, row, device)
                key = id(verdict), device, name
                if key not in keys:
                    keys[key] = (device, self._find_key(causes, name, device)), verdict
                refused = _RefusedUnit(row, causes, str(verdict), seconds[row])
                groups.setdefault(keys[key][0], []).append(refused)
        return groups

    def _find_refusing(self, row: int) -> list[tuple[int, Verdict]]:
        """Return the devices that do not take a unit, each with why: its rules, or its file's limits."""
        limits, found = self.plan.limits.get(row, ()), []
        for device, taken in enumerate(self.plan.units[row].verdicts, 1):
            verdict = taken
            if taken and limits:
                names = "", self.plan.targets[device - 1].name
                verdict = refuse(*(each for each in limits if each.target in names))
            elif taken:
                kept = self.plan.graph_problem.kept_on_host[device - 1].get(row)
                if kept is not None and kept.kind is CauseKind.LIMIT:
                    verdict = refuse(kept)
            if not verdict:
                found.append((device, verdict))
        return found

    def _find_key(
        self, causes: Sequence[Cause], name: str, device: int
    ) -> frozenset[Action] | tuple[str, ...]:
        actions = self.finder.find_all(causes, self.plan.targets[device - 1])
        return actions or (name, *(cause.general_text for cause in causes))

    def keeps_units(self, rows: Sequence[int], device: int) -> bool:
        """Return whether the units stay as they are once a device takes some of them.

        Nodes of composites and of QDQ groups make other units then, and what makes parts of other nodes
        acceptable has these placed in parts. What a strategy does that does not
        weigh costs is not known either, nor where it has not what costs least.
        """
        plan, placement = self.plan, self.plan.placement
        weighs = placement.why_host == CHEAPER_ON_HOST and placement.measure is Measure.total
        least = self.sensitivity.best.cost.total
        nodes = [node for row in rows for node in plan.units[row].nodes]
        return (
            weighs
            and self._bodies[device - 1].issubset(rows)
            and placement.cost.total <= least * (1 + _LEAST_SHARE)
            and len(nodes) == len(rows)
            and not any(self._may_join(node, device) for node in nodes)
        )

    @cached_property
    def _bodies(self) -> Sequence[set[int]]:
        """The units that may be placed in parts, by number: those that each device refuses."""
        units, index = self.plan.units, self.plan.index
        refused = (row for row, unit in enumerate(units) if not all(unit.verdicts))
        divisible = [
            row
            for row in refused
            if any(has_function_body(index, index.nodes[node]) for node in units[row].nodes)
        ]
        return [
            {row for row in divisible if not units[row].verdicts[device]}
            for device in range(len(self.plan.targets))
        ]

    def is_free(self, rows: Sequence[int], device: int) -> bool:
        """Return whether nothing but costs decides on some units, once a device takes them.

        Limits may keep them off it, and a strategy may have everything on a device as soon as it can.
        """
        limits = self.plan.targets[device - 1].rules.limits
        allowed = self.plan.graph_problem.problem.allowed[:, device].copy()
        allowed[rows] = True
        return not allowed.all() and all(getattr(limits, key) is None for key in LIMITS)

    def _may_join(self, node: int, device: int) -> bool:
        """Return whether a node may be part of a composite or a QDQ group, with one next to it."""
        index = self.plan.index
        made = [index.producers[name] for name in index.node_inputs[node] if name in index.producers]
        read = [reader for name in index.node_outputs[node] for reader in index.consumers.get(name, ())]
        kinds = [index.node_kinds[other] for other in (*made, *read)]
        own, near = index.node_kinds[node], {kind.operator for kind in kinds}
        patterns = (
            {op for line in each.lines for op in line.ops}
            for each in self.plan.targets[device - 1].patterns
        )
        return any(kind.is_qdq for kind in (own, *kinds)) or any(
            own.operator in ops and (len(ops) == 1 or near & ops) for ops in patterns
        )

    def is_taken(self, rows: Sequence[int], target: Target) -> bool:
        """Return whether a target, edited by some actions, takes all nodes of units."""
        annotator = Annotator(target, self.plan.index)
        nodes = (node for row in rows for node in self.plan.units[row].nodes)
        return all(annotator.annotate_node(node).verdict for node in nodes)

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
    """The units of a question in one graph."""

    graph: _PlacedGraph
    units: list[_RefusedUnit]

    @property
    def rows(self) -> list[int]:
        return [unit.row for unit in self.units]


@dataclass(frozen=True, eq=False)
class _Question:
    """The units that a device takes after some actions, and about the most that they can gain."""

    key: _Key
    parts: list[_Part]
    bound: float

    @cached_property
    def is_settled(self) -> bool:
        """Whether the actions change no more than what the units cost on the device."""
        device, actions = self.key
        return (
            isinstance(actions, frozenset)
            and all(each.kind in {ActionKind.ADD, ActionKind.RELAX} for each in actions)
            and all(part.graph.keeps_units(part.rows, device) for part in self.parts)
        )

    @property
    def is_known(self) -> bool:
        """Whether the answer is what a plan with the actions done gains: the device takes the units."""
        device, actions = self.key
        if not self.is_settled or not isinstance(actions, frozenset):
            return False
        edited = edit_targets(self.parts[0].graph.plan.targets, actions)
        return edited is not None and all(
            part.graph.is_free(part.rows, device) and part.graph.is_taken(part.rows, edited[device - 1])
            for part in self.parts
        )

    def answer(self) -> WhatIf:
        """Return the gain of the units as they are."""
        device, actions = self.key
        gains = [part.graph.allow_units(part.rows, device) for part in self.parts]
        plans = [part.graph.plan for part in self.parts]
        nodes = sum(len(part.graph.plan.units[row].nodes) for part in self.parts for row in part.rows)
        return WhatIf(
            plans[0].targets[device - 1].name,
            self._name_operators(),
            self._describe(),
            nodes,
            sum(gain for gain, _ in gains),
            sum(offloaded for _, offloaded in gains),
            tuple(sorted(actions)) if isinstance(actions, frozenset) else (),
        )

    def _name_operators(self) -> str:
        device = self.key[0]
        work: dict[str, float] = {}
        for part in self.parts:
            for unit in part.units:
                name = _name_unit(part.graph.plan, unit.row, device)
                work[name] = work.get(name, 0.0) + part.graph.plan.trips * unit.seconds
        names = sorted(work, key=lambda name: (-work[name], name))
        more = len(names) - _OPERATORS
        return ", ".join(names[:_OPERATORS]) + (f" and {more} more" if more > 0 else "")

    def _describe(self) -> str:
        """Return the reason of all units, without names if they differ in these, or of the largest."""
        units = [unit for part in self.parts for unit in part.units]
        if len({unit.text for unit in units}) == 1:
            return units[0].text
        general = {"; ".join(cause.general_text for cause in unit.causes) for unit in units}
        if len(general) == 1:
            return general.pop()
        return max(units, key=lambda unit: (unit.seconds, unit.text)).text


def _list_questions(root: GraphPlan) -> list[_Question]:
    """Return the questions that a plan raises, those that may gain most first."""
    parts: dict[_Key, list[_Part]] = {}
    finder = ActionFinder(root.targets, root.index)
    graphs = [_PlacedGraph(plan, finder) for plan in root.walk()]
    for graph in graphs:
        for key, units in graph.find_refused().items():
            parts.setdefault(key, []).append(_Part(graph, units))
    questions = []
    for key in parts:
        together = list(_join_parts(parts, key))
        bound = sum(part.graph.bound_gain(part.rows, key[0]) for part in together)
        questions.append(_Question(key, together, bound))
    return sorted(questions, key=lambda question: -question.bound)


def _join_parts(parts: Mapping[_Key, list[_Part]], wanted: _Key) -> Iterator[_Part]:
    """Yield the units that actions settle, for each graph: those that need no others than these."""
    device, actions = wanted
    if not isinstance(actions, frozenset):
        yield from parts[wanted]
        return
    found: dict[int, _Part] = {}
    for (other, needed), each in parts.items():
        if other == device and isinstance(needed, frozenset) and needed <= actions:
            for part in each:
                known = found.setdefault(id(part.graph), _Part(part.graph, []))
                known.units.extend(part.units)
    yield from found.values()


def _name_unit(plan: GraphPlan, row: int, device: int) -> str:
    """Return the composite of a unit on a device, or the operators that it is made of there."""
    kinds = plan.index.node_kinds
    units = plan.units[row].on_device[device - 1]
    names = [unit.composite or kinds[unit.nodes[-1]].operator for unit in units]
    return names[0] if len(names) == 1 else " and ".join(dict.fromkeys(names))
