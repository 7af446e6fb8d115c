"""Editing of graphs: the one editor of byoc, for models that are its own.

Edits are gathered, and written in one go: to the graph itself, or to copies of it where a model is to
stay as it is. So each takes constant time, whatever the size of the graph.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from functools import cached_property
from typing import Any, Self

from numpy.typing import NDArray
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from byoc.model._graph_index import GraphIndex
from byoc.model._walk import NameAllocator, list_bodies, list_reads, walk_graphs

Place = NodeProto | int
"""A node that a graph had when its edits began, or when `nodes` was last set: itself or its number."""

Uses = tuple[Mapping[str, int], Mapping[str, Sequence[int]]]
"""The number of the node that makes each tensor, and the numbers of those that read it."""


def build_node(
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str = "",
    domain: str | None = None,
    **attributes: Any,
) -> NodeProto:
    """Return a node, of an operator of ONNX's unless a domain is given.

    Inputs and outputs that are left out have empty names; attributes that are None are left out.
    """
    return helper.make_node(operator, inputs, outputs, name, domain=domain, **attributes)


class EditableGraph:
    """A graph or function with edits: nodes put between others, in their place, or removed.

    `outer` is the graph around a body and `owner` the node there that holds it; both are None for the
    main graph and for functions. `inner` has the bodies of nodes that are edited, by the node's `id`.
    `stored` are new initializers, `types` the types of new tensors. Of the graph of an `index` nothing
    changes before `write_to`, not even its nodes: what becomes of one is put in its place. In a graph
    without one, nodes may be changed as they are.
    """

    def __init__(
        self,
        proto: GraphProto | FunctionProto,
        outer: Self | None = None,
        owner: NodeProto | None = None,
        index: GraphIndex | None = None,
        functions: Iterable[FunctionProto] = (),
    ) -> None:
        """Take a graph or function; new names are to be free in some functions, too."""
        self.proto = proto
        self.outer = outer
        self.owner = owner
        self.index = index
        self.inner: dict[int, list[Self]] = {}
        self.stored: list[TensorProto] = []
        self.types: dict[str, TypeProto] = {}
        self.links: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self._aliases: dict[str, list[str]] = {}
        self._functions = functions
        self._known_uses: Uses | None = None
        self._given = list(proto.node) if index is None else index.nodes
        self._set_nodes(self._given)

    @classmethod
    def of_index(cls, index: GraphIndex) -> Self:
        """Return the graph of an index without edits."""
        return cls(index.graph, index=index)

    @property
    def graph(self) -> GraphProto:
        """The graph itself; a function has none."""
        assert isinstance(self.proto, GraphProto)
        return self.proto

    @cached_property
    def names(self) -> NameAllocator:
        """New names for tensors and nodes, unique in all graphs of the model."""
        if self.outer is not None:
            return self.outer.names
        return NameAllocator(self.proto, *self._functions)

    @cached_property
    def outputs(self) -> Mapping[str, None]:
        """The outputs of the graph, which no edit renames."""
        return dict.fromkeys(value.name for value in self.graph.output)

    def store(self, values: NDArray[Any] | TensorProto, name: str) -> str:
        """Add an initializer under a free name, with its type, and return the name."""
        tensor = values if isinstance(values, TensorProto) else numpy_helper.from_array(values)
        tensor.name = self.names.new_tensor(name)
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self.stored.append(tensor)
        return tensor.name

    # Nodes, in an order in which they can run.

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes after all edits; those that were inserted are places from now on."""
        if self._is_edited:
            self._set_nodes([*self._merge()])
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: Sequence[NodeProto]) -> None:
        self._set_nodes(list(nodes))

    def _set_nodes(self, nodes: Sequence[NodeProto]) -> None:
        self._nodes = nodes
        self._known_uses = None
        self._numbers: dict[int, int] = {}
        self._order: tuple[list[int], list[NodeProto]] | None = None
        self.removed: set[int] = set()
        self.replaced: dict[int, list[NodeProto]] = {}
        self._new_readers: dict[str, set[int]] = {}
        self._inserted_reads: set[str] = set()
        self._before: dict[int, list[NodeProto]] = {}
        self._after: dict[int, list[NodeProto]] = {}
        self._first: list[Sequence[NodeProto]] = []
        self._last: list[NodeProto] = []

    @property
    def _has_moved(self) -> bool:
        return bool(self._before or self._after or self._first or self._last)

    @property
    def _is_edited(self) -> bool:
        return self._has_moved or bool(self.removed or self.replaced)

    def _merge(self) -> Iterator[NodeProto]:
        for added in reversed(self._first):
            yield from added
        for number, node in enumerate(self._nodes):
            yield from self._before.get(number, ())
            if number not in self.removed:
                yield from self.replaced.get(number, (node,))
            yield from self._after.get(number, ())
        yield from self._last

    def find_number(self, place: Place) -> int:
        """Return the number of a node that is to be edited."""
        self._order = None
        if isinstance(place, int):
            return place
        if id(place) not in self._numbers:  # as at first, or of a node that was inserted
            self._numbers = {id(node): number for number, node in enumerate(self.nodes)}
        return self._numbers[id(place)]

    def insert_before(self, place: Place, *added: NodeProto) -> None:
        """Insert nodes directly before another."""
        number = self.find_number(place)
        self._before.setdefault(number, []).extend(self._count_reads(added))

    def insert_after(self, place: Place, *added: NodeProto) -> None:
        """Insert nodes after another, behind those that were inserted there before."""
        number = self.find_number(place)
        self._after.setdefault(number, []).extend(self._count_reads(added))

    def insert_first(self, *added: NodeProto) -> None:
        """Insert nodes before all others, including those inserted by earlier calls."""
        self._first.append(self._count_reads(added))

    def insert_last(self, *added: NodeProto) -> None:
        """Insert nodes after all others."""
        self._last.extend(self._count_reads(added))

    def _count_reads(self, added: Sequence[NodeProto]) -> Sequence[NodeProto]:
        self._order = None
        self._inserted_reads.update(name for node in added for name in list_reads(node))
        return added

    def replace(self, place: Place, *nodes: NodeProto) -> None:
        """Put nodes in the place of a node."""
        number = self.find_number(place)
        self.replaced[number] = list(nodes)
        for name in (name for each in nodes for name in list_reads(each)):
            self._new_readers.setdefault(name, set()).add(number)

    def remove(self, *places: Place) -> None:
        """Remove nodes that are not read any more, or whose outputs other nodes make."""
        for place in places:
            number = self.find_number(place)
            self.replaced.pop(number, None)
            self.removed.add(number)

    # Tensors: who makes and reads them, and what they are called.

    def link(self, name: str, other: str) -> None:
        """Let all who read a tensor that no node makes any more read another one."""
        root = self.find_root(other)
        self.links[name] = root
        self._aliases.setdefault(root, []).append(name)

    def find_root(self, name: str) -> str:
        """Return the tensor that a tensor is, by its name in the file: itself unless it goes."""
        while name in self.links:
            name = self.links[name]
        return name

    def rename(self, name: str) -> str:
        """Return the name of a tensor after the edits: `claims` has names that tensors take over."""
        root = self.find_root(name)
        return self.claims.get(root, root)

    @property
    def _uses(self) -> Uses:
        if self._known_uses is None and self.index is not None and self._nodes is self._given:
            self._known_uses = self.index.producers, self.index.consumers
        elif self._known_uses is None:
            consumers: dict[str, list[int]] = {}
            nodes = self.nodes
            for number, node in enumerate(nodes):
                for name in self.find_reads(node):
                    consumers.setdefault(name, []).append(number)
            makers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
            self._known_uses = makers, consumers
        return self._known_uses

    def list_readers(self, name: str) -> list[int]:
        """Return the nodes that read a tensor after the edits, by number; inserted ones are left out."""
        root = self.find_root(name)
        names = (root, *self._aliases.get(root, ()))
        consumers = self._uses[1]
        found = {i for each in names for i in consumers.get(each, ())}
        found |= {i for each in names for i in self._new_readers.get(each, ())}
        found -= self.removed
        return sorted(i for i in found if i not in self.replaced or self._still_reads(i, names))

    def _still_reads(self, number: int, names: Sequence[str]) -> bool:
        return any(name in names for node in self.replaced[number] for name in list_reads(node))

    def is_output(self, name: str) -> bool:
        """Return whether a tensor is an output of the graph after the edits."""
        root = self.find_root(name)
        return root in self.outputs or root in self.claims

    def is_read(self, name: str) -> bool:
        """Return whether a node reads a tensor after the edits, or it is an output."""
        root = self.find_root(name)
        between = not self._inserted_reads.isdisjoint([root, *self._aliases.get(root, ())])
        return between or self.is_output(name) or bool(self.list_readers(name))

    def drop_unread(
        self,
        names: Iterable[str] | None = None,
        may_go: Callable[[int, Sequence[NodeProto]], bool] = lambda number, nodes: True,
    ) -> set[str]:
        """Remove the nodes that make tensors which nobody reads, and what only they read.

        Only makers of `names`, if given, and what these read are looked at. `may_go` says whether the
        nodes in a place, which are given with its number, may be removed: each, where it is left out.
        Return the unread tensors among those looked at that no node makes, as initializers.
        """
        if self.index is None or (names is None and self._has_moved):
            self.nodes = self.nodes  # as they are now, those that were inserted included
        unread: set[str] = set()
        pending = [*self._uses[0]] if names is None else list(names)
        while pending:
            name = self.find_root(pending.pop())
            number = self._uses[0].get(name)
            if number is None:
                if not self.is_read(name):
                    unread.add(name)
                continue
            nodes = self.replaced.get(number, [self._nodes[number]])
            if number in self.removed or not may_go(number, nodes):
                continue
            made = filter(None, self._nodes[number].output)
            if not any(map(self.is_read, made)):
                self.remove(number)
                pending.extend(each for node in nodes for each in self.find_reads(node))
        return unread

    def list_unread_stored(self, names: Iterable[str] | None = None) -> set[str]:
        """Return the initializers, of some or all, that nobody reads any more and no caller can give."""
        assert self.index is not None
        own = {tensor.name for tensor in self.graph.initializer} & self.index.initializers.keys()
        found = own if names is None else own.intersection(names)
        return {name for name in found if not self.is_read(name)}

    def list_gone(self) -> set[str]:
        """Return the tensors that no node makes any more, those that became outputs included."""
        gone = {name for n in (*self.removed, *self.replaced) for name in self._nodes[n].output}
        kept = {name for node in self.order_nodes()[1] for name in node.output}
        return (gone - kept | self.claims.keys()) - {"", *self.outputs}

    def find_reads(self, node: NodeProto) -> list[str]:
        """Return the tensors that a node reads, including the current captures of its bodies."""
        bodies = self.inner.get(id(node), ()) if self.index is None else ()
        if not bodies:
            return list_reads(node)
        names = dict.fromkeys(node.input)
        names.pop("", None)
        for body in bodies:
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

    def rename_now(self, names: Mapping[str, str]) -> None:
        """Rename tensors that nodes of this graph and of its bodies read and make, in place."""
        final = dict(names)
        for name in names:
            while final[name] in names:
                final[name] = names[final[name]]
        for node in (node for inner in self.walk() for node in inner.nodes):
            replace_names(node.input, final)
            replace_names(node.output, final)

    def walk_outward(self) -> Iterator[Self]:
        """Yield this graph and those around it, the outermost last."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def walk(self) -> Iterator[Self]:
        """Yield this graph and all bodies inside, each after the graph around it."""
        pending = [self]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(reversed([body for inner in current.inner.values() for body in inner]))

    # Writing.

    def order_nodes(self) -> tuple[list[int], list[NodeProto]]:
        """Return the nodes after the edits: numbers of those of the graph, and new ones that follow."""
        if self._order is None:
            numbers = {id(node): number for number, node in enumerate(self._given)}
            new: list[NodeProto] = []
            order: list[int] = []
            for node in self._merge():
                number = numbers.get(id(node))
                if number is None:
                    number = len(self._given) + len(new)
                    new.append(node)
                order.append(number)
            self._order = order, new
        return self._order

    def write_to(self, proto: GraphProto | FunctionProto) -> None:
        """Write nodes and names to the graph, or to a copy of it; no node that stays is copied."""
        names = {name: self.rename(name) for name in (*self.links, *self.claims)}
        if self._nodes is self._given and not self._is_edited and not names:
            return
        for number in self._list_touched(names):
            rename_tensors(proto.node[number], names)
        order, new = self.order_nodes()
        count = len(proto.node)
        if order == list(range(count)):
            return
        proto.node.extend(new)
        for node in proto.node[count:] if names else ():
            rename_tensors(node, names)
        ranks = [len(order)] * (count + len(new))
        for rank, number in enumerate(order):
            ranks[number] = rank
        ranked = iter(ranks)
        proto.node.sort(key=lambda _: next(ranked))
        del proto.node[len(order) :]

    def _list_touched(self, names: Collection[str]) -> Iterable[int]:
        """Return the nodes that may make or read some tensors: all of them where no index says it."""
        if self.index is None or self._nodes is not self._given:
            return range(len(self._given)) if names else ()
        makers, consumers = self._uses
        made = {makers[name] for name in names if name in makers}
        return sorted(made.union(*(consumers.get(name, ()) for name in names)))

    def write_stored(self, graph: GraphProto, unread: Collection[str] = ()) -> None:
        """Write new initializers to the graph, or to a copy of it, and remove some that are not read."""
        drop_named(graph.initializer, unread)
        drop_named(graph.input, unread)
        graph.initializer.extend(self.stored)
        if self.outer is None and self.index is not None and not self.index.has_default_inputs:
            given = [helper.make_value_info(each.name, self.types[each.name]) for each in self.stored]
            graph.input.extend(given)


class EditableModel:
    """A model that is edited in place: its main graph, and the bodies in it, as `scopes`.

    The nodes of these graphs are those of the `EditableGraph`s until `finish` writes them back.
    """

    def __init__(self, model: ModelProto) -> None:
        """Take a model, which is byoc's own."""
        self.model = model
        self.main = EditableGraph(model.graph, functions=model.functions)
        self.scopes: list[EditableGraph] = []
        pending = [self.main]
        while pending:
            scope = pending.pop()
            self.scopes.append(scope)
            for node in scope.nodes:
                inner = [EditableGraph(body, scope, node) for body in list_bodies(node)]
                if inner:
                    scope.inner[id(node)] = inner
                    pending.extend(inner)

    @property
    def names(self) -> NameAllocator:
        """New names, unique in the graphs and functions of the model."""
        return self.main.names

    @property
    def types(self) -> dict[str, TypeProto]:
        """The types of new tensors by name."""
        return self.main.types

    def finish(self) -> ModelProto:
        """Write all nodes and the types of new tensors back, and return the model.

        Nodes and scopes obtained before are no longer part of the model.
        """
        for scope in reversed(self.scopes):  # a body before the node that holds it is copied
            scope.write_to(scope.graph)
            _write_types(scope.graph, self.types)
        return self.model


