"""The target's requirements on boundary tensors, and the regions that they apply to.

Editing of an outlined model: its nodes as lists, its regions by name, and free names.

The model is byoc's own and is edited in place. Meanwhile, the nodes of the main graph, of the bodies of
If, Loop and Scan and of the regions' functions are those in the lists of their `Scope`; `Editing.finish`
writes them back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from byoc.model import (
    TensorLayout,
    list_reads,
    list_tensor_names,
    make_unique_name,
    walk_bodies,
)


@dataclass(frozen=True)
class BoundaryFormat:
    """The form in which a target takes boundary tensors.

    `activations` is the layout of images, None for ONNX's own. `convert` says who quantizes and casts.
    `compute` is `float16` or `bfloat16` if regions compute in that type, None to follow the model.
    """

    activations: TensorLayout | None = None
    convert: Literal["host", "device"] = "host"
    compute: str | None = None


@dataclass(frozen=True)
class RegionBoundary:
    """A region of an outlined model, and the facts known about the tensors around it.

    `spatial` names the images (see `byoc.model._images`), `types` gives types, both by the names of the
    graph that the region was cut from.
    """

    region: str
    domain: str
    format: BoundaryFormat
    spatial: frozenset[str]
    types: Mapping[str, TypeProto]


_REGION_DOMAINS = "byoc."


class Scope:
    """The nodes of a graph or function, in an order in which they can run.

    `proto` is the message that `finish` writes to. For a body, `outer` is the graph around it and
    `owner` the node there that holds it; both are None for the main graph and for functions. `inner` has
    the bodies of a node by the node's `id`.
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
        if id(node) not in self.inner:
            return list_reads(node)
        captured = (name for body in self.inner[id(node)] for name in body.find_captures())
        return list(dict.fromkeys([*filter(None, node.input), *captured]))

    def find_captures(self) -> list[str]:
        """Return the tensors that a body reads from the graphs around it, in the order of first use."""
        assert isinstance(self.proto, GraphProto)
        local = self.own_names()
        names = [name for node in self.nodes for name in self.find_reads(node)]
        names += [value.name for value in self.proto.output]
        return [name for name in dict.fromkeys(names) if name not in local]

    def own_names(self) -> set[str]:
        """Return the names of inputs, stored tensors, and outputs of nodes."""
        names: list[str] = []
        if isinstance(self.proto, FunctionProto):
            names.extend(self.proto.input)
        else:
            names.extend(value.name for value in self.proto.input)
            names.extend(tensor.name for tensor in self.proto.initializer)
            names.extend(sparse.values.name for sparse in self.proto.sparse_initializer)
        return {*names, *(name for node in self.nodes for name in node.output)}

    def find_readers(self) -> dict[str, list[NodeProto]]:
        """Return the nodes that read each tensor, captures by their bodies included."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in self.find_reads(node):
                found.setdefault(name, []).append(node)
        return found

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
        self._taken = list_tensor_names(model.graph).union(*map(list_tensor_names, model.functions))
        self.main = Scope(model.graph)
        functions = {
            (f.domain, f.name): f for f in model.functions if f.domain.startswith(_REGION_DOMAINS)
        }
        self.calls: dict[str, RegionCall] = {}
        self.scopes: list[Scope] = []
        pending = [self.main]
        while pending:
            scope = pending.pop()
            self.scopes.append(scope)
            for node in scope.nodes:
                inner = [Scope(body, scope, node) for body in walk_bodies(node)]
                if inner:
                    scope.inner[id(node)] = inner
                    pending.extend(inner)
                function = functions.get((node.domain, node.op_type))
                if function is not None:
                    self.calls[node.op_type] = RegionCall(node, scope, function)

    @property
    def opset(self) -> int:
        """The version of ONNX's operators in the model and its regions, 0 if it uses none."""
        versions = (e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx"))
        return next(versions, 0)

    def new_name(self, name: str, of: str = "") -> str:
        """Return a name that is not in the model: `name`, or that with a number.

        `of` is the tensor whose content the new one holds in another form; see `origin`.
        """
        new = make_unique_name(name, self._taken)
        if of:
            self.origins[new] = self.find_origin(of)
        return new

    def find_origin(self, name: str) -> str:
        """Return the user's tensor whose content a tensor holds."""
        return self.origins.get(name, name)

    def add_tensor(self, name: str, kind: TypeProto | None, of: str = "") -> str:
        """Return a `fresh` name for a tensor and record its type."""
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
            assert isinstance(scope.proto, GraphProto)
            _write_types(scope.proto, self.values)
        for call in self.calls.values():
            _write_nodes(call.inside)
        return self.model


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
    added: list[ValueInfoProto] = [helper.make_value_info(name, values[name]) for name in sorted(new)]
    if not added and len(kept) == len(graph.value_info):
        return
    del graph.value_info[:]
    graph.value_info.extend([*kept, *added])
