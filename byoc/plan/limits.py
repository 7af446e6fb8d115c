"""Limits that hold for a model, whose graphs are placed one by one."""

from collections.abc import Sequence
from math import inf

import numpy as np

from byoc.costs.problem import Device
from byoc.plan.capacity import Arenas
from byoc.plan.data import GraphPlan


def above_limits(plan: GraphPlan, devices: Sequence[Device]) -> str:
    """Return what all graphs of a plan together have too much of, empty when nothing."""
    graphs = list(plan.walk())
    for number, device in enumerate(devices, 1):
        regions = sum(region.target.name == device.name for graph in graphs for region in graph.regions)
        if regions > device.max_regions:
            return f"{device.name} would have {regions} regions of at most {device.max_regions}"
        if device.memory == inf or len(graphs) == 1:
            continue  # of a single graph it has been seen to
        each = [_held(graph, number) for graph in graphs]
        held = sum(constants for constants, _ in each) + max(arena for _, arena in each)
        if held > device.memory:
            return f"{device.name} would hold {held:.0f} bytes of at most {device.memory:.0f}"
    return ""


def _held(graph: GraphPlan, number: int) -> tuple[float, int]:
    """Return the bytes of a graph's constants on an accelerator, and of the largest arena there."""
    here = graph.placement.labels == number
    constants = float(graph.posed.problem.memory[here, number - 1].sum())
    arenas = Arenas(graph.index, graph.units)
    regions = np.unique(graph.placement.regions[here]).tolist()
    each = (np.flatnonzero(graph.placement.regions == region).tolist() for region in regions)
    return constants, max((arenas.of(rows).size for rows in each), default=0)
