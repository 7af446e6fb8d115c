"""Other names for what nodes read and make, regions included."""

from collections.abc import Mapping

from onnx import NodeProto

from byoc.boundary.edit import Call, Editing
from byoc.graph.walk import bodies


class Calls:
    """The regions' calls, which have the same name for a tensor as their functions where they can."""

    def __init__(self, edit: Editing) -> None:
        """Take the calls of a model."""
        self._calls = {id(call.node): call for call in edit.calls.values()}

    def given(self) -> frozenset[str]:
        """Return what regions give out."""
        return frozenset(name for call in self._calls.values() for name in call.node.output)

    def rename(self, node: NodeProto, names: Mapping[str, str]) -> None:
        """Let a node, a call or any other, read and make tensors by other names."""
        call = self._calls.get(id(node))
        if call is not None:
            _rename_inside(call, names)
        for ports in (node.input, node.output):
            for i, name in enumerate(ports):
                if name in names:
                    ports[i] = names[name]


def _rename_inside(call: Call, names: Mapping[str, str]) -> None:
    """Rename a function's inputs and outputs with those of its call, unless a name is taken there."""
    function = call.function
    pairs = [
        (outside, formal)
        for ports, formals in ((call.node.input, function.input), (call.node.output, function.output))
        for outside, formal in zip(ports, formals, strict=True)
    ]
    wanted = {formal: names[outside] for outside, formal in pairs if outside in names}
    taken = {*function.input, *function.output, *(o for node in call.inside.nodes for o in node.output)}
    fits = {old: new for old, new in wanted.items() if new not in taken and _count(wanted, new) == 1}
    if not fits:
        return
    for formals in (function.input, function.output):
        for i, name in enumerate(formals):
            formals[i] = fits.get(name, name)
    pending = list(call.inside.nodes)
    while pending:
        node = pending.pop()
        for ports in (node.input, node.output):
            for i, name in enumerate(ports):
                if name in fits:
                    ports[i] = fits[name]
        for body in bodies(node):
            pending.extend(body.node)
            for value in body.output:
                value.name = fits.get(value.name, value.name)


def _count(names: Mapping[str, str], wanted: str) -> int:
    return sum(new == wanted for new in names.values())
