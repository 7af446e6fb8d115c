"""Stand-alone models cut out of a model: some nodes, or the body of a function."""

from collections.abc import Iterable, Mapping, Sequence

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from byoc.graph.index import GraphIndex
from byoc.graph.interface import find_boundary
from byoc.graph.walk import walk_bodies, walk_graphs


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
    model = _make_model(index, call.op_type, function.node, data, function.output, constants, others, known)
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
    called = _find_called_functions(model.graph.node, {(f.domain, f.name, f.overload): f for f in functions})
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
        pending.extend(inner for body in walk_bodies(node) for inner in body.node)
        key = (node.domain, node.op_type, node.overload)
        if key in functions and key not in found:
            found[key] = functions[key]
            pending.extend(functions[key].node)
    return [function for key, function in functions.items() if key in found]


def _make_value_infos(names: Iterable[str], values: Mapping[str, TypeProto]) -> list[ValueInfoProto]:
    return [helper.make_value_info(name, values[name]) for name in names if name in values]
