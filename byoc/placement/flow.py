"""Minimum cut in a network whose capacities are any non-negative floats."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from byoc.placement.problem import Bools, Floats, Ints

# Capacities become whole grains: the known cut holds fewer than 2**50 of them, so that float64
# still adds them exactly, in whatever order.
_GRAIN_BITS = 50
# scipy computes in int32 and wraps silently. Two opposite arcs of 2**29 leave it room.
_STEP_BITS = 29
_ENDLESS = 2**62


@dataclass(frozen=True, eq=False)
class Network:
    """Arcs from node to node; parallel arcs add up."""

    size: int
    source: int
    sink: int
    tail: Ints
    """int64 (arcs,)."""
    head: Ints
    """int64 (arcs,)."""
    capacity: Floats
    """float64 (arcs,): 0 or more, inf where the arc must not be cut."""


def minimum_cut(network: Network, ceiling: float, bits: int = _GRAIN_BITS) -> tuple[float, Bools]:
    """Return the value of a minimum cut and which nodes stand on its sink side, bool (size,).

    `ceiling` > 0 is the value of any known cut. Of all minimum cuts it is the one with the fewest
    nodes on the sink side; that one is unique, so that it does not depend on the numbering.

    Capacities are rounded down to less than `2**-40` of the cut that is found, then everything is
    exact: the value never exceeds the true one and is short of it by less than that per arc cut.
    Fewer `bits` than 50 round to `2**(10 - bits)` of it, faster.
    """
    value, sink_side = _cut_in_grains(network, ceiling, bits)
    cut = ~sink_side[network.tail] & sink_side[network.head]
    found = math.fsum(network.capacity[cut])
    # The known cut was far off, and so the grains were coarse.
    if 0 < found < ceiling / 2**8:
        return minimum_cut(network, found, bits)
    return value, sink_side


def _cut_in_grains(network: Network, ceiling: float, bits: int) -> tuple[float, Bools]:
    """Solve with capacities rounded down to `2**(1 - bits) * ceiling` or finer, and exactly from there.

    The precision beyond int32 comes from scaling (Gabow, Journal of Computer and System Sciences
    31, 1985): solve for the leading bits, take what is left of each arc, solve that for the next.
    """
    exponent = math.frexp(ceiling)[1]
    left = int(math.ldexp(ceiling, bits - exponent)) + 1
    residual = _in_grains(network, exponent, left, bits)
    value = 0
    while True:
        # No minimum cut holds an arc of more than the known cut: clipping just above changes none.
        shift = max(0, left.bit_length() - _STEP_BITS)
        step = residual.copy()
        step.data = np.minimum(step.data >> shift, (left >> shift) + 1)
        step.eliminate_zeros()
        found = maximum_flow(step.astype(np.int32), network.source, network.sink, method="dinic")
        flow = found.flow.astype(np.int64)
        value += int(found.flow_value) << shift
        sink_side = _reaching(network.sink, step - flow)
        if shift == 0:
            return math.ldexp(value, exponent - bits), sink_side
        flow.data <<= shift
        residual = residual - flow
        # What is endless stays so; nothing else comes near half of it.
        residual.data[residual.data > _ENDLESS // 2] = _ENDLESS
        left = _across(residual, sink_side)


def _in_grains(
    network: Network, exponent: int, ceiling: int, bits: int
) -> "csr_array[np.int64, tuple[int, int]]":
    # Twice the known cut is as good as endless, and does not overflow.
    bounded = np.minimum(network.capacity, math.ldexp(1, exponent + 1))
    grains = np.floor(np.ldexp(bounded, bits - exponent))
    # int32 indices, because csgraph takes no others.
    ends = (network.tail.astype(np.int32), network.head.astype(np.int32))
    matrix = coo_array((grains, ends), shape=(network.size, network.size)).tocsr()
    endless = matrix.data > ceiling
    matrix.data[endless] = 0
    whole = matrix.astype(np.int64)
    whole.data[endless] = _ENDLESS
    return whole


def _reaching(sink: int, residual: "csr_array[np.int64, tuple[int, int]]") -> Bools:
    """Tell which nodes reach the sink along arcs that have capacity left."""
    residual.eliminate_zeros()
    order = breadth_first_order(residual.T.tocsr(), sink, return_predecessors=False)
    reaching = np.zeros(residual.shape[0], np.bool_)
    reaching[order] = True
    return reaching


def _across(residual: "csr_array[np.int64, tuple[int, int]]", sink_side: Bools) -> int:
    """Return the capacity from the source side to the sink side."""
    tail = np.repeat(~sink_side, np.diff(residual.indptr))
    return int(residual.data[tail & sink_side[residual.indices]].sum())
