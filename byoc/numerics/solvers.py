"""Solvers that rooms share: mixed integer programs (HiGHS, its work counted), and minimum cuts."""

import ctypes
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from byoc._dataclasses import dataclass, field
from byoc.numerics import SearchBudget

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
if TYPE_CHECKING:
    _Residual = scipy.sparse.csr_array[np.int64, tuple[int, int]]


# HiGHS with a limit of its work that is counted: the same program ends at the same place
# everywhere.
#
# HiGHS itself has limits by the clock and by nodes, and most of its time may pass before the first
# node. Its branch and cut asks from time to time whether to go on; what passes between two
# questions grows with the program's entries, much more so before the first node, where cuts are
# added round by round.

# Seconds for each entry of the program, on one core of about 3 GHz, from one question to the next:
# before the first node, where they grow with the rows, and after it.
_ROOT_SECONDS, _ROOT_ROW_SECONDS, _NODE_SECONDS = 1.3e-5, 1.2e-9, 1.8e-6
# Seconds of a program's first linear relaxation, by its rows times its entries.
_RELAXATION_SECONDS = 2e-8


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """Minimise `cost @ x` subject to `matrix @ x <= most`, `low <= x <= high`, and integrality.

    `constant` counts as a part of the cost where a relative gap is measured.
    """

    cost: Floats
    low: Floats
    high: Floats
    integral: Bools
    matrix: "scipy.sparse.csc_array"
    most: Floats
    constant: float = 0.0

    @property
    def relaxation_seconds(self) -> float:
        """The seconds that the first linear relaxation takes on an ordinary computer."""
        return _RELAXATION_SECONDS * self.matrix.shape[0] * self.matrix.nnz


@dataclass(frozen=True, eq=False)
class HighsAnswer:
    """The best solution and the lower bound that HiGHS found within a budget."""

    values: Floats | None
    """float64 (columns,); None if no solution was found."""
    bound: float
    """No solution costs less; -inf if nothing was proved, inf if the program is infeasible."""
    solved: bool


def can_count() -> bool:
    """Return whether this scipy lets the work of HiGHS be counted."""
    return hasattr(getattr(_find_highs(), "_Highs", None), "startCallbackInt")


@lru_cache(maxsize=1)
def _find_highs() -> Any:
    """Import HiGHS, which takes scipy a third of a second; None where scipy keeps it elsewhere."""
    try:
        return import_module("scipy.optimize._highspy._core")
    except ImportError:
        return None


def solve_counted(
    program: IntegerProgram, nodes: int | None, budget: SearchBudget, gap: float = 0.0
) -> HighsAnswer:
    """Solve a program; stop after so many branch-and-bound nodes, or where the budget is spent.

    It also stops at a solution that is proven to cost at most the share `gap` more than the best one.
    """
    core = _find_highs()
    highs = core._Highs()
    options = core.HighsOptions()
    options.output_flag = options.log_to_console = False
    options.mip_rel_gap = gap
    if nodes is not None:
        options.mip_max_nodes = nodes
    highs.passOptions(options)
    highs.passModel(_build_model(program))
    highs.setCallback(_make_counter(program.matrix, budget), None)
    highs.startCallbackInt(int(core.cb.kCallbackMipInterrupt))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == core.HighsModelStatus.kInfeasible:
        return HighsAnswer(None, np.inf, True)
    found = info.primal_solution_status == core.SolutionStatus.kSolutionStatusFeasible
    values = np.array(highs.getSolution().col_value) if found else None
    bound = float(info.mip_dual_bound) - program.constant
    return HighsAnswer(values, bound, status == core.HighsModelStatus.kOptimal)


def _make_counter(matrix: "scipy.sparse.csc_array", budget: SearchBudget) -> Callable[..., None]:
    at_root = (_ROOT_SECONDS + _ROOT_ROW_SECONDS * matrix.shape[0]) * matrix.nnz
    after = _NODE_SECONDS * matrix.nnz

    def count(_kind: int, _message: str, state: Any, answer: Any, _data: object) -> None:
        budget.spend(at_root if state.mip_node_count <= 0 else after)
        if budget.is_spent:
            answer.user_interrupt = True

    return count


def _build_model(program: IntegerProgram) -> Any:
    core = _find_highs()
    model, matrix = core.HighsLp(), program.matrix
    model.num_row_, model.num_col_ = matrix.shape
    model.offset_ = program.constant
    columns = model.a_matrix_
    columns.num_row_, columns.num_col_ = matrix.shape
    columns.format_ = core.MatrixFormat.kColwise
    columns.start_, columns.index_, columns.value_ = matrix.indptr, matrix.indices, matrix.data
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, program.low, program.high
    model.row_lower_, model.row_upper_ = np.full(len(program.most), -np.inf), program.most
    kinds = (core.HighsVarType.kContinuous, core.HighsVarType.kInteger)
    model.integrality_ = [kinds[each] for each in program.integral.astype(int).tolist()]
    return model


# A builder for mixed integer programs, solved by HiGHS.


