"""Functions that composites call, rewritten: one for each way in which calls need them."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from byoc.boundary.casting.dtypes import set_attribute
from byoc.graph.walk import bodies

Key = tuple[str, str]


class Variants:
    """The functions of a model that rewritten calls refer to; `folder` is where external data lies.

    One that stays as it was keeps its name. So does the rewritten one of a composite if all calls are
    of that one; what further ones there are have the data type in their names.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        """Start with the functions of a model."""
        self.folder = folder
        self._taken = {(f.domain, f.name) for f in model.functions}
        self._made: dict[tuple[Key, bytes], FunctionProto] = {}

    def add(self, function: FunctionProto, new: FunctionProto, dtype: str) -> str:
        """Return the name under which a function that was rewritten can be called."""
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

    def finish(self, model: ModelProto, nodes: Sequence[NodeProto], regions: Collection[Key]) -> None:
        """Put the new functions into the model, and drop those of theirs that nothing calls any more.

        `nodes` are those of the graphs and of the `regions`' functions.
        """
        if not self._made:
            return
        model.functions.extend(self._made.values())
        others = [f for f in model.functions if (f.domain, f.name) not in regions]
        called = _called(nodes) | {key for f in others for key in _called(f.node)}
        replaced = {key for key, _ in self._made} - called
        for i in reversed(range(len(model.functions))):
            if (model.functions[i].domain, model.functions[i].name) in replaced:
                del model.functions[i]


def _called(nodes: Iterable[NodeProto]) -> set[Key]:
    """Return the domain and operator of nodes and of all in their bodies."""
    found = set[Key]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found.add((node.domain, node.op_type))
        pending.extend(inner for body in bodies(node) for inner in body.node)
    return found


def refer(new: FunctionProto, function: FunctionProto, call: NodeProto) -> None:
    """Let a function refer to the attributes of its call again, whose values its nodes were given.

    Where rewriting changed a value, the call gets the new one. Nodes are found by what they make.
    """
    made = {name: node for node in new.node for name in node.output if name}
    for node in function.node:
        now = next((made[name] for name in node.output if name in made), None)
        if now is None:
            continue
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                continue
            own = next((a for a in now.attribute if a.name == attribute.name), None)
            if own is not None:
                value = AttributeProto()
                value.CopyFrom(own)
                value.name = attribute.ref_attr_name
                set_attribute(call, value)
            set_attribute(now, attribute)
