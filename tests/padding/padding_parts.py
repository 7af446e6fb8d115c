"""Parts of the proof that an input may be padded; no other room uses them."""

from byoc.padding._padded_graph import (
    UNPADDED,
    Assumptions,
    PaddedGraph,
    Part,
    Zone,
)
from byoc.padding._value_bounds import (
    ValueBounds,
)

__all__ = [
    "UNPADDED",
    "Assumptions",
    "PaddedGraph",
    "Part",
    "ValueBounds",
    "Zone",
]
