"""Names that nothing in a model has."""

from byoc.graph.index import GraphIndex
from byoc.graph.names import fresh


class Names:
    """Gives each name once; those that bodies use are taken, too."""

    def __init__(self, index: GraphIndex) -> None:
        """Take the names of a graph and of all bodies inside."""
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

    def new(self, name: str) -> str:
        """Return a name for a tensor that is not taken, and take it: `name`, or that with a number."""
        return fresh(name, self._taken)

    def node(self, name: str) -> str:
        """Return a name for a node likewise; nodes may be called as tensors are."""
        return fresh(name, self._nodes)
