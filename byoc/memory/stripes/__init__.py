"""Striped execution: cascades of row-wise layers that keep only some rows of their tensors in memory.

A plan gives the bands of rows in order, and for each tensor a window in the arena. The result of a layer
may lie over rows of its operand that nobody reads any more, so the arena can be smaller than both.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.stripes._striping import stripe
    from byoc.memory.stripes._striping_problem import (
        ALL_ROWS,
        SAME_ROW,
        LayerMode,
        OperandRows,
        RowLayer,
        RowTensor,
        RowWindow,
        StripedPlan,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
