"""Edits of a graph, gathered by node number and tensor name (`edit_graph` makes them)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from onnx import NodeProto, TensorProto, TypeProto

from byoc.model import (
    GraphIndex,
    KnownValues,
    NameAllocator,
    describe_node,
    get_operator_name,
    list_bodies,
    list_own_names,
    walk_graphs,
)

CLEANED_KEY = "byoc.cleaned"
"""The metadata key for what clean-up did at a node: the nodes that it stands for or took in."""


@dataclass(eq=False)
class GraphEdits:
    """The edits of a graph: nodes that go, nodes in the place of others, tensors that are one.

    `links` maps a tensor that is no longer made to the one that is read instead, `claims` a tensor to
    the output of the graph that it becomes. `stored` are new weights, `new_types` has the types of all
    tensors that have new names; `notes` has the sentences that
    go into the metadata of a node, by its number; `inner` has the edits of each body of a node. `known`
    are the values of small tensors, None where nothing is known for certain; `folder` has the data of
    external tensors.
    """

    index: GraphIndex
    folder: Path | None = None
    known: KnownValues | None = None
    root: "GraphEdits | None" = None
    removed: set[int] = field(default_factory=set)
    replaced: dict[int, list[NodeProto]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    stored: list[TensorProto] = field(default_factory=list)
    new_types: dict[str, TypeProto] = field(default_factory=dict)
    notes: dict[int, list[str]] = field(default_factory=dict)
    inner: dict[int, list["GraphEdits"]] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    """The tensors that became each tensor, itself not among them."""
    new_readers: dict[str, set[int]] = field(default_factory=dict)
    """The places of new nodes that read each tensor."""
    counts: Counter[str] = field(default_factory=Counter)
    """By how many the nodes of each operator became more, or fewer, since `take_counts`."""
    rewritten: int = 0
    """How many nodes became one of the same operator, since `take_counts`."""

    def walk(self) -> "Iterator[GraphEdits]":
        """Yield these edits and those of all bodies inside."""
        yield self
        for bodies in self.inner.values():
            for body in bodies:
                yield from body.walk()

    @property
    def is_empty(self) -> bool:
        """Whether neither the graph nor a body of it changes."""
        return not any(each.removed or each.replaced for each in self.walk())

    def take_counts(self) -> tuple[Counter[str], int]:
        """Return the changes since the last call, in bodies, too.

        These are by how many the nodes of each operator became more, and how many nodes were rewritten
        and kept their operator.
        """
        total: Counter[str] = Counter()
        rewritten = 0
        for each in self.walk():
            total.update(each.counts)
            rewritten += each.rewritten
            each.counts, each.rewritten = Counter(), 0
        return total, rewritten

    @cached_property
    def names(self) -> NameAllocator:
        """New names for tensors and nodes, unique in all graphs of the model."""
        return NameAllocator(self.index.proto.graph) if self.root is None else self.root.names

    @cached_property
    def fixed_names(self) -> frozenset[str]:
        """The tensors that keep their names: those that a body has too, or that annotations speak of."""
        bodies = (body for number in self.index.bodies for body in list_bodies(self.index.nodes[number]))
        inner = (list_own_names(graph) for body in bodies for graph in walk_graphs(body))
        noted = (each.tensor_name for each in self.index.graph.quantization_annotation)
        return frozenset([*noted, *(name for names in inner for name in names)])

    def find_root(self, name: str) -> str:
        """Return the tensor that a tensor is, by its name in the file: itself unless it goes."""
        while name in self.links:
            name = self.links[name]
        return name

    def rename(self, name: str) -> str:
        """Return the name of a tensor after the edits."""
        root = self.find_root(name)
        return self.claims.get(root, root)

    def link(self, number: int, given: str, made: str) -> bool:
        """Remove a node whose output is its input; return whether that can be.

        An output of the graph stays, so what becomes one has to be made by a node of this graph.
        """
        index, root = self.index, self.find_root(given)
        if {root, made} & self.fixed_names:
            return False
        wanted = self.claims.get(made, made)
        if wanted in index.outputs:
            maker = index.producers.get(root)
            taken = root in index.outputs or root in self.claims
            if maker is None or maker in index.constant_nodes or taken:
                return False
            self.claims.pop(made, None)
            self.claims[root] = wanted
        self.links[made] = root
        self.aliases.setdefault(root, []).append(made)
        self.remove(number)
        maker = index.producers.get(root)
        if maker is not None:
            self.note(maker, f"{describe_node(self.index.nodes[number])} dropped")
        return True

    def replace(self, number: int, *nodes: NodeProto) -> None:
        """Put nodes in the place of a node; the last has its name, metadata and doc string."""
        node = self.index.nodes[number]
        heir = nodes[-1]
        heir.name, heir.doc_string = node.name, node.doc_string
        del heir.metadata_props[:]
        heir.metadata_props.extend(node.metadata_props)
        before = [get_operator_name(old) for old in self.replaced.get(number, [node])]
        after = [get_operator_name(each) for each in nodes]
        self.counts.subtract(before)
        self.counts.update(after)
        self.rewritten += before == after
        self.replaced[number] = list(nodes)
        for name in filter(None, (name for each in nodes for name in each.input)):
            self.new_readers.setdefault(name, set()).add(number)

    def remove(self, number: int) -> None:
        """Remove a node that is not read any more, or whose outputs another one makes."""
        for node in self.replaced.pop(number, [self.index.nodes[number]]):
            self.counts[get_operator_name(node)] -= 1
        self.removed.add(number)

    def note(self, number: int, sentence: str) -> None:
        """Record what was done in the metadata of the node in a place."""
        self.notes.setdefault(number, []).append(sentence)

    def note_replaced(self, number: int, what: str) -> None:
        """Record that a node was another one, or took one in."""
        self.note(number, f"{describe_node(self.index.nodes[number])} {what}")

    def list_readers(self, name: str) -> list[int]:
        """Return the nodes that read a tensor after the edits, by number."""
        root = self.find_root(name)
        names = (root, *self.aliases.get(root, ()))
        found = {i for each in names for i in self.index.consumers.get(each, ())}
        found |= {i for each in names for i in self.new_readers.get(each, ())}
        found -= self.removed
        return sorted(i for i in found if i not in self.replaced or self._still_reads(i, names))

    def _still_reads(self, number: int, names: Sequence[str]) -> bool:
        return any(name in names for node in self.replaced[number] for name in node.input)

    def is_output(self, name: str) -> bool:
        """Return whether a tensor is an output of the graph after the edits."""
        root = self.find_root(name)
        return root in self.index.outputs or root in self.claims

    def drop_unread(self, names: Iterable[str]) -> None:
        """Remove the nodes that make some tensors which are not read any more, and what only they read.

        Nodes of other domains stay, since nothing is known of them, and nodes with bodies.
        """
        index, pending = self.index, list(names)
        while pending:
            number = index.producers.get(self.find_root(pending.pop()))
            if number is None or number in self.removed or number in index.bodies:
                continue
            nodes = self.replaced.get(number, [index.nodes[number]])
            made = [name for name in index.node_outputs[number] if name]
            if any(self.is_output(name) or self.list_readers(name) for name in made):
                continue
            if not index.node_kinds[number].is_onnx:
                continue
            self.remove(number)
            pending.extend(name for node in nodes for name in node.input if name)

    def list_unread_stored(self) -> set[str]:
        """Return the initializers of the graph that nodes read before the edits, and none does after."""
        gone = [*self.removed, *self.replaced]
        read = {name for number in gone for name in self.index.reads[number]}
        own = {tensor.name for tensor in self.index.graph.initializer}
        return {
            name
            for name in read & own & self.index.initializers.keys()
            if not self.is_output(name) and not self.list_readers(name)
        }

    def list_gone(self) -> set[str]:
        """Return the tensors that no node makes any more, those that became outputs included."""
        index = self.index
        outputs = {name for number in self.removed for name in index.node_outputs[number]}
        lost = {name for number in self.replaced for name in index.node_outputs[number]}
        kept = {name for nodes in self.replaced.values() for node in nodes for name in node.output}
        return ((outputs | lost) - kept | self.claims.keys()) - index.outputs.keys()

    def list_lost(self) -> Iterator[str]:
        """Yield the names of nodes and tensors that are gone."""
        yield from filter(None, (self.index.nodes[number].name for number in sorted(self.removed)))
        yield from filter(None, self.list_gone())
