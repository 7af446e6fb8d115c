"""The strategies that come with byoc, found by entry point as an outsider's are."""

from byoc.placement.strategies._baselines import AllSupported
from byoc.placement.strategies._makespan import ScheduledPlacement
from byoc.placement.strategies._optimizing import LaunchAware
