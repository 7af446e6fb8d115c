"""Parts of a region as models of their own, with the values that really reach them.

A part has the same boundary as the region: if the region reads and makes images in a layout, so does the
part, and byoc's own nodes convert inside. Composites are taken whole.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper

from byoc._dataclasses import dataclass, replace
from byoc.boundary.contracts import TensorContract, is_conversion
from byoc.codegen import Executor, Region, open_region_session
from byoc.errors import InputError, describe_error
from byoc.model import (
    IMAGE,
    LAYOUT,
    LAYOUT_KEY,
    EditableGraph,
    GraphIndex,
    Model,
    TensorLayout,
    TensorType,
    can_convert_layout,
    copy_without,
    embed_external_data,
    extract_nodes,
    find_images,
    get_metadata,
    get_node_name,
    get_purpose,
    make_layout_nodes,
    make_unique_name,
    mark_inserted,
    parse_layout,
    prepare_model,
    set_metadata,
    walk_tensors,
    write_type,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.samples import open_plain_session

# Models run plainly, to compare with: on onnxruntime; without a kernel there, on `onnx.reference`.

_NO_KERNEL = re.compile(
    r"NOT_IMPLEMENTED.*?(?:Could not find an implementation|Failed to find kernel) for (\S+?)\("
    r"|(?:\S+:)?(\w+)\(-?\d+\) is not a registered function"
    r"|Exception during initialization: \S*?/core/providers/cpu/\S*?/(?:deep_cpu_)?(\w+?)(?:_base)?\.h:"
)
"""What onnxruntime says of an operator, or a form of it, that it does not have."""


@dataclass(frozen=True)
class PlainModel:
    """A model ready to run, and the judge where it is not onnxruntime: a part of a sentence."""

    run: Executor
    judge: str = ""


def open_plain(
    model: ModelProto | Path,
    folder: Path | None,
    load: Callable[[], ModelProto],
    open_it: Callable[[], Any] | None = None,
) -> PlainModel:
    """Open a model on onnxruntime without optimizations, or on onnx.reference where that has no kernel.

    `folder` holds the external data of a model in memory; `load` returns the model with all its weights,
    and is called only for onnx.reference. `open_it` opens a model that may be open already. Raises
    InputError where neither opens it.
    """
    try:
        with without_optimizations():
            session = open_session(model, folder) if open_it is None else open_it()
    except InputError as error:
        missing = _NO_KERNEL.search(str(error))
        if missing is None:
            raise
        try:
            opened = open_reference(load())
        except InputError:
            raise error from None
        operator = missing[missing.lastindex or 0]
        judge = f"onnx.reference, since onnxruntime has no kernel for {operator}"
        return replace(opened, judge=judge)
    return PlainModel(lambda inputs: run_session(session, inputs))


def open_reference(model: ModelProto) -> PlainModel:
    """Open a model on ONNX's reference implementation. Raises InputError for what it does not have."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # any error, since operators are plain Python
        raise InputError(f"onnx.reference cannot open the model: {describe_error(error)}") from None

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with np.errstate(all="ignore"):
                made = evaluator.run(None, dict(inputs))
        except Exception as failure:  # as above
            raise InputError(f"onnx.reference cannot run the model: {describe_error(failure)}") from None
        return dict(zip(evaluator.output_names, made, strict=True))

    return PlainModel(run, "onnx.reference")


def open_original(proto: ModelProto, model: Model) -> PlainModel:
    """Open a model, given or derived from it, to compare with. Raises InputError."""

    def load() -> ModelProto:
        whole = copy_without(proto)
        embed_external_data(walk_tensors(whole), model.folder)
        return whole

    session = partial(open_plain_session, model) if proto is model.proto else None
    return open_plain(proto, model.folder, load, session)


