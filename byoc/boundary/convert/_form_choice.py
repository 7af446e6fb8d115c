"""The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from byoc.boundary.convert._graph_tensors import find_lasting_names
from byoc.boundary.convert._layout_graph import LayoutGraph
from byoc.boundary.convert._model_editor import Scope
from byoc.placement import Bools, Problem
from byoc.placement.solvers import HostDeviceCuts, find_persistent_sides

_SOURCE = 0  # the unit that makes what comes in the layout and cannot come otherwise


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
    a minimum cut with the values as arcs (`byoc.placement`, with the host as form 0 and an accelerator
    as form 1), so no choice of forms transposes fewer bytes.
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
        self.unit_of = {number: unit for unit, number in enumerate(self.units, _SOURCE + 1)}
        self.sink = len(self.units) + 1
        values = list(dict.fromkeys(frames.value.values()))
        self.row = {value: row for row, value in enumerate(values)}
        self.size = [float(size(value)) for value in values]
        self.producer = [_SOURCE if frames.form[value] else -1 for value in values]
        self.consumers: list[set[int]] = [set() for _ in values]
        self.plain = [False] * len(values)
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
            if self.frames.form[name]:
                self.consumers[self._value_row(name)].add(self.sink)
            else:
                self.plain[self._value_row(name)] = True

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
        units = self.sink + 1
        # Less than one byte for all together: it only decides between equals.
        extra = 0.25 / units
        seconds = [[0.0, 0.0] for _ in range(units)]
        for number, unit in self.unit_of.items():
            seconds[unit][1 - self._model_form(number)] = extra
        must = [unit in (_SOURCE, self.sink) for unit in range(units)]
        problem = Problem.build(
            seconds=seconds,
            producer=self.producer,
            consumers=self.consumers,
            is_output=self.plain,
            to_device=_as_column(self.size),
            to_host=_as_column(self.size),
            launch=[0.0],
            must=must,
        )
        _, permuted = HostDeviceCuts(problem, 1, find_persistent_sides(problem, launch=0.0)).solve()
        form = {number: int(permuted[unit]) for number, unit in self.unit_of.items()}
        made = {
            value: int(permuted[self.producer[row]]) if self.producer[row] >= 0 else 0
            for value, row in self.row.items()
        }
        return ChosenForms(form, made, self._transposed_bytes(made, permuted))

    def _model_form(self, number: int) -> int:
        """Return the form that a node has in the model."""
        ports, node = self.frames.movable.get(number), self.nodes[number]
        return self.frames.form[node.input[ports.inputs[0]] if ports is not None else node.output[0]]

    def _transposed_bytes(self, made: Mapping[str, int], permuted: Bools) -> float:
        total = 0.0
        for value, row in self.row.items():
            in_layout = any(permuted[unit] for unit in self.consumers[row])
            in_plain = self.plain[row] or not all(permuted[unit] for unit in self.consumers[row])
            if in_layout if made[value] == 0 else in_plain:
                total += self.size[row]
        return total


def _as_column(values: Iterable[float]) -> list[list[float]]:
    return [[value] for value in values]
