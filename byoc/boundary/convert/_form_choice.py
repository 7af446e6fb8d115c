"""The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from byoc.boundary.convert._graph_tensors import GraphTensors
from byoc.boundary.convert._layout_graph import LayoutGraph
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut


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
