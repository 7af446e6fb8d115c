"""Break-evens: what would have to change where the host runs supported units more cheaply."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.costs import PlacementDevice, transfer_prices
from byoc.errors import Cause, CauseKind, InputError
from byoc.model import FLOAT_DTYPES, GraphIndex, fix_type
from byoc.patterns import ANY_OPERATOR
from byoc.placement import (
    Ints,
    Placement,
    Problem,
    Strategy,
    count_transferred_bytes,
    evaluate,
    find_components,
    limit_time,
)
from byoc.planning._graph_plan import GraphPlan, PlannedRegion
from byoc.planning._memory_fit import measure_memory
from byoc.planning._plan_data import Action, ActionKind, BreakEven
from byoc.planning._plan_settings import PlanSettings
from byoc.rules import MISSING_OPERATOR, Target, drop_constraint, write_quantized

# The hard limits of rule files that keep supported units on the host: needs, and what is allowed.
#
# A strategy says of a unit that it is on the host, and not by which limit. So a graph is placed
# again without the limits, then without each of them, and what moves to an accelerator then is told
# to be held back by that one. Nothing is placed again where all that is supported is on
# accelerators, or where there are no limits.

LIMITS = ("memory", "min_nodes", "max_nodes", "regions")
"""The keys of `limits` in a rule file that hold for placements; `batch` holds for nodes."""

_PREFIX = "limits."
# Counted seconds of a search, of which there may be one for each limit and for each action.
_MOST_SECONDS = 1.0
# More than any accelerator has; without a limit bytes would not be counted.
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit that a target's rule file sets."""

    target: str
    key: str


def shorten_search(strategy: Strategy) -> Strategy:
    """Return a strategy for plans that only explain another: one that counts time takes a second."""
    limit = getattr(strategy, "time_limit", None)
    if not isinstance(limit, (int, float)) or limit <= _MOST_SECONDS:
        return strategy
    return limit_time(strategy, _MOST_SECONDS)


def drop_limits(target: Target, keys: Sequence[str]) -> Target:
    """Return a target without some of its limits; of memory it then has more than any model needs."""
    free = {key: _MOST_BYTES if key == "memory" else None for key in keys}
    limits = target.rules.limits.model_copy(update=free)
    return replace(target, rules=target.rules.model_copy(update={"limits": limits}))


def explain_limits(
    plan: GraphPlan, settings: PlanSettings, place: Callable[[PlanSettings], GraphPlan]
) -> Mapping[int, tuple[Cause, ...]]:
    """Return the limits that keep units of a plan on the host, by the number of the unit.

    `place` places the graph with other settings. Where no limit alone does it, there are all that are
    set.
    """
    limits = [
        _Limit(target.name, key)
        for target in settings.targets
        for key in LIMITS
        if getattr(target.rules.limits, key) is not None
    ]
    held = _find_held(plan) if limits else frozenset[int]()
    if not held:
        return {}
    free = _place_without(limits, settings, place)
    left = held - (held if free is None else _find_held(free))
    if free is None or not left:
        return {}
    found: dict[int, tuple[Cause, ...]] = {}
    for limit in limits if len(limits) > 1 else ():
        other = _place_without([limit], settings, place)
        if other is not None:
            rows = left - _find_held(other) - found.keys()
            found |= dict.fromkeys(rows, (_make_cause(limit, settings, other),))
    together = tuple(_make_cause(limit, settings, free) for limit in limits)
    return dict.fromkeys(left - found.keys(), together) | found


def _find_held(plan: GraphPlan) -> frozenset[int]:
    """Return the units on the host that limits alone may keep off an accelerator."""
    rows = set(np.flatnonzero(plan.placement.labels == 0).tolist()) - plan.pins.keys()
    return frozenset(row for row in rows if any(_may_be_on(plan, row)))


def _may_be_on(plan: GraphPlan, row: int) -> Iterator[bool]:
    """Yield for each accelerator whether limits alone may keep a unit off it."""
    for verdict, kept in zip(plan.units[row].verdicts, plan.graph_problem.kept_on_host, strict=True):
        yield bool(verdict) and (row not in kept or kept[row].kind is CauseKind.LIMIT)


