"""Studies solved in the process of a test, for what is not about the processes that they start."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from byoc.comparison import StudyCase, _study_run
from byoc.comparison._case_schedulers import Solved, solve_here


@contextmanager
def solve_studies_here() -> Iterator[None]:
    """Solve all cases of studies here, one after the other; nothing is limited by the clock."""

    def solve(cases: Sequence[StudyCase], jobs: int | None) -> Iterator[Solved]:
        return iter(solve_here(cases))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_study_run, "solve_in_processes", solve)
        yield


@pytest.fixture
def here() -> Iterator[None]:
    """Solve studies here for a whole test."""
    with solve_studies_here():
        yield
