"""Names that nothing in a model has."""

from byoc.graph.index import GraphIndex


class Names:
    """Gives each name once; those of nodes and tensors alike, bodies included, are taken."""

    def __init__(self, index: GraphIndex) -> None:
        """Take the names of a graph and of all bodies inside."""
        self._taken = {
            name
            for inner in index.walk()
            for node in inner.nodes
            for name in (node.name, *node.output, *node.input)
        }
        for inner in index.walk():
            self._taken.update(value.name for value in inner.graph.input)
            self._taken.update(tensor.name for tensor in inner.graph.initializer)

    def new(self, name: str) -> str:
        """Return a name that is not taken, and take it: `name`, or that with a number."""
        found, number = name, 1
        while found in self._taken:
            found, number = f"{name}_{number}", number + 1
        self._taken.add(found)
        return found
