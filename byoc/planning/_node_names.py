"""Ways to find a node of a model that was edited: by name, by first output, by what is around it."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from byoc.model import GraphIndex, name_nodes, walk_graph_paths

Node = tuple[GraphIndex, int]
"""A node: the index of its graph, and its number there."""

# How far a signature sees: past a repeated block of most networks, and quick at 100,000 nodes.
_STEPS = 16


def identify(node: Node) -> tuple[int, int]:
    """Return the id of a node's index with its number."""
    return id(node[0]), node[1]


def find_output(index: GraphIndex, number: int, path: str) -> str:
    """Return a node's first output behind the path of its graph, empty where it has none."""
    output = next(filter(None, index.node_outputs[number]), "")
    return f"{path}/{output}" if path and output else output


@dataclass(frozen=True, eq=False)
class NodeNames:
    """The nodes of a model's graphs by what they may be called, behind the paths of their graphs.

    A path leads through the node around a body, by its name or by its first output.
    """

    index: GraphIndex

    @cached_property
    def _paths(self) -> list[tuple[GraphIndex, str]]:
        """Each graph with its paths: those through names first, then those through outputs."""
        names = list(walk_graph_paths(self.index))
        outputs = [*_walk_output_paths(self.index, "")]
        return [(index, path) for path, index in (*names, *outputs)]

    @property
    def graphs(self) -> list[GraphIndex]:
        """The graphs, bodies included."""
        return list({id(index): index for index, _ in self._paths}.values())

    def find(self, name: str) -> Node | None:
        """Return the node of a name that `name_nodes` gives: its own, or that of its first output."""
        return self._distinct.get(name)

    def find_named(self, name: str) -> Node | None:
        """Return the node that alone in its graph has a name of its own."""
        return self._own.get(name)

    def find_output(self, name: str) -> Node | None:
        """Return the node whose first output has a name."""
        return self._outputs.get(name)

    @cached_property
    def _distinct(self) -> Mapping[str, Node]:
        return _number_names((index, path, name_nodes(index, "")) for index, path in self._paths)

    @cached_property
    def _own(self) -> Mapping[str, Node]:
        return _number_names((index, path, _own_names(index)) for index, path in self._paths)

    @cached_property
    def _outputs(self) -> Mapping[str, Node]:
        return _number_names(
            (index, path, {node: find_output(index, node, "") for node in name_nodes(index, "")})
            for index, path in self._paths
        )


def _walk_output_paths(index: GraphIndex, path: str) -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs with paths through the first outputs of the nodes around them."""
    yield path, index
    for number, bodies in index.bodies.items():
        around = find_output(index, number, path)
        for body in bodies if around else ():
            yield from _walk_output_paths(body.index, f"{around}/{body.attribute}")


def _own_names(index: GraphIndex) -> dict[int, str]:
    """Return the names that one node of a graph has, by its number; constant nodes have none here."""
    counts = Counter(node.name for node in index.nodes)
    return {
        number: node.name
        for number, node in enumerate(index.nodes)
        if node.name and counts[node.name] == 1 and number not in index.constant_nodes
    }


def _number_names(graphs: Iterator[tuple[GraphIndex, str, dict[int, str]]]) -> dict[str, Node]:
    """Return the node of each name behind a path; the first that is called so."""
    found: dict[str, Node] = {}
    for index, path, names in graphs:
        behind = f"{path}/" if path else ""
        for number, name in names.items():
            if name:
                found.setdefault(f"{behind}{name}", (index, number))
    return found


def sign_nodes(index: GraphIndex) -> dict[int, str]:
    """Return signatures of nodes that do not depend on names: `Conv-NEAR-FAR`, two hashes of 12 digits.

    The first is of operator, attributes, types and the operators around it. The second has seen as far
    as 16 steps in all directions (Weisfeiler and Lehman, Nauchno-Technicheskaya Informatsia 2, 1968): it
    tells repeated blocks apart, and an edit nearby changes it.
    """
    nodes = [number for number in range(len(index.nodes)) if number not in index.constant_nodes]
    near = {number: _hash(_describe_node(index, number)) for number in nodes}
    before = {
        number: [index.producers.get(name, -1) for name in index.nodes[number].input] for number in nodes
    }
    after = {
        number: [user for name in index.nodes[number].output for user in index.consumers.get(name, ())]
        for number in nodes
    }
    far = near
    for _ in range(_STEPS):
        told = far
        far = {
            number: _hash(
                told[number],
                [told.get(other, "-") for other in before[number]],
                sorted(told.get(other, "-") for other in after[number]),
            )
            for number in nodes
        }
    return {number: f"{index.nodes[number].op_type}-{near[number]}-{far[number]}" for number in nodes}


def _describe_node(index: GraphIndex, number: int) -> tuple[object, ...]:
    node = index.nodes[number]
    around = [
        sorted(index.nodes[user].op_type for user in index.consumers.get(name, ()))
        for name in node.output
    ]
    before = [
        index.nodes[index.producers[name]].op_type if name in index.producers else "-"
        for name in node.input
    ]
    kinds = [str(index.types.get(name)) for name in (*node.input, *node.output) if name]
    attributes = sorted(
        attribute.SerializeToString(deterministic=True)
        for attribute in node.attribute
        if not attribute.HasField("g")
    )
    return node.domain, node.op_type, attributes, kinds, before, around


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
