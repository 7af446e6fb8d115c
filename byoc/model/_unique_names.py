"""Names made unique across scopes, so that a name means one tensor wherever it is read.

In ONNX a body reads the values of the graphs around it by name. Exporters give a body's inputs,
counters, initializers and outputs names that values around it have as well, and name many nodes alike.
ONNX's IR specification forbids some of it, and its checker finds little; onnxruntime resolves a name to
the innermost value, and refuses two nodes of one name. A function that has the name of a registered
operator is ignored by onnxruntime, and is dropped here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, MutableSequence, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from byoc.errors import InputError
from byoc.model._node_kinds import NodeRecords
from byoc.model._walk import (
    copy_without,
    describe_node,
    list_bodies,
    list_captures,
    list_own_names,
    list_tensor_names,
)
from byoc.model.schemas import get_schema, list_onnx_domains

# Its operators are onnxruntime's. Functions in a vendor's or a user's domain are their own.
_RUNTIME_DOMAIN = "com.microsoft"


def make_names_unique(proto: ModelProto, records: NodeRecords) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model in which no body has a name of a graph around it, and notes for the user.

    No two nodes of one graph share a name, and no function has the name of a registered operator.
    `records` are those of the main graph's nodes. Names of tensors of the main graph stay, and those of
    nodes that are unique in their graph. A model in which nothing is to be done is returned as it is.
    Raises InputError for a name that runtimes read differently.
    """
    ignored = _find_ignored_functions(proto)
    scopes: list[GraphProto | FunctionProto] = [proto.graph, *proto.functions]
    with_bodies = [records.has_bodies, *[_has_bodies(function.node) for function in proto.functions]]
    pairs = list(zip(scopes, with_bodies, strict=True))
    shared_tensors = [has and _shadows(scope) for scope, has in pairs]
    shared_nodes = any(_shares_node_names(nodes) for pair in pairs for nodes in _walk_scope(*pair))
    if not ignored and not any(shared_tensors) and not shared_nodes:
        return proto, ()
    result = copy_without(proto)
    copies: list[GraphProto | FunctionProto] = [result.graph, *result.functions]
    for scope, shadows in zip(copies, shared_tensors, strict=True):
        if shadows:
            _ScopeRenamer(scope).rename()
        for nodes in _walk_scope(scope, with_bodies=True) if shared_nodes else ():
            _name_nodes_apart(nodes)
    notes = [_describe_ignored(result.functions[number]) for number in ignored]
    for number in reversed(ignored):
        del result.functions[number]
    return result, tuple(notes)


def _find_ignored_functions(proto: ModelProto) -> list[int]:
    """Return the numbers of the functions that have the name of a registered operator."""
    imports = _list_versions(proto.opset_import)
    found = []
    for number, function in enumerate(proto.functions):
        domain = "" if function.domain == "ai.onnx" else function.domain
        if domain != _RUNTIME_DOMAIN and domain not in list_onnx_domains():
            continue
        version = imports.get(domain) or _list_versions(function.opset_import).get(domain)
        if version is not None and get_schema(function.name, domain, version) is not None:
            found.append(number)
    return found


def _list_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def _describe_ignored(function: FunctionProto) -> str:
    domain = f"{function.domain}." if function.domain else ""
    return (
        f"the model's own function '{domain}{function.name}' has the name of an operator, and does not "
        f"count: as in onnxruntime, a node {function.name} is the operator"
    )


def _has_bodies(nodes: Iterable[NodeProto]) -> bool:
    return any(list_bodies(node) for node in nodes)


def _walk_scope(scope: GraphProto | FunctionProto, with_bodies: bool) -> Iterator[Sequence[NodeProto]]:
    """Yield the nodes of a graph or function, and those of each body inside."""
    pending = [scope.node]
    while pending:
        nodes = pending.pop()
        yield nodes
        if with_bodies:
            pending.extend(body.node for node in nodes for body in list_bodies(node))


def _list_scope_names(scope: GraphProto | FunctionProto) -> Iterable[str]:
    """Return the names that a graph, a function or a body defines."""
    if isinstance(scope, GraphProto):
        return list_own_names(scope)
    return {*scope.input, *(name for node in scope.node for name in node.output)}


def _shadows(scope: GraphProto | FunctionProto) -> bool:
    """Return whether a body inside has a name of a graph around it."""
    visible = {name for name in _list_scope_names(scope) if name}
    pending = [iter(_list_bodies_of(scope))]
    added: list[frozenset[str]] = []
    while pending:
        body = next(pending[-1], None)
        if body is None:
            pending.pop()
            visible.difference_update(added.pop() if added else ())
            continue
        own = list_own_names(body) - {""}
        if not visible.isdisjoint(own):
            return True
        visible.update(own)
        added.append(own)
        pending.append(iter(_list_bodies_of(body)))
    return False


