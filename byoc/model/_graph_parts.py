"""Parts of a graph: paths and node names, boundaries of sets of nodes, models cut out of a model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from byoc.model._graph_index import GraphIndex
from byoc.model._walk import copy_without, list_bodies, walk_graphs


def walk_graph_paths(index: GraphIndex, graph_path: str = "") -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs of a model with their paths: `Loop_0/body`, empty for the main graph."""
    yield graph_path.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from walk_graph_paths(
                body.index, make_body_path(index, number, body.attribute, graph_path)
            )


def make_body_path(index: GraphIndex, number: int, attribute: str, graph_path: str = "") -> str:
    """Return the path of a node's body with a slash behind it: `Loop_0/body/`."""
    return f"{graph_path}{name_nodes(index, '')[number]}/{attribute}/"


def name_nodes(index: GraphIndex, graph_path: str) -> dict[int, str]:
    """Return a distinct name for each node of a graph that runs: its own, or that of its first output.

    A name that is also another node's, or another node's output, is not used. A node with neither has
    none.
    """
    counts = Counter(node.name for node in index.nodes)
    behind = f"{graph_path}/" if graph_path else ""
    names: dict[int, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        clear = counts[node.name] == 1 and index.producers.get(node.name, number) == number
        own = node.name if clear and node.name else next(filter(None, node.output), "")
        if own:
            names[number] = f"{behind}{own}"
    return names


@dataclass(frozen=True)
class BoundaryNames:
    """The names of the tensors at the boundary of a region.

    `constant_nodes` are the numbers of constant nodes that the region takes in.
    """

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    constant_nodes: tuple[int, ...]


def find_boundary(index: GraphIndex, nodes: Sequence[int]) -> BoundaryNames:
    """Find the boundary of a set of nodes."""
    used = list(dict.fromkeys(name for node in nodes for name in index.reads[node]))
    sunk = index.find_constant_nodes(used)
    used += [name for node in sunk for name in index.reads[node]]
    made = {name for node in (*nodes, *sunk) for name in index.nodes[node].output}
    outer = [name for name in dict.fromkeys(used) if name not in made]
    inside, wanted = set(nodes), set(index.outputs)
    return BoundaryNames(
        inputs=tuple(name for name in outer if not index.is_constant(name)),
        constants=tuple(name for name in outer if index.is_constant(name)),
        outputs=tuple(
            name
            for node in nodes
            for name in index.nodes[node].output
            if name in wanted or not inside.issuperset(index.consumers.get(name, ()))
        ),
        constant_nodes=tuple(sunk),
    )


def extract_nodes(
    index: GraphIndex, nodes: Sequence[int], name: str, values: Mapping[str, TypeProto]
) -> ModelProto:
    """Return a model of the given nodes with the constants they need.

    Its inputs and outputs are the tensors at the boundary, with the same names and the types in
    `values`. External data stays in its files.
    """
    border = find_boundary(index, nodes)
    inner = sorted({*nodes, *border.constant_nodes})
    return _make_model(
        index,
        name,
        [index.nodes[i] for i in inner],
        border.inputs,
        border.outputs,
        border.constants,
        index.proto.functions,
        values,
    )


def open_shapes(model: ModelProto) -> ModelProto:
    """Return a model that states dtypes alone for the inputs, outputs and tensors of its main graph.

    onnxruntime refuses inputs of another shape than is stated, and computes with the stated shapes of
    tensors that it cannot infer; both may be wrong.
    """
    fields = ("input", "output", "value_info")
    result = copy_without(model, *fields)
    for name in fields:
        for value in getattr(model.graph, name):
            opened = getattr(result.graph, name).add()
            opened.CopyFrom(value)
            if value.type.HasField("tensor_type"):
                opened.type.tensor_type.ClearField("shape")
    return result


def extract_call(index: GraphIndex, call: NodeProto, values: Mapping[str, TypeProto]) -> ModelProto:
    """Return a model of the function that a node calls.

    Constants that the node passes become initializers; functions that the body calls are included.
    `values` gives the types of inputs and outputs, and of inner tensors where known. Inputs, outputs and
    initializers have the names of the function's parameters, in the order of the call.
    """
    function = next(
        f for f in index.proto.functions if (f.domain, f.name) == (call.domain, call.op_type)
    )
    called = list(zip(call.input, function.input, strict=True))
    data = [formal for name, formal in called if not index.is_constant(name)]
    constants = [name for name in call.input if index.is_constant(name)]
    others = [f for f in index.proto.functions if f is not function]
    known = {formal: values[name] for name, formal in called if name in values}
    known |= {formal: values[formal] for formal in data if formal in values}
    known |= {name: values[name] for name in function.output if name in values}
    model = _make_model(
        index, call.op_type, function.node, data, function.output, constants, others, known
    )
    formals = {name: formal for name, formal in called if index.is_constant(name)}
    for tensor in (*model.graph.initializer, *(s.values for s in model.graph.sparse_initializer)):
        tensor.name = formals[tensor.name]
    made = {name for node in function.node for name in node.output if name}
    model.graph.value_info.extend(_make_value_infos(sorted(made - set(function.output)), values))
    model.metadata_props.extend(function.metadata_props)
    return model


def _make_model(  # noqa: PLR0913, PLR0917 - the parts of a model
    index: GraphIndex,
    name: str,
    nodes: Iterable[NodeProto],
    inputs: Iterable[str],
    outputs: Iterable[str],
    constants: Iterable[str],
    functions: Iterable[FunctionProto],
    values: Mapping[str, TypeProto],
) -> ModelProto:
    model = ModelProto(ir_version=index.proto.ir_version)
    model.graph.name = name
    model.graph.node.extend(nodes)
    model.graph.input.extend(_make_value_infos(inputs, values))
    # An output of unknown type stays bare: who runs the model infers it.
    model.graph.output.extend(
        helper.make_value_info(o, values[o]) if o in values else ValueInfoProto(name=o) for o in outputs
    )
    for constant in constants:
        if constant in index.sparse_initializers:
            model.graph.sparse_initializer.append(index.sparse_initializers[constant])
        else:
            model.graph.initializer.add().CopyFrom(index.stored_tensors[constant])
            model.graph.initializer[-1].name = constant
    called = _find_called_functions(
        model.graph.node, {(f.domain, f.name, f.overload): f for f in functions}
    )
    model.functions.extend(called)
    graphs = walk_graphs(model.graph)
    used = {node.domain for graph in graphs for node in graph.node} | {f.domain for f in called}
    for domain in sorted({"", *used} & index.opsets.keys()):
        model.opset_import.append(helper.make_opsetid(domain, index.opsets[domain]))
    return model


def _find_called_functions(
    nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str, str], FunctionProto]
) -> list[FunctionProto]:
    """Return the functions that nodes call, directly and through others, inner ones first."""
    found: dict[tuple[str, str, str], FunctionProto] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending.extend(inner for body in list_bodies(node) for inner in body.node)
        key = (node.domain, node.op_type, node.overload)
        if key in functions and key not in found:
            found[key] = functions[key]
            pending.extend(functions[key].node)
    return [function for key, function in functions.items() if key in found]


def _make_value_infos(names: Iterable[str], values: Mapping[str, TypeProto]) -> list[ValueInfoProto]:
    return [helper.make_value_info(name, values[name]) for name in names if name in values]
