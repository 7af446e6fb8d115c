"""Tensors in several data types while nodes are rewritten, and the rewritten functions of composites."""

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from onnx import FunctionProto, ModelProto, NodeProto

from byoc.model import (
    CAST,
    DTYPE_NUMBERS,
    list_bodies,
    make_node,
    make_unique_name,
    mark_inserted,
    set_attribute,
)

Naming = Callable[[str, str, str], str]
"""Returns a new name like the first one, for the content of the second tensor in a data type."""


@dataclass(eq=False)
class CastValue:
    """A tensor: its original data type, and its current names by data type.

    `make` makes it in another data type when that is first read, and returns the new name.
    """

    dtype: str | None
    names: dict[str | None, str]
    make: Callable[[str], str]
    is_constant: bool = False

    def read(self, dtype: str | None) -> str:
        """Return the tensor's name in a data type, or in one that it has if none is given."""
        if dtype is None:
            dtype = next(iter(self.names), self.dtype)
        if dtype not in self.names:
            assert dtype is not None
            self.names[dtype] = self.make(dtype)
        return self.names[dtype]


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

    def add(self, name: str, dtype: str | None, names: dict[str | None, str]) -> None:
        """Add a tensor with its original data type and its names by current data type."""
        self.values[name] = CastValue(dtype, names, partial(self._cast, name))

    def find(self, name: str) -> CastValue | None:
        """Return a tensor by its original name, from this frame or those around it."""
        frame: CastFrame | None = self
        while frame is not None and name not in frame.values:
            frame = frame.outer
        return None if frame is None else frame.values[name]

    def read(self, name: str, dtype: str | None) -> str:
        """Return a tensor's name in a data type, casting it if necessary."""
        value = self.find(name)
        return name if value is None else value.read(dtype)

    def _cast(self, name: str, dtype: str) -> str:
        """Insert a Cast where a tensor is made, so that one serves all bodies; return its output.

        That has the original name if it is free.
        """
        value = self.values[name]
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
        self.add(name, dtype, {now: new})
        return new

    def current_dtypes(self) -> dict[str, str]:
        """Return the current data types of the frame's own tensors by their current names."""
        own = {name: dtype for value in self.values.values() for dtype, name in value.names.items()}
        return {name: dtype for name, dtype in own.items() if dtype is not None}


def make_cast(source: str, result: str, dtype: str) -> NodeProto:
    """Return a Cast marked as inserted by byoc."""
    return mark_inserted(make_node("Cast", [source], [result], result, to=DTYPE_NUMBERS[dtype]), CAST)


FunctionKey = tuple[str, str]


class FunctionVariants:
    """The rewritten functions of a model; `folder` is the directory of external data.

    An unchanged function keeps its name; variants have the data type in their names. An original that no
    call uses any more is dropped.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        """Remember the names of a model's functions."""
        self.folder = folder
        self._taken: dict[str, set[str]] = {}
        for function in model.functions:
            self._taken.setdefault(function.domain, set()).add(function.name)
        self._made: dict[tuple[FunctionKey, bytes], FunctionProto] = {}

    def add(self, function: FunctionProto, new: FunctionProto, dtype: str) -> str:
        """Add a rewritten function and return the name under which it can be called."""
        body = new.SerializeToString(deterministic=True)
        if body == function.SerializeToString(deterministic=True):
            return function.name
        key = (function.domain, function.name), body
        if key not in self._made:
            new.name = make_unique_name(f"{function.name}_{dtype}", self._taken[function.domain])
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
        pending.extend(inner for body in list_bodies(node) for inner in body.node)
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
