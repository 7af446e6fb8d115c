"""Editing of an outlined model: its nodes as lists, its regions by name, and free names.

The model is byoc's own and is edited in place. Meanwhile, the nodes of the main graph, of the bodies of
If, Loop and Scan and of the regions' functions are those in the lists of their `Scope`;
`ModelEditor.finish` writes them back.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
)

from byoc.model import (
    list_bodies,
    list_reads,
    list_tensor_names,
    make_unique_name,
)


class Scope:
    """The nodes of a graph or function, in an order in which they can run.

    `proto` is the message that `finish` writes to. For a body, `outer` is the graph around it and
    `owner` the node there that holds it; both are None for the main graph and for functions. `inner` has
    the bodies of a node by the node's `id`; nodes that are inserted have none.
    """

    def __init__(
        self,
        proto: GraphProto | FunctionProto,
        outer: "Scope | None" = None,
        owner: NodeProto | None = None,
    ) -> None:
        """Take the nodes of a graph or function."""
        self.proto = proto
        self.outer = outer
        self.owner = owner
        self.inner: dict[int, list[Scope]] = {}
        self._nodes = list(proto.node)
        self._before: dict[int, list[NodeProto]] = {}
        self._after: dict[int, list[NodeProto]] = {}
        self._first: list[tuple[NodeProto, ...]] = []
        self._last: list[NodeProto] = []

    @property
    def graph(self) -> GraphProto:
        """The graph itself; a function has none."""
        assert isinstance(self.proto, GraphProto)
        return self.proto

    @property
    def outputs(self) -> list[str]:
        """The names of the graph's outputs."""
        return [value.name for value in self.graph.output]

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes with all insertions; the list may be edited."""
        if self._before or self._after or self._first or self._last:
            merged = [node for added in reversed(self._first) for node in added]
            for node in self._nodes:
                merged.extend(self._before.get(id(node), ()))
                merged.append(node)
                merged.extend(self._after.get(id(node), ()))
            self.nodes = [*merged, *self._last]
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: Sequence[NodeProto]) -> None:
        self._nodes = list(nodes)
        self._before, self._after, self._first, self._last = {}, {}, [], []

    def insert_before(self, node: NodeProto, *added: NodeProto) -> None:
        """Insert nodes directly before a node that was present when `nodes` was last read."""
        self._before.setdefault(id(node), []).extend(added)

    def insert_after(self, node: NodeProto, *added: NodeProto) -> None:
        """Insert nodes after a node that was present when `nodes` was last read."""
        self._after.setdefault(id(node), []).extend(added)

    def insert_first(self, *added: NodeProto) -> None:
        """Insert nodes before all others, including those inserted by earlier calls."""
        self._first.append(added)

    def insert_last(self, *added: NodeProto) -> None:
        """Insert nodes after all others."""
        self._last.extend(added)

    def find_reads(self, node: NodeProto) -> list[str]:
        """Return the tensors that a node reads, including the current captures of its bodies."""
        if isinstance(self.proto, FunctionProto):  # whose bodies are no scopes of their own
            return list_reads(node)
        names = dict.fromkeys(node.input)
        names.pop("", None)
        for body in self.inner.get(id(node), ()):
            names.update(dict.fromkeys(body.find_captures()))
        return list(names)

    def find_captures(self) -> list[str]:
        """Return the tensors that a body reads from the graphs around it, in the order of first use."""
        local = self.own_names()
        names = [name for node in self.nodes for name in self.find_reads(node)]
        return [name for name in dict.fromkeys([*names, *self.outputs]) if name not in local]

    def find_lasting_names(self) -> dict[str, None]:
        """Return the tensors that must keep their names: a graph's outputs and captures of bodies."""
        bodies = (body for node in self.nodes for body in self.inner.get(id(node), ()))
        return dict.fromkeys(
            [*self.outputs, *(name for body in bodies for name in body.find_captures())]
        )

    def own_names(self) -> set[str]:
        """Return the names of inputs, stored tensors, and outputs of nodes."""
        made = {name for node in self.nodes for name in node.output}
        if isinstance(self.proto, FunctionProto):
            return made.union(self.proto.input)
        stored = [*self.proto.initializer, *(s.values for s in self.proto.sparse_initializer)]
        return made.union((v.name for v in self.proto.input), (tensor.name for tensor in stored))

    def find_readers(self) -> dict[str, list[NodeProto]]:
        """Return the nodes that read each tensor, captures by their bodies included."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in self.find_reads(node):
                found.setdefault(name, []).append(node)
        return found

    def walk_outward(self) -> "Iterator[Scope]":
        """Yield this graph and those around it, the outermost last."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def walk(self) -> "Iterator[Scope]":
        """Yield this graph and all bodies inside, each after the graph around it."""
        pending = [self]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(body for inner in current.inner.values() for body in inner)


