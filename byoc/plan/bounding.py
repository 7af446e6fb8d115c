"""From a plan to the boundary pass: what each region's target wants of the tensors that cross."""

from pathlib import Path

from onnx import ModelProto

from byoc.boundary.border import Border
from byoc.boundary.bound import Bounded, bound
from byoc.graph.spatial import images
from byoc.plan.data import GraphPlan
from byoc.plan.wants import wants_of


def bounded(root: GraphPlan, outlined: ModelProto, folder: Path | None) -> Bounded:
    """Return the outlined model of a plan with its borders converted; it is edited in place.

    `folder` is where the model's external data lies. Raises InputError as `bound` does.
    """
    return bound(outlined, [border for graph in root.walk() for border in _borders(graph)], folder)


def _borders(graph: GraphPlan) -> list[Border]:
    """Return the borders of a graph's own regions, those of bodies apart."""
    if not graph.regions:
        return []
    spatial = images(graph.index)
    return [
        Border(region.name, region.target.domain, wants_of(region.target), spatial, graph.index.values)
        for region in graph.regions
    ]
