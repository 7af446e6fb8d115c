"""What stays the same from graph to graph of a plan: accelerators, costs, the strategy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from byoc.costs.model import CostModel, Policy
from byoc.costs.objective import LATENCY, Objective
from byoc.costs.problem import Device
from byoc.placement import UNLIMITED, Strategy
from byoc.plan.saved import Saved
from byoc.plan.wants import wants_of
from byoc.rules.load import Target


@dataclass(frozen=True, eq=False)
class Settings:
    """How a model is to be cut.

    `costs` has a model for each of the `targets`. `trips` says of some Loops and Scans, by node name,
    how often they run, `unknown` what is done about costs that are not known, and `saved` where some
    nodes are to be.
    """

    targets: tuple[Target, ...]
    costs: tuple[CostModel, ...]
    host: CostModel
    strategy: Strategy
    objective: Objective = LATENCY
    unknown: Policy = Policy.estimate
    trips: Mapping[str, float] = field(default_factory=dict)
    saved: Saved | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The accelerators as the placement problem sees them."""
        return tuple(map(_device, self.targets, self.costs))


def _device(target: Target, costs: CostModel) -> Device:
    limits = target.rules.limits
    return Device(
        name=target.name,
        costs=costs,
        connected=target.rules.regions == "connected",
        min_nodes=min(limits.min_nodes or 0, UNLIMITED),
        max_nodes=UNLIMITED if limits.max_nodes is None else min(limits.max_nodes, UNLIMITED),
        max_regions=UNLIMITED if limits.regions is None else min(limits.regions, UNLIMITED),
        memory=inf if limits.memory is None else float(limits.memory),
        wants=wants_of(target),
    )
