"""Inference of one node: by a rule of ours, else by ONNX, else by the rules of other operators."""

from collections.abc import Sequence

from byoc.model.inference._contrib_rules import infer_contrib_types
from byoc.model.inference._elementwise_shapes import Types
from byoc.model.inference._known_node import Rule
from byoc.model.inference._moved_values import Array
from byoc.model.inference._node_evaluation import infer_by_onnx
from byoc.model.inference._scope_values import describe_node, read_values
from byoc.model.inference._scopes import TensorScope
from byoc.schemas import get_schema

_LEFT_OUT = "left out"


def infer_node(scope: TensorScope, number: int, positions: Sequence[int], rule: Rule | None) -> Types:
    """Infer the types of a node's outputs by a rule; where there is none, by ONNX's own inference.

    Where that finds nothing, the rules of other operators than ONNX's follow. The values of inputs
    at some positions are wanted. Nodes that are alike are inferred once: of one kind and operator
    set, with equal types and values, and with the same inputs and outputs left out.
    """
    values = read_values(scope, number, positions)
    if any(value is not None and value.dtype == object for value in values):
        return _infer(scope, number, values, rule)
    key = (
        rule,
        scope.kinds[number],
        scope.imports,
        tuple([scope.find_type(name) if name else _LEFT_OUT for name in scope.inputs[number]]),
        tuple([value if value is None else _describe_value(value) for value in values]),
        tuple(map(bool, scope.outputs[number])),
    )
    found = scope.context.inferred.get(key)
    if found is None:
        found = scope.context.inferred[key] = _infer(scope, number, values, rule)
    return found


def _infer(
    scope: TensorScope, number: int, values: tuple[Array | None, ...], rule: Rule | None
) -> Types:
    known = describe_node(scope, number, values)
    if rule is not None:
        return rule(known)
    schema = get_schema(known.proto.op_type, known.proto.domain, known.opset)
    types: Types = []
    if schema is not None and schema.onnx_schema is not None:
        types = infer_by_onnx(known, schema.onnx_schema, scope.opsets, scope.context.ir_version)
    return types or infer_contrib_types(known)


def _describe_value(value: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Return the dtype, shape and bytes of a value, which are equal for equal values alone."""
    return value.dtype.str, value.shape, value.tobytes()
