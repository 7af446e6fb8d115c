"""The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from byoc.boundary.convert._graph_tensors import find_lasting_names
from byoc.boundary.convert._layout_graph import LayoutGraph
from byoc.boundary.convert._model_editor import Scope
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut


@dataclass(frozen=True, eq=False)
class ChosenForms:
    """The chosen forms of nodes by number, and the form in which each value is made."""

    node_forms: Mapping[int, int]
    value_forms: Mapping[str, int]
    bytes: float
    """What is transposed, in bytes."""


def choose_forms(scope: Scope, frames: LayoutGraph, size: Callable[[str], int]) -> ChosenForms:
    """Choose the forms with the fewest bytes transposed, and among those the fewest changed nodes.

    Each node of `frames.movable` runs in one of two forms, in which it reads and makes its tensors;
    regions and all other nodes keep the forms of the model. A value that is made in one form and read in
    the other costs one Transpose of its bytes (`size` of its name), however many nodes read it. This is
    a minimum cut with the values as arcs (form 0 on the source's side, form 1 on the sink's), so no
    choice of forms transposes fewer bytes.
    """
    return _CutProblem(scope, frames, size).solve()


class _CutProblem:
    def __init__(self, scope: Scope, frames: LayoutGraph, size: Callable[[str], int]) -> None:
        self.frames = frames
        self.nodes = scope.nodes
        turned = (
            i for i, turn in frames.other_transposes.items() if self.nodes[i].output[0] in frames.form
        )
        self.units = sorted([*frames.movable, *turned])
        self.unit_of = {number: unit for unit, number in enumerate(self.units, 2)}
        values = list(dict.fromkeys(frames.value.values()))
        self.row = {value: row for row, value in enumerate(values)}
        self.size = [float(size(value)) for value in values]
        self.producer = [SINK if frames.form[value] else SOURCE for value in values]
        self.consumers: list[set[int]] = [set() for _ in values]
        for i, node in enumerate(self.nodes):
            if i not in frames.links:
                self._add_reads(i, scope.find_reads(node))
                self._add_producer(i)
        for name in find_lasting_names(scope):
            self._require_as_is(name)

    def _value_row(self, name: str) -> int:
        return self.row[self.frames.value[name]]

    def _require_as_is(self, name: str) -> None:
        """Record that a tensor is read in the form that it has in the model."""
        if name in self.frames.form:
            self.consumers[self._value_row(name)].add(SINK if self.frames.form[name] else SOURCE)

    def _add_reads(self, number: int, names: Sequence[str]) -> None:
        if number in self.frames.other_transposes or number in self.frames.shape_nodes:
            return  # reads whichever form there is
        ports = self.frames.movable.get(number)
        node = self.nodes[number]
        if ports is None:
            for name in names:
                self._require_as_is(name)
            return
        for i, name in enumerate(node.input):
            if i in ports.inputs:
                self.consumers[self._value_row(name)].add(self.unit_of[number])
            elif i not in ports.constants:
                self._require_as_is(name)

    def _add_producer(self, number: int) -> None:
        if number not in self.unit_of:
            return
        ports, node = self.frames.movable.get(number), self.nodes[number]
        for i in ports.outputs if ports is not None else (0,):
            self.producer[self._value_row(node.output[i])] = self.unit_of[number]

    def solve(self) -> ChosenForms:
        size = 2 + len(self.units)
        # Less than one byte for all together: it only decides between equals.
        extra = 0.25 / size
        arcs: list[tuple[int, int, float]] = [
            (unit, SINK, extra) if self._model_form(number) else (SOURCE, unit, extra)
            for number, unit in self.unit_of.items()
        ]
        for value, producer, readers in zip(self.size, self.producer, self.consumers, strict=True):
            # One node has form 1 as soon as one reader has it, another has form 0 as soon as one has it.
            down, up, size = size, size + 1, size + 2
            arcs += [(producer, down, value), (up, producer, value)]
            arcs += [arc for reader in readers for arc in ((down, reader, inf), (reader, up, inf))]
        permuted = find_minimum_cut(size, list(zip(*arcs, strict=True)))[1].tolist()
        form = {number: int(permuted[unit]) for number, unit in self.unit_of.items()}
        made = {value: int(permuted[self.producer[row]]) for value, row in self.row.items()}
        return ChosenForms(form, made, self._transposed_bytes(made, permuted))

    def _model_form(self, number: int) -> int:
        """Return the form that a node has in the model."""
        ports, node = self.frames.movable.get(number), self.nodes[number]
        return self.frames.form[node.input[ports.inputs[0]] if ports is not None else node.output[0]]

    def _transposed_bytes(self, made: Mapping[str, int], permuted: Sequence[bool]) -> float:
        total = 0.0
        for value, row in self.row.items():
            in_layout = any(permuted[unit] for unit in self.consumers[row])
            in_plain = not all(permuted[unit] for unit in self.consumers[row])
            if in_layout if made[value] == 0 else in_plain:
                total += self.size[row]
        return total
