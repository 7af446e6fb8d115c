"""What stays the same from graph to graph of a plan: accelerators, costs, the strategy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from byoc.costs.model import CostModel, Policy
from byoc.costs.objective import LATENCY, Objective
from byoc.costs.problem import Device
from byoc.placement import UNLIMITED, Strategy
from byoc.plan.facts import Facts, Split
from byoc.plan.saved import Saved
from byoc.plan.wants import wants_of
from byoc.rules.load import Target


@dataclass(frozen=True, eq=False)
class Settings:
    """How a model is to be cut.

    `costs` has a model for each of the `targets`. `trips` says of some Loops and Scans, by node name,
    how often they run, `unknown` what is done about costs that are not known, and `saved` where some
    nodes are to be. `refused` has nodes that a target turned out not to take, by the target's name: the
    reason by the node's name or its first output; `split` the targets whose regions were too large.
    """

    targets: tuple[Target, ...]
    costs: tuple[CostModel, ...]
    host: CostModel
    strategy: Strategy
    objective: Objective = LATENCY
    unknown: Policy = Policy.estimate
    trips: Mapping[str, float] = field(default_factory=dict)
    saved: Saved | None = None
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    split: Mapping[str, Split] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The accelerators as the placement problem sees them."""
        splits = (self.split.get(target.name) for target in self.targets)
        return tuple(map(_device, self.targets, self.costs, splits))

    @property
    def facts(self) -> Facts:
        """What turned out of the targets."""
        return Facts(self.refused, self.split)


def _device(target: Target, costs: CostModel, split: Split | None) -> Device:
    limits = target.rules.limits
    most = UNLIMITED if limits.max_nodes is None else min(limits.max_nodes, UNLIMITED)
    return Device(
        name=target.name,
        costs=costs,
        connected=target.rules.regions == "connected",
        min_nodes=min(limits.min_nodes or 0, UNLIMITED),
        max_nodes=most if split is None else min(most, split.nodes),
        max_regions=UNLIMITED if limits.regions is None else min(limits.regions, UNLIMITED),
        memory=inf if limits.memory is None else float(limits.memory),
        wants=wants_of(target),
    )
