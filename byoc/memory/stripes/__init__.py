"""Striped execution: cascades of row-wise layers that keep only some rows of their tensors in memory.

A plan gives the bands of rows in order, and for each tensor a window in the arena. The result of a layer
may lie over rows of its operand that nobody reads any more, so the arena can be smaller than both.
"""

from byoc.memory.stripes.problem import (
    ALL_ROWS,
    SAME_ROW,
    RowBand,
    RowLayer,
    RowNetwork,
    RowWindow,
    OperandRows,
    StripedPlan,
    RowTensor,
)
from byoc.memory.stripes.stripe import stripe

__all__ = [
    "ALL_ROWS",
    "SAME_ROW",
    "RowBand",
    "RowLayer",
    "RowNetwork",
    "RowWindow",
    "OperandRows",
    "StripedPlan",
    "RowTensor",
    "stripe",
]
