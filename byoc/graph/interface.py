"""What crosses the border of a set of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class Interface:
    """What crosses a region's border, by tensor name; `sunk` are the constant nodes taken in."""

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    sunk: tuple[int, ...]


def interface(index: GraphIndex, nodes: Sequence[int]) -> Interface:
    """Return what a set of nodes reads from and gives to the rest of the graph."""
    used = list(dict.fromkeys(name for node in nodes for name in index.reads[node]))
    sunk = index.constants_behind(used)
    used += [name for node in sunk for name in index.reads[node]]
    made = {name for node in (*nodes, *sunk) for name in index.nodes[node].output}
    outer = [name for name in dict.fromkeys(used) if name not in made]
    inside, wanted = set(nodes), set(index.outputs)
    return Interface(
        inputs=tuple(name for name in outer if not index.is_constant(name)),
        constants=tuple(name for name in outer if index.is_constant(name)),
        outputs=tuple(
            name
            for node in nodes
            for name in index.nodes[node].output
            if name in wanted or not inside.issuperset(index.consumers.get(name, ()))
        ),
        sunk=tuple(sunk),
    )
