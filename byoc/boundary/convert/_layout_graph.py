"""Tensors in two layouts, and forms of operators such that the fewest bytes are transposed.

A Transpose into the layout or back makes no new tensor but another form of the same one. The names at
both its ends therefore stand for one `value`; the `form` of a name is its form in the model.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from onnx import NodeProto

from byoc.boundary.convert._movable_operators import (
    AxisOrder,
    GraphTensors,
    MovablePorts,
    PortShares,
    find_ports,
    invert_order,
    read_order,
)
from byoc.model import LAYOUT, get_purpose, is_onnx
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut


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
    region_inputs: Mapping[int, Mapping[str, float]]
    """Inputs of regions in form 1 that these may read in form 0, by node and name: the price of their
    Transpose there as a share of that on the host."""
    region_outputs: Mapping[int, Mapping[str, float]]
    """The same of outputs."""


def find_layout_graph(tensors: GraphTensors, order: AxisOrder) -> LayoutGraph | None:
    """Find the part of a graph that is connected with a layout, None if byoc converts nothing there.

    It includes everything connected with a Transpose of byoc's by movable operators, the user's own
    Transposes included; one that fits no form is in `other_transposes`.
    """
    finder = _LayoutGraphFinder(tensors, order)
    if not finder.own_links:
        return None
    finder.spread()
    return finder.build()


class _LayoutGraphFinder:
    def __init__(self, tensors: GraphTensors, order: AxisOrder) -> None:
        self.tensors = tensors
        self.nodes: Sequence[NodeProto] = tensors.scope.nodes
        self.order = order
        self.region_outputs = {name for call in tensors.edit.calls.values() for name in call.node.output}
        self.form: dict[str, int] = {}
        self.used: set[int] = set()
        self.opaque: set[int] = set()
        self.ports: dict[int, MovablePorts | None] = {}
        self.turns = {
            i: turn
            for i, node in enumerate(self.nodes)
            if node.op_type == "Transpose"
            and (turn := read_order(node, tensors.find_rank(node.input[0]))) is not None
            and len(turn) == len(order)
        }
        # Transposes into the layout (1) or back (-1).
        back = invert_order(order)
        self.steps = {
            i: 1 if turn == order else -1 for i, turn in self.turns.items() if turn in (order, back)
        }
        self.own_links = [i for i in self.steps if get_purpose(self.nodes[i]) == LAYOUT]
        self.own_inverse = order == back
        self.around: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys((*node.input, *node.output)):
                if name:
                    self.around.setdefault(name, []).append(i)

    def spread(self) -> None:
        """Assign forms to everything connected with a Transpose of byoc's, and to nothing else."""
        pending = deque(self.own_links)
        while pending:
            number = pending.popleft()
            if number not in self.used and number not in self.opaque:
                for name in self._use_link(number):
                    pending.extend(i for i in self.around[name] if i in self.steps and i != number)

    def _use_link(self, number: int) -> list[str]:
        """Use a link if its ends fit the forms, and return the names that received a form."""
        node, step = self.nodes[number], self.steps[number]
        source, target = node.input[0], node.output[0]
        before, after = self.form.get(source), self.form.get(target)
        if before is None and after is None:
            before = int(step < 0 or (self.own_inverse and source in self.region_outputs))
        if before is None and after is not None:
            before = 1 - after if self.own_inverse else after - step
        assert before is not None
        made = 1 - before if self.own_inverse else before + step
        if before not in (0, 1) or made not in (0, 1) or after not in (None, made):
            self.opaque.add(number)
            return []
        self.used.add(number)
        return [*self._spread_form(source, before), *self._spread_form(target, made)]

    def _spread_form(self, start: str, form: int) -> list[str]:
        """Assign a form to a tensor and to all tensors that movable operators connect with it."""
        if start in self.form:
            return []
        self.form[start] = form
        reached = [start]
        for name in reached:  # grows while it is walked
            for i in self.around.get(name, ()):
                for other in self._connected_names(i, name):
                    if other not in self.form:
                        self.form[other] = form
                        reached.append(other)
        return reached

    def _connected_names(self, number: int, name: str) -> list[str]:
        """Return the tensors that must share a tensor's form, since a node moves with all of them."""
        node = self.nodes[number]
        if number not in self.ports:
            is_turn = number in self.turns
            self.ports[number] = None if is_turn else find_ports(node, self.tensors, len(self.order))
        found = self.ports[number]
        if found is None:
            return []
        names = [*(node.input[i] for i in found.inputs), *(node.output[i] for i in found.outputs)]
        return names if name in names else []

    def build(self) -> LayoutGraph:
        value: dict[str, str] = {}
        for i in sorted(self.used):
            source, target = self.nodes[i].input[0], self.nodes[i].output[0]
            value[target] = value.setdefault(source, source)
        for name in self.form:
            value.setdefault(name, name)
        # A node that was only looked at, since a scalar or a list of axes of it matters, stays.
        movable = {
            i: found
            for i, found in sorted(self.ports.items())
            if found is not None and self.nodes[i].input[found.inputs[0]] in self.form
        }
        others = {
            i: turn
            for i, turn in self.turns.items()
            if i not in self.used
            and (self.nodes[i].input[0] in self.form or self.nodes[i].output[0] in self.form)
        }
        shapes = frozenset(
            i
            for i, node in enumerate(self.nodes)
            if node.op_type == "Shape" and is_onnx(node) and node.input[0] in self.form
        )
        inputs, outputs = self._find_ports()
        return LayoutGraph(
            self.order,
            self.form,
            value,
            frozenset(self.used),
            movable,
            others,
            shapes,
            inputs,
            outputs,
        )

    def _find_ports(self) -> tuple[dict[int, PortShares], dict[int, PortShares]]:
        """Return the inputs and the outputs in form 1 that regions may transpose themselves."""
        sides: tuple[dict[int, PortShares], dict[int, PortShares]] = {}, {}
        for i, node in enumerate(self.nodes):
            for side, shares in zip(sides, self.tensors.find_port_shares(node, self.order), strict=True):
                found = {name: share for name, share in shares.items() if self.form.get(name) == 1}
                if found:
                    side[i] = found
        return sides


