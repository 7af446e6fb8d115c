"""Repeated blocks inside regions, such as a decoder's layers: cut apart, so that one is compiled.

A block is a run of units after which the same units follow again: equal operators, attributes, and types
of what they read and make. Of all ways to cut a run into blocks, the one is taken whose borders the
fewest seconds of tensors cross. Whether blocks are the same in all else is found out when regions are
compiled.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from byoc.model import GraphIndex
from byoc.patterns import JointUnit
from byoc.placement import Ints, Measure, Placement, Problem, evaluate, find_violation

_LEAST_NODES = 4
"""The nodes of the smallest block: less is not worth a launch."""
_PERIODS = 8
"""How many numbers of units are tried for a block."""


@dataclass(frozen=True)
class BlockRun:
    """A run of equal blocks in a sequence: its first position, the positions of a block, the blocks."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The position behind the last block."""
        return self.start + self.period * self.count

    @property
    def borders(self) -> list[int]:
        """The position at which each block begins, and the one behind the last."""
        return list(range(self.start, self.stop + 1, self.period))


def cut_blocks(
    index: GraphIndex,
    units: Sequence[JointUnit],
    problem: Problem,
    placement: Placement,
    devices: Collection[int],
) -> Placement:
    """Return a placement whose regions on some devices are cut at the borders of repeated blocks.

    Device numbers begin with 1. A region is left whole where cutting it would break a limit of its
    target; the placement's notes say so, and what the further launches cost.
    """
    if placement.measure is not Measure.total:
        return _add_note(placement, "repeated blocks are not cut: the objective is no sum of costs")
    describe = _TokenTable(index)
    for number in range(int(placement.regions.max(initial=-1)), -1, -1):  # earlier numbers stay valid
        rows = np.flatnonzero(placement.regions == number)
        device = int(placement.labels[rows[0]])
        if device not in devices:
            continue
        tokens = [describe.find_token(units[row]) for row in rows.tolist()]
        sizes = [len(units[row].nodes) for row in rows.tolist()]
        borders = find_borders(tokens, sizes, _sum_crossings(problem, rows, device))
        if len(borders) > 1:
            placement = _cut_region(problem, placement, number, rows, borders)
    return placement


def _cut_region(
    problem: Problem, placement: Placement, number: int, rows: Ints, borders: Sequence[int]
) -> Placement:
    """Return a placement with a region cut at some positions among its rows, the first being 0."""
    regions = np.where(
        placement.regions > number, placement.regions + len(borders) - 1, placement.regions
    )
    regions[rows] = number + np.searchsorted(borders, np.arange(len(rows)), side="right") - 1
    labels, fusions = placement.labels, placement.fusions
    try:
        cost = evaluate(problem, labels, regions, fusions)
        wrong = find_violation(problem, replace(placement, regions=regions, cost=cost, bound=None))
    except ValueError as error:
        wrong = str(error)
    if wrong:
        return _add_note(placement, f"a region with repeated blocks is left whole: cut, {wrong}")
    sizes = Counter(b - a for a, b in pairwise([*borders, len(rows)]))
    size, count = max(sizes.items(), key=lambda item: (item[0] * item[1], item[0]))
    note = (
        f"a region is cut into {len(borders)}, so that its {count} blocks of {size} units can be "
        f"compiled once; the further launches take {cost.total - placement.cost.total:.3g} s"
    )
    return _add_note(replace(placement, regions=regions, cost=cost), note)


def _add_note(placement: Placement, note: str) -> Placement:
    return replace(placement, notes=(*placement.notes, note))


def find_borders(tokens: Sequence[int], sizes: Sequence[int], crossings: Sequence[float]) -> list[int]:
    """Return the positions at which a sequence of units is cut: 0, and the borders of repeated blocks.

    Units of equal `tokens` are alike; `sizes` are their nodes, and `crossings` what crosses a cut before
    each unit. Runs are found from the longest on, then to both sides of it.
    """
    borders = {0}
    waiting = [(0, len(tokens))]
    while waiting:
        first, stop = waiting.pop()
        run = _find_run(np.array(tokens[first:stop], np.int64), sizes[first:stop], crossings[first:stop])
        if run is not None:
            borders.update(first + border for border in run.borders)
            waiting += [(first, first + run.start), (first + run.stop, stop)]
    return sorted(borders - {len(tokens)})


