"""Minimum cut in a network whose capacities are any non-negative floats."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import ArrayLike

from byoc.numerics.solvers._milp_builder import Bools, Floats, Ints

if TYPE_CHECKING:
    _Residual = scipy.sparse.csr_array[np.int64, tuple[int, int]]

# Capacities become integers (grains). The known cut holds fewer than 2**50 of them, so float64 adds
# them exactly in any order.
_GRAIN_BITS = 50
# scipy computes in int32 and overflows silently. Two opposite arcs of 2**29 do not.
_STEP_BITS = 29
_INFINITE = 2**62
# Up to so many arcs, searching for paths in Python takes less time than one call of scipy.
_MAX_FOR_PATHS = 200


SOURCE, SINK = 0, 1
"""The numbers of two nodes of every network."""


@dataclass(frozen=True, eq=False)
class _CutNetwork:
    """Arcs from node to node, int64 (arcs,) each, and their capacities, float64 (arcs,)."""

    size: int
    tail: Ints
    head: Ints
    capacity: Floats


def find_minimum_cut(
    size: int, arcs: Sequence[ArrayLike], ceiling: float | None = None, bits: int = _GRAIN_BITS
) -> tuple[float, Bools]:
    """Return the value of a minimum cut, and the nodes on its sink side, bool (size,).
    `arcs` are the tails, the heads and the capacities of all arcs: 0 or more, infinite where an arc must
    not be cut; parallel arcs add up. Where such arcs lead from the source to the sink, no cut is finite:
    the value is infinite, and the nodes are those from which they lead to the sink. `ceiling` > 0 is the
    value of any known cut. Among all minimum cuts it is the one with the fewest nodes on the sink side,
    which is unique and so independent of the numbering.

    Capacities are rounded down to less than `2**-40` of the cut that is found, then everything is exact:
    the value never exceeds the true one and is short of it by less than that per cut arc; integers below
    2**50 in all are exact. Fewer `bits` than 50 round to `2**(10 - bits)` of it and are faster.
    """
    tail, head = (np.asarray(side, np.int64) for side in arcs[:2])
    network = _CutNetwork(size, tail, head, np.asarray(arcs[2], np.float64))
    ceiling = _find_some_cut(network) if ceiling is None else ceiling
    if not ceiling:
        return 0.0, np.arange(size) == SINK
    solve = _solve_by_paths if len(tail) <= _MAX_FOR_PATHS else _solve_in_grains
    value, sink_side = solve(network, ceiling, bits)
    cut = ~sink_side[network.tail] & sink_side[network.head]
    found = math.fsum(network.capacity[cut])
    # The known cut was far above the minimum, so the grains were too coarse.
    if 0 < found < ceiling / 2**8:
        return find_minimum_cut(size, arcs, found, bits)
    return value, sink_side


def _find_some_cut(network: _CutNetwork) -> float:
    """Return the value of some cut, or more; 0 only if nothing enters the sink."""
    capacity = network.capacity
    entering = math.fsum(capacity[network.head == SINK])
    value = min(entering, math.fsum(capacity[network.tail == SOURCE])) or entering
    # A finite cut contains no infinite arc.
    return value if value < math.inf else math.fsum(capacity[capacity < math.inf]) or 1.0


def _solve_by_paths(network: _CutNetwork, ceiling: float, bits: int) -> tuple[float, Bools]:
    """Solve as `_solve_in_grains`, by shortest paths (Edmonds and Karp, Journal of the ACM 19, 1972)."""
    exponent = math.frexp(ceiling)[1]
    left = int(math.ldexp(ceiling, bits - exponent)) + 1
    # For each node, the residual capacities of the arcs that enter it, by their tails.
    entering: list[dict[int, int]] = [{} for _ in range(network.size)]
    bounded = np.minimum(network.capacity, math.ldexp(1, exponent + 1))
    grains = np.floor(np.ldexp(bounded, bits - exponent)).astype(np.int64).tolist()
    for tail, head, capacity in zip(network.tail.tolist(), network.head.tolist(), grains, strict=True):
        entering[head][tail] = entering[head].get(tail, 0) + capacity
        entering[tail].setdefault(head, 0)
    for arcs in entering:
        for tail, capacity in arcs.items():
            arcs[tail] = _INFINITE if capacity > left else capacity
    value = 0
    while True:
        following = _search_backwards(entering)
        if SOURCE not in following:
            sink_side = np.zeros(network.size, np.bool_)
            sink_side[list(following)] = True
            return math.ldexp(value, exponent - bits), sink_side
        path = [SOURCE]
        while path[-1] != SINK:
            path.append(following[path[-1]])
        flow = min(entering[head][tail] for tail, head in pairwise(path))
        if flow == _INFINITE:
            return math.inf, _end_of_infinite_arcs(network)
        value += flow
        for tail, head in pairwise(path):
            entering[head][tail] -= flow if entering[head][tail] < _INFINITE else 0
            entering[tail][head] += flow if entering[tail][head] < _INFINITE else 0


def _search_backwards(entering: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return nodes that reach the sink, until the source is found, each with the next on its path."""
    following = {SINK: SINK}
    queue = deque([SINK])
    while queue and SOURCE not in following:
        head = queue.popleft()
        for tail, capacity in entering[head].items():
            if capacity and tail not in following:
                following[tail] = head
                queue.append(tail)
    return following


