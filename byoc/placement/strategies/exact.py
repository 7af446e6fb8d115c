"""The optimum by mixed integer programming."""

from dataclasses import dataclass
from typing import ClassVar

from byoc.errors import InputError
from byoc.placement.incumbents import find_incumbent
from byoc.placement.optimum import solve_exactly
from byoc.placement.problem import Problem
from byoc.placement.strategy import ALL_REQUIREMENTS, Placement


@dataclass(frozen=True)
class Exact:
    """Solve a mixed integer program by branch and cut (HiGHS).
    Proves the optimum for one accelerator at any size that the time limit allows, and for small graphs
    with several accelerators, connected regions, or limits of their size. Otherwise the bound is weaker
    and a note says why. With a limit of `seconds` the answer may depend on the machine; the bound is
    always what was proved.
    """

    name: ClassVar[str] = "exact"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS
    seconds: float = 600.0

    def solve(self, problem: Problem) -> Placement:
        """Return the placement. Raises InputError if none is found that keeps the limits."""
        found = solve_exactly(problem, find_incumbent(problem), self.seconds, None)
        if found is None:
            raise InputError("strategy exact: no placement keeps all the limits")
        return found