class RegionCall:
    """A call of a region: the calling node, the graph that it is in, and the nodes inside the region.

    Inputs and outputs of call and function correspond by position; at first they have the same names
    outside and inside.
    """

    def __init__(self, node: NodeProto, scope: Scope, function: FunctionProto) -> None:
        """Take a node that calls a function."""
        self.node = node
        self.scope = scope
        self.function = function
        self.inside = Scope(function)

    def replace_input(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region read `name` at an input, and make its former input by `steps`.

        The function's input is named `inside`, or the same as outside.
        """
        self.node.input[position] = name
        self.function.input[position] = inside or name
        self.inside.insert_first(*steps)

    def replace_output(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region return `name` at an output, which `steps` make of its former output."""
        self.node.output[position] = name
        self.function.output[position] = inside or name
        self.inside.insert_last(*steps)


class ModelEditor:
    """A model while its boundaries are edited: the graphs inside it, and `calls` by the region's name.

    `values` has the types of inserted tensors by name; names are unique in the model, so the types hold
    in each graph. `origins` names the user's tensor whose content each inserted one holds. `notes` are
    sentences for the user.
    """

    def __init__(self, model: ModelProto) -> None:
        """Take an outlined model, which is edited in place."""
        self.model = model
        self.values: dict[str, TypeProto] = {}
        self.notes: list[str] = []
        self.origins: dict[str, str] = {}
        self.main = Scope(model.graph)
        functions = {(f.domain, f.name): f for f in model.functions if f.domain.startswith("byoc.")}
        domains = {domain for domain, _ in functions}
        self.calls: dict[str, RegionCall] = {}
        self.scopes: list[Scope] = []
        pending = [self.main]
        while pending:
            scope = pending.pop()
            self.scopes.append(scope)
            for node in scope.nodes:
                inner = [Scope(body, scope, node) for body in list_bodies(node)]
                if inner:
                    scope.inner[id(node)] = inner
                    pending.extend(inner)
                if node.domain in domains and (node.domain, node.op_type) in functions:
                    function = functions[node.domain, node.op_type]
                    self.calls[node.op_type] = RegionCall(node, scope, function)

    @cached_property
    def _taken(self) -> set[str]:
        """The names of the model as it came, and those that were added."""
        return list_tensor_names(self.model.graph).union(*map(list_tensor_names, self.model.functions))

    @property
    def opset(self) -> int:
        """The version of ONNX's operators in the model and its regions, 0 if it uses none."""
        versions = (e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx"))
        return next(versions, 0)

    def new_name(self, name: str, of: str = "") -> str:
        """Return a name that is not in the model: `name`, or that with a number.

        `of` is the tensor whose content the new one holds in another form; see `find_origin`.
        """
        new = make_unique_name(name, self._taken)
        if of:
            self.origins[new] = self.find_origin(of)
        return new

    def find_origin(self, name: str) -> str:
        """Return the user's tensor whose content a tensor holds."""
        return self.origins.get(name, name)

    def add_tensor(self, name: str, kind: TypeProto | None, of: str = "") -> str:
        """Return a free name for a tensor and record its type."""
        new = self.new_name(name, of)
        if kind is not None:
            self.values[new] = kind
        return new

    def finish(self) -> ModelProto:
        """Write all lists of nodes and the types of new tensors back, and return the model.

        Nodes and scopes obtained before are no longer part of the model.
        """
        for scope in reversed(self.scopes):  # a body before the node that holds it is copied
            _write_nodes(scope)
            _write_types(scope.graph, self.values)
        for call in self.calls.values():
            _write_nodes(call.inside)
        return self.model


def find_owner(scope: Scope, name: str, own_names: Mapping[Scope, Collection[str]]) -> Scope:
    """Return the graph that a tensor is in, this one or one around it; this one if it is in none."""
    return next((around for around in scope.walk_outward() if name in own_names[around]), scope)


def drop_initializers(graph: GraphProto, names: Collection[str]) -> None:
    """Remove initializers from a graph by name."""
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name in names:
            del graph.initializer[position]


def _write_nodes(scope: Scope) -> None:
    nodes = scope.nodes
    stays = len(nodes) == len(scope.proto.node)
    if stays and all(one is other for one, other in zip(nodes, scope.proto.node, strict=True)):
        return
    del scope.proto.node[:]
    scope.proto.node.extend(nodes)


def _write_types(graph: GraphProto, values: Mapping[str, TypeProto]) -> None:
    """Record the known types of a graph's new tensors, and drop those of tensors that are gone."""
    inside = {name for node in graph.node for name in node.output if name}
    inside -= {value.name for value in graph.output}
    kept = [value for value in graph.value_info if value.name in inside]
    new = (inside & values.keys()) - {value.name for value in kept}
    added = [ValueInfoProto(name=name, type=values[name]) for name in sorted(new)]
    if not added and len(kept) == len(graph.value_info):
        return
    del graph.value_info[:]
    graph.value_info.extend([*kept, *added])
