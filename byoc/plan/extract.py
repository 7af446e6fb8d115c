"""From a graph to its placement problem: annotate, group, join, pose."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from byoc.costs.pose import BodyCost, Posed, pose
from byoc.graph.index import GraphIndex
from byoc.patterns.group import group
from byoc.patterns.joint import JointUnit, joint
from byoc.plan.settings import Settings
from byoc.rules.annotate import annotate


def units_of(index: GraphIndex, settings: Settings) -> list[JointUnit]:
    """Return what is placed as one: the graph annotated and grouped for each accelerator, and joined."""
    marks = [annotate(index, target) for target in settings.targets]
    each = [
        group(index, target.patterns, said) for target, said in zip(settings.targets, marks, strict=True)
    ]
    return joint(index, each, marks)


def posed(
    index: GraphIndex,
    units: Sequence[JointUnit],
    settings: Settings,
    bodies: Mapping[int, BodyCost] = MappingProxyType({}),
) -> Posed:
    """Return the placement problem of some units; `bodies` has the cost of nodes with bodies."""
    return pose(
        index,
        units,
        settings.host,
        settings.devices,
        bodies,
        settings.unknown,
        settings.objective,
    )
