"""The tensors of a function or body while its nodes are rewritten, with their available data types."""

from collections.abc import Callable
from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto, helper

from byoc.graph.marks import CAST, mark_inserted
from byoc.graph.types import DTYPE_NUMBERS

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
    return mark_inserted(helper.make_node("Cast", [source], [result], result, to=DTYPE_NUMBERS[dtype]), CAST)


def make_constant_node(name: str, tensor: TensorProto) -> NodeProto:
    """Return a Constant node."""
    return helper.make_node("Constant", [], [name], name, value=tensor)
