"""Renaming of the tensors that nodes read and make, regions included.

Constants that the host's operators read in another layout, transposed at compile time.
"""

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

from byoc.boundary.convert._graph_tensors import AxisOrder, GraphTensors
from byoc.boundary.convert._model_editor import ModelEditor, RegionCall, Scope
from byoc.model import LAYOUT, get_input, mark_inserted, walk_bodies


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

    def _avoid_collisions(
        self, call: RegionCall, names: Mapping[str, str]
    ) -> tuple[dict[str, str], list[NodeProto]]:
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
                    mark_inserted(
                        helper.make_node("Identity", [new], [copy], f"{call.node.name}_{copy}"), LAYOUT
                    )
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
        old = get_input(node, position)
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
