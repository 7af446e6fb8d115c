"""Renaming of the tensors that nodes read and make, regions included."""

from collections.abc import Mapping, MutableSequence

from onnx import NodeProto, helper

from byoc.boundary.edit import RegionCall, ModelEditor
from byoc.graph.marks import LAYOUT, mark_inserted
from byoc.graph.walk import walk_bodies


class RegionCalls:
    """The regions' calls, whose functions use the same tensor names as the graph if possible."""

    def __init__(self, edit: ModelEditor) -> None:
        """Take the calls of a model."""
        self._edit = edit
        self._calls = {id(call.node): call for call in edit.calls.values()}

    def find_outputs(self) -> frozenset[str]:
        """Return the outputs of all regions."""
        return frozenset(name for call in self._calls.values() for name in call.node.output)

    def rename(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        """Rename the tensors that a node, possibly a call, reads and makes.

        If a name is already taken in a region, the region receives a copy; the nodes that make the
        copies are returned and must be placed before the node.
        """
        call = self._calls.get(id(node))
        copies: list[NodeProto] = []
        if call is not None:
            names, copies = self._avoid_collisions(call, names)
            _rename_inside(call, names)
        _replace_names(node.input, names)
        _replace_names(node.output, names)
        return copies

    def _avoid_collisions(self, call: RegionCall, names: Mapping[str, str]) -> tuple[dict[str, str], list[NodeProto]]:
        """Return names that a region's function can use, and nodes that make the copies among them."""
        function = call.function
        made = (name for node in call.inside.nodes for name in node.output)
        taken = {*function.input, *function.output, *made}
        result: dict[str, str] = {}
        copies = []
        for old in dict.fromkeys(
            name for name in (*call.node.input, *call.node.output) if name in names
        ):
            new = names[old]
            if new in taken:
                copy = self._edit.add_tensor(new, self._edit.values.get(old), old)
                copies.append(
                    mark_inserted(helper.make_node("Identity", [new], [copy], f"{call.node.name}_{copy}"), LAYOUT)
                )
                new = copy
            taken.add(new)
            result[old] = new
        return result, copies


def _rename_inside(call: RegionCall, names: Mapping[str, str]) -> None:
    """Rename a function's inputs and outputs like those of its call."""
    function = call.function
    inner: dict[str, str] = {}
    ends = ((call.node.input, function.input), (call.node.output, function.output))
    for ports, formals in ends:
        inner |= {
            formal: names[outside]
            for outside, formal in zip(ports, formals, strict=True)
            if outside in names
        }
    for formals in (function.input, function.output):
        _replace_names(formals, inner)
    pending = list(call.inside.nodes)
    while pending:
        node = pending.pop()
        _replace_names(node.input, inner)
        _replace_names(node.output, inner)
        for body in walk_bodies(node):
            pending.extend(body.node)
            for value in body.output:
                value.name = inner.get(value.name, value.name)


def _replace_names(listed: MutableSequence[str], names: Mapping[str, str]) -> None:
    for i, name in enumerate(listed):
        if name in names:
            listed[i] = names[name]