def _place_without(
    limits: Sequence[_Limit], settings: PlanSettings, place: Callable[[PlanSettings], GraphPlan]
) -> GraphPlan | None:
    """Return the plan without some limits, None where the strategy finds none."""
    targets = tuple(
        drop_limits(target, [limit.key for limit in limits if limit.target == target.name])
        for target in settings.targets
    )
    try:
        strategy = shorten_search(settings.strategy)
        free = replace(settings, targets=targets, strategy=strategy, doubt=None, names_limits=False)
        return place(free)
    except InputError:  # of a strategy that fails without limits nothing is told
        return None


def _make_cause(limit: _Limit, settings: PlanSettings, free: GraphPlan) -> Cause:
    """Return a limit as a cause, with what the plan without it needs."""
    number = [target.name for target in settings.targets].index(limit.target)
    allowed = getattr(settings.targets[number].rules.limits, limit.key)
    need = measure_need(limit.key, [free], number)
    sentences = {
        "memory": f"{limit.target} would need {need} bytes, and has {allowed}",
        "min_nodes": f"its region would have {need} nodes, and {allowed} are the fewest",
        "max_nodes": f"its region would have {need} nodes, and {allowed} are the most",
        "regions": f"{limit.target} would have {need} regions, and {allowed} are the most",
    }
    return Cause(
        CauseKind.LIMIT,
        f"{_PREFIX}{limit.key}: {sentences[limit.key]}",
        constraint=f"{_PREFIX}{limit.key}",
        value=str(need),
        allowed=str(allowed),
        target=limit.target if len(settings.targets) > 1 else "",
    )


def measure_need(key: str, graphs: Sequence[GraphPlan], number: int) -> int:
    """Return the need of placed graphs for a limit on an accelerator, by its place in the targets.

    That is the bytes of all constants and the largest arena, the nodes of the smallest or of the largest
    region, or the number of regions.
    """
    target = graphs[0].targets[number].name
    regions = [region for graph in graphs for region in graph.regions if region.target.name == target]
    if key == "memory":
        memory = measure_memory(regions)
        return 0 if memory is None else int(memory.total)
    if key == "regions":
        return len(regions)
    sizes = [len(region.nodes) for region in regions]
    return (min if key == "min_nodes" else max)(sizes, default=0)


# Actions of a user by which a device takes more: edits of rule files, and flags, as data.

QUANTIZED_RULE = "quantized: true"
"""The value of an action that adds a rule for a quantized operator."""
_ASSUME = Action(ActionKind.FLAG, flags=("--values", "assumed"))


