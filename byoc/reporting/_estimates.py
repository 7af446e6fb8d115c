"""Sentences on a plan's costs: estimates and their causes, state that is not sent."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from byoc.bundle import ValueCondition, ValuePromise
from byoc.console import format_count, format_quantity, format_share
from byoc.costs import is_counted
from byoc.model import (
    GraphIndex,
    describe_node,
    find_type_origin,
    fix_type,
    get_node_name,
    get_operator_name,
)
from byoc.planning import GraphPlan, Plan
from byoc.rules import Arithmetic, Target, list_conditions
from byoc.support import Note

# The arithmetic contracts of targets in a report, and the conditions under which nodes are right.

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SHOWN = 4  # operators in a sentence

# Where a promise has a meaning: operators, or data types.
_SELECTING = ("TopK", "ArgMax", "ArgMin", "MaxPool", "Hardmax", "NonMaxSuppression", "Unique")
_ROUNDING = ("Round", "QuantizeLinear", "DynamicQuantizeLinear", "Cast", "CastLike", "Resize")

_AS_DEFINED = ("kept", "first", "even")

Nodes = Sequence[tuple[GraphIndex, int]]
"""Nodes of graphs, those of bodies among them."""


def list_placed_nodes(plan: Plan, target: Target) -> Nodes:
    """Return the nodes in the regions of a target, with those in their bodies."""
    found: list[tuple[GraphIndex, int]] = []
    for region in plan.regions:
        if region.target is target:
            found += _enter_bodies((region.index, number) for number in region.nodes)
    return found


def _enter_bodies(nodes: Iterable[tuple[GraphIndex, int]]) -> Iterator[tuple[GraphIndex, int]]:
    for index, number in nodes:
        yield index, number
        for body in index.bodies.get(number, ()):
            for inner in body.index.walk():
                yield from ((inner, each) for each in range(len(inner.nodes)))


def find_promises(target: Target, nodes: Nodes) -> tuple[ValuePromise, ...]:
    """Return a target's promises that are weaker than ONNX's definition, each with its operators."""
    contract = target.arithmetic
    if not contract.clauses:
        return ()
    types: dict[str, set[str]] = {}
    for index, number in nodes:
        kind = index.node_kinds[number]
        names = (*index.node_inputs[number], *index.node_outputs[number])
        known = types.setdefault(kind.operator, set())
        known.update(dtype for name in names if (dtype := index.get_dtype(name)))
    found: dict[tuple[str, str], dict[str, None]] = {}
    for op, dtypes in types.items():
        for dtype in sorted(dtypes):
            for promise, value in _list_weaker(contract.resolve(op, dtype), op, dtype):
                found.setdefault((promise, value), {})[op] = None
    return tuple(
        ValuePromise(target=target.name, promise=promise, value=value, operators=tuple(sorted(ops)))
        for (promise, value), ops in sorted(found.items())
    )


def _list_weaker(resolved: Arithmetic, op: str, dtype: str) -> Iterator[tuple[str, str]]:
    """Yield the promises that are weaker than ONNX's definition, where they mean something."""
    meant: dict[str, str] = {"computes": resolved.computes} if resolved.computes else {}
    if dtype in _FLOATS:
        meant |= {"nan": resolved.nan, "infinities": resolved.infinities}
        meant |= {"denormals": resolved.denormals}
    if op in _SELECTING:
        meant["equal_keys"] = resolved.equal_keys
    if op in _ROUNDING or "QLinear" in op:
        meant["halves"] = resolved.halves
    yield from ((name, value) for name, value in meant.items() if value not in _AS_DEFINED)


def find_value_conditions(target: Target, nodes: Nodes) -> tuple[ValueCondition, ...]:
    """Return the conditions on which nodes of a target are right, where values are assumed to fit."""
    if target.values != "assumed" or not target.arithmetic.limits_values:
        return ()
    numbers: dict[int, tuple[GraphIndex, list[int]]] = {}
    for index, number in nodes:
        numbers.setdefault(id(index), (index, []))[1].append(number)
    found: dict[str, list[str]] = {}
    for index, own in numbers.values():
        for number, condition in list_conditions(index, target, own):
            node = index.nodes[number]
            found.setdefault(condition.text, []).append(
                f"{get_operator_name(node)} '{get_node_name(node)}'"
            )
    return tuple(
        ValueCondition(target=target.name, condition=text, nodes=tuple(names))
        for text, names in found.items()
    )


_NOT_KEPT = {
    "nan": "NaN",
    "infinities": "infinities",
    "denormals": "denormal floats",
    "equal_keys": "which of equal keys is first",
    "halves": "how exact halves are rounded",
}


def format_promises(promises: Sequence[ValuePromise]) -> Iterator[str]:
    """Yield a line for each target: in what it computes, and what values it does not keep."""
    for target in dict.fromkeys(each.target for each in promises):
        own = {each.promise: each for each in promises if each.target == target}
        parts = [
            f"computes in {each.value} ({_name(each)})"
            for each in promises
            if each.target == target and each.promise == "computes"
        ]
        lost = [f"{text} ({_name(own[name])})" for name, text in _NOT_KEPT.items() if name in own]
        if lost:
            parts.append(f"does not keep {', '.join(lost)}")
        yield f"{target} {', and '.join(parts)}"