def _write_types(graph: GraphProto, types: Mapping[str, TypeProto]) -> None:
    """Record the known types of a graph's new tensors, and drop those of tensors that are gone."""
    inside = {name for node in graph.node for name in node.output if name}
    inside -= {value.name for value in graph.output}
    kept = [value for value in graph.value_info if value.name in inside]
    new = (inside & types.keys()) - {value.name for value in kept}
    added = [ValueInfoProto(name=name, type=types[name]) for name in sorted(new)]
    if not added and len(kept) == len(graph.value_info):
        return
    del graph.value_info[:]
    graph.value_info.extend([*kept, *added])


def drop_named(listed: MutableSequence[Any], names: Collection[str]) -> None:
    """Remove the initializers, values or the like that have one of some names from a list, in place."""
    for position in reversed([i for i, each in enumerate(listed) if each.name in names]):
        del listed[position]


def rename_tensors(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename the tensors that a node and its bodies read and make, in place."""
    replace_names(node.input, names)
    replace_names(node.output, names)
    for graph in (graph for body in list_bodies(node) for graph in walk_graphs(body)):
        for value in graph.output:
            value.name = names.get(value.name, value.name)
        for inner in graph.node:
            replace_names(inner.input, names)
            replace_names(inner.output, names)


def replace_names(listed: MutableSequence[str], names: Mapping[str, str]) -> None:
    """Replace names in a list by others."""
    for position, name in enumerate(listed):
        if name in names:
            listed[position] = names[name]