def open_region(region: Region) -> PlainModel:
    """Open a region's own ONNX, to compare with. Raises InputError."""
    try:
        with without_optimizations():
            session = open_region_session(region)
    except InputError:
        return open_plain(region.open_model, region.path.parent, lambda: region.load(inline=True))

    def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        with without_optimizations():  # it may open another session
            return session(inputs)

    return PlainModel(run)


def run_plain(proto: ModelProto, model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model, given or derived from it, plainly. Raises InputError."""
    return dict(open_original(proto, model).run(inputs))


def make_reference_executor(region: Region) -> Executor:
    """Return an executor of a region's own ONNX, run plainly. Raises InputError."""
    return open_region(region).run


@contextmanager
def convert_errors(kind: type[InputError], prefix: str) -> Iterator[None]:
    """Raise an InputError again as `kind`, with a prefix."""
    try:
        yield
    except InputError as error:
        raise kind(f"{prefix}: {error}") from error


Values = Mapping[str, Any]

_PLAIN = parse_layout(IMAGE)


@dataclass(frozen=True, eq=False)
class RegionPart:
    """Some operations of a region as a model with its weights, and the values that reach it.

    `read` and `made` are the region's tensors that the inputs and outputs of the model hold, in their
    order.
    """

    model: ModelProto
    inputs: Values
    read: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RegionCutter:
    """A region to be cut into parts, and the values that reached it."""

    region: Region
    inputs: Values

    @cached_property
    def index(self) -> GraphIndex:
        """The index of the region's model; large weights stay on disk."""
        return prepare_model(self.region.model, self.region.name, self.region.path.parent).index

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """The nodes in order, without constant nodes and layout conversions at the boundary."""
        left_out = {number for chain in self._boundary_conversions.values() for number in chain}
        left_out |= self.index.constant_nodes
        return tuple(i for i in range(len(self.index.nodes)) if i not in left_out)

    def operation_name(self, operation: int) -> str:
        """Return the name of an operation, or its first output."""
        return get_node_name(self.index.nodes[operation])

    def neighbours(self, operation: int) -> list[int]:
        """Return the operations that make an operation's inputs or read its outputs."""
        index = self.index
        makers = [index.producers.get(name) for name in index.reads[operation]]
        outputs = index.nodes[operation].output
        readers = [i for name in outputs for i in index.consumers.get(name, ())]
        return [i for i in dict.fromkeys((*makers, *readers)) if i in self._operations]

    def make_part(self, operations: Collection[int], exposed: Sequence[str] = ()) -> RegionPart | None:
        """Make a model of some operations; None if nothing outside uses their outputs.

        Tensors that are `exposed` are outputs as well.
        """
        name = self.region.name
        model = extract_nodes(self.index, sorted(operations), name, self._types)
        model.graph.output.extend(helper.make_value_info(each, self._types[each]) for each in exposed)
        if not model.graph.output:
            return None
        read = tuple(value.name for value in model.graph.input)
        made = tuple(value.name for value in model.graph.output)
        embed_external_data(walk_tensors(model), self.region.path.parent)
        inputs: dict[str, Any] = {}
        taken = {*self.index.types, *self.values, *(t.name for t in model.graph.initializer)}
        for value in list(model.graph.input):
            inputs |= self._convert_input(model, value.name, taken)
        for value in list(model.graph.output):
            self._convert_output(model, value.name, taken)
        border = {value.name for value in (*model.graph.input, *model.graph.output)}
        inside = (name for node in model.graph.node for name in node.output)
        model.graph.value_info.extend(
            helper.make_value_info(tensor, self._types[tensor])
            for tensor in dict.fromkeys(inside)
            if tensor in self._types and tensor not in border
        )
        return RegionPart(model, inputs, read, made)

    def match_inputs(self, part: RegionPart) -> dict[str, str]:
        """Return the input of a part that holds each input of the region, by the region's name."""
        names = {name: value.name for name, value in zip(part.read, part.model.graph.input, strict=True)}
        inner = ((each.name, self._follow_input(each.name)[0]) for each in self.region.inputs)
        return {name: names[read] for name, read in inner if read in names}

    def match_outputs(self, part: RegionPart) -> dict[str, str]:
        """Return the output of a part that holds each output of the region, by the region's name."""
        names = {
            name: value.name for name, value in zip(part.made, part.model.graph.output, strict=True)
        }
        inner = ((each.name, self._follow_output(each.name)[0]) for each in self.region.outputs)
        return {name: names[made] for name, made in inner if made in names}

    def read_outputs(self, made: Values) -> dict[str, Any]:
        """Return the region's outputs in ONNX's layout, by the tensors before conversions."""
        inner = ((self._follow_output(each.name)[0], made[each.name]) for each in self.region.outputs)
        return {name: self.unpack(name, value) for name, value in inner}

    def unpack(self, tensor: str, value: Any) -> Any:
        """Return a tensor that a part made in ONNX's layout instead of the region's.

        Raises ValueError for a value of another shape.
        """
        layout = self._layouts.get(tensor)
        if layout is None or self.index.types.get(tensor) is None or tensor in self._transposed_inside:
            return value
        return layout.unpack_array(value, np.shape(self.values[tensor]))

    @cached_property
    def values(self) -> Values:
        """Every tensor of the region by name, as plain onnxruntime computes it from the inputs."""
        exposed = copy_without(self.region.model)
        outputs = {value.name for value in exposed.graph.output}
        made = [name for node in exposed.graph.node for name in node.output if name]
        exposed.graph.output.extend(
            helper.make_value_info(name, self.index.type_protos[name])
            if name in self.index.type_protos
            else onnx.ValueInfoProto(name=name)
            for name in made
            if name not in outputs
        )
        with without_optimizations():
            session = open_session(exposed, self.region.path.parent)
        return {**self.inputs, **run_session(session, self.inputs)}

    def _convert_input(self, model: ModelProto, name: str, taken: set[str]) -> Values:
        """Make a part read an image in the region's layout; return its value under the new name."""
        layout, kind = self._layouts.get(name), self.index.types.get(name)
        if layout is None or kind is None:
            return {name: self.values[name]}
        value = next(value for value in model.graph.input if value.name == name)
        packed = self._set_layout(value, layout, kind, taken)
        nodes = self._conversion_nodes(layout, layout.make_unpack_steps(kind), packed, name, taken)
        given = packed
        if name in self._transposed_inside:
            given = self._set_layout(value, _PLAIN, kind, taken)
            steps = layout.make_pack_steps(kind)
            nodes = [*self._conversion_nodes(layout, steps, given, packed, taken), *nodes]
        graph = EditableGraph(model.graph)
        graph.insert_first(*nodes)
        graph.write_to(model.graph)
        array = self.values[name]
        return {given: array if name in self._transposed_inside else layout.pack_array(array)}

    def _convert_output(self, model: ModelProto, name: str, taken: set[str]) -> None:
        """Make a part return an image in the region's layout."""
        layout, kind = self._layouts.get(name), self.index.types.get(name)
        if layout is None or kind is None:
            return
        value = next(value for value in model.graph.output if value.name == name)
        packed = self._set_layout(value, layout, kind, taken)
        model.graph.node.extend(
            self._conversion_nodes(layout, layout.make_pack_steps(kind), name, packed, taken)
        )
        if name in self._transposed_inside:
            made = self._set_layout(value, _PLAIN, kind, taken)
            steps = layout.make_unpack_steps(kind)
            model.graph.node.extend(self._conversion_nodes(layout, steps, packed, made, taken))

    def _set_layout(
        self, value: onnx.ValueInfoProto, layout: TensorLayout, kind: TensorType, taken: set[str]
    ) -> str:
        """Change the type of an input or output to a layout, under a new name, which is returned."""
        packed = layout.pack_type(kind)
        assert packed is not None  # `_layouts` has only tensors that can have the layout
        name = make_unique_name(f"{value.name}_{layout}", taken)
        value.CopyFrom(helper.make_value_info(name, write_type(packed)))
        return name

    def _conversion_nodes(
        self, layout: TensorLayout, steps: Any, source: str, target: str, taken: set[str]
    ) -> list[NodeProto]:
        nodes = make_layout_nodes(
            steps, source, target, lambda name, kind: make_unique_name(name, taken)
        )
        for node in nodes:
            set_metadata(mark_inserted(node, LAYOUT), LAYOUT_KEY, str(layout))
        return nodes

    @cached_property
    def _operations(self) -> frozenset[int]:
        return frozenset(self.operations)

    @cached_property
    def _types(self) -> Mapping[str, TypeProto]:
        """The types of all tensors; a type that inference does not know is that of the value."""
        types = dict(self.index.type_protos)
        for name, value in self.values.items():
            if name not in types and hasattr(value, "dtype"):
                element = helper.np_dtype_to_tensor_dtype(value.dtype)
                types[name] = helper.make_tensor_type_proto(element, value.shape)
        return types

    @cached_property
    def _boundary_conversions(self) -> Mapping[str, Sequence[int]]:
        """The boundary tensors with a layout, by their inner names, and the nodes that convert each."""
        chains = [(contract, *self._follow_input(contract.name)) for contract in self.region.inputs]
        chains += [(contract, *self._follow_output(contract.name)) for contract in self.region.outputs]
        return {
            name: nodes
            for contract, name, nodes in chains
            if nodes and (_contract_layout(contract) or contract.converts.get("layout") == "device")
        }

    @cached_property
    def _transposed_inside(self) -> Mapping[str, TensorLayout]:
        """The layouts of boundary tensors that cross as ONNX has them, by their inner names."""
        contracts = (*self.region.inputs, *self.region.outputs)
        inner = {each.inner for each in contracts if each.converts.get("layout") == "device"}
        return {
            name: parse_layout(get_metadata(self.index.nodes[nodes[0]], LAYOUT_KEY))
            for name, nodes in self._boundary_conversions.items()
            if name in inner
        }

    def _follow_input(self, name: str) -> tuple[str, list[int]]:
        """Follow the conversions of an input; return the name after them, and their nodes."""
        nodes = []
        while len(readers := self.index.consumers.get(name, ())) == 1 and self._is_layout_conversion(
            readers[0]
        ):
            nodes.append(readers[0])
            name = self.index.nodes[readers[0]].output[0]
        return name, nodes

    def _follow_output(self, name: str) -> tuple[str, list[int]]:
        """Follow the conversions of an output backwards; return the name before them and their nodes."""
        nodes = []
        while (maker := self.index.producers.get(name)) is not None and self._is_layout_conversion(
            maker
        ):
            nodes.append(maker)
            name = self.index.nodes[maker].input[0]
        return name, nodes

    def _is_layout_conversion(self, number: int) -> bool:
        node = self.index.nodes[number]
        return get_purpose(node) == LAYOUT and is_conversion(node)

    @cached_property
    def _layouts(self) -> Mapping[str, TensorLayout]:
        """The layout of each tensor that has one at the boundary, or would have if cut there."""
        contracts = (*self.region.inputs, *self.region.outputs)
        inside = self._transposed_inside.values()
        layout = next(filter(None, (*map(_contract_layout, contracts), *inside)), None)
        if layout is None:
            return {}
        inlined = prepare_model(self.region.load(inline=True), self.region.name)
        opset = self.index.opsets.get("", 0)
        return {
            name: layout
            for name in {*find_images(inlined.index), *self._boundary_conversions}
            if can_convert_layout(layout, self.index.types.get(name), opset)
        }


def _contract_layout(contract: TensorContract) -> TensorLayout | None:
    try:
        return parse_layout(contract.layout) if contract.layout else None
    except ValueError:  # a vendor's layout that byoc cannot parse
        return None
