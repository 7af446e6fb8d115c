"""Merging of consecutive layout steps that cancel: Transposes, and steps of blocked layouts."""

from collections.abc import Collection, Hashable

from onnx import GraphProto, NodeProto, helper

from byoc.boundary.convert._graph_tensors import (
    AxisOrder,
    compose_orders,
    find_lasting_names,
    identity_order,
    read_order,
)
from byoc.boundary.convert._rewrite_context import RewriteContext
from byoc.model import LAYOUT, LAYOUT_KEY, get_metadata, get_purpose, is_onnx, set_attribute

_STEPS = frozenset({"Identity", "Reshape", "Pad", "Slice"})
# A step, and the one that undoes it if what comes out is of the type that went in: blocks are split and
# joined, and what fills the last block is cut off and filled with zeros again.
_INVERSE_STEPS = {("Reshape", "Reshape"), ("Slice", "Pad")}


def merge_steps(room: RewriteContext, replaced: Collection[str]) -> None:
    """Merge consecutive Transposes, at least one of them byoc's, and drop nodes no longer needed.

    Steps that amount to the identity vanish; equal steps on one tensor exist once; a step of byoc's, or
    one that was merged into the next, is removed if nothing reads it, and so are the constants in
    `replaced`. Sequences of the user's own Transposes stay as they are.
    """
    _Merger(room, replaced).run()


class _Merger:
    def __init__(self, room: RewriteContext, replaced: Collection[str]) -> None:
        self.room = room
        self.facts = room.tensors
        self.replaced = set(replaced)
        self.maker = {name: node for node in room.scope.nodes for name in node.output if name}
        self.pinned = set(find_lasting_names(room.scope))
        self.same: dict[str, str] = {}
        self.steps: dict[Hashable, str] = {}
        self.bypassed: set[int] = set()

    def run(self) -> None:
        kept: list[NodeProto] = []
        for node in self.room.scope.nodes:
            names = {name: self.same[name] for name in node.input if name in self.same}
            if names:
                kept += self.room.calls.rename(node, names)
            if not self._merge_node(node):
                kept.append(node)
        self.room.scope.nodes = self._drop_unneeded(kept)

    def _merge_node(self, node: NodeProto) -> bool:
        """Merge a node with its predecessor; return whether it is to be removed."""
        if not is_onnx(node):
            return False
        if node.op_type == "Transpose":
            return self._merge_transpose(node)
        if get_purpose(node) != LAYOUT or node.op_type not in _STEPS:
            return False
        if node.op_type == "Identity":
            return self._replace_output(node, node.input[0])
        before = self.maker.get(node.input[0])
        if before is not None and self._is_inverse(before, node):
            return self._replace_output(node, before.input[0])
        return self._reuse_equal(node, self.facts.find_type(node.output[0]))

    def _merge_transpose(self, node: NodeProto) -> bool:
        merged = _is_own_transpose(node)
        while (before := self.maker.get(node.input[0])) is not None:
            first, second = self._transpose_order(before), self._transpose_order(node)
            if first is None or second is None or not (merged or _is_own_transpose(before)):
                break
            merged = True
            set_attribute(node, helper.make_attribute("perm", compose_orders(first, second)))
            node.input[0] = before.input[0]
            self.bypassed.add(id(before))
        order = self._transpose_order(node)
        if merged and order is not None and order == identity_order(len(order)):
            return self._replace_output(node, node.input[0])
        return self._reuse_equal(node, order) if merged else self._record_step(node, order)

    def _record_step(self, node: NodeProto, what: Hashable) -> bool:
        """Record a step of the user's, so that it is not made again."""
        self.steps.setdefault((node.op_type, node.input[0], what), node.output[0])
        return False

    def _reuse_equal(self, node: NodeProto, what: Hashable) -> bool:
        """Replace a step by an equal one on the same tensor, if there is one."""
        equal = self.steps.setdefault((node.op_type, node.input[0], what), node.output[0])
        return what is not None and equal != node.output[0] and self._replace_output(node, equal)

    def _is_inverse(self, before: NodeProto, node: NodeProto) -> bool:
        """Return whether a step of a blocked layout reverts the preceding one, also byoc's."""
        if (before.op_type, node.op_type) not in _INVERSE_STEPS or get_purpose(before) != LAYOUT:
            return False
        began, ended = self.facts.find_type(before.input[0]), self.facts.find_type(node.output[0])
        return began is not None and began == ended and None not in (began.shape or (None,))

    def _transpose_order(self, node: NodeProto) -> AxisOrder | None:
        return read_order(node, self.facts.find_rank(node.input[0]))

    def _replace_output(self, node: NodeProto, name: str) -> bool:
        """Replace a node's output by another tensor; a name that must stay becomes a copy."""
        if node.output[0] in self.pinned:
            node.op_type = "Identity"
            del node.attribute[:]
            del node.input[:]
            node.input.append(name)
            return False
        self.same[node.output[0]] = name
        return True

    def _drop_unneeded(self, nodes: list[NodeProto]) -> list[NodeProto]:
        """Return the nodes without those of byoc's, or bypassed ones, that nothing reads."""
        scope = self.room.scope
        needed = set(self.pinned)
        kept = []
        for node in reversed(nodes):
            if needed.isdisjoint(node.output) and self._may_drop(node):
                continue
            needed.update(scope.find_reads(node))
            kept.append(node)
        assert isinstance(scope.proto, GraphProto)
        stored = scope.proto.initializer
        unread = {tensor.name for tensor in stored} & self.replaced - needed
        if unread:
            left = [tensor for tensor in stored if tensor.name not in unread]
            del stored[:]
            stored.extend(left)
        return kept[::-1]

    def _may_drop(self, node: NodeProto) -> bool:
        constant = node.op_type == "Constant" and not self.replaced.isdisjoint(node.output)
        return get_purpose(node) == LAYOUT or id(node) in self.bypassed or constant


def _is_own_transpose(node: NodeProto) -> bool:
    """Return whether byoc inserted a Transpose, or changed one of the user's."""
    return get_purpose(node) == LAYOUT or bool(get_metadata(node, LAYOUT_KEY))