# The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut.


@dataclass(frozen=True, eq=False)
class ChosenForms:
    """The chosen forms of nodes by number, and the form in which each value is made.

    `plain_ports` are the inputs and outputs of regions, by node and name, that cross in form 0.
    """

    node_forms: Mapping[int, int]
    value_forms: Mapping[str, int]
    plain_ports: frozenset[tuple[int, str]]


def choose_forms(tensors: GraphTensors, frames: LayoutGraph) -> ChosenForms:
    """Choose the forms with the fewest bytes transposed, and among those the fewest changed nodes.

    Each node of `frames.movable` runs in one of two forms, in which it reads and makes its tensors;
    regions and all other nodes keep the forms of the model. A value that is made in one form and read in
    the other costs one Transpose of its bytes, however many nodes read it. An input or output that a
    region may transpose itself crosses in form 0 for a share of these bytes, which each region pays.
    This is a minimum cut with the values as arcs (form 0 on the source's side, form 1 on the sink's), so
    no choice of forms transposes fewer bytes.
    """
    return _CutProblem(tensors, frames).solve()


class _CutProblem:
    def __init__(self, tensors: GraphTensors, frames: LayoutGraph) -> None:
        self.frames = frames
        self.nodes = tensors.scope.nodes
        turned = (
            i for i, turn in frames.other_transposes.items() if self.nodes[i].output[0] in frames.form
        )
        self.unit_of = {number: i for i, number in enumerate(sorted([*frames.movable, *turned]), 2)}
        sides = (frames.region_inputs, frames.region_outputs)
        ports = ((i, name, each[name]) for side in sides for i, each in side.items() for name in each)
        first = 2 + len(self.unit_of)
        self.ports = {(i, name): (row, share) for row, (i, name, share) in enumerate(ports, first)}
        values = dict.fromkeys(frames.value.values())
        self.size = {value: float(tensors.estimate_bytes(value)) for value in values}
        self.producer = {value: SINK if frames.form[value] else SOURCE for value in values}
        self.consumers: dict[str, set[int]] = {value: set() for value in values}
        for i, node in enumerate(self.nodes):
            if i not in frames.links:
                self._add_reads(i, tensors.scope.find_reads(node))
                self._add_producer(i)
        for name in tensors.scope.find_lasting_names():
            self._require_as_is(name)

    def _require_as_is(self, name: str) -> None:
        """Record that a tensor is read in the form that it has in the model."""
        if name in self.frames.form:
            reader = SINK if self.frames.form[name] else SOURCE
            self.consumers[self.frames.value[name]].add(reader)

    def _add_reads(self, number: int, names: Sequence[str]) -> None:
        if number in self.frames.other_transposes or number in self.frames.shape_nodes:
            return  # reads whichever form there is
        ports = self.frames.movable.get(number)
        if ports is None:
            for name in names:
                port = self.ports.get((number, name))
                if port is not None:
                    self.consumers[self.frames.value[name]].add(port[0])
                else:
                    self._require_as_is(name)
            return
        for i, name in enumerate(self.nodes[number].input):
            if i in ports.inputs:
                self.consumers[self.frames.value[name]].add(self.unit_of[number])
            elif i not in ports.constants:
                self._require_as_is(name)

    def _add_producer(self, number: int) -> None:
        if number in self.unit_of:
            ports, node = self.frames.movable.get(number), self.nodes[number]
            for i in ports.outputs if ports is not None else (0,):
                self.producer[self.frames.value[node.output[i]]] = self.unit_of[number]
        for name in self.frames.region_outputs.get(number, ()):
            self.producer[self.frames.value[name]] = self.ports[number, name][0]

    def solve(self) -> ChosenForms:
        size = 2 + len(self.unit_of) + len(self.ports)
        # Less than one byte for all together: it only decides between equals.
        extra = 0.25 / size
        arcs: list[tuple[int, int, float]] = [
            (unit, SINK, extra) if self._model_form(number) else (SOURCE, unit, extra)
            for number, unit in self.unit_of.items()
        ]
        for (_, name), (port, share) in self.ports.items():
            arcs.append((port, SINK, share * self.size[self.frames.value[name]]))
        for value, producer in self.producer.items():
            # One node has form 1 as soon as one reader has it, another has form 0 as soon as one has it.
            down, up, size = size, size + 1, size + 2
            arcs += [(producer, down, self.size[value]), (up, producer, self.size[value])]
            for reader in self.consumers[value]:
                arcs += [(down, reader, inf), (reader, up, inf)]
        permuted = find_minimum_cut(size, list(zip(*arcs, strict=True)))[1].tolist()
        return ChosenForms(
            {number: int(permuted[unit]) for number, unit in self.unit_of.items()},
            {value: int(permuted[producer]) for value, producer in self.producer.items()},
            frozenset(port for port, (row, _) in self.ports.items() if not permuted[row]),
        )

    def _model_form(self, number: int) -> int:
        """Return the form that a node has in the model."""
        ports, node = self.frames.movable.get(number), self.nodes[number]
        return self.frames.form[node.input[ports.inputs[0]] if ports is not None else node.output[0]]
