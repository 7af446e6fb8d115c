"""Striped execution: cascades of row-wise layers, of whose tensors only some rows live at a time.

    >>> from byoc.memory.stripes import ALL, Layer, Rows, Tensor, stripe
    >>> tensors = [Tensor("x", 56, 896), Tensor("y", 56, 3584), Tensor("z", 28, 1792)]
    >>> layers = [
    ...     Layer("conv", (("x", Rows(extent=3, before=1)),), ("y",)),
    ...     Layer("pool", (("y", Rows(extent=2, stride=2)),), ("z",)),
    ... ]
    >>> plan = stripe(tensors, layers, inputs=["x"], outputs=["z"])
    >>> plan.places["y"].window
    2

The result of `pool` lies over rows of `x` that are dead: `plan.size` is less than `x` and `z` together.
"""

from byoc.memory.stripes.problem import (
    ALL,
    SAME,
    Band,
    Layer,
    Network,
    Place,
    Rows,
    StripedPlan,
    Tensor,
)
from byoc.memory.stripes.stripe import stripe

__all__ = [
    "ALL",
    "SAME",
    "Band",
    "Layer",
    "Network",
    "Place",
    "Rows",
    "StripedPlan",
    "Tensor",
    "stripe",
]
