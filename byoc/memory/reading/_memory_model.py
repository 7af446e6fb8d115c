"""The arena planning problem of a model, under a convention about the tensors that count."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from onnx import NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.memory.arena import ArenaProblem, ArenaStep, Buffer
from byoc.memory.reading._stages import (
    FunctionTable,
    TensorSizes,
    build_stages,
    find_origins,
    is_view,
    written_outputs,
)
from byoc.model import (
    GraphIndex,
    StatePair,
    count_bits,
    describe_node,
    get_node_name,
    get_stated_attributes,
    is_onnx,
    list_bodies,
)
from byoc.numerics import round_up

# Concat in place: operands computed directly behind one another, so that nothing has to be copied.

BufferRow = tuple[Buffer, ...]


class ConcatRows:
    """Rows of buffers that have to be adjacent, collected from Concats.

    A buffer is in one row only. A row may become part of a longer one if a Concat reads the result of
    another, but only as a whole.
    """

    def __init__(self, tensors: TensorSizes, alignment: int) -> None:
        """Start without any row."""
        self._tensors = tensors
        self._alignment = alignment
        self._row_of: dict[Buffer, BufferRow] = {}

    @property
    def links(self) -> tuple[BufferRow, ...]:
        """All rows, in the order in which their first buffers were made."""
        return tuple(sorted(set(self._row_of.values())))

    def join(self, node: NodeProto, rows: Mapping[str, BufferRow]) -> BufferRow | None:
        """Return the row that a Concat's result consists of, None if it cannot be computed in place.

        `rows` gives the buffers of each tensor that has some. A result that nobody reads takes no bytes,
        and its row is empty.
        """
        if not is_onnx(node) or node.op_type != "Concat" or not self._is_contiguous(node):
            return None
        pieces = [rows.get(name) for name in node.input]
        joined = tuple(buffer for piece in pieces for buffer in piece or ())
        if not all(pieces) or len(set(joined)) < len(joined):
            return None
        if not all(self._is_free(piece) for piece in pieces if piece):
            return None
        ends = [self._tensors.count_bytes(name) for name in node.input[:-1]]
        if any(size % self._alignment for size in ends):
            return None  # the next would begin where this one ends, and not at a multiple of it
        if not self._tensors.index.is_used(node.output[0]):
            return ()
        if len(joined) > 1:
            self._row_of.update((buffer, joined) for buffer in joined)
        return joined

    def _is_free(self, piece: BufferRow) -> bool:
        """Tell whether some buffers are in no row yet, or are a complete row."""
        return self._row_of.get(piece[0], piece) == piece and all(
            len(piece) > 1 or buffer not in self._row_of for buffer in piece
        )

    def _is_contiguous(self, node: NodeProto) -> bool:
        """Tell whether each operand of a Concat is one range of whole bytes in its result."""
        kind = self._tensors.types.get(node.output[0])
        if kind is None or not kind.shape or count_bits(kind.dtype) % 8:
            return False
        axis = int(get_stated_attributes(node).get("axis", 1)) % len(kind.shape)
        return prod(dim if isinstance(dim, int) else 0 for dim in kind.shape[:axis]) == 1


# The arena planning problem of a model, under a convention about the tensors that count.


@dataclass(frozen=True)
class Convention:
    """The tensors that count as activation memory, and those that share bytes. Weights never count.

    `inputs`: graph inputs are in the arena until their last read, and may then be overwritten. `views`:
    an operator that only changes the shape has no buffer of its own. `in_place`: an elementwise operator
    may overwrite an operand of the same size that nothing reads later. `concat`: the operands of a
    Concat are computed in place, where each is one contiguous range of its result. `packed`: elements of
    less than a byte share one, as in a file; else each has a byte.
    """

    name: str
    inputs: bool = False
    views: bool = False
    in_place: bool = False
    concat: bool = False
    packed: bool = True

    def __str__(self) -> str:
        """Describe the convention in words."""
        shared = {
            "views": self.views,
            "in-place operators": self.in_place,
            "Concat in place": self.concat,
        }
        found = [word for word, there in shared.items() if there]
        counted = "graph inputs counted" if self.inputs else "graph inputs not counted"
        return f"{counted}; {', '.join(found) + ' share buffers' if found else 'no buffers shared'}"


CONVENTIONS = {
    each.name: each
    for each in (
        Convention("A"),
        Convention("B", inputs=True),
        Convention("C", inputs=True, views=True, in_place=True),
        Convention("D", inputs=True, views=True, in_place=True, concat=True),
    )
}
"""A is that of ONNC's study (inputs and aliases left out), B adds inputs, C aliases, D Concats."""