def _name(promise: ValuePromise) -> str:
    shown = ", ".join(promise.operators[:_SHOWN])
    more = len(promise.operators) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def format_conditions(conditions: Sequence[ValueCondition]) -> Iterator[str]:
    """Yield a line for each condition on which an accelerator is right."""
    for each in conditions:
        more = f" and {len(each.nodes) - 1} more" if len(each.nodes) > 1 else ""
        yield f"{each.target} is right where {each.condition}: {each.nodes[0]}{more}"


ESTIMATE_LIMIT = 0.1
"""A plan whose work is an estimate by more than this share gets a warning."""


def make_estimate_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning if more than a tenth of the work is an estimate.

    It names the node or graph input behind which the types of most of that work are not known, the first
    of a chain, and what settles it.
    """
    share = plan.estimated_share
    if share <= ESTIMATE_LIMIT:
        return
    seconds: dict[str, float] = {}
    nodes: dict[str, int] = {}
    for graph in plan.root.walk():
        for cause, taken, count in _list_causes(graph):
            seconds[cause] = seconds.get(cause, 0.0) + graph.trips * taken
            nodes[cause] = nodes.get(cause, 0) + count
    first = max(seconds, key=lambda cause: seconds[cause])
    others = len(seconds) - 1
    more = f", and {format_count(others, 'other cause')}" if others else ""
    yield Note(
        "warning",
        f"{format_share(share)} of the work (the host's predicted time) is an estimate: {first}; it "
        f"concerns {format_count(nodes[first], 'node')}{more}",
    )


def describe_unknown_costs(root: GraphPlan) -> str:
    """Return a sentence on costs that models did not know, bodies included; empty if there are none.

    It has the most frequent reason, and names a cost model that knew nothing of what it was asked.
    """
    graphs = [graph.graph_problem for graph in root.walk()]
    rough = sum(graph.estimated for graph in graphs)
    if not rough:
        return ""
    reasons: Counter[tuple[str, str]] = Counter()
    asked: Counter[str] = Counter()
    for answers in (each for graph in graphs for each in graph.answers):
        asked[answers.model] += answers.asked
        for why, count in answers.unknown.items():
            reasons[answers.model, why] += count
    (model, why), _ = reasons.most_common(1)[0]
    others = len(reasons) - 1
    more = f", and {format_count(others, 'other reason')}" if others else ""
    units = format_count(rough, "unit")
    unknown = Counter[str]()
    for (name, _), count in reasons.items():
        unknown[name] += count
    nothing = [name for name, count in unknown.items() if 1 < count == asked[name]]
    knew = f"; {' and '.join(nothing)} knew none of the costs that it was asked for" if nothing else ""
    reason = why if why.startswith(model) else f"{model}: {why}"
    return f"the cost of {units} is an estimate: {reason}{more}{knew}"


def _list_causes(graph: GraphPlan) -> Iterator[tuple[str, float, int]]:
    """Yield for each unit whose cost is an estimate the cause, its seconds, and its number of nodes."""
    rows = zip(graph.units, graph.graph_problem.estimated_seconds.tolist(), strict=True)
    for unit, taken in rows:
        if taken and unit.nodes[0] not in graph.bodies:
            found = (_find_cause(graph.index, node) for node in unit.nodes)
            yield next(filter(None, found), _NO_CAUSE), taken, len(unit.nodes)


_NO_CAUSE = "an operator is not counted (a cost model that has it)"


def _find_cause(index: GraphIndex, number: int) -> str:
    """Return why the work of a node is not known, empty if its types are known and it is counted."""
    node = index.nodes[number]
    origin = find_type_origin(index, (*node.input, *node.output))
    if origin is not None:
        return str(origin)
    for body in index.bodies.get(number, ()):
        inside = (_find_cause(body.index, inner) for inner in range(len(body.index.nodes)))
        if found := next(filter(None, inside), ""):
            return found
    if is_counted(node):
        return ""
    return f"the work of {describe_node(node)} is not counted (a cost model that has the operator)"


def describe_kept_state(root: GraphPlan) -> str:
    """Return a sentence on the state that stays on accelerators between calls; empty for none."""
    labels = root.placement.labels.tolist()
    kept = [each for each in root.graph_problem.kept_state if labels[each.unit] - 1 in each.accelerators]
    if not kept:
        return ""
    names = dict.fromkeys(root.targets[labels[each.unit] - 1].name for each in kept)
    kinds = (root.index.types.get(each.pair.past) for each in kept)
    sizes = [fix_type(kind, root.index.planned.sizes).bytes for kind in kinds if kind is not None]
    known = sum(size for size in sizes if size is not None)
    others = f" and {format_count(len(kept) - 1, 'other')}" if len(kept) > 1 else ""
    return (
        f"the state stays on {' and '.join(names)} between calls and is not counted as sent: "
        f"'{kept[0].pair.past}'{others}, {format_quantity(known, 'B')}"
    )
