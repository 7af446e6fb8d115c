"""Parts of a graph: paths, boundaries, models cut out of it, composites as functions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model._editable_graph import build_node
from byoc.model._graph_index import GraphIndex
from byoc.model._walk import copy_without, list_bodies, walk_graphs

# Composites as functions: `conv_relu(x, w, b)` with the attributes of the operators inside.
#
# The body of the function is the pattern itself, so one function serves all instances: an optional
# input that an instance lacks is an empty name in the call, and the attribute `pads` of line `c` is
# the function's attribute `c_pads`. A call states every attribute, defaults included. If a pattern
# has alternatives (several operators, an optional line, variants), an instance that differs from
# the first calls a function of its own, named after the difference (`conv_add_relu` and
# `conv_add_relu_sum`); the metadata `byoc.composite` of call and function has the name of the
# composite.
#
# Overloads (ONNX IR 10) would be the alternative, but onnxruntime 1.31 loses the overload of a call
# inside another function when it inlines it, and then runs the wrong body.

COMPOSITE_KEY = "byoc.composite"
"""The metadata key of calls and functions whose value is the name of the composite."""


@dataclass(frozen=True, slots=True)
class CompositeLine:
    """A line of a pattern in an instance.

    `operands` and `outputs` are names of the pattern, `output` is the line's own name, `node` the number
    of the matched node.
    """

    output: str
    op: str
    domain: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    node: int


@dataclass(frozen=True)
class Composite:
    """An instance of a composite in a graph, with its lines in order.

    `composite_name` is its name in the rule file, `function_name` that of the function. `inputs` maps
    each input of the signature to a tensor, an omitted optional one to the empty text; `outputs` maps
    each output.
    """

    index: GraphIndex
    composite_name: str
    function_name: str
    lines: tuple[CompositeLine, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def make_composite_call(domain: str, composite: Composite) -> NodeProto:
    """Make the node that calls the function of a composite."""
    last = composite.index.nodes[composite.lines[-1].node]
    node = build_node(
        composite.function_name,
        list(composite.inputs.values()),
        list(composite.outputs.values()),
        last.name,
        domain=domain,
    )
    for line in composite.lines:
        for attribute in _copy_attributes(composite.index, line):
            attribute.name = f"{line.output}_{attribute.name}"
            node.attribute.append(attribute)
    node.metadata_props.add(key=COMPOSITE_KEY, value=composite.composite_name)
    return node


def make_composite_functions(domain: str, composites: Iterable[Composite]) -> list[FunctionProto]:
    """Make the functions of some composites, one for each function name.

    Raises InputError when two composites have functions of one name.
    """
    instances: dict[str, list[Composite]] = {}
    for composite in composites:
        same = instances.setdefault(composite.function_name, [])
        if same and same[0].composite_name != composite.composite_name:
            raise InputError(
                f"the composites {same[0].composite_name} and "
                f"{composite.composite_name} both have a function "
                f"{composite.function_name}: call one of them something else"
            )
        same.append(composite)
    return [_make_function(domain, alike) for alike in instances.values()]


def _make_function(domain: str, instances: list[Composite]) -> FunctionProto:
    first = instances[0]
    if len({_get_body_key(instance) for instance in instances}) > 1:
        raise InputError(
            f"the composite {first.composite_name} has two functions "
            f"{first.function_name} that differ: call lines "
            "something else"
        )
    nodes = []
    for position, line in enumerate(first.lines):
        operands = _trim_operands(line.operands, instances)
        node = build_node(line.op, operands, line.outputs, line.output, domain=line.domain)
        given: dict[str, AttributeProto] = {}
        for instance in instances:
            given.update((a.name, a) for a in _copy_attributes(instance.index, instance.lines[position]))
        for name, attribute in sorted(given.items()):
            node.attribute.append(
                AttributeProto(name=name, type=attribute.type, ref_attr_name=f"{line.output}_{name}")
            )
        nodes.append(node)
    domains = sorted({"", *(line.domain for line in first.lines)})
    function = helper.make_function(
        domain,
        first.function_name,
        list(first.inputs),
        list(first.outputs),
        nodes,
        opset_imports=[helper.make_opsetid(d, first.index.opsets.get(d, 1)) for d in domains],
        attributes=[attribute.ref_attr_name for node in nodes for attribute in node.attribute],
    )
    function.metadata_props.add(key=COMPOSITE_KEY, value=first.composite_name)
    return function


def _get_body_key(instance: Composite) -> tuple[object, ...]:
    """Return a key that is equal for instances that share a function."""
    lines = [(line.op, line.domain, line.operands, line.outputs) for line in instance.lines]
    return (*lines, tuple(instance.inputs), tuple(instance.outputs))


def _trim_operands(operands: Sequence[str], instances: Sequence[Composite]) -> Sequence[str]:
    """Return the operands of a line without trailing ones that no instance has.

    An empty name means the same, but onnxruntime takes it for given sizes in Split.
    """
    count = len(operands)
    while count and not any(instance.inputs.get(operands[count - 1], "-") for instance in instances):
        count -= 1
    return operands[:count]


def _copy_attributes(index: GraphIndex, line: CompositeLine) -> list[AttributeProto]:
    """Return copies of the attributes of a line's node, defaults included, sorted by name."""
    node = index.nodes[line.node]
    written = {attribute.name for attribute in node.attribute}
    result = [deepcopy(attribute) for attribute in node.attribute]
    schema = index.get_schema(node)
    if schema is None:
        return result
    for name, value in index.get_attributes(node).items():
        if name not in written:
            number = getattr(AttributeProto, schema.attributes[name].kind)
            result.append(helper.make_attribute(name, value, attr_type=number))
    return sorted(result, key=lambda attribute: attribute.name)


def resolve_attributes(node: NodeProto, call: NodeProto) -> NodeProto:
    """Return a function's node with its references to attributes replaced by the call's values.

    References to attributes that the call does not give are removed.
    """
    arguments = {attribute.name: attribute for attribute in call.attribute}
    result = deepcopy(node)
    del result.attribute[:]
    for attribute in node.attribute:
        value = arguments.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            result.attribute.append(value)
            result.attribute[-1].name = attribute.name
    return result


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
    called = find_called_functions(
        model.graph.node, {(f.domain, f.name, f.overload): f for f in functions}
    )
    model.functions.extend(called)
    graphs = walk_graphs(model.graph)
    used = {node.domain for graph in graphs for node in graph.node} | {f.domain for f in called}
    for domain in sorted({"", *used} & index.opsets.keys()):
        model.opset_import.append(helper.make_opsetid(domain, index.opsets[domain]))
    return model


def find_called_functions(
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
