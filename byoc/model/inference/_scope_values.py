"""The values of small tensors of a scope, found when they are asked for, and nodes that have them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from byoc.model._node_attributes import get_stated_attributes
from byoc.model._tensor_types import DTYPES, TensorType
from byoc.model._walk import is_onnx
from byoc.model.inference._elementwise_shapes import Types
from byoc.model.inference._known_node import KnownNode
from byoc.model.inference._moved_values import MAX_ELEMENTS, Array
from byoc.model.inference._node_evaluation import evaluate_node, is_evaluated
from byoc.model.inference._scopes import TensorScope
from byoc.model.inference._value_rules import collapse_array, compute_values, is_followed, is_of_types
from byoc.schemas import OperatorSchema, get_schema


def find_value(scope: TensorScope, name: str) -> Array | None:
    """Return the value of a small tensor, None if it is not known; elements may be symbolic."""
    if name in scope.values:
        return scope.values[name]
    if name not in scope.producers:
        scope.values[name] = _find_given_value(scope, name)
        return scope.values[name]
    needed: set[int] = set()
    pending = [name]
    while pending:
        wanted = pending.pop()
        number = scope.producers.get(wanted)
        if wanted in scope.values or number in needed:
            continue
        if number is None:
            scope.values[wanted] = _find_given_value(scope, wanted)
            continue
        node = scope.nodes[number]
        if not _has_followed_values(scope, node):
            scope.values.update(dict.fromkeys(node.output))
            continue
        needed.add(number)
        pending.extend(() if is_onnx(node) and is_of_types(node.op_type) else filter(None, node.input))
    for number in sorted(needed):
        _compute_values(scope, number)
    return scope.values.get(name)


def _find_given_value(scope: TensorScope, name: str) -> Array | None:
    """Return the value of a tensor that no node here makes."""
    stored = scope.stored.get(name)
    if stored is not None:
        return _read_stored(stored)
    if scope.outer is None or name in scope.types:  # an input of this graph
        return None
    return find_value(scope.outer, name)


def _has_followed_values(scope: TensorScope, node: NodeProto) -> bool:
    if not is_onnx(node) or not (is_followed(node.op_type) or is_evaluated(node.op_type)):
        return False
    kinds = [scope.types.get(name) for name in node.output if name]
    sizes = [kind.elements for kind in kinds if kind is not None]
    return not any(size is not None and size > MAX_ELEMENTS for size in sizes)


def _compute_values(scope: TensorScope, number: int) -> None:
    node = scope.nodes[number]
    positions = range(len(scope.inputs[number]))
    known = describe_node(scope, number, read_values(scope, number, positions))
    if is_followed(node.op_type):
        found: Sequence[Array | None] = compute_values(known)
    else:
        kinds = [scope.types.get(name) for name in node.output if name]
        found = evaluate_node(known, kinds, scope.opsets, scope.context.ir_version)
    for name, value in zip(node.output, found, strict=False):
        kind = scope.types.get(name)
        dtype = kind.dtype if kind is not None else None
        scope.values[name] = None if value is None else collapse_array(value, dtype)
    for name in node.output:
        scope.values.setdefault(name, None)


def describe_node(scope: TensorScope, number: int, values: tuple[Array | None, ...]) -> KnownNode:
    """Return a node with the types of its inputs, and with values of them (see `read_values`)."""
    node = scope.nodes[number]
    types = [scope.find_type(name) if name else None for name in scope.inputs[number]]
    return KnownNode(node, scope.get_opset(node), _find_attributes(scope, number), tuple(types), values)


def _find_attributes(scope: TensorScope, number: int) -> Mapping[str, Any]:
    """Return the attributes of a node: the stated ones, and the defaults of its schema."""
    node = scope.nodes[number]
    key = scope.kinds[number], scope.get_opset(node)
    found = scope.context.attributes.get(key)
    if found is None:
        schema = get_schema(node.op_type, node.domain, key[1])
        defaults = _read_defaults(schema) if schema is not None else {}
        found = {**defaults, **(get_stated_attributes(node) if node.attribute else {})}
        scope.context.attributes[key] = found
    return found


def read_values(scope: TensorScope, number: int, positions: Iterable[int]) -> tuple[Array | None, ...]:
    """Return the values of a node's inputs at some positions, None for those at others."""
    names = scope.inputs[number]
    values: list[Array | None] = [None] * len(names)
    for i in positions:
        if i < len(names) and names[i]:
            values[i] = find_value(scope, names[i])
    if any(value is not None and value.dtype.kind == "f" for value in values):
        node = scope.nodes[number]
        schema = get_schema(node.op_type, node.domain, scope.get_opset(node))
        if schema is not None and schema.inputs:
            values = _drop_wrong_floats(values, schema)
    return tuple(values)


def record_made_inside(
    scope: TensorScope, number: int, inner: TensorScope, names: Iterable[str]
) -> None:
    """Record the values of a node's outputs, which `inner`, a body or a function, has by `names`."""
    for name, inside in zip(scope.outputs[number], names, strict=False):
        scope.values[name] = find_value(inner, inside) if inner.is_small(inside) else None
        scope.made_inside.add(name)


def type_by_values(scope: TensorScope, number: int, types: Types) -> Types:
    """Return types with the shapes of values that are known."""
    values = [find_value(scope, name) if name else None for name in scope.outputs[number]]
    pairs = zip(types, values, strict=False)
    return [
        TensorType(kind.dtype, value.shape) if kind is not None and value is not None else kind
        for kind, value in pairs
    ]


def _drop_wrong_floats(
    values: Sequence[NDArray[Any] | None], schema: OperatorSchema
) -> list[NDArray[Any] | None]:
    """Return the values of inputs without floats where the schema takes none, as in a wrong shape."""
    formals = schema.list_input_formals(len(values))
    return [
        None
        if value is not None and value.dtype.kind == "f" and value.dtype.name not in formal.dtypes
        else value
        for value, formal in zip(values, formals, strict=True)
    ]


@cache
def _read_defaults(schema: OperatorSchema) -> dict[str, Any]:
    defaults = [a.default for a in schema.attributes.values() if a.default is not None]
    return get_stated_attributes(NodeProto(attribute=defaults))


def _read_stored(tensor: TensorProto) -> Array | None:
    if prod(tensor.dims) > MAX_ELEMENTS or DTYPES.get(tensor.data_type) in (None, "string"):
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    return numpy_helper.to_array(tensor)
