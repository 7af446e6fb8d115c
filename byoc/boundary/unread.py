"""Removal of stored tensors that are no longer read, such as the weights of an unused form."""

from collections.abc import Iterable

from byoc.boundary.edit import Editing
from byoc.graph.walk import is_onnx


class Unread:
    """Tensors that are removed once nothing reads them; the user's own unused tensors stay."""

    def __init__(self, edit: Editing, names: Iterable[str]) -> None:
        """Remember the candidates: tensors that the main graph stores or computes from constants."""
        self._edit = edit
        self._names = {name for name in names if name}

    def drop(self) -> None:
        """Remove unread candidates, and the constants that only they were computed from."""
        main, graph = self._edit.main, self._edit.model.graph
        read = {
            name for scope in self._edit.scopes for node in scope.nodes for name in scope.reads(node)
        }
        for scope in self._edit.scopes:
            read.update(value.name for value in scope.proto.output if not isinstance(value, str))
        users: dict[str, int] = {}
        for node in main.nodes:
            for name in main.reads(node):
                users[name] = users.get(name, 0) + 1
        gone: set[int] = set()
        for node in reversed(main.nodes):  # constants are made of constants before them
            if not node.output or not self._names.issuperset(filter(None, node.output)):
                continue
            if not is_onnx(node) or id(node) in main.inner or not read.isdisjoint(node.output):
                continue
            gone.add(id(node))
            for name in main.reads(node):
                users[name] -= 1
                if not users[name] and not self._read_in_bodies(name):
                    read.discard(name)
                    self._names.add(name)
        if gone:
            main.nodes = [node for node in main.nodes if id(node) not in gone]
        for position in range(len(graph.initializer) - 1, -1, -1):
            name = graph.initializer[position].name
            if name in self._names and name not in read:
                del graph.initializer[position]

    def _read_in_bodies(self, name: str) -> bool:
        return any(
            name in scope.reads(node)
            for scope in self._edit.scopes
            if scope is not self._edit.main
            for node in scope.nodes
        )
