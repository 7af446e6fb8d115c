"""Operators that others define: the function body of a node, as a small model of its own.

ONNX defines many operators by others (Gelu by Erf and Mul); a model may bring functions of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from byoc.model._constants import get_constant_value
from byoc.model._editable_graph import EditableGraph, build_node
from byoc.model._graph_index import RANDOM_OPERATORS, GraphIndex
from byoc.model._graph_parts import find_called_functions, resolve_attributes
from byoc.model._own_bodies import has_own_body, make_own_body
from byoc.model._tensor_data import is_large
from byoc.model._vendor_operators import list_missing_defaults
from byoc.model._walk import (
    get_node_name,
    is_onnx,
    list_bodies,
    list_own_names,
    list_reads,
    make_unique_name,
    walk_nodes,
)
from byoc.model.schemas import OperatorSchema, get_schema

# ONNX's own body hands vectors to Range, which takes scalars; onnxruntime refuses it (onnx 1.23).
_FAULTY_BODIES = frozenset({"AffineGrid"})
_CAST_OPSET = 6  # from which on Cast names its type as now
_F, _I = np.float32, np.int64
_PLAIN_VALUES = {"value_float": _F, "value_floats": _F, "value_int": _I, "value_ints": _I}
"""The attributes of Constant, from operator set 12 on, whose values are a tensor's as well."""


