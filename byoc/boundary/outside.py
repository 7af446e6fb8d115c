"""The host view of a boundary, read from the graph around the call and never from the region.

The form of a region's input is shown by the nodes that made it, back to the last node of the user's own.
The form of its output is shown by each node that reads it. A neighbouring region is represented by its
own contract.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import NodeProto, TypeProto

from byoc.boundary import axes
from byoc.boundary.contract import Contract, Side
from byoc.boundary.conversions import casts, done, is_conversion, rank_before, rank_behind, undone
from byoc.boundary.inside import Contracts
from byoc.boundary.related import origin, related
from byoc.boundary.scales import is_dequantize, is_quantize, read_scales
from byoc.boundary.way import Way, maker
from byoc.graph.index import GraphIndex
from byoc.graph.marks import LAYOUT_NAME, is_ours, noted
from byoc.graph.types import TensorType, read_type
from byoc.graph.walk import is_onnx


@dataclass(frozen=True)
class Told:
    """The host's view of a boundary tensor, from one place in the graph.

    `tensor` is the tensor found there after byoc's own conversions are reverted, `cast` whether a Cast
    is among these, `ours` whether the scales come from a node of byoc's. `wired` is False if that tensor
    cannot be the region's tensor.
    """

    side: Side
    tensor: str
    cast: bool = False
    ours: bool = False
    wired: bool = True


@dataclass(frozen=True)
class Host:
    """A graph that calls regions, and the facts known about it.

    `contracts` holds the contracts of each region by name, read from the region alone. `types` gives the
    types of the user's tensors, `users` is the index of the graph before regions were cut out (None if
    unknown), `origins` gives the user's tensor of which a tensor of byoc's is another form, and `folder`
    is the directory of external data. `said` gives types by name that inference leaves open.
    """

    index: GraphIndex
    contracts: Mapping[str, Contracts]
    types: Mapping[str, TypeProto] = field(default_factory=dict)
    users: GraphIndex | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    said: Mapping[str, TensorType] = field(default_factory=dict)

    def handed(self, name: str, inner: str) -> Told:
        """Return the host's view of a tensor that a call reads and that the region knows as `inner`."""
        path = Way(inner, (name,))
        index, node = maker(self.index, name)
        while node is not None:
            if self._converts(node, path.at):
                path = replace(path, steps=(node, *path.steps))
            elif is_quantize(node) and path.quantized:
                scales = read_scales(index, node, self.folder)
                path = replace(path, scales=scales, behind=path.steps, quantized=False)
                if not is_ours(node):
                    break
            elif (is_dequantize(node) or is_quantize(node)) and is_ours(node):
                path = replace(path, quantized=False)
            else:
                break
            path = path.back(node)
            index, node = maker(index, path.at)
        neighbour = self._given(node, path.at)
        terms = self._terms(index, path, neighbour, node)
        inner_terms = self._done(path.steps[: len(path.steps) - len(path.behind)], terms)
        layout = _spelled(self._done(path.behind, inner_terms), terms)
        side = Side(_type(self.index, name), layout)
        return self._told(side, path, neighbour, inner_terms)

    def _done(self, steps: Sequence[NodeProto], terms: axes.Terms | None) -> axes.Terms | None:
        return done(self.index, steps, terms, self.said)

    def taken(self, name: str, inner: str) -> Iterator[Told]:
        """Yield each reader's view of a region's output that the region knows as `inner`."""
        yield from self._readers(Way(inner, (name,)))

    def _readers(self, path: Way) -> Iterator[Told]:
        if path.at in self.index.outputs:
            yield self._end(path)
        for number in self.index.consumers.get(path.at, ()):
            node = self.index.nodes[number]
            for body in self.index.bodies.get(number, ()):
                if path.at in body.index.consumers or path.at in body.index.outputs:
                    yield from replace(self, index=body.index)._readers(path)
            if path.at not in node.input:
                continue
            first = node.input[0] == path.at
            if self._is_region(node):
                for contract in self._reading(node, path.at):
                    yield self._end(path, contract)
            elif first and self._converts(node, path.at):
                yield from self._readers(replace(path, steps=(*path.steps, node)).on(node))
            elif first and is_dequantize(node) and path.quantized:
                scales = read_scales(self.index, node, self.folder)
                further = replace(path, scales=scales, behind=path.steps, quantized=False)
                if is_ours(node):
                    yield from self._readers(further.on(node))
                else:
                    yield self._end(further, node=node)
            else:
                yield self._end(path, node=node)

    def _converts(self, node: NodeProto, name: str) -> bool:
        """Return whether a node converts a tensor into another form of itself.

        A Transpose of the user's counts if the name of the tensor is not one of the user's.
        """
        transpose = node.op_type == "Transpose" and is_onnx(node)
        return is_conversion(node) or (transpose and name not in self.types)

    def _end(self, path: Way, neighbour: Contract | None = None, node: NodeProto | None = None) -> Told:
        """Return the view of an output at the end of a path: at a reader, or at a graph output."""
        terms = self._terms(self.index, path, neighbour, node)
        border = undone(self.index, path.steps, terms, self.said)
        side = Side(self._type_by(path, terms, border), _spelled(border, terms))
        inner_terms = undone(self.index, path.steps[len(path.behind) :], terms, self.said)
        return self._told(side, path, neighbour, inner_terms)

    def _type_by(
        self, path: Way, terms: axes.Terms | None, border: axes.Terms | None
    ) -> TensorType | None:
        """Return an output's type at the boundary according to the user's tensor made of it."""
        crossing = _type(self.index, path.name)
        known = read_type(self.types[path.at]) if path.at in self.types else None
        if known is None or crossing is None:
            return crossing
        dtype = known.dtype
        if path.scales is not None:
            dtype = path.scales.dtype
        elif casts(path.steps):
            dtype = crossing.dtype
        if known.shape is None or terms is None or border is None:
            return TensorType(dtype, crossing.shape)
        plain = axes.unpacked_shape(known.shape, terms)
        return TensorType(dtype, crossing.shape if plain is None else axes.packed_shape(plain, border))

    def _terms(
        self, index: GraphIndex, path: Way, neighbour: Contract | None, node: NodeProto | None
    ) -> axes.Terms | None:
        """Return the layout at the end of a path, in the axes of the region's tensor."""
        rank = self._rank(index, path)
        if rank is None:
            return None
        if neighbour is not None:
            return _turned(
                axes.read_word(neighbour.layout, rank), self._relation(path, neighbour.tensor)
            )
        layout = noted(node, LAYOUT_NAME) if node is not None else ""
        form = axes.plain(rank) if not layout or path.at in self.types else self._form(layout, rank)
        return _turned(form, self._relation(path, self._meant(path.at, node)))

    def _rank(self, index: GraphIndex, path: Way) -> int | None:
        """Return the rank of the tensor at the end of a path, or None if nothing gives it.

        The inputs of a body may have no shape; the steps on the path then give the rank.
        """
        known = read_type(self.types[path.at]) if path.at in self.types else None
        for kind in (_type(index, path.at), known, self.said.get(path.at)):
            if kind is not None and kind.shape is not None:
                return len(kind.shape)
        side = rank_before if path.is_back else rank_behind
        return side(self.index, path.steps, self.said)

    def _meant(self, name: str, node: NodeProto | None) -> str:
        """Return the user's tensor that corresponds to a tensor at a node that reads or makes it.

        A node may read another form of the tensor that it read in the user's model; the node is
        therefore looked up there.
        """
        users = self.users
        if name in self.types or node is None or users is None:
            return name
        made = next((made for made in node.output if made in users.producer), None)
        original_node = users.nodes[users.producer[made]] if made is not None else None
        if original_node is None or original_node.op_type != node.op_type:
            return name
        pairs = [
            *zip(node.input, original_node.input, strict=False),
            *zip(node.output, original_node.output, strict=False),
        ]
        return next((original for here, original in pairs if here == name), name)

    def _form(self, layout: str, rank: int) -> axes.Terms | None:
        """Return the layout, in the user's axes, of a tensor at a node marked with a layout.

        A node marked with the plain layout holds a tensor that the user has in another layout. If the
        regions use exactly one layout it is that one; otherwise nothing is known.
        """
        terms = axes.read_word(layout, rank)
        if terms != axes.plain(rank):
            return terms
        every = (c for each in self.contracts.values() for c in (*each.inputs, *each.outputs))
        words = {contract.layout for contract in every if contract.layout}
        user_terms = axes.read_word(words.pop(), rank) if len(words) == 1 else None
        if user_terms is None or any(term.size for term in user_terms):
            return None
        return tuple(axes.Term(user_terms.index(axes.Term(axis))) for axis in range(rank))

    def _relation(self, path: Way, name: str) -> axes.Terms | None:
        """Return the layout of another of the user's tensors in the axes of the region's tensor."""
        return related(self.users, path.inner, self.origins.get(name, name))

    def _is_wired(self, path: Way, name: str) -> bool:
        """Return whether a tensor can be the region's tensor; True if this cannot be decided."""
        names = [origin(self.users, self.origins.get(each, each)) for each in (path.inner, name)]
        apart = names[0] != names[1] and all(each in self.types for each in names)
        return not apart or self._relation(path, name) is not None

    def _told(
        self, side: Side, path: Way, neighbour: Contract | None, inner_terms: axes.Terms | None
    ) -> Told:
        """Build a view; `there` is the layout at the point where the scales were found."""
        if path.scales is not None:
            axis = path.scales.axis
            if axis is not None and inner_terms is not None and axis < len(inner_terms):
                axis = inner_terms[axis].axis
            side = replace(side, scale=path.scales.scale, zero_point=path.scales.zero_point, axis=axis)
        elif neighbour is not None and path.quantized:
            other = neighbour.side
            side = replace(side, scale=other.scale, zero_point=other.zero_point, axis=other.axis)
        ours = path.scales is None or path.scales.ours
        tensor = path.at if neighbour is None else neighbour.tensor
        wired = self._is_wired(path, tensor)
        return Told(side, tensor, casts(path.steps), ours, wired)

    def _given(self, node: NodeProto | None, name: str) -> Contract | None:
        """Return the contract of a neighbouring region's output."""
        if node is None or not self._is_region(node):
            return None
        outputs = self.contracts[node.op_type].outputs
        return outputs[list(node.output).index(name)]

    def _reading(self, node: NodeProto, name: str) -> list[Contract]:
        """Return the contracts of a neighbouring region's inputs that are this tensor."""
        data = [outer_name for outer_name in node.input if not self.index.is_constant(outer_name)]
        pairs = zip(data, self.contracts[node.op_type].inputs, strict=True)
        return [contract for outer_name, contract in pairs if outer_name == name]

    def _is_region(self, node: NodeProto) -> bool:
        return node.op_type in self.contracts and node.domain.startswith("byoc.")


def _type(index: GraphIndex, name: str) -> TensorType | None:
    found = index.certain.get(name)
    return None if found is None else read_type(found)


def _spelled(terms: axes.Terms | None, known: axes.Terms | None) -> str | None:
    """Format a layout; None if the layout at the other end of the path is not known."""
    if known is None:
        return None
    return axes.spelled(terms) if terms is not None else axes.UNREADABLE


def _turned(terms: axes.Terms | None, relation: axes.Terms | None) -> axes.Terms | None:
    """Express terms in other axes, given the layout of their tensor in those axes."""
    if terms is None or relation is None:
        return terms
    return tuple(axes.Term(relation[axis].axis, size) for axis, size in terms)
