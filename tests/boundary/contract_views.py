"""How each side of a boundary reads a contract by itself; no other room uses these parts."""

from byoc.boundary.contracts._boundary_nodes import (
    AxisStep,
    AxisTerm,
    AxisTerms,
)
from byoc.boundary.contracts._contract_check import (
    HostGraph,
    HostView,
)
from byoc.boundary.contracts._region_view import (
    ContractError,
    TensorView,
)

__all__ = [
    "AxisStep",
    "AxisTerm",
    "AxisTerms",
    "ContractError",
    "HostGraph",
    "HostView",
    "TensorView",
]
