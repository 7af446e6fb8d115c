"""The strategies that come with byoc."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.placement.strategies._baselines import (
        AllSupported,
        Exhaustive,
        FasterOps,
        FasterOpsTransfer,
        HostOnly,
        ProviderOrder,
        ScheduledPlacement,
        measure_placement,
    )
    from byoc.placement.strategies._makespan import Makespan
    from byoc.placement.strategies._optimizing import Exact, LaunchAware, MinCut, TreeDP
    from byoc.placement.strategies._throughput import Throughput
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

BUILT_IN = {
    "all-supported": "byoc.placement.strategies._baselines:AllSupported",
    "exact": "byoc.placement.strategies._optimizing:Exact",
    "exhaustive": "byoc.placement.strategies._baselines:Exhaustive",
    "faster-ops": "byoc.placement.strategies._baselines:FasterOps",
    "faster-ops-transfer": "byoc.placement.strategies._baselines:FasterOpsTransfer",
    "host-only": "byoc.placement.strategies._baselines:HostOnly",
    "launch-aware": "byoc.placement.strategies._optimizing:LaunchAware",
    "makespan": "byoc.placement.strategies._makespan:Makespan",
    "min-cut": "byoc.placement.strategies._optimizing:MinCut",
    "provider-order": "byoc.placement.strategies._baselines:ProviderOrder",
    "throughput": "byoc.placement.strategies._throughput:Throughput",
    "tree-dp": "byoc.placement.strategies._optimizing:TreeDP",
}
"""Where each strategy is, by name; imported when it is asked for."""
