"""Operators that only onnxruntime registers: accepted where it is installed, and named to the user.

onnxruntime and the exporters around it write such operators in the domain com.microsoft, and a few in
ONNX's main domain (SimplifiedLayerNormalization), which ONNX's checker refuses. The checker gets a copy
of the model in which these are in a domain of their own, so that it checks everything else.
"""

from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto, NodeProto, helper

from byoc.errors import InputError
from byoc.model._node_attributes import get_operator_name
from byoc.model._walk import copy_without, describe_node, is_onnx, walk_nodes
from byoc.schemas import INSTALL_HINT, get_schema, has_runtime_schemas, list_onnx_domains

_HIDDEN_DOMAIN = "byoc.hidden"
_MOST_NAMES = 8


def hide_runtime_operators(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model for ONNX's checker, and a note on the operators that only onnxruntime registers.

    Nodes of these operators that stand in a domain of ONNX's are in another domain, in bodies and
    functions, too; a model without such nodes is returned as it is. Raises InputError for an operator
    that ONNX lacks where onnxruntime, which may have it, is not installed.
    """
    nodes = list(_walk_runtime_nodes(model))
    if not nodes:
        return model, ()
    found = Counter(map(get_operator_name, nodes))
    if any(node.domain in list_onnx_domains() for node in nodes):
        model = copy_without(model)
        for node in _walk_runtime_nodes(model):
            node.domain = _HIDDEN_DOMAIN
        for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
            imports.append(helper.make_opsetid(_HIDDEN_DOMAIN, 1))
    return model, (_describe_operators(found),)


def _walk_runtime_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes whose operators only onnxruntime registers."""
    called = {(function.domain, function.name) for function in model.functions}
    scopes = (
        (model.graph.node, model.opset_import),
        *((f.node, f.opset_import) for f in model.functions),
    )
    for nodes, imports in scopes:
        versions = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in imports}
        for node in walk_nodes(nodes):
            version = versions.get("" if is_onnx(node) else node.domain)
            if version is None or (node.domain, node.op_type) in called:
                continue  # an import that the checker will miss, or a function of the model
            schema = get_schema(node.op_type, node.domain, version)
            if schema is not None and schema.onnx_schema is None:
                yield node
            elif schema is None and node.domain in list_onnx_domains() and not has_runtime_schemas():
                raise InputError(
                    f"ONNX's operator set {version} has no operator of {describe_node(node)}; "
                    f"onnxruntime may have it: {INSTALL_HINT}"
                )


def _describe_operators(found: Counter[str]) -> str:
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{name} ({count})" for name, count in ranked[:_MOST_NAMES]]
    more = [f"{len(found) - _MOST_NAMES} more"] if len(found) > _MOST_NAMES else []
    what = "an operator" if len(found) == 1 else "operators"
    return f"not ONNX's, but {what} of onnxruntime: {', '.join([*names, *more])}"
