"""Parts of a region as models of their own, with the values that really reach them.

A part has the same boundary as the region: if the region reads and makes images in a layout, so does the
part, and byoc's own nodes convert inside. Composites are taken whole.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper

from byoc.boundary.conversions import is_conversion
from byoc.codegen import Contract, Region
from byoc.graph.copying import copy_without
from byoc.graph.extract import nodes_model
from byoc.graph.index import GraphIndex
from byoc.graph.layout import Layout, parse_layout
from byoc.graph.layout_nodes import can_lie, layout_nodes
from byoc.graph.load import prepare
from byoc.graph.marks import LAYOUT, mark, mark_of
from byoc.graph.names import fresh
from byoc.graph.spatial import images
from byoc.graph.types import TensorType, write_type
from byoc.runtime.onnxrt import open_session, run_session, unoptimized

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Part:
    """Some operations of a region as a model with its weights, and the values that reach it."""

    model: ModelProto
    inputs: Values


@dataclass(frozen=True, eq=False)
class Cutting:
    """A region to be cut into parts, and the values that reached it."""

    region: Region
    inputs: Values

    @cached_property
    def index(self) -> GraphIndex:
        """The index of the region's model; large weights stay on disk."""
        return prepare(self.region.model, self.region.name, self.region.path.parent).index

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """The nodes in order, without constant nodes and layout conversions at the boundary."""
        left_out = {number for chain in self._skin.values() for number in chain}
        left_out |= self.index.constant_nodes
        return tuple(i for i in range(len(self.index.nodes)) if i not in left_out)

    def name(self, operation: int) -> str:
        """Return the name of an operation, or its first output."""
        node = self.index.nodes[operation]
        return node.name or next(name for name in node.output if name)

    def neighbours(self, operation: int) -> list[int]:
        """Return the operations that make an operation's inputs or read its outputs."""
        index = self.index
        makers = [index.producer.get(name) for name in index.reads[operation]]
        outputs = index.nodes[operation].output
        readers = [i for name in outputs for i in index.consumers.get(name, ())]
        return [i for i in dict.fromkeys((*makers, *readers)) if i in self._operations]

    def part(self, operations: Collection[int]) -> Part | None:
        """Make a model of some operations; None if nothing outside uses their outputs."""
        name = self.region.name
        model = nodes_model(self.index, sorted(operations), name, self._types)
        if not model.graph.output:
            return None
        onnx.load_external_data_for_model(model, str(self.region.path.parent))
        inputs: dict[str, Any] = {}
        taken = {*self.index.types, *self.values, *(t.name for t in model.graph.initializer)}
        for value in list(model.graph.input):
            inputs |= self._entered(model, value.name, taken)
        for value in list(model.graph.output):
            self._left(model, value.name, taken)
        border = {value.name for value in (*model.graph.input, *model.graph.output)}
        inside = (name for node in model.graph.node for name in node.output)
        model.graph.value_info.extend(
            helper.make_value_info(tensor, self._types[tensor])
            for tensor in dict.fromkeys(inside)
            if tensor in self._types and tensor not in border
        )
        return Part(model, inputs)

    @cached_property
    def values(self) -> Values:
        """Every tensor of the region by name, as plain onnxruntime computes it from the inputs."""
        exposed = copy_without(self.region.model)
        outputs = {value.name for value in exposed.graph.output}
        made = [name for node in exposed.graph.node for name in node.output if name]
        exposed.graph.output.extend(
            helper.make_value_info(name, self.index.values[name])
            if name in self.index.values
            else onnx.ValueInfoProto(name=name)
            for name in made
            if name not in outputs
        )
        with unoptimized():
            session = open_session(exposed, self.region.path.parent)
        return {**self.inputs, **run_session(session, self.inputs)}

    def _entered(self, model: ModelProto, name: str, taken: set[str]) -> Values:
        """Make a part read an image in the region's layout; return its value under the new name."""
        layout, kind = self._layouts.get(name), self.index.types.get(name)
        if layout is None or kind is None:
            return {name: self.values[name]}
        value = next(value for value in model.graph.input if value.name == name)
        packed = self._renamed(value, layout, kind, taken)
        nodes = self._conversion(layout, layout.inverse(kind), packed, name, taken)
        rest = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*nodes, *rest])
        return {packed: layout.pack(self.values[name])}

    def _left(self, model: ModelProto, name: str, taken: set[str]) -> None:
        """Make a part return an image in the region's layout."""
        layout, kind = self._layouts.get(name), self.index.types.get(name)
        if layout is None or kind is None:
            return
        value = next(value for value in model.graph.output if value.name == name)
        packed = self._renamed(value, layout, kind, taken)
        model.graph.node.extend(self._conversion(layout, layout.forward(kind), name, packed, taken))

    def _renamed(
        self, value: onnx.ValueInfoProto, layout: Layout, kind: TensorType, taken: set[str]
    ) -> str:
        """Change the type of an input or output to a layout, under a new name, which is returned."""
        packed = layout.packed(kind)
        assert packed is not None  # `_layouts` has only tensors that can have the layout
        name = fresh(f"{value.name}_{layout}", taken)
        value.CopyFrom(helper.make_value_info(name, write_type(packed)))
        return name

    def _conversion(
        self, layout: Layout, steps: Any, source: str, target: str, taken: set[str]
    ) -> list[NodeProto]:
        nodes = layout_nodes(steps, source, target, lambda name, kind: fresh(name, taken))
        return [mark(node, LAYOUT) for node in nodes]

    @cached_property
    def _operations(self) -> frozenset[int]:
        return frozenset(self.operations)

    @cached_property
    def _types(self) -> Mapping[str, TypeProto]:
        """The types of all tensors; a type that inference does not know is that of the value."""
        types = dict(self.index.values)
        for name, value in self.values.items():
            if name not in types and hasattr(value, "dtype"):
                element = helper.np_dtype_to_tensor_dtype(value.dtype)
                types[name] = helper.make_tensor_type_proto(element, value.shape)
        return types

    @cached_property
    def _skin(self) -> Mapping[str, Sequence[int]]:
        """The boundary tensors with a layout, by their inner names, and the nodes that convert each."""
        chains = [(contract, *self._inwards(contract.name)) for contract in self.region.inputs]
        chains += [(contract, *self._back(contract.name)) for contract in self.region.outputs]
        return {name: nodes for contract, name, nodes in chains if nodes and _layout(contract)}

    def _inwards(self, name: str) -> tuple[str, list[int]]:
        """Follow the conversions of an input; return the name after them, and their nodes."""
        nodes = []
        while len(readers := self.index.consumers.get(name, ())) == 1 and self._is_skin(readers[0]):
            nodes.append(readers[0])
            name = self.index.nodes[readers[0]].output[0]
        return name, nodes

    def _back(self, name: str) -> tuple[str, list[int]]:
        """Follow the conversions of an output backwards; return the name before them and their nodes."""
        nodes = []
        while (maker := self.index.producer.get(name)) is not None and self._is_skin(maker):
            nodes.append(maker)
            name = self.index.nodes[maker].input[0]
        return name, nodes

    def _is_skin(self, number: int) -> bool:
        node = self.index.nodes[number]
        return mark_of(node) == LAYOUT and is_conversion(node)

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        """The layout of each tensor that has one at the boundary, or would have if cut there."""
        contracts = (*self.region.inputs, *self.region.outputs)
        layout = next(filter(None, map(_layout, contracts)), None)
        if layout is None:
            return {}
        inlined = prepare(self.region.load(inline=True), self.region.name)
        opset = self.index.opsets.get("", 0)
        return {
            name: layout
            for name in {*images(inlined.index), *self._skin}
            if can_lie(layout, self.index.types.get(name), opset)
        }


def _layout(contract: Contract) -> Layout | None:
    try:
        return parse_layout(contract.layout) if contract.layout else None
    except ValueError:  # a vendor's layout that byoc cannot parse
        return None