def _solve_in_grains(network: _CutNetwork, ceiling: float, bits: int) -> tuple[float, Bools]:
    """Solve with capacities rounded down to `2**(1 - bits) * ceiling` or finer.
    The precision beyond int32 comes from scaling (Gabow, Journal of Computer and System Sciences 31,
    1985): solve for the leading bits, then for the next bits of the residual capacities.
    """
    unbounded = _end_of_infinite_arcs(network)
    if unbounded[SOURCE]:
        return math.inf, unbounded
    exponent = math.frexp(ceiling)[1]
    left = int(math.ldexp(ceiling, bits - exponent)) + 1
    residual = _round_to_grains(network, exponent, left, bits)
    value = 0
    while True:
        # No minimum cut contains an arc above the known cut, so clipping just above changes none.
        shift = max(0, left.bit_length() - _STEP_BITS)
        step = residual.copy()
        step.data = np.minimum(step.data >> shift, (left >> shift) + 1)
        step.eliminate_zeros()
        found = scipy.sparse.csgraph.maximum_flow(step.astype(np.int32), SOURCE, SINK, method="dinic")
        flow = found.flow.astype(np.int64)
        value += int(found.flow_value) << shift
        sink_side = _nodes_reaching(step - flow)
        if shift == 0:
            return math.ldexp(value, exponent - bits), sink_side
        flow.data <<= shift
        residual = residual - flow
        # Infinite capacities stay infinite; nothing else comes near half of `_INFINITE`.
        residual.data[residual.data > _INFINITE // 2] = _INFINITE
        left = _capacity_across(residual, sink_side)


def _round_to_grains(network: _CutNetwork, exponent: int, ceiling: int, bits: int) -> "_Residual":
    # Twice the known cut is as good as infinite and does not overflow.
    bounded = np.minimum(network.capacity, math.ldexp(1, exponent + 1))
    grains = np.floor(np.ldexp(bounded, bits - exponent))
    # csgraph accepts int32 indices only.
    ends = (network.tail.astype(np.int32), network.head.astype(np.int32))
    matrix = scipy.sparse.coo_array((grains, ends), shape=(network.size, network.size)).tocsr()
    infinite = matrix.data > ceiling
    matrix.data[infinite] = 0
    whole = matrix.astype(np.int64)
    whole.data[infinite] = _INFINITE
    return whole


def _end_of_infinite_arcs(network: _CutNetwork) -> Bools:
    """Mark the nodes that reach the sink along arcs that must not be cut."""
    infinite = np.flatnonzero(np.isinf(network.capacity))
    ends = (network.tail[infinite].astype(np.int32), network.head[infinite].astype(np.int32))
    shape = (network.size, network.size)
    return _nodes_reaching(
        scipy.sparse.coo_array((np.ones(len(infinite), np.int64), ends), shape).tocsr()
    )


def _nodes_reaching(residual: "_Residual") -> Bools:
    """Mark the nodes that reach the sink along arcs with residual capacity."""
    residual.eliminate_zeros()
    order = scipy.sparse.csgraph.breadth_first_order(residual.T.tocsr(), SINK, return_predecessors=False)
    reaching = np.zeros(residual.shape[0], np.bool_)
    reaching[order] = True
    return reaching


def _capacity_across(residual: "_Residual", sink_side: Bools) -> int:
    """Return the capacity from the source side to the sink side."""
    tail = np.repeat(~sink_side, np.diff(residual.indptr))
    return int(residual.data[tail & sink_side[residual.indices]].sum())
