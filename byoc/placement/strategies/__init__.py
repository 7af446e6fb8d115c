"""The strategies that come with byoc, found by the table in `_built_in.py`."""

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
