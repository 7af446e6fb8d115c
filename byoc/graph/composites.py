"""Composites as functions: `conv_relu(x, w, b)` with the attributes of what is inside.

The function's body is the pattern itself, so one function serves every instance: an optional input that
an instance leaves out is an empty name in the call, and an attribute `pads` of the line `c` is the
function's attribute `c_pads`. A call gives every attribute that has a value, defaults too. Where a
pattern leaves a choice (one of several operators, an optional line, another variant), an instance with
another than the first calls a function of its own, named after what differs (`conv_add_relu` and
`conv_add_relu_sum`); the metadata `byoc.composite` of call and function has the composite's own name.

Overloads (ONNX IR 10) would be the other way; onnxruntime 1.31 loses a node's overload when it inlines a
call inside another function, and then runs the wrong body.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, NodeProto, helper

from byoc.errors import InputError
from byoc.graph.attributes import effective
from byoc.graph.index import GraphIndex

METADATA = "byoc.composite"
"""The key, on a call and on its function, under which the composite's name stands."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the pattern, bound: its name, operator and domain, what it reads and makes, its node."""

    output: str
    op: str
    domain: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    node: int


@dataclass(frozen=True)
class Composite:
    """An instance of a composite in a graph: its lines in order.

    `composite` is what the rule file calls it, `name` the function's name. `inputs` gives the tensor for
    each input of its signature, empty where an optional one is left out; `outputs` that for each output.
    """

    index: GraphIndex
    composite: str
    name: str
    lines: tuple[Line, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def call(domain: str, composite: Composite) -> NodeProto:
    """Return the node that calls a composite's function."""
    last = composite.index.nodes[composite.lines[-1].node]
    node = helper.make_node(
        composite.name,
        list(composite.inputs.values()),
        list(composite.outputs.values()),
        last.name,
        domain=domain,
    )
    for line in composite.lines:
        for attribute in _attributes(composite.index, line):
            attribute.name = f"{line.output}_{attribute.name}"
            node.attribute.append(attribute)
    node.metadata_props.add(key=METADATA, value=composite.composite)
    return node


def functions(domain: str, composites: Iterable[Composite]) -> list[FunctionProto]:
    """Return the functions that the calls of some composites refer to, one for each name.

    Raises InputError when two composites have a function of one name.
    """
    instances: dict[str, list[Composite]] = {}
    for composite in composites:
        same = instances.setdefault(composite.name, [])
        if same and same[0].composite != composite.composite:
            raise InputError(
                f"the composites {same[0].composite} and {composite.composite} both have a function "
                f"{composite.name}: call one of them something else"
            )
        same.append(composite)
    return [_function(domain, alike) for alike in instances.values()]


def _function(domain: str, instances: list[Composite]) -> FunctionProto:
    first = instances[0]
    if len({_body(instance) for instance in instances}) > 1:
        raise InputError(
            f"the composite {first.composite} has two functions {first.name} that differ: call lines "
            "something else"
        )
    nodes = []
    for position, line in enumerate(first.lines):
        operands = _given(line.operands, instances)
        node = helper.make_node(line.op, operands, line.outputs, line.output, domain=line.domain)
        given: dict[str, AttributeProto] = {}
        for instance in instances:
            given.update((a.name, a) for a in _attributes(instance.index, instance.lines[position]))
        for name, attribute in sorted(given.items()):
            node.attribute.append(
                AttributeProto(name=name, type=attribute.type, ref_attr_name=f"{line.output}_{name}")
            )
        nodes.append(node)
    domains = sorted({"", *(line.domain for line in first.lines)})
    function = helper.make_function(
        domain,
        first.name,
        list(first.inputs),
        list(first.outputs),
        nodes,
        opset_imports=[helper.make_opsetid(d, first.index.opsets.get(d, 1)) for d in domains],
        attributes=[attribute.ref_attr_name for node in nodes for attribute in node.attribute],
    )
    function.metadata_props.add(key=METADATA, value=first.composite)
    return function


def _body(instance: Composite) -> tuple[object, ...]:
    """Return what instances have in common that share a function."""
    lines = [(line.op, line.domain, line.operands, line.outputs) for line in instance.lines]
    return (*lines, tuple(instance.inputs), tuple(instance.outputs))


def _given(operands: Sequence[str], instances: Sequence[Composite]) -> Sequence[str]:
    """Return a line's operands without those at its end that no instance gives.

    An empty name means the same, but onnxruntime takes a Split's for sizes that are given.
    """
    count = len(operands)
    while count and not any(instance.inputs.get(operands[count - 1], "-") for instance in instances):
        count -= 1
    return operands[:count]


def _attributes(index: GraphIndex, line: Line) -> list[AttributeProto]:
    """Return copies of the attributes of a line's node, and those that have a value unwritten."""
    node = index.nodes[line.node]
    written = {attribute.name for attribute in node.attribute}
    result = []
    for attribute in node.attribute:
        result.append(AttributeProto())
        result[-1].CopyFrom(attribute)
    schema = index.schema(node)
    if schema is None:
        return result
    for name, value in effective(node, schema, index.types).items():
        if name not in written:
            kind = str(schema.attributes[name].type).rpartition(".")[2]  # AttrType.INTS
            number = getattr(AttributeProto, kind)
            result.append(helper.make_attribute(name, value, attr_type=number))
    return sorted(result, key=lambda attribute: attribute.name)
