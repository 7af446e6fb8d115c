"""Data types that follow from the schemas of operators where shape inference knows nothing.

Tensors of one type variable of a node have one dtype: the weight of a MatMul says what its data is, be
it the output of an operator that nobody knows. So one operator without inference does not hide the types
of what is behind it. Only dtypes follow, no shapes.
"""

from collections.abc import Iterable, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, helper

from byoc.model._node_kinds import NodeRecords
from byoc.model._tensor_types import DTYPE_NUMBERS, get_graph_types, rate_knowledge, read_type
from byoc.model._walk import is_onnx, list_bodies, list_own_names
from byoc.schemas import FormalParameter, get_schema

_MAX_ROUNDS = 8  # forth and back; each carries a type along a chain of any length

TypesByName = dict[str, TypeProto]


def complete_dtypes(
    model: ModelProto, typed: GraphProto | None, types: TypesByName, records: NodeRecords
) -> TypesByName:
    """Return types with the dtypes that follow from schemas; those in bodies are added to `typed`.

    `typed` is the model's graph with inferred types in its bodies, None if there is none; `records` are
    those of the main graph's nodes.
    """
    named = {"", *types}
    if not records.has_bodies and all(map(named.issuperset, (*records.inputs, *records.outputs))):
        return types
    opsets = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    called = {(function.domain, function.name) for function in model.functions}

    sparse = {tensor.values.name for tensor in model.graph.sparse_initializer}

    def find_dtypes(nodes: Iterable[NodeProto], known: TypesByName) -> TypesByName:
        standing = nodes
        if called:
            standing = [node for node in nodes if (node.domain, node.op_type) not in called]
        found = _find_dtypes(standing, opsets, known)
        return {name: kind for name, kind in found.items() if name not in sparse}

    result = {**types, **find_dtypes(model.graph.node, types)}
    pending = [(typed, result)] if typed is not None else []
    while pending:
        graph, around = pending.pop()
        for body in (body for node in graph.node for body in list_bodies(node)):
            own = list_own_names(body)
            known = {name: kind for name, kind in around.items() if name not in own}
            known |= {n: kind for n, kind in get_graph_types(body).items() if rate_knowledge(kind)}
            found = find_dtypes(body.node, known)
            body.value_info.extend(
                helper.make_value_info(name, kind) for name, kind in found.items() if name in own
            )
            pending.append((body, {**known, **found}))
    return result


def _find_dtypes(
    nodes: Iterable[NodeProto], opsets: Mapping[str, int], types: Mapping[str, TypeProto]
) -> TypesByName:
    """Return the types of tensors that have none and whose dtype follows, by name."""
    known = {"", *types}
    open_nodes = [
        node for node in nodes if not (known.issuperset(node.output) and known.issuperset(node.input))
    ]
    if not open_nodes:
        return {}
    found: dict[str, str] = {}

    def get_dtype(name: str) -> str | None:
        if name in found:
            return found[name]
        kind = read_type(types[name]) if name in types else None
        return kind.dtype if kind is not None else None

    groups = [group for node in open_nodes for group in _group_by_type(node, opsets)]
    for _ in range(_MAX_ROUNDS):
        before = len(found)
        for names, only in groups:
            dtype = only or next(filter(None, map(get_dtype, names)), None)
            if dtype is not None:
                found.update((name, dtype) for name in names if name not in types)
        if len(found) == before:
            break
        groups.reverse()
    return {
        name: helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], None) for name, dtype in found.items()
    }


def _group_by_type(
    node: NodeProto, opsets: Mapping[str, int]
) -> Iterator[tuple[Iterable[str], str | None]]:
    """Yield the tensors of a node that have one type, with its dtype if the schema says it."""
    version = opsets.get("" if is_onnx(node) else node.domain)
    schema = get_schema(node.op_type, node.domain, version) if version is not None else None
    if schema is None:
        return
    groups: dict[str, list[str]] = {}
    formals: dict[str, FormalParameter] = {}
    inputs = zip(node.input, schema.list_input_formals(len(node.input)), strict=False)
    outputs = zip(node.output, schema.list_output_formals(len(node.output)), strict=False)
    for name, formal in (*inputs, *outputs):
        if name and formal.homogeneous and formal.dtypes:
            groups.setdefault(formal.type_str, []).append(name)
            formals[formal.type_str] = formal
    for type_str, names in groups.items():
        dtypes = formals[type_str].dtypes
        yield names, next(iter(dtypes)) if len(dtypes) == 1 else None
