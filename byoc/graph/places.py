"""Where things are in a model: graphs behind the nodes that hold them, nodes by names of their own."""

from collections import Counter
from collections.abc import Iterator

from byoc.graph.index import GraphIndex


def graphs_of(index: GraphIndex, place: str = "") -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs of a model, each behind its place: `Loop_0/body`, empty for the main one."""
    yield place.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from graphs_of(body.index, body_place(index, number, body.attribute, place))


def body_place(index: GraphIndex, number: int, attribute: str, place: str = "") -> str:
    """Return the place of a node's body, for `graphs_of`: `Loop_0/body/` behind that of its graph."""
    return f"{place}{node_names(index, '')[number]}/{attribute}/"


def node_names(index: GraphIndex, place: str) -> dict[int, str]:
    """Return a name for each node of a graph that runs, distinct: its own, or its first output's.

    A name that another node has too, or another's output, is not taken; a node without either has none.
    """
    counts = Counter(node.name for node in index.nodes)
    behind = f"{place}/" if place else ""
    names: dict[int, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        clear = counts[node.name] == 1 and index.producer.get(node.name, number) == number
        own = node.name if clear and node.name else next(filter(None, node.output), "")
        if own:
            names[number] = f"{behind}{own}"
    return names