def _find_run(tokens: Ints, sizes: Sequence[int], crossings: Sequence[float]) -> BlockRun | None:
    """Return the run of blocks of which most units need not be compiled, None without any."""
    best: tuple[int, BlockRun] | None = None
    for least in _list_periods(tokens):
        start, length = _find_longest(tokens[:-least] == tokens[least:])
        period, length = least, length + least
        while period < length and sum(sizes[start : start + period]) < _LEAST_NODES:
            period += least  # several small ones are a block
        if length < 2 * period:
            continue
        run = _choose_borders(BlockRun(start, period, 0), length, crossings)
        saved = (run.count - 1) * period
        if best is None or (saved, -period) > (best[0], -best[1].period):
            best = saved, run
    return None if best is None else best[1]


def _list_periods(tokens: Ints) -> list[int]:
    """Return the commonest distances between units that are alike, at most half of the sequence."""
    order = np.argsort(tokens, kind="stable")
    distances = np.diff(order)[np.diff(tokens[order]) == 0]
    values, counts = np.unique(distances[2 * distances <= tokens.size], return_counts=True)
    return [int(value) for value in values[np.argsort(-counts, kind="stable")][:_PERIODS]]


def _find_longest(same: np.ndarray) -> tuple[int, int]:
    """Return the start and the length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not edges.size:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _choose_borders(run: BlockRun, length: int, crossings: Sequence[float]) -> BlockRun:
    """Return the run within `length` positions at whose borders the least crosses.

    It may have a block less than would be possible.
    """
    most = length // run.period
    shifts = range(run.period if most > 2 else length % run.period + 1)
    runs = [BlockRun(run.start + shift, run.period, (length - shift) // run.period) for shift in shifts]

    def rate(each: BlockRun) -> tuple[float, int, int]:
        inner = each.borders[1:-1]
        crossing = sum(crossings[at] for at in inner) / len(inner)
        return float(f"{crossing:.6g}"), -each.count, each.start  # equal but for rounding is equal

    return min(runs, key=rate)


def _sum_crossings(problem: Problem, rows: Ints, device: int) -> list[float]:
    """Return the seconds of the region's tensors that a cut before each of its units crosses."""
    position = np.full(problem.units + 1, -1, np.int64)
    position[rows] = np.arange(len(rows))
    last = np.full(problem.tensors, -1, np.int64)
    np.maximum.at(last, problem.consumed, position[problem.consumers])
    made = position[problem.producer]
    inside = (made >= 0) & (last > made)
    seconds = (problem.to_host[:, device - 1] + problem.to_device[:, device - 1])[inside]
    change = np.zeros(len(rows) + 1)
    np.add.at(change, made[inside] + 1, seconds)
    np.add.at(change, last[inside] + 1, -seconds)
    found: list[float] = np.cumsum(change)[:-1].tolist()
    return found


class _TokenTable:
    """Numbers of units that are alike, by what their nodes are."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._tokens: dict[Hashable, int] = {}

    def find_token(self, unit: JointUnit) -> int:
        """Return the number of a unit, the same for units whose nodes are alike."""
        key = tuple(map(self._describe_node, unit.nodes))
        return self._tokens.setdefault(key, len(self._tokens))

    def _describe_node(self, number: int) -> Hashable:
        index = self._index
        node = index.nodes[number]
        attributes = sorted(each.SerializeToString(deterministic=True) for each in node.attribute)
        reads = [(index.types.get(name), index.is_constant(name)) for name in index.node_inputs[number]]
        makes = [index.types.get(name) for name in index.node_outputs[number]]
        return (node.domain, node.op_type, tuple(attributes), tuple(reads), tuple(makes))
