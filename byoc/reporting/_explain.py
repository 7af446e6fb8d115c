"""Explaining a model: every graph annotated and grouped, and the reasons for each refused node."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property

from onnx import NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import build_tasks, load_host_costs, sum_host_seconds
from byoc.errors import Cause, CauseKind, InputError, list_causes, suggest_nearest
from byoc.model import (
    GraphIndex,
    Model,
    describe_node,
    get_node_name,
    get_operator_name,
    is_dequantize,
    is_qdq_node,
    unshare_dequantize,
    walk_graph_paths,
)
from byoc.patterns import (
    Mark,
    Match,
    NearMiss,
    Unit,
    filter_allowed,
    find_matches,
    find_near_misses,
    free_nodes,
    group_matches,
    group_units,
)
from byoc.planning import (
    NodeSplitter,
    clean_for_targets,
    explain_form_change,
    find_sizes,
    takes_float,
)
from byoc.reporting._requirements import ExplainOptions
from byoc.rules import (
    MISSING_OPERATOR,
    Annotator,
    Attempt,
    Objection,
    Target,
    drop_constraint,
    is_for_want_of_sizes,
    load_rules,
    operators_concerned,
)
from byoc.support import report_each, report_step, take_keywords
from byoc.zoo import Source, load_model

# The explanation of a model for an accelerator, graph by graph.


@dataclass(frozen=True, eq=False)
class RefusedNode:
    """A node that the accelerator does not support.

    `graph_path` is that of the body that contains it, empty for the main graph. `attempts` are the rules
    that were tried, the nearest first; they include the grouper's reasons if a rule accepts the node and
    it is refused nevertheless. `reasons` are those of the first attempt. A DequantizeLinear or
    QuantizeLinear that goes with a refused operator has no attempts. `operations` is the compute of the
    node.
    """

    graph_path: str
    index: GraphIndex
    number: int
    attempts: tuple[Attempt, ...]
    reasons: tuple[Objection, ...]
    operations: float

    @property
    def name(self) -> str:
        """The node's name, or its first output."""
        return get_node_name(self.index.nodes[self.number])

    @property
    def op(self) -> str:
        """The operator, as rule files write it."""
        return get_operator_name(self.index.nodes[self.number])


@dataclass(frozen=True, eq=False)
class RefusedPart:
    """A part of a refused node that the accelerator refuses, with the reasons of the nearest rule."""

    op: str
    reasons: tuple[Objection, ...]


@dataclass(frozen=True, eq=False)
class NodeInParts:
    """A refused node as the operators that its function body has: how many, and those refused."""

    op: str
    parts: int
    refused: tuple[RefusedPart, ...]