@dataclass(frozen=True, eq=False)
class ActionFinder:
    """Finds the actions that take causes away, for the targets of a plan of a model.

    `index` is that of the main graph.
    """

    targets: Sequence[Target]
    index: GraphIndex

    def find_all(self, causes: Iterable[Cause], target: Target) -> frozenset[Action]:
        """Return the actions that take all of some causes away together, none where nothing is known."""
        found = [self.find_actions(cause, target) for cause in causes]
        return frozenset(action for each in found for action in each) if all(found) else frozenset()

    def find_actions(self, cause: Cause, target: Target) -> tuple[Action, ...]:
        """Return the actions that take a cause away together, none where nothing is known."""
        name, place, plain = target.name, cause.constraint, not self._is_quantized
        found: tuple[Action, ...] = ()
        match cause.kind:
            case CauseKind.OPERATOR:
                value = QUANTIZED_RULE if takes_integers_alone(target) else ""
                found = (Action(ActionKind.ADD, name, cause.operator, MISSING_OPERATOR, value),)
            case CauseKind.SIZE:
                found = self._give_sizes(cause.flags)
            case CauseKind.VALUES:
                found = (_ASSUME,)
            case CauseKind.LIMIT:
                found = (_set_limit(name, cause),)
            case CauseKind.QUANTIZATION:
                found = (_quantize(target),) if plain else ()
            case CauseKind.CONSTRAINT if plain and is_float_for_integers(cause):
                if takes_quantized(target, cause.operator):
                    found = (_quantize(target),)
                elif not target.has_quantized_rules:
                    found = (Action(ActionKind.QUANTIZED, name, constraint="ops"), _quantize(target))
            case CauseKind.CONSTRAINT | CauseKind.HOST | CauseKind.COMPOSITE:
                if self._can_drop(target, place, cause.operator):
                    found = (Action(ActionKind.RELAX, name, constraint=place),)
        return found

    def _give_sizes(self, flags: Iterable[str]) -> tuple[Action, ...]:
        """Return the flags with the sizes that the plan counts with; none where it has none."""
        sizes, given = self.index.planned.sizes, list[str]()
        for flag in flags:
            option, _, wanted = flag.partition(" ")
            name = wanted.partition("=")[0]
            if option != "--dim" or name not in sizes:
                return ()
            given += [option, f"{name}={sizes[name]}"]
        return (Action(ActionKind.FLAG, flags=tuple(given)),)

    def _can_drop(self, target: Target, place: str, operator: str) -> bool:
        """Return whether the rules of a target can do without the constraint at a place."""
        key = target.name, place, operator
        if key not in self._droppable:  # many nodes are refused by one constraint
            self._droppable[key] = drop_constraint(target, place, operator) is not None
        return self._droppable[key]

    @cached_property
    def _droppable(self) -> dict[tuple[str, str, str], bool]:
        return {}

    @cached_property
    def _is_quantized(self) -> bool:
        return any(kind.is_qdq for kind in {*self.index.node_kinds})


def is_float_for_integers(cause: Cause) -> bool:
    """Return whether a node computes in floating point where a target computes in integers alone."""
    allowed = cause.allowed.split(", ")
    return cause.value in FLOAT_DTYPES and all("int" in dtype for dtype in allowed)


def takes_quantized(target: Target, operator: str) -> bool:
    """Return whether a rule of a target is for a quantized operator."""
    rules = (rule.op for rule in target.rules.ops if rule.quantized)
    return any(operator in ops or ANY_OPERATOR in ops for ops in rules)


def takes_integers_alone(target: Target) -> bool:
    """Return whether a target has rules for quantized operators, and takes none in floating point."""
    return target.has_quantized_rules and all("int" in dtype for dtype in target.rules.dtype)


def get_integer_dtype(target: Target) -> str:
    """Return the type of activations that a target's rule file asks for first."""
    part = target.rules.quantization.activations
    dtypes: Collection[str] = (part.dtype if part is not None else None) or target.rules.dtype or ()
    return next((dtype for dtype in dtypes if "int" in dtype), "int8")


def _quantize(target: Target) -> Action:
    flags = ("--quantize", get_integer_dtype(target), "--data", "FOLDER")
    return Action(ActionKind.FLAG, flags=flags)


def _set_limit(target: str, cause: Cause) -> Action:
    """Return the action that widens a limit; what a placement needs of one is known of a whole plan."""
    known = cause.constraint.rpartition(".")[2] not in LIMITS
    value = cause.value if known else ""
    return Action(ActionKind.LIMIT, target, constraint=cause.constraint, value=value)


def edit_targets(targets: Sequence[Target], actions: Iterable[Action]) -> tuple[Target, ...] | None:
    """Return targets with rule files edited as some actions say; None where one cannot be.

    A limit is left out, whatever its value is to be. Flags edit nothing but `--values`.
    """
    found = list(targets)
    for action in actions:
        for number, target in enumerate(found):
            if action == _ASSUME:
                found[number] = replace(target, values="assumed")
            if action.target != target.name:
                continue
            edited = _edit(target, action)
            if edited is None:
                return None
            found[number] = edited
    return tuple(found)


def _edit(target: Target, action: Action) -> Target | None:
    match action.kind:
        case ActionKind.LIMIT:
            return drop_limits(target, [action.constraint.rpartition(".")[2]])
        case ActionKind.QUANTIZED:
            return write_quantized(target)
    is_quantized = action.value == QUANTIZED_RULE
    return drop_constraint(target, action.constraint, action.operator, quantized=is_quantized)


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