def has_function_body(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a function of the model, ONNX or byoc defines a node by other operators."""
    if _key(node) in index.functions:
        return True
    # No run of parts that are random can be compared with anything.
    if node.op_type in RANDOM_OPERATORS or (is_onnx(node) and node.op_type in _FAULTY_BODIES):
        return False
    schema = index.get_schema(node)
    return schema is not None and (schema.is_function or has_own_body(node))


def make_body_model(index: GraphIndex, number: int) -> ModelProto | None:
    """Return a model whose graph is the function body of a node, one level deep.

    Its inputs are the tensors that the node reads and that are no small constants, with their types; its
    outputs are those that the node makes, by their names in the graph. Names of inner tensors begin with
    that of the first output. Operator sets are the model's, and those that only the body needs. Returns
    None where nothing defines the node, a type that it reads is not known, or the body means other
    versions of its operators than the model has.
    """
    node = index.nodes[number]
    reads = list_reads(node)
    types = {name: index.type_protos.get(name, TypeProto()) for name in reads}
    made = [*filter(None, node.output)]
    if not made or any(kind.WhichOneof("value") is None for kind in types.values()):
        return None
    function = _find_function(index, node, types)
    if function is None:
        return None
    graph = GraphProto(name=node.op_type)
    graph.node.extend(_bind_call(node, function, index.get_schema(node), types))
    for name in reads:
        value = None if name in index.stored_tensors else get_constant_value(index, name)
        if name in index.stored_tensors and not is_large(index.stored_tensors[name]):
            graph.initializer.append(index.stored_tensors[name])
        elif value is not None:
            graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            graph.input.append(ValueInfoProto(name=name, type=types[name]))
    graph.output.extend(ValueInfoProto(name=n, type=index.type_protos.get(n)) for n in made)
    edits = EditableGraph(graph)
    edits.drop_unread()  # a body makes outputs that a call leaves out
    edits.write_to(graph)
    return helper.make_model(
        graph,
        opset_imports=_join_imports(index, function),
        ir_version=index.proto.ir_version,
        functions=find_called_functions(graph.node, index.functions),
    )


def _key(node: NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


# The function of a node, if the model's operator sets mean what its body means.


def _find_function(
    index: GraphIndex, node: NodeProto, types: Mapping[str, TypeProto]
) -> FunctionProto | None:
    own = index.functions.get(_key(node))
    if own is not None:
        return own if _has_same_meaning(own, index) else None
    schema = index.get_schema(node)
    if schema is None or not has_function_body(index, node):
        return None
    found = _read_schema_functions(schema, node, types) if schema.is_function else iter(())
    known = next((each for each in found if _has_same_meaning(each, index)), None)
    return known or make_own_body(index, node, types)


def _read_schema_functions(
    schema: OperatorSchema, node: NodeProto, types: Mapping[str, TypeProto]
) -> Iterator[FunctionProto]:
    """Yield the bodies by which ONNX defines a node, those for newer operator sets first."""
    source: Any = schema.onnx_schema  # ONNX's type stubs lack its functions
    given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    for version in sorted(source.context_dependent_function_opset_versions, reverse=True):
        text = source.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), given
        )
        if text:
            yield FunctionProto.FromString(text)
    for version in sorted(source.function_opset_versions, reverse=True):
        yield FunctionProto.FromString(source.get_function_with_opset_version(version))


def _has_same_meaning(function: FunctionProto, index: GraphIndex) -> bool:
    """Return whether each node of a body is the same operator in the operator sets of the model."""
    meant = _read_imports(function)
    can_lower = index.opsets.get("", 1) >= _CAST_OPSET
    for node in walk_nodes(function.node):
        if _key(node) in index.functions or (can_lower and _is_lowered(node, function)):
            continue
        domain = "" if is_onnx(node) else node.domain
        here = index.opsets.get(domain, meant.get(domain, 1))
        there = meant.get(domain, here)  # ONNX's own bodies leave out what they have no need to say
        if there != here and not _is_same_operator(node, there, here):
            return False
    return True


def _is_same_operator(node: NodeProto, there: int, here: int) -> bool:
    """Return whether a node means the same in two versions of its operator set.

    Types that a version adds do not matter, nor do inputs and attributes that only one has and that the
    node leaves out: ONNX adds these so that their defaults are what was before. An attribute that became
    an input (the axes of ReduceMean) is the same where neither is given.
    """
    old, new = (get_schema(node.op_type, node.domain, version) for version in (there, here))
    if old is None or new is None or old.deprecated != new.deprecated:
        return False
    if old.since_version == new.since_version:
        return True
    stated = {attribute.name for attribute in node.attribute}
    common = old.attributes.keys() & new.attributes.keys()
    moved = (old.attributes[name] for name in old.attributes.keys() - new.attributes.keys())
    names = ([formal.name for formal in each.inputs[: len(node.input)]] for each in (old, new))
    return (
        stated <= common
        and all(each.name in new.formals and each.default is None for each in moved)
        and all(old.attributes[each].default == new.attributes[each].default for each in common)
        and len({tuple(each) for each in names}) == 1
    )


def _read_imports(function: FunctionProto) -> dict[str, int]:
    return {
        "" if each.domain == "ai.onnx" else each.domain: each.version for each in function.opset_import
    }


def _join_imports(index: GraphIndex, function: FunctionProto) -> list[object]:
    versions = {**_read_imports(function), **index.opsets}
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]


# Copies of nodes under other names, with the attributes of a call where they are a function's.


@dataclass(frozen=True, eq=False)
class NodeCopies:
    """Copies of nodes, and of the bodies in them, in which tensors have other names.

    `names` are the new names that are given; others are made by `new_name`. `call` has the values of
    attributes that the nodes refer to.
    """

    names: dict[str, str]
    new_name: Callable[[str], str]
    call: NodeProto = field(default_factory=NodeProto)

    def copy(self, node: NodeProto) -> NodeProto:
        """Return a copy of a node."""
        copied = resolve_attributes(node, self.call)
        for body in list_bodies(copied):
            self._rename_body(body)
        copied.input[:] = [self.rename(name) for name in node.input]
        copied.output[:] = [self.rename(name) for name in node.output]
        return copied

    def rename(self, name: str) -> str:
        """Return the new name of a tensor; an input or output that is left out stays so."""
        if name and name not in self.names:
            self.names[name] = self.new_name(name)
        return self.names.get(name, "")

    def _rename_body(self, body: GraphProto) -> None:
        own = {name: self.new_name(name) for name in sorted(list_own_names(body) - {""})}
        inner = replace(self, names={**self.names, **own})
        for value in (*body.input, *body.output, *body.value_info):
            value.name = inner.rename(value.name)
        for tensor in body.initializer:
            tensor.name = inner.rename(tensor.name)
        for sparse in body.sparse_initializer:
            sparse.values.name = inner.rename(sparse.values.name)
        for node in body.node:
            node.CopyFrom(inner.copy(node))


def _bind_call(
    node: NodeProto,
    function: FunctionProto,
    schema: OperatorSchema | None,
    types: Mapping[str, TypeProto],
) -> list[NodeProto]:
    """Return the nodes of a function's body, as they stand for a call of it."""
    call = NodeProto()
    call.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    call.attribute.extend(each for each in function.attribute_proto if each.name not in given)
    if schema is not None:
        call.attribute.extend(list_missing_defaults(call, schema))
    prefix, whole = next(filter(None, node.output)), get_node_name(node)
    taken = {*types, *node.output}
    copies = NodeCopies({}, lambda name: make_unique_name(f"{prefix}/{name}", taken), call)
    for position, formal in enumerate(function.input):
        copies.names[formal] = node.input[position] if position < len(node.input) else ""
    passed = {}
    for formal, name in zip(function.output, node.output, strict=False):
        if name and formal in copies.names:  # an input, or an output that stands twice
            passed[name] = copies.names[formal]
        elif name:
            copies.names[formal] = name
    nodes = [_lower_node(copies.copy(each), types) for each in function.node]
    nodes += [build_node("Identity", [given], [name]) for name, given in passed.items()]
    for each in nodes:
        each.name = f"{whole}/{each.name or each.op_type}"
    return nodes


def _lower_node(node: NodeProto, types: Mapping[str, TypeProto]) -> NodeProto:
    """Return a node of a body as older operator sets have it, too.

    A CastLike to a type that is known is a Cast, and a Constant has a tensor: beside these ONNX's bodies
    need little that is newer than what they define.
    """
    if _is_cast_like(node) and node.input[1] in types:
        number = types[node.input[1]].tensor_type.elem_type
        return build_node("Cast", [node.input[0]], node.output, node.name, to=number)
    if node.op_type == "Constant" and is_onnx(node) and len(node.attribute) == 1:
        dtype = _PLAIN_VALUES.get(node.attribute[0].name)
        if dtype is not None:
            array = np.array(helper.get_attribute_value(node.attribute[0]), dtype)
            value = numpy_helper.from_array(array)
            return build_node("Constant", [], node.output, node.name, value=value)
    return node


def _is_lowered(node: NodeProto, function: FunctionProto) -> bool:
    """Return whether `_lower_node` makes a node that older operator sets have."""
    if _is_cast_like(node):
        return node.input[1] in function.input
    given = {attribute.name for attribute in node.attribute}
    return node.op_type == "Constant" and is_onnx(node) and given <= {"value", *_PLAIN_VALUES}


def _is_cast_like(node: NodeProto) -> bool:
    return node.op_type == "CastLike" and is_onnx(node)