@dataclass(frozen=True, eq=False)
class GraphExplanation:
    """The explanation of one graph: the main graph, or the body at `graph_path`."""

    graph_path: str
    index: GraphIndex
    marks: Sequence[Mark]
    units: Sequence[Unit]
    near_misses: Sequence[NearMiss]
    operations: Mapping[int, float]
    quantized: bool
    """True if the target has rules for quantized operators."""

    @cached_property
    def unit_of(self) -> dict[int, Unit]:
        """The unit of each node that is not constant."""
        return {number: unit for unit in self.units for number in unit.nodes}

    @cached_property
    def supported_nodes(self) -> Set[int]:
        """The nodes that the accelerator supports."""
        return {number for unit in self.units if unit.verdict for number in unit.nodes}


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of a model for a target. `asked` has pairs of a graph and a node number.

    `sizes` are those that byoc chose for open dimensions, as `partition` does.
    """

    model: Model
    target: Target
    graphs: tuple[GraphExplanation, ...]
    asked: tuple[tuple[GraphExplanation, int], ...]
    refusals: tuple[RefusedNode, ...]
    estimated: float
    """the share of the work, in seconds on the built-in host, whose shapes or operators are not known"""
    sizes: Mapping[str, int] = field(default_factory=dict)
    in_parts: tuple[NodeInParts, ...] = ()
    """the refused nodes that have parts"""

    def __repr__(self) -> str:
        """Return the model, the accelerator and how many kinds of refusals there are."""
        return f"Explanation({self.model!r}, {self.target.name!r}, refusals={len(self.refusals)})"

    @property
    def operations(self) -> float:
        """The compute of all nodes of the model."""
        return sum(sum(graph.operations.values()) for graph in self.graphs)

    @property
    def refused_operations(self) -> float:
        """The compute of the refused nodes."""
        return sum(refusal.operations for refusal in self.refusals)

    @property
    def composites(self) -> dict[str, int]:
        """The number of matches of each composite of the target, in the order of its file."""
        found = Counter(unit.composite for graph in self.graphs for unit in graph.units)
        return {pattern.name: found[pattern.name] for pattern in self.target.patterns}


# The cost model whose seconds weigh what is not known.
_HOST = "host"


@take_keywords(ExplainOptions)
def explain(model: Source | Model, options: ExplainOptions) -> Explanation:
    """Explain which nodes of a model an accelerator refuses, and what would change that.

    `model` is a path, `zoo:NAME`, a protobuf, or what `byoc.load_model` returned.

    Raises InputError when the model or the rules cannot be read, or there is no such node.
    """
    rules = options.rules
    report_step("load model")
    target = rules if isinstance(rules, Target) else load_rules(str(rules))
    target = replace(target, values=options.values)
    loaded = load_model(model, options.dims, options.shapes)
    opened = _explain_cleaned(loaded, target, options)
    if options.dims or options.shapes or options.keep_open:
        return opened
    sizes = find_sizes(loaded)
    if not sizes or not any(map(_wants_sizes, opened.refusals)):
        return opened
    try:
        fixed = _explain_cleaned(load_model(model, sizes), target, options)
    except InputError:  # the model cannot have these sizes, and stays open
        return opened
    is_better = len(fixed.refusals) < len(opened.refusals)
    return replace(fixed, sizes=sizes) if is_better else opened


def _wants_sizes(refusal: "RefusedNode") -> bool:
    """Return whether a node is refused since something is open or unknown."""
    return any(is_for_want_of_sizes(reason.make_cause()) for reason in refusal.reasons)


def _explain_cleaned(model: Model, target: Target, options: ExplainOptions) -> Explanation:
    """Explain which nodes of a model a target refuses, once the model is cleaned up as for a plan.

    Raise InputError if there is no such node as is asked for.
    """
    model = clean_for_targets(model, [target], options.no_passes).model
    report_step("explain")
    node, op = options.node, options.op
    if target.has_quantized_rules:
        model = unshare_dequantize(model)
    graphs = tuple(_explain_graph(path, index, target) for path, index in walk_graph_paths(model.index))
    asked = tuple((graph, number) for graph in graphs for number in _select_nodes(graph, node, op))
    if (node or op) and not asked:
        raise _not_found_error(model, graphs, node, op)
    wanted = {(id(graph), number) for graph, number in asked}
    refused = tuple(
        refusal
        for graph in graphs
        for refusal in find_refused_nodes(graph, Annotator(target, graph.index))
        if (id(graph), refusal.number) in wanted
    )
    guessed, seconds = sum_host_seconds(model.index, load_host_costs(_HOST))
    estimated = guessed / seconds if seconds else 0.0
    parts = tuple(_explain_parts(refused, NodeSplitter(model, (target,), options.no_passes)))
    return Explanation(model, target, graphs, asked, refused, estimated, in_parts=parts)


def _explain_parts(refusals: Iterable[RefusedNode], splitter: NodeSplitter) -> Iterator[NodeInParts]:
    """Yield the refused nodes that have parts, with those parts that the target refuses.

    `partition` places such a node in parts where that pays.
    """
    (target,) = splitter.targets
    known: dict[int, tuple[RefusedPart, ...]] = {}
    for refusal in refusals:
        found = splitter.list_parts(refusal.index, refusal.number)
        if found is None:
            continue
        body, numbers = found
        if id(body) not in known:
            known[id(body)] = tuple(_list_refused_parts(Annotator(target, body), numbers))
        if len(known[id(body)]) < len(numbers):  # else there is nothing to gain by them
            yield NodeInParts(refusal.op, len(numbers), known[id(body)])


def _list_refused_parts(annotator: Annotator, numbers: Iterable[int]) -> Iterator[RefusedPart]:
    for number in numbers:
        mark = annotator.annotate_node(number)
        if takes_float(mark):
            continue
        op = get_operator_name(annotator.index.nodes[number])
        tried = [each for each in annotator.list_attempts(number) if each.objections]
        text = f"{op}: its rule is for quantized operators, and parts are computed in floating point"
        integers = Objection(f"{mark.rule}.quantized", text, cause=CauseKind.QUANTIZATION)
        yield RefusedPart(op, (integers,) if mark.verdict or not tried else tried[0].objections)


def _explain_graph(graph_path: str, index: GraphIndex, target: Target) -> GraphExplanation:
    """Annotate and group one graph."""
    annotator = Annotator(target, index)
    marks = [annotator.annotate_node(number) for number in range(len(index.nodes))]
    operations = build_tasks(index).operations.tolist()
    units = group_units(index, target.patterns, marks)
    matches = [unit.match for unit in units if unit.match is not None]
    return GraphExplanation(
        quantized=target.has_quantized_rules,
        graph_path=graph_path,
        index=index,
        marks=marks,
        units=units,
        near_misses=find_near_misses(index, target.patterns, marks, matches=matches),
        operations={
            number: operations[number]
            for number in range(len(index.nodes))
            if number not in index.constant_nodes
        },
    )


def _select_nodes(graph: GraphExplanation, name: str | None, op: str | None) -> Iterator[int]:
    """Yield the nodes of a graph that have a name or output, and an operator (None: any)."""
    for number in graph.operations:
        node = graph.index.nodes[number]
        if op is not None and op not in (node.op_type, get_operator_name(node)):
            continue
        if name is None or name == node.name or name in filter(None, node.output):
            yield number


def _not_found_error(
    model: Model, graphs: Sequence[GraphExplanation], name: str | None, op: str | None
) -> InputError:
    """Return the error for a node or operator that the model does not have, with the nearest one."""
    nodes = [graph.index.nodes[number] for graph in graphs for number in graph.operations]
    named = [
        node for node in nodes if name is not None and name in (node.name, *filter(None, node.output))
    ]
    if named and op is not None:
        there = ", ".join(dict.fromkeys(map(get_operator_name, named)))
        return InputError(f"{model.source}: '{name}' is of the operator {there}, not {op}")
    if name in model.lost:
        hint = "clean-up dropped it (--no-pass all keeps it)"
        return InputError(f"{model.source}: there is no node '{name}': {hint}")
    known = {node.op_type for node in nodes} | {get_operator_name(node) for node in nodes}
    if op is not None and op not in known:
        return InputError(f"{model.source}: there is no operator {op}{suggest_nearest(op, known)}")
    if op is not None:
        nodes = [node for node in nodes if op in (node.op_type, get_operator_name(node))]
    wanted = f"node '{name}'" if op is None else f"{op} '{name}'"
    return InputError(f"{model.source}: there is no {wanted}{_suggest(str(name), nodes)}")


def _suggest(name: str, nodes: Sequence[NodeProto]) -> str:
    """Return a hint: the nearest name, or the shortest one that contains the same letters and digits."""
    names = {label: None for node in nodes for label in (node.name, *node.output) if label}
    hint = suggest_nearest(name, names)
    letters = _alphanumeric(name)
    if not hint and letters:
        inside = [label for label in names if letters in _alphanumeric(label)]
        hint = f" (did you mean {min(inside, key=len)}?)" if inside else ""
    return hint


def _alphanumeric(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.lower())


# The nodes of a graph that an accelerator refuses, and the reasons.


def find_refused_nodes(graph: GraphExplanation, annotator: Annotator) -> Iterator[RefusedNode]:
    """Yield the nodes of a graph that the accelerator does not support, with the reasons."""
    for unit in graph.units:
        if unit.verdict:
            continue
        neighbour = _refused_neighbour(graph, unit)
        for number in unit.nodes:
            attempts: tuple[Attempt, ...] = ()
            form = graph.index.form_changes.get(number)
            if form is not None:
                change = list_causes(explain_form_change(form))
                reasons: tuple[Objection, ...] = tuple(_object(cause, "") for cause in change)
            elif neighbour is not None:
                near = graph.index.nodes[neighbour]
                text = f"it goes with {describe_node(near)}, which is refused"
                reasons = (Objection("", text, names=(get_node_name(near),)),)
            elif (
                is_qdq_node(graph.index.nodes[number])
                and not graph.marks[number].verdict
                and (unit.verdict.reasons != graph.marks[number].verdict.reasons)
            ):
                reasons = tuple(_object(cause, "") for cause in list_causes(unit.verdict))
            else:
                attempts = _attempts_against(graph, unit, number, annotator)
                reasons = attempts[0].objections
            yield RefusedNode(
                graph.graph_path, graph.index, number, attempts, reasons, graph.operations[number]
            )


def _attempts_against(
    graph: GraphExplanation, unit: Unit, number: int, annotator: Annotator
) -> tuple[Attempt, ...]:
    """Return the rules that refuse a node, and the grouper's reasons if one accepts it."""
    tried = [attempt for attempt in annotator.list_attempts(number) if attempt.objections]
    mark = graph.marks[number]
    if not mark.verdict:
        return tuple(tried)
    key = "standalone" if mark.accepts_plain and not mark.standalone else "quantized"
    reasons = (_object(cause, f"{mark.rule}.{key}") for cause in list_causes(unit.verdict))
    own = Attempt(mark.rule, tuple(reasons))
    if mark.accepts_quantized and not mark.accepts_plain and not _is_near_qdq_node(graph.index, unit):
        return (*tried, own)  # the model is not quantized here, so the rule is not the nearest
    return (own, *tried)


