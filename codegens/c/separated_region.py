"""A region for C: large constants are arguments of the function, the others are in its source."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from byoc.codegen import (
    AnyArray,
    CompileError,
    Region,
    list_node_captures,
    list_reads,
    node_names,
    read_type,
)

_MAX_INSIDE = 128  # bytes of a constant that is written into the source,
_MAX_INDICES = 1024  # and of one of int64: shapes, axes and sizes decide what is emitted


@dataclass(frozen=True, eq=False)
class SeparatedRegion:
    """A region in standard operators, with large constants and constant outputs separated.

    `model` computes the outputs of nodes from the region's inputs and from `weights`, which are inputs
    of it as well. `known` are outputs that are constants. Any other output of the region is an input of
    it.
    """

    model: ModelProto
    weights: Mapping[str, AnyArray]
    known: Mapping[str, AnyArray]

    @property
    def made(self) -> list[str]:
        """Names of the outputs that are computed."""
        return [value.name for value in self.model.graph.output]


def separate_region(region: Region) -> SeparatedRegion:
    """Return a region in the form that emx-onnx-cgen takes.

    Raises CompileError for unknown extents, with the nodes that read or write a tensor with one.
    """
    for value in (*region.inputs, *region.outputs):
        if value.type.elements is None:
            raise CompileError(
                f"'{value.name}' is {value.type}: all extents must be known (--dim gives a model's)",
                node_names(_open_nodes(region)),
            )
    model = load_standard_model(region)
    graph = model.graph
    used = dict.fromkeys(name for node in graph.node for name in list_reads(node))
    inner = {name for node in graph.node for name in list_node_captures(node)}
    outputs = {value.name: value for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {}
    kept = []
    for name in (name for name in (*used, *sorted(inner - used.keys())) if name in stored):
        tensor = stored[name]
        array = numpy_helper.to_array(tensor)
        most = _MAX_INDICES if tensor.data_type == TensorProto.INT64 else _MAX_INSIDE
        if name not in inner and array.nbytes > most:
            weights[name] = array
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        else:
            kept.append(tensor)
    known = {name: numpy_helper.to_array(stored[name]) for name in outputs if name in stored}
    del graph.initializer[:], graph.output[:]
    graph.initializer.extend(kept)
    graph.output.extend(value for name, value in outputs.items() if name in made)
    return SeparatedRegion(model, weights, known)


def have_same_source(one: SeparatedRegion, other: SeparatedRegion) -> bool:
    """Return whether two regions become the same C, names apart.

    Nodes, inputs, outputs and weights then correspond by position; other constants are equal.
    """
    graphs = (one.model.graph, other.model.graph)
    if any(list_node_captures(node) for graph in graphs for node in graph.node):
        return False  # names inside bodies are not looked at
    return _describe(graphs[0]) == _describe(graphs[1])


def _describe(graph: onnx.GraphProto) -> list[object]:
    """Return all of a graph that its source depends on, with numbers in the place of names."""
    boundary = (*graph.input, *graph.output)
    read = (name for node in graph.node for name in (*node.input, *node.output))
    names = dict.fromkeys((*(value.name for value in boundary), *read))
    numbers = {name: number for number, name in enumerate(names)}
    values = [
        (numbers[value.name], value.type.SerializeToString(deterministic=True)) for value in boundary
    ]
    stored = [
        (numbers[tensor.name], tensor.data_type, tuple(tensor.dims), array.tobytes())
        for tensor in graph.initializer
        for array in [numpy_helper.to_array(tensor)]
    ]
    nodes = [
        (
            (node.domain, node.op_type),
            [numbers[name] for name in node.input],
            [numbers[name] for name in node.output],
            sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute),
        )
        for node in graph.node
    ]
    return [values, stored, nodes]


def _open_nodes(region: Region) -> list[NodeProto]:
    """Return the nodes that read or write a tensor with an unknown extent.

    A model may state an extent of an output that its values decide: the boundary says that it is open.
    """
    graph = region.model.graph
    boundary = (*region.inputs, *region.outputs)
    known = {
        value.name
        for value in (*graph.input, *graph.output, *graph.value_info)
        if (kind := read_type(value.type)) is not None and kind.elements is not None
    }
    known |= {"", *(tensor.name for tensor in graph.initializer)}
    known -= {value.name for value in boundary if value.type.elements is None}
    return [node for node in graph.node if not {*node.input, *node.output} <= known]


def load_standard_model(region: Region, inline: bool = True) -> ModelProto:
    """Return the model of a region, with constants folded if ONNX can evaluate them."""
    try:
        return region.load(fold=True, inline=inline)
    except Exception:  # an operator's version that the reference implementation lacks, for one
        return region.load(inline=inline)
