"""The pass `simplify`: constants and shapes folded, equal nodes merged, by onnxslim."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import MissingRuntimeError
from byoc.model import (
    RANDOM_OPERATORS,
    EditableGraph,
    GraphIndex,
    KnownValues,
    describe_node,
    get_metadata,
    get_operator_name,
    is_onnx,
    list_bodies,
    list_own_names,
    set_metadata,
    walk_graphs,
    walk_nodes,
)
from byoc.support import Bytes, install_command

# Edits of a graph by the clean-up: what became of nodes is noted and counted.

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

    def _count_reads(self, added: Sequence[NodeProto]) -> Sequence[NodeProto]:
        self._counts.update(map(get_operator_name, added))
        return super()._count_reads(added)

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


# Fusions move floating-point results. What onnxslim 0.1.98 takes for dead nodes are none in the zoo's
# ddddocr_crnn, whose output has another shape then; and such nodes are few (9 of 1,753 in ssdlite320).
_SKIPPED = ("graph_fusion", "dead_node_elimination")
# Initializers need not be inputs from this version on.
_FREE_INITIALIZERS_IR = 4
_KNOWN_DOMAINS = ("ai.onnx.ml", "com.microsoft")
_HIDDEN_DOMAIN = "byoc_driver.hidden"
_TRAINING_INPUT = 2  # position of Dropout's `training_mode`
# What onnxslim 0.1.98 fails to fold: it takes every constant for an array.
_MAKERS_OF_LISTS = ("SequenceConstruct", "SequenceEmpty", "SequenceMap", "SplitToSequence", "Optional")


@dataclass(frozen=True)
class Simplify:
    """Fold constants and shapes, and merge nodes that compute the same, by onnxslim.

    No operators are fused, so floating-point results stay as they are, and so do the names of the nodes
    and tensors that are left.
    """

    scope: ClassVar[str] = "model"

    largest: Bytes = field(
        default=1 << 20, metadata={"help": "The size of the largest constant that is made."}
    )

    def run(self, model: ModelProto) -> ModelProto:
        """Return the simplified model. Raises MissingRuntimeError without onnxslim."""
        try:
            import onnxslim  # noqa: PLC0415 - it is optional
        except ImportError:
            raise MissingRuntimeError(
                f"pass simplify needs onnxslim: {install_command('simplify')}"
            ) from None
        given = ModelProto()
        given.CopyFrom(model)
        hidden, functions = _hide_nodes(given)
        made = onnxslim.slim(
            given, skip_optimizations=list(_SKIPPED), size_threshold=max(self.largest, 1)
        )
        _show_hidden(made, hidden)
        made.functions.extend(functions)
        return _restore(model, made)


def _hide_nodes(model: ModelProto) -> tuple[dict[str, tuple[str, str]], list[FunctionProto]]:
    """Give nodes that onnxslim is not to look into operators of their own.

    These are random ones, and operators of vendors, of which nothing is known: onnxslim folds the
    former and merges equal nodes of both. It fails at sequences that are constant, and at functions
    beside or with bodies, where it looks for inner functions without end. Returns the domain and
    operator of each by the new name, and the functions that only such nodes call, which it is not given.
    """
    functions = {(each.domain, each.name): each for each in model.functions}
    has_bodies = any(map(_holds_bodies, model.graph.node))
    unsafe = set(functions) if has_bodies else set()

    def is_hidden(node: NodeProto) -> bool:
        if is_onnx(node):
            trains = node.op_type != "Dropout" or len(node.input) > _TRAINING_INPUT
            return (node.op_type in RANDOM_OPERATORS and trains) or node.op_type in _MAKERS_OF_LISTS
        kind = node.domain, node.op_type
        return kind in unsafe or (kind not in functions and node.domain not in _KNOWN_DOMAINS)

    while found := {
        kind
        for kind, each in functions.items()
        if kind not in unsafe
        and any(is_hidden(node) or _holds_bodies(node) for node in walk_nodes(each.node))
    }:
        unsafe |= found
    hidden: dict[str, tuple[str, str]] = {}
    for node in walk_nodes(model.graph.node):
        if is_hidden(node):
            name = f"{node.op_type}_{len(hidden)}"
            hidden[name] = node.domain, node.op_type
            node.domain, node.op_type = _HIDDEN_DOMAIN, name
    if hidden:
        model.opset_import.add(domain=_HIDDEN_DOMAIN, version=1)
    every = [*model.functions]
    aside = [each for each in every if (each.domain, each.name) in unsafe]
    del model.functions[:]
    model.functions.extend(each for each in every if each not in aside)
    return hidden, aside


def _holds_bodies(node: NodeProto) -> bool:
    return any(each.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for each in node.attribute)


def _show_hidden(model: ModelProto, hidden: Mapping[str, tuple[str, str]]) -> None:
    """Give hidden nodes back their domains and operators."""
    for node in walk_nodes(model.graph.node):
        if node.domain == _HIDDEN_DOMAIN:
            node.domain, node.op_type = hidden[node.op_type]
    imports = [each for each in model.opset_import if each.domain != _HIDDEN_DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _restore(before: ModelProto, after: ModelProto) -> ModelProto:
    """Restore what onnxslim drops: stated types, metadata of the model and of nodes, doc strings."""
    stored = {tensor.name for tensor in before.graph.initializer}
    del after.graph.input[:], after.graph.output[:]
    after.graph.input.extend(value for value in before.graph.input if value.name not in stored)
    after.graph.output.extend(before.graph.output)
    after.graph.name, after.graph.doc_string = before.graph.name, before.graph.doc_string
    after.ir_version = max(before.ir_version, _FREE_INITIALIZERS_IR)
    del after.metadata_props[:]
    after.metadata_props.extend(before.metadata_props)
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(after, name, getattr(before, name))
    nodes = {_identify(node): node for node in before.graph.node}
    for node in after.graph.node:
        own = nodes.get(_identify(node))
        if own is not None:
            del node.metadata_props[:]
            node.metadata_props.extend(own.metadata_props)
            node.doc_string = own.doc_string
    return after


def _identify(node: NodeProto) -> tuple[str, str]:
    """Return the key of a node: its operator, and its name or first output."""
    return node.op_type, node.name or next(iter(node.output), "")
