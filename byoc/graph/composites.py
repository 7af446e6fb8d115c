"""Composites as functions: `conv_relu(x, w, b)` with the attributes of what is inside.

One function serves every instance of a composite: an attribute `pads` of the pattern's line `c` is the
function's attribute `c_pads`, given by each call that has it written. Where a pattern names several
operators for a line, an instance with another than the first calls a function of its own, named after
what differs (`conv_add_relu` and `conv_add_relu_sum`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, NodeProto, helper

from byoc.errors import InputError
from byoc.graph.attributes import schema_of
from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class Composite:
    """A composite's name and, in the order of execution, the lines of its pattern with their nodes.

    `inputs` gives the tensor for each input of its signature, empty where an optional one is left out;
    `inner` the name in the pattern for each tensor that the nodes make. The last line makes the output.
    """

    name: str
    lines: tuple[tuple[str, int], ...]
    inputs: Mapping[str, str]
    inner: Mapping[str, str] = field(default_factory=dict)


def call(index: GraphIndex, domain: str, composite: Composite) -> NodeProto:
    """Return the node that calls a composite's function; metadata is left to the caller."""
    last = index.nodes[composite.lines[-1][1]]
    node = helper.make_node(
        composite.name, list(composite.inputs.values()), [last.output[0]], last.name, domain=domain
    )
    for line, number in composite.lines:
        for attribute in index.nodes[number].attribute:
            given = node.attribute.add()
            given.CopyFrom(attribute)
            given.name = f"{line}_{attribute.name}"
    return node


def function(index: GraphIndex, domain: str, composite: Composite) -> FunctionProto:
    """Return the function that a composite's calls refer to."""
    formal = {tensor: name for name, tensor in (*composite.inputs.items(), *composite.inner.items())}
    formal[""] = ""
    nodes = []
    for line, number in composite.lines:
        source = index.nodes[number]
        node = helper.make_node(
            source.op_type,
            [formal[tensor] for tensor in source.input],
            [formal.get(tensor, "") for tensor in source.output],
            name=line,
            domain=source.domain,
        )
        node.attribute.extend(_references(index, source, line))
        nodes.append(node)
    return helper.make_function(
        domain,
        composite.name,
        list(composite.inputs),
        [composite.lines[-1][0]],
        nodes,
        opset_imports=[helper.make_opsetid("", index.opsets[""])],
        attributes=[attribute.ref_attr_name for node in nodes for attribute in node.attribute],
    )


def _references(index: GraphIndex, node: NodeProto, line: str) -> Iterator[AttributeProto]:
    """Yield a reference to the function's attribute for each attribute that the operator may have."""
    schema = schema_of(node.op_type, "", index.opsets[""])
    if schema is None:
        raise InputError(f"{node.op_type} has no operator schema, so no composite can hold it")
    for name, attribute in sorted(schema.attributes.items()):
        reference = AttributeProto(name=name, ref_attr_name=f"{line}_{name}")
        kind = str(attribute.type).rpartition(".")[2]  # AttrType.INTS
        reference.type = getattr(AttributeProto, kind)
        yield reference
