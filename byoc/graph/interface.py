"""Boundaries of sets of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class BoundaryNames:
    """The names of the tensors at the boundary of a region.

    `sunk` are the numbers of constant nodes that the region takes in.
    """

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    constant_nodes: tuple[int, ...]


def find_boundary(index: GraphIndex, nodes: Sequence[int]) -> BoundaryNames:
    """Find the boundary of a set of nodes."""
    used = list(dict.fromkeys(name for node in nodes for name in index.reads[node]))
    sunk = index.find_constant_nodes(used)
    used += [name for node in sunk for name in index.reads[node]]
    made = {name for node in (*nodes, *sunk) for name in index.nodes[node].output}
    outer = [name for name in dict.fromkeys(used) if name not in made]
    inside, wanted = set(nodes), set(index.outputs)
    return BoundaryNames(
        inputs=tuple(name for name in outer if not index.is_constant(name)),
        constants=tuple(name for name in outer if index.is_constant(name)),
        outputs=tuple(
            name
            for node in nodes
            for name in index.nodes[node].output
            if name in wanted or not inside.issuperset(index.consumers.get(name, ()))
        ),
        constant_nodes=tuple(sunk),
    )
