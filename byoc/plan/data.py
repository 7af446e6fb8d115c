"""What the pipeline has decided: every stage's result, side by side, before anything is compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from byoc.costs.pose import Posed
from byoc.graph.load import Model
from byoc.graph.outline import Interface
from byoc.patterns.group import Unit
from byoc.placement import Cost, Placement
from byoc.rules.load import Target
from byoc.verdict import Verdict, refuse


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """A region: its units, what crosses its border, and its predicted seconds, launch included."""

    name: str
    units: tuple[Unit, ...]
    border: Interface
    seconds: float

    @property
    def nodes(self) -> list[int]:
        """The node numbers of the region, in topological order; constant nodes are not among them."""
        return sorted(node for unit in self.units for node in unit.nodes)


@dataclass(frozen=True, eq=False)
class Plan:
    """A model cut between the host and one accelerator.

    `asked` is what the caller gave, by name; `posed` the numbers that were solved; `host_only` the cost
    of leaving everything on the host; `proto` the partitioned model.
    """

    asked: Mapping[str, Any]
    model: Model
    target: Target
    units: tuple[Unit, ...]
    posed: Posed
    placement: Placement
    host_only: Cost
    regions: tuple[PlannedRegion, ...]
    proto: onnx.ModelProto

    @property
    def region_names(self) -> list[str]:
        """The regions' names, in order of execution."""
        return [region.name for region in self.regions]

    @cached_property
    def host_units(self) -> list[tuple[Unit, Verdict]]:
        """The units that stay on the host, each with the reason."""
        return [
            (unit, host_reason(unit, self.placement))
            for unit, label in zip(self.units, self.placement.labels, strict=True)
            if label == 0
        ]

    @property
    def offloaded_operations(self) -> tuple[float, float]:
        """The operations that run on the accelerator, and all operations."""
        operations = self.posed.operations
        return float(np.sum(operations[self.placement.labels > 0])), float(np.sum(operations))


def host_reason(unit: Unit, placement: Placement) -> Verdict:
    """Return why a unit that was placed on the host is there."""
    if not unit.verdict:
        return unit.verdict
    return refuse(f"supported, but {placement.why_host}")
