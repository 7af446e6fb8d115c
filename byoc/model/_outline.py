"""Outlining: nodes of a graph become functions that the graph calls, composites inside them, too.

A region becomes a model-local function in its target's domain, named after the region; each composite
in it becomes a call of its own function. Functions cannot capture outer names, so a region's constants
are inputs of its function; constant nodes are copied into each region that reads them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from math import prod

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError, suggest_nearest
from byoc.model._editable_graph import EditableGraph, build_node
from byoc.model._graph_index import GraphIndex
from byoc.model._graph_parts import (
    BoundaryNames,
    Composite,
    find_boundary,
    make_composite_call,
    make_composite_functions,
)
from byoc.model._model_loading import Model, prepare_model
from byoc.model._node_kinds import LabelledNode, add_metadata, copy_nodes
from byoc.model._open_dims import CertainTypes, find_certain_types
from byoc.model._tensor_data import DTYPES, add_input, clear_shape, count_bits, rate_knowledge
from byoc.model._vendor_operators import list_missing_defaults
from byoc.model._walk import copy_without, is_onnx, list_reads, sort_nodes, walk_nodes
from byoc.numerics import sort_topologically

# Nodes of a region in forms that onnxruntime reads inside a function.
#
# onnxruntime 1.31 loses the overload (ONNX IR 10) of a call inside another function, and then runs
# another body or finds none; and inside a function it knows no type of a sparse initializer of a
# body.

_FunctionKey = tuple[str, str, str]

_MAX_DENSE_BYTES = 1 << 28


def rename_overloads(
    made: Sequence[FunctionProto], functions: Iterable[FunctionProto]
) -> list[FunctionProto]:
    """Give overloads that functions call names of their own: `F` with the overload `a` becomes `F_a`.

    The calls are changed in the functions `made`; the model's own `functions` stay as they are. Returns
    `made` and the renamed copies, those that copies call included. A function comes behind those that it
    calls, since onnx.reference reads them in their order.
    """
    by_key = {(f.domain, f.name, f.overload): f for f in functions}
    taken = {(domain, name) for domain, name, _ in by_key}
    found: dict[_FunctionKey, FunctionProto] = {}
    pending = list(made)
    while pending:
        for node in walk_nodes(pending.pop().node):
            key = (node.domain, node.op_type, node.overload)
            if not node.overload or key not in by_key:
                continue
            if key not in found:
                found[key] = deepcopy(by_key[key])
                found[key].name = _choose_name(key, taken)
                found[key].ClearField("overload")
                pending.append(found[key])
            node.op_type = found[key].name
            node.ClearField("overload")
    return _put_callees_first([*made, *found.values()])


def _put_callees_first(functions: Sequence[FunctionProto]) -> list[FunctionProto]:
    numbers = {(f.domain, f.name, f.overload): i for i, f in enumerate(functions)}
    calls = [
        {(node.domain, node.op_type, node.overload) for node in walk_nodes(function.node)}
        for function in functions
    ]
    order = sort_topologically([[numbers[key] for key in keys & numbers.keys()] for keys in calls])
    return [functions[i] for i in order]


def _choose_name(key: _FunctionKey, taken: set[tuple[str, str]]) -> str:
    domain, name, overload = key
    plain = "".join(c if c.isalnum() else "_" for c in f"{name}_{overload}")
    while (domain, plain) in taken:
        plain += "_"
    taken.add((domain, plain))
    return plain


def make_initializers_dense(graph: GraphProto) -> None:
    """Replace the sparse initializers of a body by dense ones, in place."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(make_dense(sparse))
    del graph.sparse_initializer[:]


def make_dense(sparse: SparseTensorProto) -> TensorProto:
    """Return a sparse tensor as onnxruntime reads it: all its elements, most of them 0.

    Raises InputError where these take more than 256 MiB: a file of some bytes can state any extents.
    """
    size = prod(sparse.dims) * count_bits(DTYPES[sparse.values.data_type]) // 8
    if size > _MAX_DENSE_BYTES:
        name = sparse.values.name
        raise InputError(f"the sparse initializer '{name}' would take {size:,} bytes with all its zeros")
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim > 1:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return numpy_helper.from_array(dense, sparse.values.name)


# The metadata of nodes and functions came with IR 10.
MIN_IR = 10
# The newest version that onnxruntime 1.31 reads. Later versions only add to it.
MAX_IR = 13


