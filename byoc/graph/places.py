"""Graph paths and node names."""

from collections import Counter
from collections.abc import Iterator

from byoc.graph.index import GraphIndex


def graphs_of(index: GraphIndex, place: str = "") -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs of a model with their paths: `Loop_0/body`, empty for the main graph."""
    yield place.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from graphs_of(body.index, body_place(index, number, body.attribute, place))


def body_place(index: GraphIndex, number: int, attribute: str, place: str = "") -> str:
    """Return the path of a node's body with a slash behind it: `Loop_0/body/`."""
    return f"{place}{node_names(index, '')[number]}/{attribute}/"


def node_names(index: GraphIndex, place: str) -> dict[int, str]:
    """Return a distinct name for each node of a graph that runs: its own, or that of its first output.

    A name that is also another node's, or another node's output, is not used. A node with neither has
    none.
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
