"""Renaming of the tensors that nodes read and make, regions included."""

from collections.abc import Mapping, MutableSequence

from onnx import NodeProto, helper

from byoc.boundary.convert._model_editor import ModelEditor, RegionCall
from byoc.model import LAYOUT, list_bodies, mark_inserted


def rename_tensors(edit: ModelEditor, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
    """Rename the tensors that a node reads and makes; those of a region also inside it.

    If a name is already taken in a region, the region receives a copy; the nodes that make the copies
    are returned and must be placed before the node.
    """
    call = edit.calls.get(node.op_type)
    copies: list[NodeProto] = []
    if call is not None and call.node is node:
        names, copies = _avoid_collisions(edit, call, names)
        _rename_inside(call, names)
    replace_names(node.input, names)
    replace_names(node.output, names)
    return copies


def _avoid_collisions(
    edit: ModelEditor, call: RegionCall, names: Mapping[str, str]
) -> tuple[dict[str, str], list[NodeProto]]:
    """Return names that a region's function can use, and nodes that make the copies among them."""
    made = (name for node in call.inside.nodes for name in node.output)
    taken = {*call.function.input, *call.function.output, *made}
    result: dict[str, str] = {}
    copies = []
    for old in dict.fromkeys((*call.node.input, *call.node.output)):
        new = names.get(old, "")
        if new in taken:
            copy = edit.add_tensor(new, edit.values.get(old), old)
            node = helper.make_node("Identity", [new], [copy], f"{call.node.name}_{copy}")
            copies.append(mark_inserted(node, LAYOUT))
            new = copy
        if new:
            taken.add(new)
            result[old] = new
    return result, copies


def _rename_inside(call: RegionCall, names: Mapping[str, str]) -> None:
    """Rename a function's inputs and outputs like those of its call."""
    function = call.function
    inner: dict[str, str] = {}
    for ports, formals in ((call.node.input, function.input), (call.node.output, function.output)):
        pairs = zip(ports, formals, strict=True)
        inner |= {formal: names[outside] for outside, formal in pairs if outside in names}
    replace_names(function.input, inner)
    replace_names(function.output, inner)
    pending = list(call.inside.nodes)
    while pending:
        node = pending.pop()
        replace_names(node.input, inner)
        replace_names(node.output, inner)
        for body in list_bodies(node):
            pending.extend(body.node)
            for value in body.output:
                value.name = inner.get(value.name, value.name)


def replace_names(listed: MutableSequence[str], names: Mapping[str, str]) -> None:
    """Replace names in a list by others."""
    for i, name in enumerate(listed):
        if name in names:
            listed[i] = names[name]