@dataclass(frozen=True)
class OutlineGroup:
    """Nodes that stay together; those of a composite become one call of its function."""

    nodes: tuple[int, ...]
    composite: Composite | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RegionCut:
    """A region to outline: its name, its target's domain, its groups in topological order."""

    name: str
    domain: str
    groups: tuple[OutlineGroup, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """The numbers of all nodes of the region, in topological order."""
        return sorted(node for group in self.groups for node in group.nodes)


@dataclass(frozen=True, eq=False)
class GraphCuts:
    """The changes to make to a graph.

    `cuts` are its regions; `metadata` has keys and values for nodes that stay, by node number; `bodies`
    has the changes to each body of a node, in the order of `index.bodies`.
    """

    index: GraphIndex
    cuts: tuple[RegionCut, ...]
    metadata: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    bodies: Mapping[int, Sequence["GraphCuts"]] = field(default_factory=dict)

    def walk(self) -> Iterator["GraphCuts"]:
        """Yield these changes and those of all bodies inside."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.walk()


def check_domains_unused(index: GraphIndex, domains: Iterable[str]) -> None:
    """Raise InputError when a model already uses one of the domains for new functions."""
    for domain in domains:
        if domain in index.opsets or any(f.domain == domain for f in index.proto.functions):
            raise InputError(f"the model already uses the domain '{domain}': partitioned before?")


def outline(root: GraphCuts) -> ModelProto:
    """Return the model with each cut outlined as a function; the original is not changed.

    The cuts of a graph must be disjoint, and acyclic after contraction (else ValueError). Raises
    InputError when the model already uses the domain of a cut.
    """
    index = root.index
    graphs = list(root.walk())
    cuts = [(graph.index, cut) for graph in graphs for cut in graph.cuts]
    domains = dict.fromkeys(cut.domain for _, cut in cuts)
    check_domains_unused(index, domains)
    found = [(cut.domain, g.composite) for _, cut in cuts for g in cut.groups if g.composite]
    made = [
        function
        for domain in domains
        for function in make_composite_functions(domain, [c for d, c in found if d == domain])
    ]
    certain = find_certain_types(index)
    made += [_make_region_function(i, cut, certain) for i, cut in cuts]
    made = rename_overloads(made, index.proto.functions)
    result = copy_without(index.proto, "node", "value_info")
    result.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains))
    result.functions.extend(made)
    _fill_graph(result, index, _rewrite_graph(root, certain), certain)
    return result


def _rewrite_graph(graph: GraphCuts, certain: CertainTypes) -> list[LabelledNode]:
    """Return the nodes of a graph with each cut replaced by a call, and their new metadata."""
    index = graph.index
    calls: dict[int, NodeProto] = {}
    gone: set[int] = set()
    for cut in graph.cuts:
        calls[cut.nodes[-1]] = _make_call(cut, find_boundary(index, cut.nodes))
        gone.update(cut.nodes)
    gone |= _find_unread_constants(index, graph.cuts, gone)
    lines: list[LabelledNode] = []
    reads: list[Sequence[str]] = []
    for i, node in enumerate(index.nodes):
        if i in calls:
            lines.append((calls[i], {}))
            reads.append(list_reads(calls[i]))
        elif i not in gone:
            inner = graph.bodies.get(i, ())
            changed = any(part.cuts for body in inner for part in body.walk())
            stays = _rewrite_bodies(index, i, inner, certain) if changed else node
            lines.append((stays, graph.metadata.get(i, {})))
            reads.append(list_reads(stays) if changed else index.reads[i])
    return [lines[i] for i in sort_nodes([node for node, _ in lines], reads)]


def _rewrite_bodies(
    index: GraphIndex, number: int, inner: Sequence[GraphCuts], certain: CertainTypes
) -> NodeProto:
    """Return a copy of a node with rewritten bodies."""
    node, graphs = _copy_with_bodies(index, number)
    for body, graph, cuts in zip(index.bodies[number], graphs, inner, strict=True):
        lines = _rewrite_graph(cuts, certain)
        made = {name for inside, _ in lines for name in inside.output if name}
        infos = list(_make_value_infos(body.index, made, certain))
        del graph.value_info[:]
        copy_nodes(graph, lines)
        graph.value_info.extend(infos)
        _complete_types(graph, body.index, certain)
    return node


def _copy_with_bodies(index: GraphIndex, number: int) -> tuple[NodeProto, list[GraphProto]]:
    """Return a copy of a node, and its bodies in the order of `index.bodies`."""
    node = deepcopy(index.nodes[number])
    attributes = {attribute.name: attribute for attribute in node.attribute}
    graphs = []
    for body in index.bodies[number]:
        attribute = attributes[body.attribute]
        graphs.append(attribute.g if attribute.HasField("g") else attribute.graphs[body.position])
    return node, graphs


def _complete_types(graph: GraphProto, index: GraphIndex, certain: CertainTypes) -> None:
    """Set the types of a body's inputs and outputs where more is certain than the body states."""
    for value in (*graph.input, *graph.output):
        known = _find_type(index, value.name, certain)
        if known is not None and rate_knowledge(known) > rate_knowledge(value.type):
            value.type.CopyFrom(known)


def _find_type(index: GraphIndex, name: str, certain: CertainTypes) -> TypeProto | None:
    """Return the type to state of a tensor: its certain type, or its dtype alone.

    onnxruntime would rely on a shape that is not certain.
    """
    found = certain[index].get(name)
    return clear_shape(index.type_protos.get(name)) if found is None else found


def _state_types(index: GraphIndex, number: int, certain: CertainTypes) -> NodeProto:
    """Return a node with the types of all its bodies stated, and their constants dense.

    Shape inference of a function has less context than that of the model, and needs them.
    """
    if number not in index.bodies:
        return index.nodes[number]
    node, graphs = _copy_with_bodies(index, number)
    for body, graph in zip(index.bodies[number], graphs, strict=True):
        nodes = [_state_types(body.index, i, certain) for i in range(len(body.index.nodes))]
        del graph.node[:]
        graph.node.extend(nodes)
        make_initializers_dense(graph)
        _complete_types(graph, body.index, certain)
    return node


def _make_region_function(index: GraphIndex, cut: RegionCut, certain: CertainTypes) -> FunctionProto:
    border = find_boundary(index, cut.nodes)
    lines: list[LabelledNode] = [(index.nodes[i], {}) for i in border.constant_nodes]
    for group in cut.groups:
        inside = {line.node for line in group.composite.lines} if group.composite else set()
        whole = [
            _state_defaults(index, _state_types(index, i, certain))
            for i in group.nodes
            if i not in inside
        ]
        if group.composite is not None:
            whole.append(make_composite_call(cut.domain, group.composite))
        lines += [(node, group.metadata) for node in whole]
    nodes = [node for node, _ in lines]
    order = sort_nodes(nodes)
    function = helper.make_function(
        cut.domain,
        cut.name,
        [*border.inputs, *border.constants],
        border.outputs,
        [],
        opset_imports=_make_opset_imports(index, nodes),
    )
    copy_nodes(function, [lines[i] for i in order])
    add_metadata(function, cut.metadata)
    return function


def _make_call(cut: RegionCut, border: BoundaryNames) -> NodeProto:
    node = build_node(
        cut.name,
        [*border.inputs, *border.constants],
        border.outputs,
        name=cut.name,
        domain=cut.domain,
    )
    add_metadata(node, cut.metadata)
    return node


def _find_unread_constants(index: GraphIndex, cuts: Sequence[RegionCut], gone: set[int]) -> set[int]:
    """Return the constant nodes that only outlined nodes read, and that the graph can drop."""
    sunk = {node for cut in cuts for node in find_boundary(index, cut.nodes).constant_nodes}
    dropped: set[int] = set()
    wanted = set(index.outputs)
    for node in sorted(sunk, reverse=True):
        outputs = index.nodes[node].output
        users = {user for name in outputs for user in index.consumers.get(name, ())}
        if wanted.isdisjoint(outputs) and users <= gone | dropped:
            dropped.add(node)
    return dropped


def _fill_graph(
    result: ModelProto, index: GraphIndex, lines: Sequence[LabelledNode], certain: CertainTypes
) -> None:
    """Add new nodes and the types of what they make to a copy of the source model without any."""
    set_ir_version(result, index)
    copy_nodes(result.graph, lines)
    names = {name for node, _ in lines for name in node.output if name}
    result.graph.value_info.extend(_make_value_infos(index, names, certain))


def set_ir_version(proto: ModelProto, index: GraphIndex) -> None:
    """Set the IR version of a copy of a model to the nearest whose nodes have metadata, in place.

    Before IR 4 every initializer had to be an input too; from IR 4 on that would make it a default.
    """
    if not index.has_default_inputs:
        inputs = set(index.inputs)
        data = [value for value in proto.graph.input if value.name in inputs]
        del proto.graph.input[:]
        proto.graph.input.extend(data)
    proto.ir_version = min(max(proto.ir_version, MIN_IR), MAX_IR)


def _make_value_infos(
    index: GraphIndex, made: set[str], certain: CertainTypes
) -> Iterator[ValueInfoProto]:
    """Yield the value infos of the tensors that nodes make, with the user's doc strings and metadata."""
    stated = {value.name: value for value in index.graph.value_info}
    for name in sorted(made - index.outputs.keys()):
        kind = _find_type(index, name, certain)
        if kind is None or kind.HasField("sparse_tensor_type"):
            continue  # onnxruntime makes sparse initializers dense
        info = ValueInfoProto()
        if name in stated:
            info.CopyFrom(stated[name])
        info.name = name
        info.type.CopyFrom(kind)
        yield info


def _make_opset_imports(index: GraphIndex, nodes: Sequence[NodeProto]) -> list[OperatorSetIdProto]:
    return [
        helper.make_opsetid(domain, index.opsets.get(domain, 1))
        for domain in sorted({*index.opsets, *(node.domain for node in nodes)})
    ]


def _state_defaults(index: GraphIndex, node: NodeProto) -> NodeProto:
    """Return a node with the defaults of its attributes stated, if something needs that.

    Shape inference of a function inside a function does not know the defaults otherwise (onnx 1.23), and
    onnxruntime 1.32 crashes on a SimplifiedLayerNormalization in a function without `stash_type`. ONNX's
    inference takes an STFT for two-sided unless it says otherwise.
    """
    schema = index.get_schema(node)
    needed = schema is not None and (schema.is_function or schema.onnx_schema is None)
    if schema is None or not (needed or (is_onnx(node) and node.op_type == "STFT")):
        return node
    result = deepcopy(node)
    result.attribute.extend(list_missing_defaults(node, schema))
    return result


# Constants that the user declares variable: inputs of the model, with the constant as their
# default.
#
# Whoever calls the model may give such an input another value, as the weights of another adapter
# (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021). ONNX has that from IR
# version 4 on: an initializer that is an input, too.


def make_variable(model: Model, patterns: Sequence[str]) -> Model:
    """Return a model in which the constants that patterns match (`*lora*`) are inputs with a default.

    They are initializers, and Constant nodes of the main graph by their outputs. Raises InputError for a
    pattern that matches none.
    """
    if not patterns:
        return model
    index = model.index
    stored = {tensor.name: tensor for tensor in model.structure.graph.initializer}
    known = [name for name in (*stored, *_find_constant_nodes(index)) if index.is_constant(name)]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        matched = [name for name in known if fnmatchcase(name, pattern)]
        if not matched:
            near = suggest_nearest(pattern, known)
            raise InputError(f"{model.source}: variable: no constant is called '{pattern}'{near}")
        chosen |= dict.fromkeys(matched)
    result = prepare_model(_add_inputs(model, chosen), model.source, model.folder, heavy=model.heavy)
    return replace(
        result, make_samples=model.make_samples, planned=model.planned, variable=tuple(chosen)
    )


def list_default_inputs(model: Model) -> list[str]:
    """Return the inputs of a model that have a default, an initializer of their name, in order.

    From version 4 of the IR on a call may give other values (ONNX IR, "Graphs"), so that such a weight
    is no constant; some exporters list all of them to this day, as version 3 required.
    """
    if not model.index.has_default_inputs:
        return []
    graph = model.structure.graph
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {tensor.values.name for tensor in graph.sparse_initializer}
    return [value.name for value in graph.input if value.name in stored]


def freeze_initializers(model: Model) -> Model:
    """Return a model whose initializers are constants: those among its inputs are inputs no longer."""
    names = {*list_default_inputs(model)}
    if not names:
        return model
    proto = copy_without(model.structure, "input")
    proto.graph.input.extend(each for each in model.structure.graph.input if each.name not in names)
    result = prepare_model(proto, model.source, model.folder, heavy=model.heavy)
    return replace(result, make_samples=model.make_samples, planned=model.planned)


def _find_constant_nodes(index: GraphIndex) -> dict[str, TensorProto]:
    """Return the tensors of Constant nodes that have one, by the names of their outputs."""
    return {
        node.output[0]: attribute.t
        for node in index.nodes
        if node.op_type == "Constant" and not node.domain
        for attribute in node.attribute
        if attribute.name == "value"
    }


def _add_inputs(model: Model, names: dict[str, None]) -> ModelProto:
    """Return a copy of a model in which constants of some names are inputs, too."""
    constants = _find_constant_nodes(model.index)
    proto = copy_without(model.structure)
    set_ir_version(proto, model.index)
    graph = EditableGraph(proto.graph)
    graph.remove(
        *(each for each in graph.nodes if each.op_type == "Constant" and each.output[0] in names)
    )
    graph.write_to(proto.graph)
    for name in names:
        if name in constants:
            proto.graph.initializer.add().CopyFrom(constants[name])
            proto.graph.initializer[-1].name = name
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in names:
        add_input(proto.graph, stored[name])
    return proto
