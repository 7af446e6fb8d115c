"""Parts of a region as models of their own, with the values that really reach them.

A part has at its border what the region has at its: where the region reads and makes images in a layout,
so does a part, and byoc's own nodes undo it inside. Composites are taken whole.
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
    """Some operations of a region as a model with its weights, and what reaches it in the region."""

    model: ModelProto
    inputs: Values


@dataclass(frozen=True, eq=False)
class Cutting:
    """A region that is cut into parts. `inputs` are what reached it."""

    region: Region
    inputs: Values

    @cached_property
    def index(self) -> GraphIndex:
        """Look-ups over the region's model; large weights stay on disk."""
        return prepare(self.region.model, self.region.name, self.region.path.parent).index

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """The nodes in order, but for constant ones and those that undo a layout at the border."""
        skin = {number for chain in self._skin.values() for number in chain}
        nodes = range(len(self.index.nodes))
        return tuple(i for i in nodes if i not in skin and i not in self.index.constant_nodes)

    def name(self, operation: int) -> str:
        """Return an operation's name, or its first output where it has none."""
        node = self.index.nodes[operation]
        return node.name or next(name for name in node.output if name)

    def neighbours(self, operation: int) -> list[int]:
        """Return the operations that an operation reads from and gives to."""
        read = [self.index.producer.get(name) for name in self.index.reads[operation]]
        given = [i for o in self.index.nodes[operation].output for i in self.index.consumers.get(o, ())]
        return [i for i in dict.fromkeys((*read, *given)) if i in self._operations]

    def part(self, operations: Collection[int]) -> Part | None:
        """Return some of the operations as a model; None when nothing of them is used outside."""
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
        there = {value.name for value in exposed.graph.output}
        made = [name for node in exposed.graph.node for name in node.output if name]
        exposed.graph.output.extend(
            helper.make_value_info(n, self.index.values[n])
            if n in self.index.values
            else onnx.ValueInfoProto(name=n)
            for n in made
            if n not in there
        )
        with unoptimized():
            session = open_session(exposed, self.region.path.parent)
        return {**self.inputs, **run_session(session, self.inputs)}

    def _entered(self, model: ModelProto, name: str, taken: set[str]) -> Values:
        """Let a part read an image in the region's layout; return its value under its name there."""
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
        layout, kind = self._layouts.get(name), self.index.types.get(name)
        if layout is None or kind is None:
            return
        value = next(value for value in model.graph.output if value.name == name)
        packed = self._renamed(value, layout, kind, taken)
        model.graph.node.extend(self._conversion(layout, layout.forward(kind), name, packed, taken))

    def _renamed(
        self, value: onnx.ValueInfoProto, layout: Layout, kind: TensorType, taken: set[str]
    ) -> str:
        packed = layout.packed(kind)
        assert packed is not None  # it can lie in the layout
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
        """The types of all tensors; of one that inference does not know, what it was in this run."""
        known = dict(self.index.values)
        for name, value in self.values.items():
            if name not in known and hasattr(value, "dtype"):
                number = helper.np_dtype_to_tensor_dtype(value.dtype)
                known[name] = helper.make_tensor_type_proto(number, value.shape)
        return known

    @cached_property
    def _skin(self) -> Mapping[str, Sequence[int]]:
        """The tensors that cross the border in a layout, as ONNX has them, to the nodes that undo it."""
        found = {}
        for contracts, chain in ((self.region.inputs, self._inwards), (self.region.outputs, self._back)):
            for contract in contracts:
                name, nodes = chain(contract)
                if nodes and _layout(contract) is not None:
                    found[name] = nodes
        return found

    def _inwards(self, contract: Contract) -> tuple[str, list[int]]:
        name, nodes = contract.name, []
        while len(readers := self.index.consumers.get(name, ())) == 1 and self._is_skin(readers[0]):
            nodes.append(readers[0])
            name = self.index.nodes[readers[0]].output[0]
        return name, nodes

    def _back(self, contract: Contract) -> tuple[str, list[int]]:
        name, nodes = contract.name, []
        while (maker := self.index.producer.get(name)) is not None and self._is_skin(maker):
            nodes.append(maker)
            name = self.index.nodes[maker].input[0]
        return name, nodes

    def _is_skin(self, number: int) -> bool:
        node = self.index.nodes[number]
        return mark_of(node) == LAYOUT and is_conversion(node)

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        """The layout of each tensor that crosses in one, or would if the region were cut there."""
        borders = (*self.region.inputs, *self.region.outputs)
        said = [layout for contract in borders if (layout := _layout(contract)) is not None]
        if not said:
            return {}
        flat = prepare(self.region.load(inline=True), self.region.name)
        opset = self.index.opsets.get("", 0)
        return {
            name: said[0]
            for name in {*images(flat.index), *self._skin}
            if can_lie(said[0], self.index.types.get(name), opset)
        }


def _layout(contract: Contract) -> Layout | None:
    try:
        return parse_layout(contract.layout) if contract.layout else None
    except ValueError:  # one that byoc itself could not read
        return None
