"""Rewritten functions of composites, one for each variant that calls need."""

from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from pathlib import Path

from onnx import FunctionProto, ModelProto, NodeProto

from byoc.boundary.casting.dtypes import set_attribute
from byoc.graph.walk import walk_bodies

FunctionKey = tuple[str, str]


class FunctionVariants:
    """The rewritten functions of a model; `folder` is the directory of external data.

    An unchanged function keeps its name. So does a rewritten one if all calls of the original use it;
    further variants have the data type in their names.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        """Remember the names of a model's functions."""
        self.folder = folder
        self._taken = {(f.domain, f.name) for f in model.functions}
        self._made: dict[tuple[FunctionKey, bytes], FunctionProto] = {}

    def add(self, function: FunctionProto, new: FunctionProto, dtype: str) -> str:
        """Add a rewritten function and return the name under which it can be called."""
        body = new.SerializeToString(deterministic=True)
        if body == function.SerializeToString(deterministic=True):
            return function.name
        key = (function.domain, function.name), body
        if key not in self._made:
            name, number = f"{function.name}_{dtype}", 1
            while (function.domain, name) in self._taken:
                name, number = f"{function.name}_{dtype}_{number}", number + 1
            self._taken.add((function.domain, name))
            new.name = name
            self._made[key] = new
        return self._made[key].name

    def finish(self, model: ModelProto, nodes: Sequence[NodeProto], regions: Collection[FunctionKey]) -> None:
        """Add the new functions to the model, and drop the originals that are no longer called.

        `nodes` are those of the graphs and of the `regions`' functions.
        """
        if not self._made:
            return
        model.functions.extend(self._made.values())
        others = [f for f in model.functions if (f.domain, f.name) not in regions]
        called = _called_functions(nodes) | {key for f in others for key in _called_functions(f.node)}
        replaced = {key for key, _ in self._made} - called
        for i in reversed(range(len(model.functions))):
            if (model.functions[i].domain, model.functions[i].name) in replaced:
                del model.functions[i]


def _called_functions(nodes: Iterable[NodeProto]) -> set[FunctionKey]:
    """Return the domain and operator of nodes and of all nodes in their bodies."""
    found = set[FunctionKey]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found.add((node.domain, node.op_type))
        pending.extend(inner for body in walk_bodies(node) for inner in body.node)
    return found


def restore_references(new: FunctionProto, function: FunctionProto, call: NodeProto) -> None:
    """Restore a rewritten function's references to the attributes of its call.

    If rewriting changed a value, the call gets the new one. Nodes are matched by their outputs.
    """
    makers = {name: node for node in new.node for name in node.output if name}
    for node in function.node:
        now = next((makers[name] for name in node.output if name in makers), None)
        if now is None:
            continue
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                continue
            own = next((a for a in now.attribute if a.name == attribute.name), None)
            if own is not None:
                value = deepcopy(own)
                value.name = attribute.ref_attr_name
                set_attribute(call, value)
            set_attribute(now, attribute)
