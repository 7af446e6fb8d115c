"""The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from byoc.boundary.edit import Scope
from byoc.boundary.transposes.facts import lasting
from byoc.boundary.transposes.frames import Frames
from byoc.placement.cuts import Cuts
from byoc.placement.decided import decided
from byoc.placement.problem import Bools, Problem

_SOURCE = 0  # the unit that makes what comes in the layout and cannot come otherwise


@dataclass(frozen=True, eq=False)
class Forms:
    """The chosen forms of nodes by number, and the form in which each value is made."""

    node: Mapping[int, int]
    made: Mapping[str, int]
    bytes: float
    """What is transposed, in bytes."""


def choose(scope: Scope, frames: Frames, size: Callable[[str], int]) -> Forms:
    """Choose the forms with the fewest bytes transposed, and among those the fewest changed nodes.

    Each node of `frames.movable` runs in one of two forms, in which it reads and makes its tensors;
    regions and all other nodes keep the forms of the model. A value that is made in one form and read in
    the other costs one Transpose of its bytes (`size` of its name), however many nodes read it. This is
    a minimum cut with the values as arcs (`byoc.placement`, with the host as form 0 and an accelerator
    as form 1), so no choice of forms transposes fewer bytes.
    """
    return _Posed(scope, frames, size).solved()


class _Posed:
    def __init__(self, scope: Scope, frames: Frames, size: Callable[[str], int]) -> None:
        self.frames = frames
        self.nodes = scope.nodes
        turned = (i for i, turn in frames.turning.items() if self.nodes[i].output[0] in frames.frame)
        self.units = sorted([*frames.movable, *turned])
        self.unit_of = {number: unit for unit, number in enumerate(self.units, _SOURCE + 1)}
        self.sink = len(self.units) + 1
        values = list(dict.fromkeys(frames.value.values()))
        self.row = {value: row for row, value in enumerate(values)}
        self.size = [float(size(value)) for value in values]
        self.producer = [_SOURCE if frames.frame[value] else -1 for value in values]
        self.consumers: list[set[int]] = [set() for _ in values]
        self.plain = [False] * len(values)
        for i, node in enumerate(self.nodes):
            if i not in frames.links:
                self._read(i, scope.reads(node))
                self._make(i)
        for name in lasting(scope):
            self._demand(name)

    def _row(self, name: str) -> int:
        return self.row[self.frames.value[name]]

    def _demand(self, name: str) -> None:
        """Record that a tensor is read in the form that it has in the model."""
        if name in self.frames.frame:
            if self.frames.frame[name]:
                self.consumers[self._row(name)].add(self.sink)
            else:
                self.plain[self._row(name)] = True

    def _read(self, number: int, names: Sequence[str]) -> None:
        if number in self.frames.turning or number in self.frames.shapes:
            return  # reads whichever form there is
        ports = self.frames.movable.get(number)
        node = self.nodes[number]
        if ports is None:
            for name in names:
                self._demand(name)
            return
        for i, name in enumerate(node.input):
            if i in ports.data:
                self.consumers[self._row(name)].add(self.unit_of[number])
            elif i not in ports.constants:
                self._demand(name)

    def _make(self, number: int) -> None:
        if number not in self.unit_of:
            return
        ports, node = self.frames.movable.get(number), self.nodes[number]
        for i in ports.made if ports is not None else (0,):
            self.producer[self._row(node.output[i])] = self.unit_of[number]

    def solved(self) -> Forms:
        units = self.sink + 1
        # Less than one byte for all together: it only decides between equals.
        extra = 0.25 / units
        seconds = [[0.0, 0.0] for _ in range(units)]
        for number, unit in self.unit_of.items():
            seconds[unit][1 - self._written(number)] = extra
        must = [unit in (_SOURCE, self.sink) for unit in range(units)]
        problem = Problem.build(
            seconds=seconds,
            producer=self.producer,
            consumers=self.consumers,
            is_output=self.plain,
            to_device=_column(self.size),
            to_host=_column(self.size),
            launch=[0.0],
            must=must,
        )
        _, permuted = Cuts(problem, 1, decided(problem, launch=0.0)).best()
        form = {number: int(permuted[unit]) for number, unit in self.unit_of.items()}
        made = {
            value: int(permuted[self.producer[row]]) if self.producer[row] >= 0 else 0
            for value, row in self.row.items()
        }
        return Forms(form, made, self._bytes(made, permuted))

    def _written(self, number: int) -> int:
        """Return the form that a node has in the model."""
        ports, node = self.frames.movable.get(number), self.nodes[number]
        return self.frames.frame[node.input[ports.data[0]] if ports is not None else node.output[0]]

    def _bytes(self, made: Mapping[str, int], permuted: Bools) -> float:
        total = 0.0
        for value, row in self.row.items():
            in_layout = any(permuted[unit] for unit in self.consumers[row])
            in_plain = self.plain[row] or not all(permuted[unit] for unit in self.consumers[row])
            if in_layout if made[value] == 0 else in_plain:
                total += self.size[row]
        return total


def _column(values: Iterable[float]) -> list[list[float]]:
    return [[value] for value in values]
