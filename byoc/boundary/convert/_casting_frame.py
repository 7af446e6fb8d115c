"""The tensors of a function or body while its nodes are rewritten, with their available data types.

Rewritten functions of composites, one for each variant that calls need.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper

from byoc.model import CAST, DTYPE_NUMBERS, mark_inserted, set_attribute, walk_bodies

Naming = Callable[[str, str, str], str]
"""Returns a new name like the first one, for the content of the second tensor in a data type."""


@dataclass(eq=False)
class CastValue:
    """A tensor: its original data type, and its current names by data type.

    `stored` makes a constant in a data type when that is first read, and returns its name.
    """

    frame: "CastFrame"
    dtype: str | None
    names: dict[str | None, str]
    make_constant: Callable[[str | None], str] | None = None


@dataclass(eq=False)
class CastFrame:
    """The tensors of a function or body and its nodes so far; `outer` is the frame around a body.

    With `renames` a tensor that changes its data type is renamed.
    """

    naming: Naming
    outer: "CastFrame | None" = None
    renames: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    values: dict[str, CastValue] = field(default_factory=dict)

    def find(self, name: str) -> CastValue | None:
        """Return a tensor by its original name, from this frame or those around it."""
        frame: CastFrame | None = self
        while frame is not None:
            if name in frame.values:
                return frame.values[name]
            frame = frame.outer
        return None

    def read(self, name: str, dtype: str | None) -> str:
        """Return a tensor's name in a data type, casting it if necessary.

        The Cast is inserted where the tensor is made, so that one serves all bodies that read it.
        """
        value = self.find(name)
        if value is None:
            return name
        if dtype not in value.names:
            if value.make_constant is not None:
                value.names[dtype] = value.make_constant(dtype)
            elif dtype is not None and value.names:
                value.names[dtype] = value.frame.cast(name, value, dtype)
        return value.names.get(dtype) or next(iter(value.names.values()))

    def cast(self, name: str, value: CastValue, dtype: str) -> str:
        """Insert a Cast of a tensor and return its output: the original name if that is free."""
        source = next(iter(value.names.values()))
        free = self.renames and dtype == value.dtype and name not in value.names.values()
        result = name if free else self.naming(f"{name}_{dtype}", name, dtype)
        self.nodes.append(make_cast(source, result, dtype))
        return result

    def define(self, name: str, dtype: str | None, now: str | None) -> str:
        """Register a tensor with its original and current data type; return its name."""
        new = name
        if name and now is not None and now != dtype and self.renames:
            new = self.naming(f"{name}_{now}", name, now)
        self.values[name] = CastValue(self, dtype, {now: new})
        return new

    def current_dtypes(self) -> dict[str, str]:
        """Return the current data types of the frame's own tensors by their current names."""
        own = {name: dtype for value in self.values.values() for dtype, name in value.names.items()}
        return {name: dtype for name, dtype in own.items() if dtype is not None}


def make_cast(source: str, result: str, dtype: str) -> NodeProto:
    """Return a Cast marked as inserted by byoc."""
    return mark_inserted(
        helper.make_node("Cast", [source], [result], result, to=DTYPE_NUMBERS[dtype]), CAST
    )


def make_constant_node(name: str, tensor: TensorProto) -> NodeProto:
    """Return a Constant node."""
    return helper.make_node("Constant", [], [name], name, value=tensor)


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

    def finish(
        self, model: ModelProto, nodes: Sequence[NodeProto], regions: Collection[FunctionKey]
    ) -> None:
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
