"""Choices of precisions, for tests."""

import numpy as np
from numpy.typing import NDArray

from byoc.quantization._choose_precision import PrecisionProblem
from byoc.quantization._trade_search import build_precision_program


def find_cost(problem: PrecisionProblem, levels: NDArray[np.int64]) -> float:
    """Return the least cost of a choice: units that are in floats may be on the host."""
    program = build_precision_program(problem, np.full(problem.noise.shape[2], 1e9))
    for places, level in zip(program.placed, levels.tolist(), strict=True):
        if level:
            program.builder.add_row(-1, places[:, level], np.full(len(places), -1.0))
        else:
            program.builder.add_rows(0, (places[:, 1:].ravel(), 1))
    solution = program.builder.solve(program.constant)
    assert solution.values is not None
    return program.sum_cost(solution.values)
