"""Passes that have nodes compute on another form of their tensors: their twins.

A 1-D convolution is a 2-D one on images of one row; an index in int64 is one in int32 if it is small
enough. Targets often take the one form and not the other. Such a pass gives each tensor that a chosen
node reads or makes a twin in the other form. Chosen nodes hand twins on to one another, so that tensors
are converted only where others read or make them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import ClassVar, Self

from onnx import NodeProto, TensorProto, TensorShapeProto, TypeProto

from byoc._dataclasses import dataclass, field
from byoc.model import FORM_CHANGE_KEY, GraphIndex, get_metadata, set_metadata
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits

Dimension = TensorShapeProto.Dimension

FORM_KEY = "byoc.form"
"""The metadata key of a node in another form: the first output of the node that it was."""


def find_forms(index: GraphIndex, *, moving: bool = False) -> dict[int, str]:
    """Return the nodes of a graph that are in another form, with the first output of what each was.

    With `moving` only those are returned in whose form data is moved.
    """
    keys = (
        (number, get_metadata(node, FORM_KEY))
        for number, node in enumerate(index.nodes)
        if not moving or get_metadata(node, _MOVES_KEY)
    )
    return {number: key for number, key in keys if key}


_MOVES_KEY = "byoc.form.moves"
"""The metadata key of a node in whose form data is moved: the name of the form."""

VIEW_KEY = "byoc.form.view"
"""The metadata key of a node that moves what another one reads or makes in its form: the form's name."""

TWIN_KEY = "byoc.twin"
"""The metadata key of a node that makes the twin of a tensor, with a number for further outputs."""


def find_twins(index: GraphIndex) -> dict[str, str]:
    """Return the twins in a graph, and the tensors that they stand for, which may be gone."""
    return {
        name: original
        for node in index.nodes
        if node.metadata_props
        for position, name in enumerate(node.output)
        if (original := get_metadata(node, f"{TWIN_KEY}.{position}"))
    }


def restate(tensor: TensorProto, dims: Iterable[int]) -> TensorProto:
    """Return a stored tensor with other extents, wherever its data is."""
    made = TensorProto()
    made.CopyFrom(tensor)
    made.dims[:] = list(dims)
    return made


@dataclass(frozen=True)
class TwinnedTensors:
    """The positions of the inputs and outputs of a node that have twins where it is in the form."""

    inputs: frozenset[int]
    outputs: frozenset[int]


def is_among(operator: str, operators: Collection[str] | None) -> bool:
    """Return whether an operator is among some that are named as in rule files."""
    return operators is None or operator in operators or "*" in operators


@dataclass(frozen=True)
class TwinForm(CleanPass):
    """A form of nodes, and the pass that brings all nodes of a model into it that have it."""

    operators: ClassVar[frozenset[str]] = frozenset()
    suffix: ClassVar[str]
    """The end of the names of twins."""
    dtype: ClassVar[str | None] = None
    """The dtype that rules have to name if they may take nodes in the form; None if none matters."""
    moves_data: ClassVar[bool] = False
    """Whether a node needs others in the form that move what it reads or makes."""

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the nodes of a graph that a target may take in the form and not as they are.

        `operators` are those that count, by name as in rule files, or `*`; all where it is None.
        """
        raise NotImplementedError

    def find_companions(self, index: GraphIndex, chosen: Set[int]) -> Iterator[int]:
        """Yield nodes that are worth bringing into the form only since others beside them are."""
        return iter(())

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the tensors of a node that have twins in the form; None if it has no such form."""
        raise NotImplementedError

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the nodes that a node is in the form, which read and make the given tensors.

        The last of those with the operator of the node stands for it: rules are asked about that one.
        """
        raise NotImplementedError

    def allow_loss(self) -> Self:
        """Return the form as targets have it that allow for a loss of digits."""
        return self

    def for_operators(self, operators: Collection[str]) -> Self:
        """Return the form as it suits targets whose rules speak of some operators."""
        return self

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type of a tensor's twin."""
        made = TypeProto()
        made.CopyFrom(kind)
        del made.tensor_type.shape.dim[:]
        made.tensor_type.shape.dim.extend(self.change_dims(list(kind.tensor_type.shape.dim)))
        return made

    def change_dims(self, dims: Sequence[Dimension]) -> Sequence[Dimension]:
        """Return the extents of a tensor's twin; a form of other elements changes the type instead."""
        raise NotImplementedError

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return the twin of a constant, to be stored; None where nodes have to convert it."""
        raise NotImplementedError

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return the nodes that make a twin."""
        raise NotImplementedError

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return the nodes that make a tensor of its twin."""
        raise NotImplementedError

    def find_nodes(self, index: GraphIndex) -> list[int]:
        """Return the nodes of a graph that have the form."""
        found = {*self.find_candidates(index)}
        return sorted(found.union(self.find_companions(index, found)))

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Bring nodes into the form, and convert tensors between them and the other nodes."""
        _Rewriter(self, edits, frozenset(numbers)).rewrite()