# HiGHS stops at an absolute gap of 1e-6, which scipy cannot set. Costs scaled to this sum make it
# 1e-13 of the possible gain.
_SCALE = 1e7
# How far HiGHS's tolerances (1e-6 on integers, 1e-7 on rows and duals) may raise the bound, as a
# share of the costs at stake. Its presolve and cuts leave no proof that could be checked.
_SLACK = 1e-10
_LIFT = 2.0**400


@dataclass(frozen=True, eq=False)
class MilpSolution:
    """The solution that HiGHS found, and the bound that it proved."""

    values: Floats | None
    """float64 (columns,); None if no solution was found."""
    bound: float
    """No solution costs less; -inf if nothing was proved, inf if the program is infeasible."""
    solved: bool
    """Whether the search finished; if not, a limit stopped it."""
    slack: float = 0.0
    """The amount by which the bound was lowered for the solver's tolerances."""


@dataclass(eq=False)
class MilpBuilder:
    """Minimises cost @ x subject to low <= x <= high, integrality, and rows `a @ x <= b`."""

    cost: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
    integral: list[Bools] = field(default_factory=list)
    columns: int = 0
    rows: int = 0
    _row: list[Ints] = field(default_factory=list)
    _column: list[Ints] = field(default_factory=list)
    _value: list[Floats] = field(default_factory=list)
    _most: list[Floats] = field(default_factory=list)

    def add_columns(
        self, cost: ArrayLike, high: ArrayLike, integral: bool, low: ArrayLike = 0.0
    ) -> Ints:
        """Add columns between `low` >= 0 and `high`; return their numbers in the shape of `cost`."""
        costs = np.asarray(cost, np.float64)
        numbers: Ints = self.columns + np.arange(costs.size)
        self.cost.append(costs.ravel())
        for bounds, given in ((self.low, low), (self.high, high)):
            bounds.append(np.broadcast_to(np.asarray(given, np.float64), costs.shape).ravel())
        self.integral.append(np.full(costs.size, integral))
        self.columns += costs.size
        return numbers.reshape(costs.shape)

    def add_rows(self, most: ArrayLike, *terms: tuple[ArrayLike, ArrayLike]) -> None:
        """Add one row `sum of factor * x[column] <= most` for each entry of the columns.

        Columns of a term are int64 (rows,), its factors a number or one for each row.
        """
        count = np.asarray(terms[0][0]).size
        number = self.rows + np.arange(count)
        for columns, factors in terms:
            self._row.append(number)
            self._column.append(np.asarray(columns, np.int64).ravel())
            self._value.append(np.broadcast_to(np.asarray(factors, np.float64), (count,)).copy())
        self._most.append(np.broadcast_to(np.asarray(most, np.float64), (count,)).copy())
        self.rows += count

    def add_row(self, most: float, columns: ArrayLike, factors: ArrayLike) -> None:
        """Add the single row `sum of factors * x[columns] <= most`."""
        entries = np.asarray(columns, np.int64).ravel()
        self._row.append(np.full(entries.size, self.rows))
        self._column.append(entries)
        self._value.append(np.broadcast_to(np.asarray(factors, np.float64), entries.shape).copy())
        self._most.append(np.array([most], np.float64))
        self.rows += 1

    def solve(
        self,
        constant: float = 0.0,
        most: float = np.inf,
        budget: SearchBudget | None = None,
        nodes: int | None = None,
        gap: float = 0.0,
    ) -> MilpSolution:
        """Minimise `constant` + cost @ x within a budget and so many branch-and-bound nodes.
        A solution whose cost is proven to be at most the share `gap` above the least is taken, where the
        work of HiGHS can be counted.
        A program whose first relaxation takes more than the budget has is not begun, and spends it.
        `most` is the cost of a known solution, inf if none is known. A better solution cannot contain a
        cost above `most` minus all possible gains, so larger costs are reduced to that.
        """
        if not self.columns:
            return MilpSolution(np.zeros(0), constant, True)
        cost, high = np.concatenate(self.cost), np.concatenate(self.high)
        integral = np.concatenate(self.integral)
        gains = np.minimum(cost, 0) @ high
        cost = np.minimum(cost, max(0.0, most - constant - float(gains)) * (1 + 2.0**-40))
        # The reciprocal of a tiny cost would overflow.
        lift = _LIFT if np.abs(cost[high > 0]).sum() < 1 / _LIFT else 1.0
        cost *= lift
        stake = float(np.abs(cost[high > 0]).sum())
        scale = _SCALE / stake if stake else 1.0
        low, matrix = np.concatenate(self.low), self._build_matrix()
        program = IntegerProgram(
            cost * scale, low, high, integral, matrix, self._join(self._most), constant * lift * scale
        )
        if budget is not None and budget.left < program.relaxation_seconds:
            budget.spend(budget.left)
            return MilpSolution(None, -np.inf, False)
        with _redirect_stdout_to_stderr():
            if budget is not None and can_count() and integral.any():
                found = solve_counted(program, nodes, budget, gap)
            else:
                found = _solve_publicly(program, nodes)
        if found.solved and found.bound == np.inf:
            return MilpSolution(None, np.inf, True)
        bound, slack = -np.inf, _SLACK * (stake / lift + abs(constant))
        if np.isfinite(found.bound):
            bound = constant + found.bound / scale / lift - slack
        return MilpSolution(found.values, bound, found.solved, slack)

    def _build_matrix(self) -> "scipy.sparse.csc_array":
        """Return the factors of the rows, float64 (rows, columns)."""
        row, column = (
            np.concatenate(part) if part else np.zeros(0, np.int64) for part in (self._row, self._column)
        )
        entries = self._join(self._value), (row, column)
        return scipy.sparse.coo_array(entries, shape=(self.rows, self.columns)).tocsc()

    @staticmethod
    def _join(parts: list[Floats]) -> Floats:
        return np.concatenate(parts) if parts else np.zeros(0)


