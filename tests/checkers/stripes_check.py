"""A plan is replayed, band by band, against the layers it was made for.

Shares nothing with the planner: no units, no clock, no lives, only what each byte of the arena holds.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes import RowLayer, RowTensor, StripedPlan
from byoc.memory.stripes._striping_problem import RowBand


class PlanError(Exception):
    """What is wrong with a plan: the band by number, the layer, and the row."""


def check(
    tensors: Iterable[RowTensor],
    layers: Iterable[RowLayer],
    inputs: Iterable[str],
    outputs: Iterable[str],
    plan: StripedPlan,
) -> None:
    """Raise PlanError at the first thing wrong.

    Refused are: a band out of turn, or a row computed twice; a layer left out, or rows of it, unless
    others of its rows are read and these are not; a row read that nobody has made, that is not complete
    or of which a byte was overwritten; a row written over one that the same band reads, unless the layer
    may; scratch over either; a tensor without a place, and a place that is not inside the arena.
    """
    replay = _Replay({each.name: each for each in tensors}, {each.name: each for each in layers}, plan)
    replay.refuse_places()
    replay.give(inputs)
    for number, band in enumerate(plan.bands):
        replay.run(number, band)
    replay.finish(outputs)


class _Replay:
    """What each byte holds: a row's number, counted over all tensors, or -1.

    Bytes stand for as many as divide all offsets and sizes.
    """

    def __init__(
        self, tensors: Mapping[str, RowTensor], layers: Mapping[str, RowLayer], plan: StripedPlan
    ) -> None:
        self.tensors, self.layers, self.plan = tensors, layers, plan
        scratch = [each.scratch for each in layers.values()]
        numbers = [n for place in plan.places.values() for n in (place.offset, place.row_bytes)]
        numbers += [each.row_bytes for each in tensors.values()]
        self.unit = max(math.gcd(*numbers, *scratch, *plan.scratch.values()), 1)
        cells = plan.size // self.unit
        self.holds: NDArray[np.int64] = np.full(cells, -1, dtype=np.int64)
        self.in_use: NDArray[np.bool_] = np.zeros(cells, dtype=bool)
        heights = [each.rows for each in tensors.values()]
        self.base = dict(zip(tensors, [0, *accumulate(heights)], strict=False))
        self.sums = {
            name for each in layers.values() if each.mode == "reduction" for name in each.writes
        }
        self.done = dict.fromkeys(layers, 0)
        self.complete: set[str] = set()
        self.seen: set[str] = set()
        self.where = "the inputs"

    def refuse_places(self) -> None:
        """Every tensor, and the scratch of every layer that needs some, lies inside the arena."""
        for name, tensor in self.tensors.items():
            place = self.plan.places.get(name)
            if place is None or place.row_bytes < tensor.row_bytes or place.window < 1:
                raise PlanError(f"{name!r} has no place for its rows")
            if place.offset < 0 or place.offset + place.window * place.row_bytes > self.plan.size:
                raise PlanError(f"{name!r} lies outside the arena")
        for layer in (each for each in self.layers.values() if each.scratch):
            begin = self.plan.scratch.get(layer.name, -1)
            if begin < 0 or begin + layer.scratch > self.plan.size:
                raise PlanError(f"the scratch of {layer.name!r} lies outside the arena")

    def give(self, names: Iterable[str]) -> None:
        """All rows of the inputs are there at once."""
        rows = [(name, row) for name in names for row in range(self.tensors[name].rows)]
        for name, row in rows:
            self._write(name, row)
        for name, row in rows:
            self._read(name, row)

    def run(self, number: int, band: RowBand) -> None:
        """One band."""
        self.where = f"band {number} of {band.layer!r}"
        layer = self.layers.get(band.layer)
        if layer is None:
            raise PlanError(f"{self.where}: there is no such layer")
        height = self._height(layer)
        last = band.first_row + band.rows - 1
        if band.first_row != self.done[layer.name] or band.rows < 1 or last >= height:
            done = self.done[layer.name]
            raise PlanError(f"{self.where}: rows {band.first_row} to {last} after {done} of {height}")
        if layer.mode == "whole" and band.rows != height:
            raise PlanError(f"{self.where}: the layer cannot run by rows")
        used = [self._read(name, row) for name, row in self._operands(layer, band)]
        used += self._scratch(layer, used)
        for cells in used:
            self.in_use[cells] = True
        self._results(layer, band)
        for cells in used:
            self.in_use[cells] = False
        self.done[layer.name] += band.rows
        if self.done[layer.name] == height:
            self.complete.update(layer.writes)

    def finish(self, outputs: Iterable[str]) -> None:
        """All layers have run, and all outputs are there, whole."""
        self.where = "the end"
        for layer in self.layers.values():
            done, height = self.done[layer.name], self._height(layer)
            is_read = layer.mode == "rows" and not self.seen.isdisjoint(layer.writes)
            if done < height and not is_read:
                raise PlanError(f"{self.where}: {layer.name!r} has run for {done} rows of {height}")
        for name in outputs:
            for row in range(self.tensors[name].rows):
                self._read(name, row)

    def _height(self, layer: RowLayer) -> int:
        return self.tensors[layer.reads[0][0] if layer.mode == "reduction" else layer.writes[0]].rows

    def _operands(self, layer: RowLayer, band: RowBand) -> list[tuple[str, int]]:
        """What the band reads: tensors and rows."""
        wanted: dict[tuple[str, int], None] = {}
        for name, rows in layer.reads:
            height = self.tensors[name].rows
            for result in range(band.first_row, band.first_row + band.rows):
                first = 0 if layer.mode == "whole" else result * rows.stride // rows.repeat - rows.before
                end = height if layer.mode == "whole" else min(first + rows.extent, height)
                wanted.update(dict.fromkeys((name, row) for row in range(max(first, 0), end)))
        names = dict.fromkeys(name for name, _ in wanted)
        self.seen.update(names)
        for name in names:
            self._refuse_half_a_sum(name)
        return list(wanted)

    def _refuse_half_a_sum(self, name: str) -> None:
        if name in self.sums and name not in self.complete:
            raise PlanError(f"{self.where}: {name!r} is read before all rows are added")

    def _scratch(self, layer: RowLayer, used: Iterable[slice]) -> list[slice]:
        if not layer.scratch:
            return []
        begin = self.plan.scratch[layer.name]
        there = slice(begin // self.unit, (begin + layer.scratch) // self.unit)
        if any(there.start < cells.stop and cells.start < there.stop for cells in used):
            raise PlanError(f"{self.where}: its scratch lies over rows that it reads")
        self.holds[there] = -1
        return [there]

    def _results(self, layer: RowLayer, band: RowBand) -> None:
        adds = layer.mode == "reduction"
        rows = range(1) if adds else range(band.first_row, band.first_row + band.rows)
        for name in layer.writes:
            if adds and band.first_row > 0:
                self._read(name, 0)
            for row in rows:
                there = self._cells(name, row)
                may = {self.base[other] + row for other in self._under(layer, name, row)}
                if not may.issuperset(self.holds[there][self.in_use[there]].tolist()):
                    raise PlanError(f"{self.where}: row {row} of {name!r} lies over what the band needs")
                self._write(name, row)
        for name in layer.writes:  # a window of fewer rows than the band, or results over one another
            for row in rows:
                self._read(name, row)

    def _under(self, layer: RowLayer, name: str, row: int) -> list[str]:
        """The operands whose row is exactly where this row goes, and may be written over."""
        there = self._cells(name, row)
        alone = [
            other for other in layer.may_overwrite if [each for each, _ in layer.reads].count(other) == 1
        ]
        return [other for other in alone if name == layer.writes[0] and self._cells(other, row) == there]

    def _cells(self, name: str, row: int) -> slice:
        place = self.plan.places[name]
        begin = (place.offset + row % place.window * place.row_bytes) // self.unit
        return slice(begin, begin + self.tensors[name].row_bytes // self.unit)

    def _read(self, name: str, row: int) -> slice:
        there = self._cells(name, row)
        if np.any(self.holds[there] != self.base[name] + row):
            raise PlanError(f"{self.where}: row {row} of {name!r} is not there")
        return there

    def _write(self, name: str, row: int) -> None:
        self.holds[self._cells(name, row)] = self.base[name] + row
