"""What codegens did not take, as data and in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from byoc.graph.marks import is_ours
from byoc.graph.places import node_names
from byoc.plan import Plan, Refused
from byoc.report.units import count

_SHOWN = 5

# A node: where its graph is, and its number there.
_Place = tuple[str, int]


def refusals(plan: Plan) -> list[dict[str, Any]]:
    """Return what was refused before a plan was made: target, region, codegen, reason, nodes, ...

    The region is one of the plan at that time. `nodes` are those that the target does not get, by name
    or first output, and `host` how many nodes are on the host for it, each counted for the first alone
    that sent it there; `split` is the most nodes that regions have instead where one was too large,
    else null.
    """
    counted = set[_Place]()
    return [
        {
            "target": each.target,
            "region": each.region,
            "codegen": each.codegen,
            "reason": each.reason,
            "nodes": list(each.nodes),
            "host": _on_host(plan, each, counted),
            "split": each.split or None,
        }
        for each in plan.refusals
    ]


def refusal_notes(plan: Plan) -> Iterator[str]:
    """Yield a warning for each region that was refused."""
    for each in plan.refusals:
        if each.split:
            what = f"split into regions of at most {count(each.split, 'node')}"
        elif each.nodes:
            names = ", ".join(each.nodes[:_SHOWN])
            more = f" and {len(each.nodes) - _SHOWN} more" if len(each.nodes) > _SHOWN else ""
            what = f"without {names}{more}"
        else:
            what = "without any node"
        yield (
            f"warning: codegen {each.codegen}: {each.region}: {each.reason}; "
            f"{each.target} is planned again {what}"
        )


def returned(refused: Sequence[Mapping[str, Any]]) -> str:
    """Return how many nodes went back to the host, for whom and why, with `; ` behind it; else ""."""
    back = [each for each in refused if each["host"]]
    if not back:
        return ""
    reasons = dict.fromkeys(f"codegen {each['codegen']}: {each['reason']}" for each in back)
    first, *others = reasons
    more = f", and {count(len(others), 'other reason')}" if others else ""
    nodes = count(sum(each["host"] for each in back), "node")
    return f"{nodes} went back to the host: {first}{more}; "


def _on_host(plan: Plan, refused: Refused, counted: set[_Place]) -> int:
    """Return how many nodes more are on the host that a target would have had without a refusal.

    Those that are `counted` already are not counted again, and the others are added to it.
    """
    if refused.split:  # what does not fit in smaller regions either has a refusal of its own
        return 0
    number = [target.name for target in plan.targets].index(refused.target)
    found = set[_Place]()
    for graph in plan.root.walk():
        names, keys = node_names(graph.index, graph.place), set(refused.nodes)
        for row, label in enumerate(graph.placement.labels.tolist()):
            if label == 0 and graph.posed.kept[number].get(row) == refused.why:
                nodes = (n for n in graph.units[row].nodes if not is_ours(graph.index.nodes[n]))
                found.update((graph.place, n) for n in nodes if not keys or names.get(n) in keys)
    found -= counted
    counted |= found
    return len(found)
