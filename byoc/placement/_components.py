"""Connected components of small and large graphs that are given by their edges."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import numpy as np
import scipy

from byoc.placement._problem import Ints

# Up to so many edges, Python takes less time than one call of scipy, whose import takes 0.15 s more.
_MAX_IN_PYTHON = 200


def find_components(
    nodes: int, source: Ints, target: Ints, connection: Literal["weak", "strong"]
) -> tuple[int, Ints]:
    """Return the number of weakly or strongly connected components, and each node's, int64 (nodes,).

    `source` and `target` are the ends of the edges, int64 (edges,).
    """
    if len(source) <= _MAX_IN_PYTHON:
        edges = zip(source.tolist(), target.tolist(), strict=True)
        if connection == "weak":
            return _join_ends(nodes, edges)
        if _is_acyclic(edges):
            return nodes, np.arange(nodes)
    graph = scipy.sparse.coo_array(
        (np.ones(len(source), np.int8), (source, target)), shape=(nodes, nodes)
    )
    count, component = scipy.sparse.csgraph.connected_components(graph.tocsr(), connection=connection)
    return int(count), component.astype(np.int64)


def _join_ends(nodes: int, edges: Iterable[tuple[int, int]]) -> tuple[int, Ints]:
    """Return the weakly connected components, numbered by their first nodes."""
    joined: dict[int, int] = {}  # a node, and a smaller one of its component

    def find_first(node: int) -> int:
        while node in joined:
            node = joined[node]
        return node

    for ends in edges:
        first, second = sorted(map(find_first, ends))
        if first != second:
            joined[second] = first
    component = np.arange(nodes)
    for node in joined:
        component[node] = find_first(node)
    firsts, numbers = np.unique(component, return_inverse=True)
    return len(firsts), numbers.astype(np.int64)


def _is_acyclic(edges: Iterable[tuple[int, int]]) -> bool:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for first, second in edges:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True
