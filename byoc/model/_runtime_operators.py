"""Operators that only onnxruntime registers: accepted where it is installed, and named to the user.

onnxruntime and the exporters around it write such operators in the domain com.microsoft, and a few in
ONNX's main domain (SimplifiedLayerNormalization), which ONNX's checker refuses. The checker gets a copy
of the model in which these are in a domain of their own, so that it checks everything else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

from onnx import AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, helper

from byoc.errors import InputError
from byoc.model._node_kinds import NodeRecords, get_operator_name
from byoc.model._walk import copy_without, describe_node, is_onnx, walk_nodes
from byoc.model.schemas import (
    INSTALL_HINT,
    OperatorSchema,
    get_schema,
    has_runtime_schemas,
    list_onnx_domains,
)

_HIDDEN_DOMAIN = "byoc_driver.hidden"
_MAX_NAMES = 8  # of operators in a sentence


def hide_runtime_operators(
    model: ModelProto, distinct: Sequence[NodeProto], records: NodeRecords
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model for ONNX's checker, and a note on the operators that only onnxruntime registers.

    `records` are those of the main graph's nodes, `distinct` has one node of each kind.
    Nodes of these operators that stand in a domain of ONNX's are in another domain, in bodies and
    functions, too; a model without such nodes is returned as it is. Raises InputError for an operator
    that ONNX lacks where onnxruntime, which may have it, is not installed.
    """
    if not model.functions:
        own = {
            (node.domain, node.op_type) for node, _ in _walk_scope(distinct, model.opset_import, set())
        }
        if not own:
            return model, ()
        nodes = _list_nodes_of(model, own, records)
    else:
        nodes = list(_walk_runtime_nodes(model))
    if not nodes:
        return model, ()
    found = Counter(map(get_operator_name, nodes))
    if any(node.domain in list_onnx_domains() for node in nodes):
        model = copy_without(model)
        nodes = (
            list(_walk_runtime_nodes(model)) if model.functions else _list_nodes_of(model, own, records)
        )
        for node in nodes:
            node.domain = _HIDDEN_DOMAIN
        for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
            imports.append(helper.make_opsetid(_HIDDEN_DOMAIN, 1))
    return model, (_describe_operators(found),)


def _list_nodes_of(
    model: ModelProto, operators: Set[tuple[str, str]], records: NodeRecords
) -> list[NodeProto]:
    """Return the nodes of some operators, by domain and name, in bodies, too."""
    graph = model.graph.node
    kinds = set(records.kinds)
    plain = {kind for kind in kinds if (kind.domain, kind.op_type) in operators and not kind.has_bodies}
    found = [graph[number] for number, kind in enumerate(records.kinds) if kind in plain]
    if records.has_bodies:
        outer = [graph[number] for number, kind in enumerate(records.kinds) if kind.has_bodies]
        found += [node for node in walk_nodes(outer) if (node.domain, node.op_type) in operators]
    return found


def state_function_defaults(model: ModelProto) -> ModelProto:
    """Return a model whose functions state the defaults of operators that only onnxruntime registers.

    onnxruntime 1.32 ends the process when it loads a SimplifiedLayerNormalization in a function without
    `stash_type`: there it infers types without the defaults. A model whose functions state them is
    returned as it is.
    """
    if not any(list_missing_defaults(node, schema) for node, schema in _walk_functions(model)):
        return model
    model = copy_without(model)
    for node, schema in _walk_functions(model):
        node.attribute.extend(list_missing_defaults(node, schema))
    return model


def list_missing_defaults(node: NodeProto, schema: OperatorSchema) -> list[AttributeProto]:
    """Return the defaults of the attributes that a node leaves out."""
    given = {attribute.name for attribute in node.attribute}
    return [
        attribute.default
        for name, attribute in schema.attributes.items()
        if name not in given and attribute.default is not None
    ]


def _walk_runtime_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes whose operators only onnxruntime registers."""
    called = _list_functions(model)
    for node, _ in _walk_scope(model.graph.node, model.opset_import, called):
        yield node
    for node, _ in _walk_functions(model):
        yield node


def _walk_functions(model: ModelProto) -> Iterator[tuple[NodeProto, OperatorSchema]]:
    """Yield the nodes in functions whose operators only onnxruntime registers, with their schemas."""
    called = _list_functions(model)
    for function in model.functions:
        yield from _walk_scope(function.node, function.opset_import, called)


def _list_functions(model: ModelProto) -> set[tuple[str, str]]:
    """Return the domains and names of a model's own functions."""
    return {(function.domain, function.name) for function in model.functions}


def _walk_scope(
    nodes: Iterable[NodeProto], imports: Iterable[OperatorSetIdProto], called: set[tuple[str, str]]
) -> Iterator[tuple[NodeProto, OperatorSchema]]:
    versions = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in imports}
    ordinary = set(called)
    for node in walk_nodes(nodes):
        operator = node.domain, node.op_type
        if operator in ordinary:
            continue
        version = versions.get("" if is_onnx(node) else node.domain)
        if version is None:
            continue  # an import that the checker will miss
        schema = get_schema(node.op_type, node.domain, version)
        if schema is not None and schema.onnx_schema is None:
            yield node, schema
        elif schema is None and node.domain in list_onnx_domains() and not has_runtime_schemas():
            raise InputError(
                f"ONNX's operator set {version} has no operator of {describe_node(node)}; "
                f"onnxruntime may have it: {INSTALL_HINT}"
            )
        else:
            ordinary.add(operator)


def _describe_operators(found: Counter[str]) -> str:
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{name} ({count})" for name, count in ranked[:_MAX_NAMES]]
    more = [f"{len(found) - _MAX_NAMES} more"] if len(found) > _MAX_NAMES else []
    what = "an operator" if len(found) == 1 else "operators"
    return f"not ONNX's, but {what} of onnxruntime: {', '.join([*names, *more])}"
