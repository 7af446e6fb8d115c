"""Sentences on a plan's costs: estimates and their causes, state that is not sent."""

from collections import Counter
from collections.abc import Iterator

from byoc.costs import is_counted
from byoc.model import GraphIndex, describe_node, find_type_origin, fix_type
from byoc.planning import GraphPlan, Plan
from byoc.reporting._quantities import format_count, format_quantity, format_share
from byoc.support import Note

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
