"""A graph of tensors in two possible forms: in ONNX's own layout (0), and in a target's layout (1).

A Transpose into the layout or back makes no new tensor but another form of the same one. The names at
both its ends therefore stand for one `value`; the `frame` of a name is its form in the model.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from byoc.boundary.convert._graph_tensors import AxisOrder, GraphTensors, invert_order, read_order
from byoc.boundary.convert._model_editor import Scope
from byoc.boundary.convert._movable_operators import MovablePorts, find_ports
from byoc.model import LAYOUT, get_purpose, is_onnx


@dataclass(frozen=True)
class TransposeLink:
    """A Transpose into the layout (`step` 1) or back (-1), by its node's number."""

    number: int
    step: int
    is_own: bool


@dataclass(frozen=True, eq=False)
class LayoutGraph:
    """The part of a graph that is connected with a layout; nodes are identified by their numbers."""

    order: AxisOrder
    form: Mapping[str, int]
    """The form in which the model has a tensor, for those that matter."""
    value: Mapping[str, str]
    """The first of the names that stand for the same value, by name."""
    links: frozenset[int]
    """Transposes that are nothing but another form of a value."""
    movable: Mapping[int, MovablePorts]
    """Nodes that can run in either form."""
    other_transposes: Mapping[int, AxisOrder]
    """Other Transposes at tensors that matter, which can read either form and make either form."""
    shape_nodes: frozenset[int]
    """Shape operators, which can read either form."""


def find_layout_graph(
    scope: Scope, facts: GraphTensors, order: AxisOrder, region_outputs: frozenset[str] = frozenset()
) -> LayoutGraph | None:
    """Find the part of a graph that is connected with a layout, None if byoc converts nothing there.

    It includes everything connected with a Transpose of byoc's by movable operators, the user's own
    Transposes included; one that fits no form is in `turning`. `given` names the outputs of regions.
    """
    finder = _LayoutGraphFinder(scope, facts, order, region_outputs)
    if not any(link.is_own for link in finder.found.values()):
        return None
    finder.spread()
    return finder.build()


class _LayoutGraphFinder:
    def __init__(
        self, scope: Scope, facts: GraphTensors, order: AxisOrder, given: frozenset[str]
    ) -> None:
        self.nodes: Sequence[NodeProto] = scope.nodes
        self.facts = facts
        self.order = order
        self.given = given
        self.frame: dict[str, int] = {}
        self.used: set[int] = set()
        self.opaque: set[int] = set()
        self.movable: dict[int, MovablePorts] = {}
        self.asked: set[int] = set()
        self.turns = {
            i: turn
            for i, node in enumerate(self.nodes)
            if node.op_type == "Transpose"
            and (turn := read_order(node, facts.find_rank(node.input[0]))) is not None
            and len(turn) == len(order)
        }
        back = invert_order(order)
        self.found = {
            i: TransposeLink(i, 1 if turn == order else -1, get_purpose(self.nodes[i]) == LAYOUT)
            for i, turn in self.turns.items()
            if turn in (order, back)
        }
        self.own_inverse = order == back
        self.around: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys((*node.input, *node.output)):
                if name:
                    self.around.setdefault(name, []).append(i)

    def spread(self) -> None:
        """Assign forms to everything connected with a Transpose of byoc's, and to nothing else."""
        pending = deque(link for link in self.found.values() if link.is_own)
        while pending:
            link = pending.popleft()
            if link.number in self.used or link.number in self.opaque:
                continue
            for name in self._use_link(link):
                pending.extend(
                    self.found[i] for i in self.around[name] if i in self.found and i != link.number
                )

    def _use_link(self, link: TransposeLink) -> list[str]:
        """Use a link if its ends fit the forms, and return the names that received a form."""
        node = self.nodes[link.number]
        source, target = node.input[0], node.output[0]
        before, after = self.frame.get(source), self.frame.get(target)
        if before is None and after is None:
            before = 1 if link.step < 0 or (self.own_inverse and source in self.given) else 0
        if before is None and after is not None:
            before = 1 - after if self.own_inverse else after - link.step
        assert before is not None
        made = 1 - before if self.own_inverse else before + link.step
        if before not in (0, 1) or made not in (0, 1) or after not in (None, made):
            self.opaque.add(link.number)
            return []
        self.used.add(link.number)
        return [*self._spread_form(source, before), *self._spread_form(target, made)]

    def _spread_form(self, start: str, frame: int) -> list[str]:
        """Assign a form to a tensor and to all tensors that movable operators connect with it."""
        if start in self.frame:
            return []
        self.frame[start] = frame
        reached = [start]
        for name in reached:  # grows while it is walked
            for i in self.around.get(name, ()):
                for other in self._connected_names(i, name):
                    if other not in self.frame:
                        self.frame[other] = frame
                        reached.append(other)
        return reached

    def _connected_names(self, number: int, name: str) -> Iterator[str]:
        """Yield the tensors that must share a tensor's form, since a node moves with all of them."""
        if number in self.turns:
            return
        if number not in self.asked:
            self.asked.add(number)
            found = find_ports(self.nodes[number], self.facts, len(self.order))
            if found is not None:
                self.movable[number] = found
        if number in self.movable:
            node, found = self.nodes[number], self.movable[number]
            names = [*(node.input[i] for i in found.inputs), *(node.output[i] for i in found.outputs)]
            if name in names:
                yield from names

    def build(self) -> LayoutGraph:
        value: dict[str, str] = {}
        for i in sorted(self.used):
            source, target = self.nodes[i].input[0], self.nodes[i].output[0]
            value[target] = value.setdefault(source, source)
        for name in self.frame:
            value.setdefault(name, name)
        # A node that was only looked at, since a scalar or a list of axes of it matters, stays.
        movable = {
            i: found
            for i, found in sorted(self.movable.items())
            if self.nodes[i].input[found.inputs[0]] in self.frame
        }
        turning = {
            i: turn
            for i, turn in self.turns.items()
            if i not in self.used
            and (self.nodes[i].input[0] in self.frame or self.nodes[i].output[0] in self.frame)
        }
        shapes = frozenset(
            i
            for i, node in enumerate(self.nodes)
            if node.op_type == "Shape" and is_onnx(node) and node.input[0] in self.frame
        )
        return LayoutGraph(self.order, self.frame, value, frozenset(self.used), movable, turning, shapes)
