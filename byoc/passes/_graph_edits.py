"""Edits of a graph by the clean-up: what became of nodes is noted and counted."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Self

from onnx import FunctionProto, GraphProto, NodeProto

from byoc.model import (
    EditableGraph,
    GraphIndex,
    KnownValues,
    describe_node,
    get_metadata,
    get_operator_name,
    list_bodies,
    list_own_names,
    set_metadata,
    walk_graphs,
)

CLEANED_KEY = "byoc.cleaned"
"""The metadata key for what clean-up did at a node: the nodes that it stands for or took in."""


class GraphEdits(EditableGraph):
    """The edits of a graph, whose nodes are given by number.

    `known` are the values of small tensors, None where nothing is known for certain; `folder` has the
    data of external tensors. `notes` has the sentences that go into the metadata of a node, by its
    number.
    """

    index: GraphIndex

    def __init__(
        self,
        index: GraphIndex,
        folder: Path | None = None,
        known: KnownValues | None = None,
        outer: Self | None = None,
    ) -> None:
        """Begin the edits of a graph, and of the bodies in it."""
        super().__init__(index.graph, outer, index=index)
        self.folder = folder
        self.known = known
        self.notes: dict[int, list[str]] = {}
        self._counts: Counter[str] = Counter()
        self._rewritten = 0
        for number, bodies in index.bodies.items():
            self.inner[id(index.nodes[number])] = [
                type(self)(
                    body.index,
                    folder,
                    None if known is None else known.enter_body(number, body.attribute),
                    self,
                )
                for body in bodies
            ]

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
            total.update(each._counts)
            rewritten += each._rewritten
            each._counts, each._rewritten = Counter(), 0
        return total, rewritten

    @cached_property
    def fixed_names(self) -> frozenset[str]:
        """The tensors that keep their names: those that a body has too, or that annotations speak of."""
        bodies = (body for number in self.index.bodies for body in list_bodies(self.index.nodes[number]))
        inner = (list_own_names(graph) for body in bodies for graph in walk_graphs(body))
        noted = (each.tensor_name for each in self.index.graph.quantization_annotation)
        return frozenset([*noted, *(name for names in inner for name in names)])

    def bypass(self, number: int, given: str, made: str) -> bool:
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
        self.link(made, root)
        self.remove(number)
        maker = index.producers.get(root)
        if maker is not None:
            self.note(maker, f"{describe_node(self.index.nodes[number])} dropped")
        return True

    def replace(self, place: NodeProto | int, *nodes: NodeProto) -> None:
        """Put nodes in the place of a node; the last has its name, metadata and doc string."""
        number = self.find_number(place)
        node, heir = self.index.nodes[number], nodes[-1]
        heir.name, heir.doc_string = node.name, node.doc_string
        del heir.metadata_props[:]
        heir.metadata_props.extend(node.metadata_props)
        before = [get_operator_name(old) for old in self.replaced.get(number, [node])]
        after = [get_operator_name(each) for each in nodes]
        self._counts.subtract(before)
        self._counts.update(after)
        self._rewritten += before == after
        super().replace(number, *nodes)

    def add_reader(self, number: int, reader: NodeProto) -> None:
        """Insert a node behind the one that makes what it reads."""
        self._counts[get_operator_name(reader)] += 1
        self.insert_after(number, reader)

    def remove(self, *places: NodeProto | int) -> None:
        """Remove nodes that are not read any more, or whose outputs other nodes make."""
        for number in map(self.find_number, places):
            gone = self.replaced.get(number, [self.index.nodes[number]])
            self._counts.subtract(map(get_operator_name, gone))
            super().remove(number)

    def note(self, number: int, sentence: str) -> None:
        """Record what was done in the metadata of the node in a place."""
        self.notes.setdefault(number, []).append(sentence)

    def note_replaced(self, number: int, what: str) -> None:
        """Record that a node was another one, or took one in."""
        self.note(number, f"{describe_node(self.index.nodes[number])} {what}")

    def drop_parameters(self, names: Iterable[str]) -> None:
        """Remove the nodes that make some tensors which are not read any more, and what only they read.

        Nodes of other domains stay, since nothing is known of them, and nodes with bodies.
        """
        kinds, bodies = self.index.node_kinds, self.index.bodies
        self.drop_unread(names, lambda number, _: number not in bodies and kinds[number].is_onnx)

    def list_newly_unread(self) -> set[str]:
        """Return the initializers of the graph that nodes read before the edits, and none does after."""
        gone = [*self.removed, *self.replaced]
        return self.list_unread_stored(name for number in gone for name in self.index.reads[number])

    def list_lost(self) -> Iterator[str]:
        """Yield the names of nodes and tensors that are gone."""
        yield from filter(None, (self.index.nodes[number].name for number in sorted(self.removed)))
        yield from filter(None, self.list_gone())

    def write_to(self, proto: GraphProto | FunctionProto) -> None:
        """Write nodes, names and notes to the graph, or to a copy of it."""
        super().write_to(proto)
        order, new = self.order_nodes() if self.notes else ([], [])
        ranks = {number: rank for rank, number in enumerate(order)}
        made = {id(node): number for number, node in enumerate(new, len(self.index.nodes))}
        for number in self.notes.keys() - self.removed:
            own = made[id(self.replaced[number][-1])] if number in self.replaced else number
            heir = proto.node[ranks[own]]
            done = [get_metadata(heir, CLEANED_KEY), *self.notes[number]]
            set_metadata(heir, CLEANED_KEY, "; ".join(filter(None, done)))
