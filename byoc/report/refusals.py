"""Refusals of codegens, as data and as notes."""

from collections.abc import Iterator
from typing import Any

from byoc.graph.marks import is_inserted
from byoc.graph.places import name_nodes
from byoc.plan import Plan, RefusedRegion
from byoc.report.units import format_count

_SHOWN = 5

# A node: the path of its graph, and its number there.
_NodeKey = tuple[str, int]


def make_refusal_documents(plan: Plan) -> list[dict[str, Any]]:
    """Return the refusals before the plan was made: target, region, codegen, reason, nodes, host, split.

    The region is one of the plan at that time. `nodes` are the names or first outputs of the nodes that
    the target does not get, and `host` is how many nodes are on the host because of it; a node counts
    only for the first refusal. `split` is the most nodes that regions have since one was too large, else
    null.
    """
    counted = set[_NodeKey]()
    return [
        {
            "target": each.target,
            "region": each.region,
            "codegen": each.codegen,
            "reason": each.reason,
            "nodes": list(each.nodes),
            "host": _count_on_host(plan, each, counted),
            "split": each.split or None,
        }
        for each in plan.refusals
    ]


def make_refusal_notes(plan: Plan) -> Iterator[str]:
    """Yield a warning for each refused region."""
    for each in plan.refusals:
        if each.split:
            change = f"split into regions of at most {format_count(each.split, 'node')}"
        elif each.nodes:
            names = ", ".join(each.nodes[:_SHOWN])
            more = f" and {len(each.nodes) - _SHOWN} more" if len(each.nodes) > _SHOWN else ""
            change = f"without {names}{more}"
        else:
            change = "without any node"
        yield (
            f"warning: codegen {each.codegen}: {each.region}: {each.reason}; "
            f"{each.target} is planned again {change}"
        )


def _count_on_host(plan: Plan, refused: RefusedRegion, counted: set[_NodeKey]) -> int:
    """Count the nodes that are on the host because of a refusal, and add them to `counted`.

    Nodes that are `counted` already are left out.
    """
    if refused.split:  # nodes that do not fit in smaller regions either have a refusal of their own
        return 0
    number = [target.name for target in plan.targets].index(refused.target)
    found = set[_NodeKey]()
    for graph in plan.root.walk():
        names, keys = name_nodes(graph.index, graph.path), set(refused.nodes)
        for row, label in enumerate(graph.placement.labels.tolist()):
            if label == 0 and graph.graph_problem.kept_on_host[number].get(row) == refused.why:
                nodes = (n for n in graph.units[row].nodes if not is_inserted(graph.index.nodes[n]))
                found.update((graph.path, n) for n in nodes if not keys or names.get(n) in keys)
    found -= counted
    counted |= found
    return len(found)
