"""The options of `compare`, and the strategies that it tries unless told others."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.options import PlanOptions
from byoc.support import declare_field

FAST_STRATEGIES = (
    *("host-only", "all-supported", "faster-ops", "faster-ops-transfer", "tree-dp", "min-cut"),
    "launch-aware",
)
ONE_ACCELERATOR = "min-cut"
"""The one of them that places for a single accelerator alone."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(PlanOptions):
    """All choices of a comparison."""

    strategies: Sequence[str] = declare_field(
        (), "the strategies' names; fast ones that suit the number of accelerators unless given."
    )
    links: Sequence[float | None] = declare_field(
        (None,), "bandwidths of the link in GB/s, None for the cost model's own."
    )
    jobs: int | None = declare_field(
        None, "processes at a time, as many as there are processors by default."
    )