def _object(cause: Cause, location: str) -> Objection:
    """Return a cause that the grouper found as an objection."""
    return Objection(location, cause.text, names=cause.names, cause=cause.kind)


def _is_near_qdq_node(index: GraphIndex, unit: Unit) -> bool:
    """Return whether a DequantizeLinear or QuantizeLinear is in a unit or next to it."""
    return any(
        is_qdq_node(index.nodes[near])
        for number in unit.nodes
        for near in (number, *_producers(index, number), *_consumers(index, number))
        if near not in index.constant_nodes
    )


def _producers(index: GraphIndex, number: int) -> Iterator[int]:
    yield from (index.producers[name] for name in index.nodes[number].input if name in index.producers)


def _consumers(index: GraphIndex, number: int) -> Iterator[int]:
    for name in index.nodes[number].output:
        yield from index.consumers.get(name, ())


def _refused_neighbour(graph: GraphExplanation, unit: Unit) -> int | None:
    """Return the refused operator that a DequantizeLinear or QuantizeLinear belongs to, if any."""
    index, number = graph.index, unit.nodes[0]
    node = index.nodes[number]
    if len(unit.nodes) > 1 or not is_qdq_node(node) or not graph.quantized:
        return None
    neighbours = _consumers(index, number) if is_dequantize(node) else _producers(index, number)
    for other in neighbours:
        if (
            not is_qdq_node(index.nodes[other])
            and other in graph.unit_of
            and other not in graph.supported_nodes
        ):
            return other
    return None


