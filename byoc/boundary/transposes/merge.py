"""Merging of consecutive layout steps that cancel: Transposes, and steps of blocked layouts."""

from collections.abc import Collection, Hashable

from onnx import GraphProto, NodeProto

from byoc.boundary.transposes.constants import Room
from byoc.boundary.transposes.facts import lasting
from byoc.boundary.transposes.permutation import Order, identity, order_of, set_attribute, then
from byoc.graph.marks import LAYOUT, LAYOUT_NAME, mark_of, noted
from byoc.graph.walk import is_onnx

_STEPS = frozenset({"Identity", "Reshape", "Pad", "Slice"})
# A step, and the one that undoes it if what comes out is of the type that went in: blocks are split and
# joined, and what fills the last block is cut off and filled with zeros again.
_UNDONE = {("Reshape", "Reshape"), ("Slice", "Pad")}


def merge(room: Room, replaced: Collection[str]) -> None:
    """Merge consecutive Transposes, at least one of them byoc's, and drop nodes no longer needed.

    Steps that amount to the identity vanish; equal steps on one tensor exist once; a step of byoc's, or
    one that was merged into the next, is removed if nothing reads it, and so are the constants in
    `replaced`. Sequences of the user's own Transposes stay as they are.
    """
    _Merger(room, replaced).run()


class _Merger:
    def __init__(self, room: Room, replaced: Collection[str]) -> None:
        self.room = room
        self.facts = room.facts
        self.replaced = set(replaced)
        self.maker = {name: node for node in room.scope.nodes for name in node.output if name}
        self.pinned = set(lasting(room.scope))
        self.same: dict[str, str] = {}
        self.steps: dict[Hashable, str] = {}
        self.bypassed: set[int] = set()

    def run(self) -> None:
        kept: list[NodeProto] = []
        for node in self.room.scope.nodes:
            names = {name: self.same[name] for name in node.input if name in self.same}
            if names:
                kept += self.room.calls.rename(node, names)
            if not self._vanishes(node):
                kept.append(node)
        self.room.scope.nodes = self._needed(kept)

    def _vanishes(self, node: NodeProto) -> bool:
        """Merge a node with its predecessor; return whether it is to be removed."""
        if not is_onnx(node):
            return False
        if node.op_type == "Transpose":
            return self._transpose_vanishes(node)
        if mark_of(node) != LAYOUT or node.op_type not in _STEPS:
            return False
        if node.op_type == "Identity":
            return self._alias(node, node.input[0])
        before = self.maker.get(node.input[0])
        if before is not None and self._undoes(before, node):
            return self._alias(node, before.input[0])
        return self._exists(node, self.facts.type_of(node.output[0]))

    def _transpose_vanishes(self, node: NodeProto) -> bool:
        merged = _is_ours(node)
        while (before := self.maker.get(node.input[0])) is not None:
            first, second = self._order(before), self._order(node)
            if first is None or second is None or not (merged or _is_ours(before)):
                break
            merged = True
            set_attribute(node, "perm", then(first, second))
            node.input[0] = before.input[0]
            self.bypassed.add(id(before))
        order = self._order(node)
        if merged and order is not None and order == identity(len(order)):
            return self._alias(node, node.input[0])
        return self._exists(node, order) if merged else self._noted(node, order)

    def _noted(self, node: NodeProto, what: Hashable) -> bool:
        """Record a step of the user's, so that it is not made again."""
        self.steps.setdefault((node.op_type, node.input[0], what), node.output[0])
        return False

    def _exists(self, node: NodeProto, what: Hashable) -> bool:
        """Replace a step by an equal one on the same tensor, if there is one."""
        equal = self.steps.setdefault((node.op_type, node.input[0], what), node.output[0])
        return what is not None and equal != node.output[0] and self._alias(node, equal)

    def _undoes(self, before: NodeProto, node: NodeProto) -> bool:
        """Return whether a step of a blocked layout reverts the preceding one, also byoc's."""
        if (before.op_type, node.op_type) not in _UNDONE or mark_of(before) != LAYOUT:
            return False
        began, ended = self.facts.type_of(before.input[0]), self.facts.type_of(node.output[0])
        return began is not None and began == ended and None not in (began.shape or (None,))

    def _order(self, node: NodeProto) -> Order | None:
        return order_of(node, self.facts.rank(node.input[0]))

    def _alias(self, node: NodeProto, name: str) -> bool:
        """Replace a node's output by another tensor; a name that must stay becomes a copy."""
        if node.output[0] in self.pinned:
            node.op_type = "Identity"
            del node.attribute[:]
            del node.input[:]
            node.input.append(name)
            return False
        self.same[node.output[0]] = name
        return True

    def _needed(self, nodes: list[NodeProto]) -> list[NodeProto]:
        """Return the nodes without those of byoc's, or bypassed ones, that nothing reads."""
        scope = self.room.scope
        needed = set(self.pinned)
        kept = []
        for node in reversed(nodes):
            if needed.isdisjoint(node.output) and self._may_go(node):
                continue
            needed.update(scope.reads(node))
            kept.append(node)
        assert isinstance(scope.proto, GraphProto)
        stored = scope.proto.initializer
        unread = {tensor.name for tensor in stored} & self.replaced - needed
        if unread:
            left = [tensor for tensor in stored if tensor.name not in unread]
            del stored[:]
            stored.extend(left)
        return kept[::-1]

    def _may_go(self, node: NodeProto) -> bool:
        constant = node.op_type == "Constant" and not self.replaced.isdisjoint(node.output)
        return mark_of(node) == LAYOUT or id(node) in self.bypassed or constant


def _is_ours(node: NodeProto) -> bool:
    """Return whether byoc inserted a Transpose, or changed one of the user's."""
    return mark_of(node) == LAYOUT or bool(noted(node, LAYOUT_NAME))