@dataclass(frozen=True)
class MemoryModel:
    """A planning problem and its relation to the graph.

    `nodes` are the nodes of each step. `buffers_of` gives for each tensor in the arena its buffers:
    one, or those of a Concat in place, adjacent to each other; a view has those of the tensor it views.
    `tensors_of` gives for each buffer its tensors, the first one made in front. `notes` tell what does
    not count.
    """

    problem: ArenaProblem
    convention: Convention
    nodes: tuple[tuple[int, ...], ...]
    buffers_of: Mapping[str, BufferRow]
    tensors_of: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def read_memory_model(  # noqa: PLR0913, PLR0917 - each has a default
    index: GraphIndex,
    convention: Convention = CONVENTIONS["C"],
    alignment: int = 1,
    groups: Sequence[Sequence[int]] = (),
    source: str = "model",
    state: Sequence[StatePair] = (),
) -> MemoryModel:
    """Return the arena planning problem of a graph, and its relation to the graph.

    Sizes are in bytes, rounded up to multiples of `alignment`. Each of `groups` are nodes computed as
    one step, such as a convolution with its activation or an operator between DequantizeLinear and
    QuantizeLinear; tensors written and read only inside take no bytes. A node with bodies, or a call of
    a function, is one step, and what is inside does not count.

    Weights do not count either (all stored tensors, even those a caller may override), nor do tensors
    computed from constants or shapes alone, or inputs and optional outputs that nothing reads. Any other
    unread output is live during its step. A note tells if an output of the graph does not count.

    `state` are inputs that take what outputs gave in the last call. Under a convention with inputs and
    operators in place an output that its operator makes in the buffer of the input lies there.

    Raises InputError, beginning with `source`, for a tensor of unknown size; ValueError for an alignment
    below 1 and for groups that overlap or depend on themselves.
    """
    if alignment < 1:
        raise ValueError(f"alignment is {alignment}, but must be at least 1 byte")
    tensors = TensorSizes(index, source, convention.packed)
    shared = convention.inputs and convention.in_place
    pasts = {pair.present: pair.past for pair in state if shared and pair.in_place}
    rows = ConcatRows(tensors, alignment)
    builder = _MemoryModelBuilder(tensors, convention, alignment, rows, pasts)
    builder.add_inputs()
    for nodes in build_stages(index, tensors.constant_nodes, groups):
        builder.add(nodes)
    return builder.finish()


