"""The settings of planning: accelerators, costs, the strategy, what is known from earlier rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from byoc.costs.model import CostModel, Policy
from byoc.costs.objective import LATENCY, Objective
from byoc.costs.problem import PlacementDevice
from byoc.placement import UNLIMITED, Strategy
from byoc.plan._refusals import KnownLimits, SizeLimit
from byoc.plan.saved import SavedPlacement
from byoc.plan.wants import read_requirements
from byoc.rules.load import Target


@dataclass(frozen=True, eq=False)
class PlanSettings:
    """The settings of planning, which are the same for all graphs of a model.

    `costs` has a model for each of the `targets`. `trips` gives how often some Loops and Scans run, by
    node name; `unknown` what to do about costs that are not known; `saved` a placement to keep to;
    `known` the limits of targets that turned out in earlier rounds.
    """

    targets: tuple[Target, ...]
    costs: tuple[CostModel, ...]
    host: CostModel
    strategy: Strategy
    objective: Objective = LATENCY
    unknown_costs: Policy = Policy.estimate
    trips: Mapping[str, float] = field(default_factory=dict)
    placement: SavedPlacement | None = None
    known_limits: KnownLimits = field(default_factory=KnownLimits)

    @property
    def devices(self) -> tuple[PlacementDevice, ...]:
        """The accelerators as the placement problem sees them."""
        sizes = (self.known_limits.sizes.get(target.name) for target in self.targets)
        return tuple(map(_describe_device, self.targets, self.costs, sizes))


def _describe_device(target: Target, costs: CostModel, size: SizeLimit | None) -> PlacementDevice:
    limits = target.rules.limits
    most = UNLIMITED if limits.max_nodes is None else min(limits.max_nodes, UNLIMITED)
    return PlacementDevice(
        name=target.name,
        costs=costs,
        connected=target.rules.regions == "connected",
        min_nodes=min(limits.min_nodes or 0, UNLIMITED),
        max_nodes=most if size is None else min(most, size.nodes),
        max_regions=UNLIMITED if limits.regions is None else min(limits.regions, UNLIMITED),
        memory=inf if limits.memory is None else float(limits.memory),
        wants=read_requirements(target),
    )
