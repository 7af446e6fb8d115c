"""A builder for mixed integer programs, and HiGHS, which solves them within counted work."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from byoc.numerics import SearchBudget

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


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

    `constant` is added to the cost where a gap is a share of it.
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

Ints = NDArray[np.int64]

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
