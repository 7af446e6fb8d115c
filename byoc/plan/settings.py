"""The settings of planning: accelerators, costs, the strategy, what is known from earlier rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from byoc.costs.model import CostModel, Policy
from byoc.costs.objective import LATENCY, Objective
from byoc.costs.problem import Device
from byoc.placement import UNLIMITED, Strategy
from byoc.plan._refusals import KnownLimits, SizeLimit
from byoc.plan.saved import Saved
from byoc.plan.wants import wants_of
from byoc.rules.load import Target


@dataclass(frozen=True, eq=False)
class Settings:
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
    unknown: Policy = Policy.estimate
    trips: Mapping[str, float] = field(default_factory=dict)
    saved: Saved | None = None
    known: KnownLimits = field(default_factory=KnownLimits)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The accelerators as the placement problem sees them."""
        sizes = (self.known.sizes.get(target.name) for target in self.targets)
        return tuple(map(_describe_device, self.targets, self.costs, sizes))


def _describe_device(target: Target, costs: CostModel, size: SizeLimit | None) -> Device:
    limits = target.rules.limits
    most = UNLIMITED if limits.max_nodes is None else min(limits.max_nodes, UNLIMITED)
    return Device(
        name=target.name,
        costs=costs,
        connected=target.rules.regions == "connected",
        min_nodes=min(limits.min_nodes or 0, UNLIMITED),
        max_nodes=most if size is None else min(most, size.nodes),
        max_regions=UNLIMITED if limits.regions is None else min(limits.regions, UNLIMITED),
        memory=inf if limits.memory is None else float(limits.memory),
        wants=wants_of(target),
    )
