"""Composites as functions: `conv_relu(x, w, b)` with the attributes of what is inside.

The function's body is the pattern itself, so one function serves every instance: an optional input that
an instance leaves out is an empty name in the call, and an attribute `pads` of the line `c` is the
function's attribute `c_pads`. A call gives every attribute that has a value, defaults too. Where a
pattern names several operators for a line, an instance with another than the first calls a function of
its own, named after what differs (`conv_add_relu` and `conv_add_relu_sum`).

Overloads (ONNX IR 10) would be the other way; onnxruntime 1.31 loses a node's overload when it inlines a
call inside another function, and then runs the wrong body.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, NodeProto, helper

from byoc.graph.attributes import effective
from byoc.graph.index import GraphIndex


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the pattern, bound: what it makes, its operator, its operands, and the node it found."""

    output: str
    op: str
    operands: tuple[str, ...]
    node: int


@dataclass(frozen=True)
class Composite:
    """An instance of a composite in a graph: its lines in order; the last makes the output.

    `inputs` gives the tensor for each input of its signature, empty where an optional one is left out.
    """

    index: GraphIndex
    name: str
    lines: tuple[Line, ...]
    inputs: Mapping[str, str]


def call(domain: str, composite: Composite) -> NodeProto:
    """Return the node that calls a composite's function."""
    last = composite.index.nodes[composite.lines[-1].node]
    node = helper.make_node(
        composite.name, list(composite.inputs.values()), [last.output[0]], last.name, domain=domain
    )
    for line in composite.lines:
        for attribute in _attributes(composite.index, line):
            attribute.name = f"{line.output}_{attribute.name}"
            node.attribute.append(attribute)
    return node


def functions(domain: str, composites: Iterable[Composite]) -> list[FunctionProto]:
    """Return the functions that the calls of some composites refer to, one for each name."""
    instances: dict[str, list[Composite]] = {}
    for composite in composites:
        instances.setdefault(composite.name, []).append(composite)
    return [_function(domain, same) for same in instances.values()]


def _function(domain: str, instances: list[Composite]) -> FunctionProto:
    first = instances[0]
    nodes = []
    for position, line in enumerate(first.lines):
        node = helper.make_node(line.op, line.operands, [line.output], line.output)
        given: dict[str, AttributeProto] = {}
        for instance in instances:
            given.update((a.name, a) for a in _attributes(instance.index, instance.lines[position]))
        for name, attribute in sorted(given.items()):
            node.attribute.append(
                AttributeProto(name=name, type=attribute.type, ref_attr_name=f"{line.output}_{name}")
            )
        nodes.append(node)
    return helper.make_function(
        domain,
        first.name,
        list(first.inputs),
        [first.lines[-1].output],
        nodes,
        opset_imports=[helper.make_opsetid("", first.index.opsets[""])],
        attributes=[attribute.ref_attr_name for node in nodes for attribute in node.attribute],
    )


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