def _list_bodies_of(scope: GraphProto | FunctionProto) -> list[GraphProto]:
    return [body for node in scope.node for body in list_bodies(node)]


def _shares_node_names(nodes: Iterable[NodeProto]) -> bool:
    names = [name for node in nodes if (name := node.name)]
    return len(set(names)) < len(names)


def _name_nodes_apart(nodes: Sequence[NodeProto]) -> None:
    """Name each node after its first output whose name another node has, too, in place.

    So reports and placement files name nodes without a name of their own.
    """
    counts = Counter(node.name for node in nodes)
    shared = [node for node in nodes if node.name and counts[node.name] > 1]
    taken = counts.keys() - {node.name for node in shared}
    names = _NewNames({*taken, *(name for node in nodes for name in node.output)} if shared else set())
    for node in shared:
        own = next(filter(None, node.output), node.name)
        node.name = own if own not in taken and own in node.output else names.make(own)


class _NewNames:
    """Makes new names, each in constant time on average: a name with the next number behind it."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._last: dict[str, int] = {}

    def make(self, name: str) -> str:
        number = self._last.get(name, 0) + 1
        while (found := f"{name}_{number}") in self._taken:
            number += 1
        self._last[name] = number
        self._taken.add(found)
        return found


class _ScopeRenamer:
    """Renames, in place, what bodies in a graph or function define and a graph around them has, too.

    `current` maps each name that is visible to what it is called now: inputs and stored tensors of a
    body are visible in all of it, what its nodes make only behind them. `around` are the names, as they
    are now, of the graphs around, visible or not.
    """

    def __init__(self, scope: GraphProto | FunctionProto) -> None:
        self._scope = scope
        self._names = _NewNames(list_tensor_names(scope))
        self._around = {name for name in _list_scope_names(scope) if name}
        self._current = {name: name for name in self._around}

    def rename(self) -> None:
        for node in self._scope.node:
            self._rename_bodies(node)

    def _rename_bodies(self, node: NodeProto) -> None:
        bodies = list_bodies(node)
        if len(bodies) > 1:
            self._check_stored_names(node, bodies)
        for body in bodies:
            self._rename_body(body)

    def _check_stored_names(self, node: NodeProto, bodies: Sequence[GraphProto]) -> None:
        """Raise InputError for a stored tensor of a body that has the name of what another one captures.

        onnxruntime gives the captured value to all bodies of a node, and this one then reads it in
        place of its own.
        """
        for body in bodies:
            given = {value.name for value in body.input}
            stored = {name for name in _list_stored_names(body) if name not in given}
            shadowing = stored.intersection(self._current)
            for other in bodies if shadowing else ():
                both = sorted(shadowing.intersection(list_captures(other)))
                if other is not body and both:
                    raise InputError(
                        f"{describe_node(node)} has an initializer '{both[0]}' in its body "
                        f"'{body.name}', and its body '{other.name}' reads a '{both[0]}' of the graph "
                        "around: runtimes disagree on which of the two the first one reads; name them "
                        "apart"
                    )

    def _rename_body(self, body: GraphProto) -> None:
        own = [name for name in _list_defined_names(body) if name]
        new = {n: self._names.make(n) if n in self._around else n for n in dict.fromkeys(own)}
        self._around.update(new.values())
        before = {name: self._current.get(name) for name in new}
        for name in (*(value.name for value in body.input), *_list_stored_names(body)):
            self._current[name] = new[name]
        for stored in (body.input, body.initializer, [each.values for each in body.sparse_initializer]):
            for value in stored:
                value.name = self._read(value.name)
        for node in body.node:
            self._rename_all(node.input)
            self._rename_bodies(node)
            self._current.update({name: new[name] for name in node.output if name})
            self._rename_all(node.output)
            for device in node.device_configurations:
                for sharding in device.sharding_spec:
                    sharding.tensor_name = self._read(sharding.tensor_name)
        for value in (*body.output, *body.value_info):
            value.name = self._read(value.name)
        for annotation in body.quantization_annotation:
            annotation.tensor_name = self._read(annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = self._read(entry.value)
        self._around.difference_update(new.values())
        for name, outer in before.items():
            if outer is None:
                del self._current[name]
            else:
                self._current[name] = outer

    def _read(self, name: str) -> str:
        return self._current.get(name, name)

    def _rename_all(self, names: MutableSequence[str]) -> None:
        for number, name in enumerate(names):
            new = self._read(name)
            if new != name:
                names[number] = new


def _list_defined_names(body: GraphProto) -> list[str]:
    """Return the names that a body defines, in order; one may stand more than once."""
    return [
        *[value.name for value in body.input],
        *_list_stored_names(body),
        *[name for node in body.node for name in node.output],
    ]


def _list_stored_names(body: GraphProto) -> list[str]:
    return [
        *[tensor.name for tensor in body.initializer],
        *[sparse.values.name for sparse in body.sparse_initializer],
    ]
