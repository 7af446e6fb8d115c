"""Unique names for new tensors and nodes."""

from byoc.graph.index import GraphIndex
from byoc.graph.names import make_unique_name


class NameAllocator:
    """Allocates unique names for a graph and all bodies inside it."""

    def __init__(self, index: GraphIndex) -> None:
        """Collect the names of a graph and of all bodies inside."""
        self._taken = {
            name
            for inner in index.walk()
            for node in inner.nodes
            for name in (*node.output, *node.input)
        }
        self._nodes = {node.name for inner in index.walk() for node in inner.nodes}
        for inner in index.walk():
            self._taken.update(value.name for value in inner.graph.input)
            self._taken.update(tensor.name for tensor in inner.graph.initializer)

    def new_tensor(self, name: str) -> str:
        """Allocate a tensor name: `name`, or that with a number."""
        return make_unique_name(name, self._taken)

    def new_node(self, name: str) -> str:
        """Allocate a node name: `name`, or that with a number. Tensors may have the same name."""
        return make_unique_name(name, self._nodes)
