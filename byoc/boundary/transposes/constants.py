"""Constants that the host's operators read in another layout, transposed at compile time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, numpy_helper

from byoc.boundary.edit import ModelEditor, Scope
from byoc.boundary.transposes.facts import GraphTensors
from byoc.boundary.transposes.permutation import AxisOrder
from byoc.boundary.transposes.rename import RegionCalls


@dataclass(frozen=True)
class RewriteContext:
    """A graph under rewriting: the editor, the graph, the facts known there, and the regions' calls."""

    edit: ModelEditor
    scope: Scope
    tensors: GraphTensors
    calls: RegionCalls


class LayoutConstants:
    """New initializers of a graph, each made once; `replaced` names the constants that they replace."""

    def __init__(self, room: RewriteContext, layouts: tuple[str, str]) -> None:
        """Take the graph that receives the initializers, and the names of the two forms."""
        assert isinstance(room.scope.proto, GraphProto)
        self.replaced: set[str] = set()
        self._room = room
        self._graph = room.scope.proto
        self._layouts = layouts
        self._transposed: dict[tuple[str, AxisOrder], str] = {}
        self._numbers: dict[tuple[str, tuple[int, ...]], str] = {}

    def transpose(self, name: str, order: AxisOrder, form: int) -> str:
        """Return the name of a transposed constant; one of lower rank is broadcast first."""
        if (name, order) not in self._transposed:
            tensor = self._room.tensors.find_tensor(name)
            assert tensor is not None
            value = numpy_helper.to_array(tensor)
            value = value.reshape((1,) * (len(order) - value.ndim) + value.shape)
            self._transposed[name, order] = self._add(name, form, value.transpose(order))
        self.replaced.add(name)
        return self._transposed[name, order]

    def add_numbers(self, node: NodeProto, position: int, numbers: list[int], form: int) -> str:
        """Return the name of a list of axes or pads for an input of a node."""
        old = node.input[position] if position < len(node.input) else ""
        dtype = "int64"
        if node.op_type == "Slice":  # whose lists are all of one type
            kind = self._room.tensors.find_type(node.input[1])
            dtype = kind.dtype if kind is not None else dtype
        key = (dtype, tuple(numbers))
        if key not in self._numbers:
            base = old or f"{node.output[0]}_axes"
            self._numbers[key] = self._add(base, form, np.array(numbers, dtype))
        if old:
            self.replaced.add(old)
        return self._numbers[key]

    def _add(self, name: str, form: int, value: NDArray[Any]) -> str:
        new = self._room.edit.new_name(f"{name}_{self._layouts[form]}", name)
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), new))
        return new
