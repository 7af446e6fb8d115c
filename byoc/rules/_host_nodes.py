"""Nodes that a rule file keeps on the host: by operator, name, batch, or downstream of such nodes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from byoc.errors import CauseKind
from byoc.model import GraphIndex, describe_node, get_node_name, get_operator_name
from byoc.rules._objections import Objection, ObjectionKind, make_unknown
from byoc.rules._rule_loading import Target
from byoc.rules._rule_schema import Host, Nodes, RuleFile
from byoc.support.expressions import matches


@dataclass(frozen=True, slots=True)
class _HostMatch:
    """A match of a node in `host`: the location of the entry, and the node as told, and by name."""

    location: str
    display_name: str
    node: str


def find_host_nodes(
    index: GraphIndex, host: Host, place: Callable[[str], str]
) -> Mapping[int, Objection]:
    """Return the reasons for all nodes that stay on the host.

    `place` maps a location in the merged rules to one in a file. Nodes in the bodies of a downstream
    node are downstream, too.
    """
    result: dict[int, Objection] = {}
    if host.after.ops or host.after.names:
        for number, source in _find_downstream(index, host.after, place).items():
            text = f"it is downstream of {source.display_name}, after which all stays on the host"
            result[number] = _keep(source, text)
    if host.ops or host.names:
        for number, node in enumerate(index.nodes):
            chosen = _match_node(node, host, "host", place)
            if chosen is not None:
                text = f"{chosen.display_name} is kept on the host"
                result[number] = _keep(chosen, text)
    return result


def _keep(match: _HostMatch, text: str) -> Objection:
    return Objection(
        match.location, text, ObjectionKind.OPERATOR, names=(match.node,), cause=CauseKind.HOST
    )


def is_kept_whole(node: NodeProto, rules: RuleFile) -> bool:
    """Return whether a file wants a node whole: it keeps it so, or speaks of it under `host`."""
    name = get_operator_name(node)
    host = rules.host
    if name in (*rules.keep, *host.ops, *host.after.ops):
        return True
    return any(matches(pattern, node.name) for pattern in (*host.names, *host.after.names))


def _match_node(
    node: NodeProto, nodes: Nodes, prefix: str, place: Callable[[str], str]
) -> _HostMatch | None:
    name = get_operator_name(node)
    if name in nodes.ops:
        location = place(f"{prefix}.ops[{nodes.ops.index(name)}]")
        return _HostMatch(location, name, get_node_name(node))
    for position, pattern in enumerate(nodes.names):
        if matches(pattern, node.name):
            location = place(f"{prefix}.names[{position}]")
            return _HostMatch(location, f"the name '{node.name}'", node.name)
    return None


def _find_downstream(
    index: GraphIndex, after: Nodes, place: Callable[[str], str]
) -> dict[int, _HostMatch]:
    around = _find_outer_source(index, after, place)
    if around is not None:
        return dict.fromkeys(range(len(index.nodes)), around)
    found: dict[int, _HostMatch] = {}
    pending: list[tuple[int, _HostMatch]] = []
    for number in range(len(index.nodes)):
        source = next(_find_sources(index, number, after, place), None)
        if source is not None:
            pending.append((number, source))
    for number, source in pending:  # grows while it is walked
        for tensor in index.nodes[number].output:
            for reader in index.consumers.get(tensor, ()):
                if reader not in found:
                    found[reader] = source
                    pending.append((reader, source))
    return found


def _find_sources(
    index: GraphIndex, number: int, after: Nodes, place: Callable[[str], str]
) -> Iterator[_HostMatch]:
    """Yield the matches of `after` for a node: itself, then the nodes in its bodies."""
    node = index.nodes[number]
    chosen = _match_node(node, after, "host.after", place)
    if chosen is not None:
        yield _HostMatch(chosen.location, describe_node(node), get_node_name(node))
    for body in index.bodies.get(number, ()):
        for inner in range(len(body.index.nodes)):
            yield from _find_sources(body.index, inner, after, place)


def _find_outer_source(
    index: GraphIndex, after: Nodes, place: Callable[[str], str]
) -> _HostMatch | None:
    """Return the match that the graph's own node is downstream of, None for the main graph."""
    if index.outer is None:
        return None
    return _find_downstream(index.outer, after, place).get(get_body_node(index))


def get_body_node(body: GraphIndex) -> int:
    """Return the number of the node that has a graph as its body."""
    around = body.outer.bodies if body.outer is not None else {}
    return next(number for number, inner in around.items() if any(each.index is body for each in inner))


def find_unmatched_names(index: GraphIndex, target: Target) -> list[str]:
    """Return a sentence for each name pattern of `host` that matches no node, in bodies neither.

    Operators are not checked: a file lists those of all models that it is for.
    """
    names = [node.name for graph in index.walk() for node in graph.nodes]
    host = target.rules.host
    patterns = [(f"host.names[{i}]", pattern) for i, pattern in enumerate(host.names)]
    patterns += [(f"host.after.names[{i}]", pattern) for i, pattern in enumerate(host.after.names)]
    return [
        f"{target.locate(place)}: no node has a name that matches '{pattern}'"
        for place, pattern in patterns
        if not any(matches(pattern, name) for name in names)
    ]


def check_batch(index: GraphIndex, most: int, place: str) -> Mapping[int, Objection]:
    """Return the objections to nodes that depend on an input with a batch of more than `most`.

    Inputs of rank 2 or more have a batch. All nodes in a body of such a node depend on it, too.
    """
    if index.outer is not None:
        around = check_batch(index.outer, most, place).get(get_body_node(index))
        return {} if around is None else dict.fromkeys(range(len(index.nodes)), around)
    found: dict[int, Objection] = {}
    for tensor, objection in _check_inputs(index, most, place):
        pending = [tensor]
        while pending:
            for reader in index.consumers.get(pending.pop(), ()):
                if reader not in found:
                    found[reader] = objection
                    pending.extend(index.nodes[reader].output)
    return found


def _check_inputs(index: GraphIndex, most: int, place: str) -> Iterator[tuple[str, Objection]]:
    for name in index.inputs:
        known = index.types.get(name)
        if known is None or (known.shape is not None and len(known.shape) < 2):
            continue
        batch = known.shape[0] if known.shape else None
        if not isinstance(batch, int):
            yield name, make_unknown(place, f"the batch of the model's input '{name}'", batch)
        elif batch > most:
            allowed = f"at most {most}"
            text = f"the batch of the model's input '{name}' is {batch}, {allowed} is supported"
            yield (
                name,
                Objection(
                    place,
                    text,
                    value=str(batch),
                    allowed=allowed,
                    names=(name,),
                    cause=CauseKind.LIMIT,
                ),
            )
