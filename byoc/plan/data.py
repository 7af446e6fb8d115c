"""What the pipeline has decided: every stage's result, side by side, before anything is compiled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx

from byoc.costs.pose import Posed
from byoc.graph.index import GraphIndex
from byoc.graph.interface import Interface
from byoc.graph.load import Model
from byoc.patterns.group import Unit
from byoc.placement import Cost, Placement
from byoc.rules.load import Target
from byoc.verdict import Verdict, refuse


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """A region of a graph: its units, and what crosses its border.

    `seconds` are the predicted ones of a single run, launch included; `trips` is how often it is
    expected to run for one run of the model.
    """

    name: str
    index: GraphIndex
    units: tuple[Unit, ...]
    border: Interface
    seconds: float
    trips: float

    @property
    def nodes(self) -> list[int]:
        """The node numbers of the region, in topological order; constant nodes are not among them."""
        return sorted(node for unit in self.units for node in unit.nodes)


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """A graph cut in two: the main one, or a body of an If, Loop or Scan that stays on the host.

    `place` says which body it is (`Loop.0/body`), empty for the main graph. `trips` is how often the
    graph is expected to run for one run of the model, `host_only` the seconds of one run of it with
    everything on the host, `bodies` the plans of what is inside its host nodes.
    """

    index: GraphIndex
    place: str
    trips: float
    units: tuple[Unit, ...]
    posed: Posed
    placement: Placement
    host_only: float
    regions: tuple[PlannedRegion, ...]
    bodies: Mapping[int, tuple["GraphPlan", ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def walk(self) -> Iterator["GraphPlan"]:
        """Yield this plan and those of all bodies inside, in the order of the nodes."""
        yield self
        for inner in self.bodies.values():
            for body in inner:
                yield from body.walk()

    @cached_property
    def host_units(self) -> list[tuple[Unit, Verdict]]:
        """The units of this graph that stay on the host, each with the reason."""
        return [
            (unit, host_reason(unit, self.placement))
            for unit, label in zip(self.units, self.placement.labels, strict=True)
            if label == 0
        ]

    @property
    def operations(self) -> tuple[float, float]:
        """Operations of one run that are on the accelerator, and all; a body counts in its own plan."""
        done = total = 0.0
        rows = zip(self.units, self.placement.labels, self.posed.operations, strict=True)
        for unit, label, count in rows:
            if label == 0 and unit.nodes[0] in self.bodies:
                continue
            total += count
            done += count if label else 0.0
        return done, total


@dataclass(frozen=True, eq=False)
class Plan:
    """A model cut between the host and one accelerator.

    `asked` is what the caller gave, by name; `root` the plan of the main graph, with those of bodies
    inside; `proto` the partitioned model.
    """

    asked: Mapping[str, Any]
    model: Model
    target: Target
    root: GraphPlan
    proto: onnx.ModelProto

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of the main graph."""
        return self.root.units

    @property
    def posed(self) -> Posed:
        """The numbers that were solved for the main graph."""
        return self.root.posed

    @property
    def placement(self) -> Placement:
        """The placement of the main graph; its cost holds that of all bodies."""
        return self.root.placement

    @cached_property
    def regions(self) -> tuple[PlannedRegion, ...]:
        """All regions: those of the main graph in order of execution, then those of bodies."""
        return tuple(region for graph in self.root.walk() for region in graph.regions)

    @property
    def region_names(self) -> list[str]:
        """The regions' names, in the order of `regions`."""
        return [region.name for region in self.regions]

    @cached_property
    def host_units(self) -> list[tuple[Unit, Verdict]]:
        """The units that stay on the host, bodies included, each with the reason."""
        return [item for graph in self.root.walk() for item in graph.host_units]

    @property
    def cost(self) -> Cost:
        """The predicted seconds of one run of the model, bodies by their trips."""
        graphs = list(self.root.walk())
        transfer = sum(graph.trips * graph.placement.cost.transfer for graph in graphs)
        launch = sum(graph.trips * graph.placement.cost.launch for graph in graphs)
        return Cost(self.placement.cost.total - transfer - launch, transfer, launch)

    @property
    def offloaded_operations(self) -> tuple[float, float]:
        """The operations that run on the accelerator, and all operations, trips counted."""
        each = [(graph.trips, *graph.operations) for graph in self.root.walk()]
        return sum(t * done for t, done, _ in each), sum(t * total for t, _, total in each)


def host_reason(unit: Unit, placement: Placement) -> Verdict:
    """Return why a unit that was placed on the host is there."""
    if not unit.verdict:
        return unit.verdict
    return refuse(f"supported, but {placement.why_host}")
