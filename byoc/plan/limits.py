"""Limits that hold for a model, whose graphs are placed one by one."""

from collections.abc import Sequence

from byoc.costs.problem import Device
from byoc.plan.data import GraphPlan


def above_limits(plan: GraphPlan, devices: Sequence[Device]) -> str:
    """Return what all graphs of a plan together have too much of, empty when nothing."""
    graphs = list(plan.walk())
    for number, device in enumerate(devices, 1):
        regions = sum(region.target.name == device.name for graph in graphs for region in graph.regions)
        if regions > device.max_regions:
            return f"{device.name} would have {regions} regions of at most {device.max_regions}"
        held = sum(
            float(graph.posed.problem.memory[graph.placement.labels == number, number - 1].sum())
            for graph in graphs
        )
        if held > device.memory:
            return f"{device.name} would hold {held:.0f} bytes of at most {device.memory:.0f}"
    return ""
