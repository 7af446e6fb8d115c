"""Graph paths and node names."""

from collections import Counter
from collections.abc import Iterator

from byoc.graph.index import GraphIndex


def walk_graph_paths(index: GraphIndex, graph_path: str = "") -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs of a model with their paths: `Loop_0/body`, empty for the main graph."""
    yield graph_path.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from walk_graph_paths(body.index, make_body_path(index, number, body.attribute, graph_path))


def make_body_path(index: GraphIndex, number: int, attribute: str, graph_path: str = "") -> str:
    """Return the path of a node's body with a slash behind it: `Loop_0/body/`."""
    return f"{graph_path}{name_nodes(index, '')[number]}/{attribute}/"


def name_nodes(index: GraphIndex, graph_path: str) -> dict[int, str]:
    """Return a distinct name for each node of a graph that runs: its own, or that of its first output.

    A name that is also another node's, or another node's output, is not used. A node with neither has
    none.
    """
    counts = Counter(node.name for node in index.nodes)
    behind = f"{graph_path}/" if graph_path else ""
    names: dict[int, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        clear = counts[node.name] == 1 and index.producers.get(node.name, number) == number
        own = node.name if clear and node.name else next(filter(None, node.output), "")
        if own:
            names[number] = f"{behind}{own}"
    return names