@dataclass(frozen=True, eq=False)
class ChosenForm(CleanPass):
    """A pass that brings chosen nodes into a form, each named by its first output.

    Names of tensors are unique in all graphs of a model.
    """

    form: TwinForm
    chosen: frozenset[str]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the form."""
        return self.form.name

    def find_nodes(self, index: GraphIndex) -> list[int]:
        """Return the chosen nodes of a graph."""
        return [i for i, names in enumerate(index.node_outputs) if names and names[0] in self.chosen]

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Bring nodes into the form, and convert tensors between them and the other nodes."""
        _Rewriter(self.form, edits, frozenset(numbers)).rewrite()


@dataclass(eq=False)
class _Rewriter:
    """The edits that bring nodes of a graph into a form.

    `twins` are those of its tensors so far, and `originals` the tensors by their twins.
    """

    form: TwinForm
    edits: GraphEdits
    numbers: frozenset[int]
    twins: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the tensors that have twins."""
        index = self.edits.index
        described = {number: self.form.describe(index, number) for number in sorted(self.numbers)}
        self.twinned: Mapping[int, TwinnedTensors] = {
            number: each for number, each in described.items() if each is not None
        }

    def rewrite(self) -> None:
        """Replace the nodes in order."""
        edits, index = self.edits, self.edits.index
        for number, twinned in self.twinned.items():
            reads, makes = list(index.node_inputs[number]), list(index.node_outputs[number])
            for position in sorted(twinned.inputs):
                if reads[position]:
                    reads[position] = self._read(number, reads[position])
            for position in sorted(twinned.outputs):
                if makes[position]:
                    makes[position] = self._name(makes[position])
            key = index.node_outputs[number][0]
            nodes = self.form.convert(edits, number, reads, makes)
            edits.note_replaced(number, f"computes in the form of {self.form.name}")
            edits.replace(number, *nodes)
            operator = index.nodes[number].op_type
            same = [node for node in nodes if node.op_type == operator]
            self._note_form((same or nodes)[-1], key)
            self._label([node for node in nodes if node is not (same or nodes)[-1]])
            for node in nodes:
                self._note_twins(node)
            for position in sorted(twinned.outputs):
                name = index.node_outputs[number][position]
                if name and self._is_read_as_it_was(name):
                    nodes = self.form.leave(edits, self.twins[name], name)
                    edits.insert_after(number, *self._label(nodes))
        edits.drop_parameters(
            name for n in self.twinned for name in index.node_inputs[n] if index.is_constant(name)
        )

    def _name(self, name: str) -> str:
        """Return a new twin of a tensor, with its type."""
        twin = self.edits.names.new_tensor(f"{name}_{self.form.suffix}")
        self.twins[name], self.originals[twin] = twin, name
        kind = self.edits.index.type_protos.get(name)
        if kind is not None:
            self.edits.types[twin] = self.form.change_type(kind)
        return twin

    def _read(self, reader: int, name: str) -> str:
        """Return the twin of a tensor that a node reads, which is made before it where there is none."""
        if name in self.twins:
            return self.twins[name]
        edits = self.edits
        constant = edits.index.is_constant(name)
        changed = self.form.change_constant(edits, name) if constant else None
        if changed is not None:
            self.twins[name] = edits.store(changed, f"{name}_{self.form.suffix}")
        else:
            nodes = self.form.enter(edits, name, self._name(name))
            self._note_twins(nodes[-1])
            edits.insert_before(reader, *self._label(nodes))
        return self.twins[name]

    def _note_form(self, node: NodeProto, key: str) -> None:
        """Record in the metadata of a node what it was."""
        set_metadata(node, FORM_KEY, key)
        if self.form.moves_data:
            set_metadata(node, _MOVES_KEY, self.form.name)

    def _label(self, nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
        """Record in nodes that change the form of a tensor which form that is, and return them."""
        for node in nodes:
            set_metadata(node, FORM_CHANGE_KEY, self.form.name)
            if self.form.moves_data:
                set_metadata(node, VIEW_KEY, self.form.name)
        return nodes

    def _note_twins(self, node: NodeProto) -> None:
        """Record in the metadata of a node which tensors its outputs are twins of."""
        for position, name in enumerate(node.output):
            if name in self.originals:
                set_metadata(node, f"{TWIN_KEY}.{position}", self.originals[name])

    def _is_read_as_it_was(self, name: str) -> bool:
        """Return whether something reads a tensor that does not read its twin."""
        index = self.edits.index
        if self.edits.is_output(name):
            return True
        for reader in index.consumers.get(name, ()):
            twinned = self.twinned.get(reader)
            names = index.node_inputs[reader]
            positions = {i for i, each in enumerate(names) if each == name}
            if twinned is None or not positions or not positions <= twinned.inputs:
                return True
            if reader in index.bodies:  # a body may capture it as well
                return True
        return False
