"""HiGHS with a limit of its work that is counted: the same program ends at the same place everywhere.

HiGHS itself has limits by the clock and by nodes, and most of its time may pass before the first node.
Its branch and cut asks from time to time whether to go on; what passes between two questions grows with
the program's entries, much more so before the first node, where cuts are added round by round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from byoc.numerics import SearchBudget

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