def _solve_publicly(program: IntegerProgram, nodes: int | None) -> HighsAnswer:
    """Solve a program by scipy's own interface, which limits nodes alone."""
    rows = scipy.optimize.LinearConstraint(program.matrix, -np.inf, program.most)
    result = scipy.optimize.milp(
        program.cost,
        integrality=program.integral.astype(np.int64),
        bounds=scipy.optimize.Bounds(program.low, program.high),
        constraints=rows if len(program.most) else (),
        options={"mip_rel_gap": 0.0} | ({} if nodes is None else {"node_limit": nodes}),  # type: ignore[arg-type]
    )
    if result.status == 2:
        return HighsAnswer(None, np.inf, True)
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound)
    return HighsAnswer(result.x, bound, result.status == 0)


@contextmanager
def _redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect the file descriptor of stdout to stderr.

    HiGHS prints there at times, whatever its options, and a program may be reading JSON from it.
    """
    try:
        flush = ctypes.CDLL(None).fflush
        kept = os.dup(1)
    except (OSError, AttributeError, TypeError):  # no such library or descriptor on this system
        yield
        return
    try:
        flush(None)
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


# Capacities become integers (grains). The known cut holds fewer than 2**50 of them, so float64 adds
# them exactly in any order.
_GRAIN_BITS = 50
# scipy computes in int32 and overflows silently. Two opposite arcs of 2**29 do not.
_STEP_BITS = 29
_INFINITE = 2**62
# Up to so many arcs, searching for paths in Python takes as long as one call of scipy, 2 to 8 ms, or
# where that is not imported yet, less than a tenth of its import, which takes 0.15 to 0.3 s.
_MAX_FOR_PATHS, _MAX_WITHOUT_IMPORT = 1000, 4000


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
    most = _MAX_FOR_PATHS if "scipy.sparse.csgraph" in sys.modules else _MAX_WITHOUT_IMPORT
    solve = _solve_by_paths if len(tail) <= most else _solve_in_grains
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
    """Solve as `_solve_in_grains`, in Python: by blocking flows (Dinic, Soviet Mathematics 11, 1970)."""
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
    while SOURCE in (distances := _measure_distances(entering)):
        for path in _find_shortest_paths(entering, distances):
            flow = min(entering[head][tail] for tail, head in pairwise(path))
            if flow == _INFINITE:
                return math.inf, _end_of_infinite_arcs(network)
            value += flow
            for tail, head in pairwise(path):
                entering[head][tail] -= flow if entering[head][tail] < _INFINITE else 0
                entering[tail][head] += flow if entering[tail][head] < _INFINITE else 0
    sink_side = np.zeros(network.size, np.bool_)
    sink_side[list(distances)] = True
    return math.ldexp(value, exponent - bits), sink_side


def _measure_distances(entering: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the distance to the sink, in arcs, of all nodes that reach it, or up to the source's."""
    distances = {SINK: 0}
    queue = deque([SINK])
    while queue and SOURCE not in distances:
        head = queue.popleft()
        for tail, capacity in entering[head].items():
            if capacity and tail not in distances:
                distances[tail] = distances[head] + 1
                queue.append(tail)
    return distances


def _find_shortest_paths(
    entering: Sequence[Mapping[int, int]], distances: Mapping[int, int]
) -> Iterator[list[int]]:
    """Yield shortest paths from the source to the sink until none is left.

    Whoever takes a path lowers the capacities along it, so that at least one of its arcs has none then.
    """
    # The arcs of each node that have not been found useless yet, the next one last.
    untried = {SOURCE: [*entering[SOURCE]], SINK: list[int]()}
    path = [SOURCE]
    while path:
        tail = path[-1]
        if tail == SINK:
            yield path
            full = next(i for i, (one, other) in enumerate(pairwise(path)) if not entering[other][one])
            del path[full + 1 :]
            continue
        nearer, heads = distances[tail] - 1, untried[tail]
        while heads and not (entering[heads[-1]][tail] and distances.get(heads[-1]) == nearer):
            heads.pop()
        if heads:
            path.append(heads[-1])
            untried.setdefault(heads[-1], [*entering[heads[-1]]])
        else:
            path.pop()
            if path:  # nothing leads on from there
                untried[path[-1]].pop()


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