# The gain of relaxing a rule: the nodes and the compute that one constraint keeps off the
# accelerator.
#
# Each constraint that alone refuses a node is dropped from the rules, and the nodes that it may
# concern are annotated and grouped again, so that the reported gain is exact.

_QDQ_OPERATORS = frozenset({"DequantizeLinear", "QuantizeLinear"})
_ConstraintKey = tuple[str, str]
_ChangedMarks = Mapping[int, Mark]


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of dropping one constraint.

    `location` is the path of the constraint in the rule file. `nodes` counts the nodes supported in
    addition, minus those no longer supported; `operations` is their compute; `operators` counts the
    additional ones.
    """

    location: str
    operators: Mapping[str, int]
    nodes: int
    operations: float


def compute_gains(explanation: Explanation) -> list[Gain]:
    """Compute the gain of dropping each constraint that alone refuses a node, the most compute first.

    A constraint on data types becomes `any`; a missing operator gets a rule without constraints. Only
    nodes asked about count. If there are rules for quantized operators, gains of DequantizeLinear and
    QuantizeLinear alone are left out, since these go with the operator between them.
    """
    target = explanation.target
    keys = [
        key
        for key in dict.fromkeys(_sole_constraints(explanation.refusals))
        if drop_constraint(target, *key)
    ]
    rows = {(place, op): Gain(place, {}, 0, 0.0) for place, op in keys}
    for graph in explanation.graphs:
        asked = {number for other, number in explanation.asked if other is graph}
        steps = report_each(keys, lambda key: f"relax {' '.join(map(str, key))}")
        changes = {key: _changed_marks(graph, target, key) for key in steps}
        again = _Regrouping(graph, target, [changed for changed in changes.values() if changed])
        for key, changed in changes.items():
            if changed:
                rows[key] = _add_gain(rows[key], graph, again.supported_nodes(changed) & asked, asked)
    found = [
        replace(gain, operators=_sort_operators(gain.operators, operators_concerned(target, *key) or ()))
        for key, gain in rows.items()
        if gain.nodes > 0
        and not (target.has_quantized_rules and _QDQ_OPERATORS.issuperset(gain.operators))
    ]
    return sorted(
        found, key=lambda gain: (-gain.operations, -gain.nodes, gain.location, *gain.operators)
    )


def _sort_operators(counts: Mapping[str, int], first: Collection[str]) -> dict[str, int]:
    """Sort operators: those that the constraint names, then by count."""
    return dict(sorted(counts.items(), key=lambda item: (item[0] not in first, -item[1], item[0])))


def _sole_constraints(refusals: Iterable[RefusedNode]) -> Iterator[_ConstraintKey]:
    """Yield each constraint that alone makes a rule refuse a node.

    A key is the path of the constraint, and the operator if what is missing is a rule for it.
    """
    for refusal in refusals:
        for attempt in refusal.attempts:
            places = {objection.location for objection in attempt.objections}
            if len(places) == 1:
                place = places.pop()
                yield place, refusal.op if place == MISSING_OPERATOR else ""


def _changed_marks(graph: GraphExplanation, target: Target, key: _ConstraintKey) -> _ChangedMarks:
    """Return the new marks of the nodes whose marks change if a constraint is dropped."""
    rules, ops = drop_constraint(target, *key), operators_concerned(target, *key)
    if rules is None:
        return {}
    annotator = Annotator(rules, graph.index)
    found = {
        number: annotator.annotate_node(number)
        for number in graph.operations
        if ops is None or get_operator_name(graph.index.nodes[number]) in ops
    }
    return {
        number: mark
        for number, mark in found.items()
        if _support_key(mark) != _support_key(graph.marks[number])
    }


def _support_key(mark: Mark) -> tuple[bool, ...]:
    """Return the parts of a mark that decide whether a node is supported."""
    return (
        (True, mark.standalone, mark.accepts_plain, mark.accepts_quantized) if mark.verdict else (False,)
    )


def _add_gain(gain: Gain, graph: GraphExplanation, after: Set[int], asked: Set[int]) -> Gain:
    """Add the gain in one graph, with the supported nodes `after` the change."""
    before = graph.supported_nodes & asked
    new, lost = sorted(after - before), sorted(before - after)
    ops = Counter(gain.operators)
    ops.update(get_operator_name(graph.index.nodes[number]) for number in new)
    operations = sum(graph.operations[n] for n in new) - sum(graph.operations[n] for n in lost)
    nodes = gain.nodes + len(new) - len(lost)
    return Gain(gain.location, dict(ops), nodes, gain.operations + operations)


@dataclass(frozen=True, eq=False)
class _Regrouping:
    """Groups a graph again for each of several changes to its marks."""

    graph: GraphExplanation
    target: Target
    changes: Sequence[_ChangedMarks]

    @cached_property
    def _matches(self) -> Sequence[Match]:
        """Every match under any of the changes, found once since the search takes longest."""
        index = self.graph.index
        free: set[int] = set()
        for changed in self.changes:
            free |= free_nodes(index, self._marks_after(changed))
        return find_matches(index, self.target.patterns, free)

    def supported_nodes(self, changed: _ChangedMarks) -> Set[int]:
        """Return the supported nodes after a change."""
        index, marks = self.graph.index, self._marks_after(changed)
        units = group_matches(index, filter_allowed(index, self._matches, marks), marks)
        return {number for unit in units if unit.verdict for number in unit.nodes}

    def _marks_after(self, changed: _ChangedMarks) -> list[Mark]:
        return [changed.get(number, mark) for number, mark in enumerate(self.graph.marks)]