@dataclass
class _MemoryModelBuilder:
    """Creates buffers and steps from the steps of a graph, in order."""

    tensors: TensorSizes
    convention: Convention
    alignment: int
    concat_rows: ConcatRows
    pasts: Mapping[str, str]
    rows: dict[str, BufferRow] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: list[ArenaStep] = field(default_factory=list)
    nodes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def index(self) -> GraphIndex:
        return self.tensors.index

    def add_inputs(self) -> None:
        stored = {tensor.name for tensor in self.index.graph.initializer}  # a default counts as a weight
        for name in self.index.inputs:
            if name in stored:
                continue
            self.tensors.count_bytes(name)
            if self.convention.inputs and self.index.is_used(name):
                self._add_buffer(name)

    def add(self, nodes: tuple[int, ...]) -> None:
        """Add the step of some nodes, or only another name for the buffers if it is a view."""
        made = self._outer_outputs(nodes)
        shared = self._shared_buffers(nodes, made)
        if shared is not None:
            if shared:
                self.rows[made[0]] = shared
            made = made[1:]
            if not made:
                return
        read = self._data_inputs(nodes)
        updated = [name for name in made if self._is_updated(name)]
        self.rows |= {name: self.rows[self.pasts[name]] for name in updated}
        made = [name for name in made if name not in updated]
        reads = tuple(dict.fromkeys(b for name in read for b in self.rows.get(name, ())))
        makes = tuple(self._add_buffer(name) for name in made)
        over = self._find_overwrites(nodes, made, read) if shared is None else ()
        name = get_node_name(self.index.nodes[nodes[-1]])
        self.steps.append(ArenaStep(name, reads, makes, over))
        self.nodes.append(nodes)

    def finish(self) -> MemoryModel:
        index = self.index
        outputs = [name for name in index.outputs if name in self.rows]
        held: list[list[str]] = [[] for _ in self.names]
        for name, row in self.rows.items():
            for buffer in row:
                held[buffer].append(name)
        inputs = frozenset(b for name in index.inputs for b in self.rows.get(name, ()))
        problem = ArenaProblem(
            names=tuple(self.names),
            sizes=tuple(self.sizes),
            steps=tuple(self._steps_without_row_overwrites()),
            inputs=inputs,
            outputs=frozenset(b for name in outputs for b in self.rows[name]),
            links=self.concat_rows.links,
            alignment=self.alignment,
        )
        return MemoryModel(
            problem=problem,
            convention=self.convention,
            nodes=tuple(self.nodes),
            buffers_of=self.rows,
            tensors_of=tuple(map(tuple, held)),
            notes=tuple(self._describe_uncounted()),
        )

    def _steps_without_row_overwrites(self) -> Iterator[ArenaStep]:
        """Yield the steps without overwriting between adjacent buffers of one row."""
        row_of = {buffer: row for row in self.concat_rows.links for buffer in row}
        for step in self.steps:
            beside = row_of.get(step.writes[0], ()) if step.writes else ()
            yield replace(step, may_overwrite=tuple(b for b in step.may_overwrite if b not in beside))

    def _add_buffer(self, name: str) -> Buffer:
        size = self.tensors.count_bytes(name)
        self.rows[name] = (len(self.names),)
        self.names.append(name)
        self.sizes.append(round_up(size, self.alignment))
        return self.rows[name][0]

    def _outer_outputs(self, nodes: Sequence[int]) -> list[str]:
        """Return the tensors made and read by other nodes as well, the first output in front."""
        index, inside = self.index, set(nodes)
        names = [name for node in nodes for name in written_outputs(index, index.nodes[node])]
        return [
            name
            for name in names
            if name in index.outputs
            or name not in index.consumers
            or not inside.issuperset(index.consumers[name])
        ]

    def _is_updated(self, name: str) -> bool:
        """Return whether a tensor lies in the buffer of the past that it is made of.

        Nothing else may read it: the order of such readers would not be kept.
        """
        past = self.pasts.get(name)
        if past is None or past not in self.rows or name in self.index.consumers:
            return False
        return self.tensors.count_bytes(name) == self.tensors.count_bytes(past)

    def _data_inputs(self, nodes: Sequence[int]) -> list[str]:
        own = {name for node in nodes for name in self.index.nodes[node].output}
        names = dict.fromkeys(name for node in nodes for name in self.index.reads[node])
        return [name for name in names if name not in own and not self.tensors.is_constant(name)]

    def _shared_buffers(self, nodes: Sequence[int], made: Sequence[str]) -> BufferRow | None:
        """Return existing buffers that hold the first output of a single node, None if there are none.

        A view of a tensor that does not count has a buffer of its own, as has one whose shape is data.
        """
        node = self.index.nodes[nodes[0]]
        if len(nodes) > 1 or not made or made[0] != node.output[0]:
            return None
        if self.convention.views and is_view(self.index, node):
            return self.rows.get(node.input[0]) if self._data_inputs(nodes) == [node.input[0]] else None
        return self.concat_rows.join(node, self.rows) if self.convention.concat else None

    def _find_overwrites(
        self, nodes: Sequence[int], made: Sequence[str], read: Sequence[str]
    ) -> tuple[Buffer, ...]:
        """Return buffers read element by element, and only for the first tensor made."""
        if not self.convention.in_place or not made:
            return ()
        found = find_origins([self.index.nodes[node] for node in nodes], self._functions)
        first, *rest = (found[name] for name in made)
        otherwise = first.other.union(*(each.same | each.other for each in rest))
        unfit = {buffer for name in otherwise for buffer in self.rows.get(name, ())}
        unfit.update(buffer for name in self.index.outputs for buffer in self.rows.get(name, ()))
        size, elements = self.tensors.count_bytes(made[0]), self.tensors.count_elements(made[0])
        return tuple(
            dict.fromkeys(
                self.rows[name][0]
                for name in read
                if name in first.same
                and len(self.rows.get(name, ())) == 1
                and self.rows[name][0] not in unfit
                and (self.tensors.count_bytes(name), self.tensors.count_elements(name))
                == (size, elements)
            )
        )

    @cached_property
    def _functions(self) -> FunctionTable:
        return {(f.domain, f.name, f.overload): f for f in self.index.proto.functions}

    def _describe_uncounted(self) -> list[str]:
        """Return notes on outputs known before a run, and on bodies and functions."""
        notes = [
            f"the output '{name}' is stored, or computed of constants or shapes, and is not counted"
            for name in self.index.outputs
            if self.tensors.is_constant(name)
        ]
        rows = self.rows
        held = ((name, past) for name, past in self.pasts.items() if name in rows)
        shared = [name for name, past in held if rows[name] == rows.get(past)]
        if shared:
            first, more = shared[0], len(shared) - 1
            others = f" (and {more} more so)" if more else ""
            notes.append(
                f"the state '{first}' is made in the buffer of '{self.pasts[first]}'{others}, where the "
                "next call reads it"
            )
        calls: Counter[str] = Counter()
        for node in (self.index.nodes[number] for nodes in self.nodes for number in nodes):
            if list_bodies(node):
                notes.append(f"{describe_node(node)} is one step: what its bodies need is not counted")
            elif (node.domain, node.op_type, node.overload) in self._functions:
                calls[node.op_type] += 1
        if calls:
            called = ", ".join(f"{number} of {name}" for name, number in calls.items())
            notes.append(f"calls of functions are one step each, what is inside not counted: {called}")
        return notes
