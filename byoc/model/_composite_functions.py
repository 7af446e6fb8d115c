"""Composites as functions: `conv_relu(x, w, b)` with the attributes of the operators inside.

The body of the function is the pattern itself, so one function serves all instances: an optional input
that an instance lacks is an empty name in the call, and the attribute `pads` of line `c` is the
function's attribute `c_pads`. A call states every attribute, defaults included. If a pattern has
alternatives (several operators, an optional line, variants), an instance that differs from the first
calls a function of its own, named after the difference (`conv_add_relu` and `conv_add_relu_sum`); the
metadata `byoc.composite` of call and function has the name of the composite.

Overloads (ONNX IR 10) would be the alternative, but onnxruntime 1.31 loses the overload of a call inside
another function when it inlines it, and then runs the wrong body.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, NodeProto, helper

from byoc.errors import InputError
from byoc.model._editable_graph import make_node
from byoc.model._graph_index import GraphIndex

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
    node = make_node(
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
        node = make_node(line.op, operands, line.outputs, line.output, domain=line.domain)
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
