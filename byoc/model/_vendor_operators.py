"""Operators of vendors' own domains: the types and the work that an installed package states of them.

Each is an entry point of the group `byoc.operators`, named as rule files name the operator:
`acme.MyOp`. Without one the types behind such a node are not known, and its work is a guess.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from onnx import AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, helper

from byoc.errors import InputError
from byoc.model._node_kinds import NodeRecords, get_operator_name
from byoc.model._tensor_data import DTYPES, TensorType
from byoc.model._walk import copy_without, describe_node, is_onnx, walk_nodes
from byoc.model.schemas import (
    INSTALL_HINT,
    OperatorSchema,
    get_schema,
    has_runtime_schemas,
    list_onnx_domains,
)
from byoc.support import (
    OPERATORS,
    UnsuitablePluginError,
    describe_failure,
    get_distribution,
    list_installed,
    load_plugin,
)

# Operators that only onnxruntime registers: accepted where it is installed, and named to the user.
#
# onnxruntime and the exporters around it write such operators in the domain com.microsoft, and a
# few in ONNX's main domain (SimplifiedLayerNormalization), which ONNX's checker refuses. The
# checker gets a copy of the model in which these are in a domain of their own, so that it checks
# everything else.

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


_KNOWN_DOMAINS = ("ai.onnx", "com.microsoft", "byoc")
"""The first part of names that are never asked for: ONNX's, onnxruntime's and byoc's own domains."""
_MOST = 2**62
"""The largest count that is taken, which a float holds to 16 digits."""

Attributes = Mapping[str, Any]
Types = Sequence[TensorType | None]


class VendorOperator(Protocol):
    """An operator of a vendor's own domain. A plug-in has both methods."""

    def infer_types(self, inputs: Types, attributes: Attributes) -> Types:
        """Return the dtype and shape of each output, None where nothing is known.

        `inputs` has an entry for each input, None where it is left out or not known. An extent is an
        int, an open dimension or an expression of some, which may be passed on, or None. `attributes`
        are those that a node states: numbers, texts, lists of them.
        """

    def count_operations(self, inputs: Types, outputs: Types, attributes: Attributes) -> int:
        """Return the floating-point operations of a node; a multiplication and an addition are two.

        All extents are ints; one that is not known is 1, and an open one has its planned size.
        """


@runtime_checkable
class CountsBytes(Protocol):
    """An operator that does not read all bytes of its inputs, or reads some several times."""

    def count_bytes_read(self, inputs: Types, outputs: Types, attributes: Attributes) -> Sequence[int]:
        """Return the bytes that a node reads of each input; extents are as in `count_operations`."""


def find_vendor_operator(name: str) -> VendorOperator | None:
    """Return the plug-in of an operator, named as in rule files; None where none is installed.

    Raises InputError for a plug-in that cannot be loaded, or lacks a method.
    """
    domain = name.rpartition(".")[0]
    if not domain or domain.startswith(_KNOWN_DOMAINS):
        return None
    point = list_installed(OPERATORS).get(name)
    return None if point is None else _load(name, point.value)


@lru_cache(maxsize=256)  # operators; one is asked for at each node that has it
def _load(name: str, value: str) -> VendorOperator:
    """Return the operator of an entry point, which is loaded once."""
    found: VendorOperator = load_plugin(OPERATORS, name, _make_operator)
    return found


def _make_operator(kind: Any) -> Any:
    made = kind() if isinstance(kind, type) else kind
    for method in ("infer_types", "count_operations"):
        if not callable(getattr(made, method, None)):
            raise UnsuitablePluginError(f"has no method {method}")
    return made


def infer_vendor_types(name: str, inputs: Types, attributes: Attributes) -> list[TensorType | None]:
    """Return the types of the outputs of a vendor's operator; none where nothing is installed for it.

    Raises InputError as `find_vendor_operator`, and where the plug-in fails or returns something else.
    """
    operator = find_vendor_operator(name)
    if operator is None:
        return []
    found = _ask(name, operator.infer_types, inputs, attributes)
    if not isinstance(found, list | tuple) or not all(map(_is_type, found)):
        raise InputError(f"{_describe(name)}: infer_types returned {found!r}, no list of types")
    return list(found)


def _is_type(value: object) -> bool:
    return value is None or (isinstance(value, TensorType) and value.dtype in DTYPES.values())


def count_vendor_operations(name: str, inputs: Types, outputs: Types, attributes: Attributes) -> int:
    """Return the operations of a node of a vendor's operator, for which something is installed.

    Raises as `infer_vendor_types`.
    """
    operator = find_vendor_operator(name)
    assert operator is not None  # who asks has looked
    return _require_count(
        name,
        "count_operations",
        _ask(name, operator.count_operations, inputs, outputs, attributes),
    )


def count_vendor_bytes(
    name: str, inputs: Types, outputs: Types, attributes: Attributes
) -> Sequence[int] | None:
    """Return the bytes that a node reads of each input, None where its operator does not say that.

    Raises as `infer_vendor_types`.
    """
    operator = find_vendor_operator(name)
    if not isinstance(operator, CountsBytes):
        return None
    found = _ask(name, operator.count_bytes_read, inputs, outputs, attributes)
    if not isinstance(found, list | tuple) or len(found) != len(inputs):
        what = f"count_bytes_read returned {found!r}, but must return a number for each input"
        raise InputError(f"{_describe(name)}: {what}")
    return [_require_count(name, "count_bytes_read", each) for each in found]


def _require_count(name: str, method: str, value: object) -> int:
    """Return a number of operations or bytes as an int. Raises InputError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise InputError(f"{_describe(name)}: {method} returned {value!r}, no count")
    return int(value)


def _ask(name: str, method: Any, *given: Any) -> Any:
    try:
        return method(*given)
    except Exception as error:  # a plug-in can fail in any way
        why = describe_failure(error)
        raise InputError(f"{_describe(name)}: {method.__name__} failed: {why}") from error


def _describe(name: str) -> str:
    return f"operator '{name}' of {get_distribution(list_installed(OPERATORS)[name])}"
