"""Outlining: chosen nodes become a function that the graph calls; composites inside it, too.

A region becomes a model-local function in its target's domain, named after the region; each composite
in it a call of a function of its own. Functions cannot capture outer names, so a region's constants are
inputs of its function; what computes a constant goes into each region that reads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    ValueInfoProto,
    helper,
)

from byoc.errors import InputError
from byoc.graph import composites
from byoc.graph.composites import Composite
from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex
from byoc.graph.walk import topological_order

# The metadata of nodes and functions came with IR 10.
LEAST_IR = 10
# What onnxruntime 1.31 reads. Later versions of the IR add to it and change nothing that is there.
NEWEST_IR = 13


@dataclass(frozen=True)
class Group:
    """Nodes that stay together; those of a composite become a call of its function."""

    nodes: tuple[int, ...]
    composite: Composite | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A region to outline: its name, its target's domain, its groups in topological order."""

    name: str
    domain: str
    groups: tuple[Group, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """Every node of the region, in topological order."""
        return sorted(node for group in self.groups for node in group.nodes)


@dataclass(frozen=True)
class Interface:
    """What crosses a region's border, by tensor name; `sunk` are the constant nodes taken in."""

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    sunk: tuple[int, ...]


def interface(index: GraphIndex, nodes: Sequence[int]) -> Interface:
    """Return what a set of nodes reads from and gives to the rest of the graph."""
    used = list(dict.fromkeys(name for node in nodes for name in index.reads[node]))
    sunk = index.constants_behind(used)
    used += [name for node in sunk for name in index.reads[node]]
    made = {name for node in (*nodes, *sunk) for name in index.nodes[node].output}
    outer = [name for name in dict.fromkeys(used) if name not in made]
    inside, wanted = set(nodes), set(index.outputs)
    return Interface(
        inputs=tuple(name for name in outer if not index.is_constant(name)),
        constants=tuple(name for name in outer if index.is_constant(name)),
        outputs=tuple(
            name
            for node in nodes
            for name in index.nodes[node].output
            if name in wanted or not inside.issuperset(index.consumers.get(name, ()))
        ),
        sunk=tuple(sunk),
    )


def outline(
    index: GraphIndex, cuts: Sequence[Cut], metadata: Mapping[int, Mapping[str, str]]
) -> ModelProto:
    """Return the model with each cut outlined as a function; the original is left alone.

    `metadata` holds what to write on nodes that stay (node number to keys and values). The cuts must
    be disjoint and contract to an acyclic graph (ValueError). Raises InputError when the model already
    uses a cut's domain.
    """
    for cut in cuts:
        if cut.domain in index.opsets or any(f.domain == cut.domain for f in index.proto.functions):
            raise InputError(f"the model already uses the domain '{cut.domain}': partitioned before?")
    calls: dict[int, NodeProto] = {}
    functions: list[FunctionProto] = []
    gone: set[int] = set()
    for cut in cuts:
        border = interface(index, cut.nodes)
        functions.append(_region_function(index, cut, border))
        calls[cut.nodes[-1]] = _call(cut, border)
        gone.update(cut.nodes)
    gone |= _unread_constants(index, cuts, gone)

    nodes = []
    for i, node in enumerate(index.nodes):
        if i in calls:
            nodes.append(calls[i])
        elif i not in gone:
            nodes.append(_annotated(node, metadata.get(i, {})))
    nodes = [nodes[i] for i in topological_order(nodes)]
    found = [(cut.domain, g.composite) for cut in cuts for g in cut.groups if g.composite]
    inner = [
        function
        for domain in dict.fromkeys(cut.domain for cut in cuts)
        for function in composites.functions(index, domain, [c for d, c in found if d == domain])
    ]
    return _assemble(index, nodes, [*inner, *functions], {cut.domain for cut in cuts})


def _region_function(index: GraphIndex, cut: Cut, border: Interface) -> FunctionProto:
    nodes = [index.nodes[i] for i in border.sunk]
    for group in cut.groups:
        if group.composite is None:
            nodes += [_annotated(index.nodes[i], group.metadata) for i in group.nodes]
        else:
            node = composites.call(index, cut.domain, group.composite)
            _note(node, group.metadata)
            nodes.append(node)
    nodes = [nodes[i] for i in topological_order(nodes)]
    function = helper.make_function(
        cut.domain,
        cut.name,
        [*border.inputs, *border.constants],
        border.outputs,
        nodes,
        opset_imports=_imports(index, nodes),
    )
    _note(function, cut.metadata)
    return function


def _call(cut: Cut, border: Interface) -> NodeProto:
    call = helper.make_node(
        cut.name,
        [*border.inputs, *border.constants],
        border.outputs,
        name=cut.name,
        domain=cut.domain,
    )
    _note(call, cut.metadata)
    return call


def _unread_constants(index: GraphIndex, cuts: Sequence[Cut], gone: set[int]) -> set[int]:
    """Return the constant nodes that only the outlined nodes read, so that the graph can drop them."""
    sunk = {node for cut in cuts for node in interface(index, cut.nodes).sunk}
    dropped: set[int] = set()
    wanted = set(index.outputs)
    for node in sorted(sunk, reverse=True):
        outputs = index.nodes[node].output
        users = {user for name in outputs for user in index.consumers.get(name, ())}
        if wanted.isdisjoint(outputs) and users <= gone | dropped:
            dropped.add(node)
    return dropped


def _assemble(
    index: GraphIndex, nodes: Sequence[NodeProto], functions: Sequence[FunctionProto], domains: set[str]
) -> ModelProto:
    """Return the model around the new nodes: all that it came with, and the functions."""
    source = index.proto
    result = copy_without(source, "node", "value_info")
    if not index.overridable:
        # Before IR 4 every initializer had to be an input too; from IR 4 on that makes it a default.
        inputs = set(index.inputs)
        data = [value for value in result.graph.input if value.name in inputs]
        del result.graph.input[:]
        result.graph.input.extend(data)
    result.ir_version = min(max(source.ir_version, LEAST_IR), NEWEST_IR)
    result.graph.node.extend(nodes)
    result.functions.extend(functions)
    for domain in sorted(domains):
        result.opset_import.append(helper.make_opsetid(domain, 1))
    made = {name for node in nodes for name in node.output if name}
    result.graph.value_info.extend(_infos(index, made))
    return result


def _infos(index: GraphIndex, made: set[str]) -> Iterator[ValueInfoProto]:
    """Yield what is known of each value of the new main graph, with all that the user wrote of it."""
    stated = {value.name: value for value in index.proto.graph.value_info}
    for name in sorted(made & index.values.keys() - index.outputs.keys()):
        info = ValueInfoProto()
        info.CopyFrom(stated.get(name, info))
        info.name = name
        info.type.CopyFrom(index.values[name])
        yield info


def _imports(index: GraphIndex, nodes: Sequence[NodeProto]) -> list[OperatorSetIdProto]:
    return [
        helper.make_opsetid(domain, index.opsets.get(domain, 1))
        for domain in sorted({*index.opsets, *(node.domain for node in nodes)})
    ]


def _annotated(node: NodeProto, metadata: Mapping[str, str]) -> NodeProto:
    if not metadata:
        return node
    result = NodeProto()
    result.CopyFrom(node)
    _note(result, metadata)
    return result


def _note(proto: NodeProto | FunctionProto, metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
