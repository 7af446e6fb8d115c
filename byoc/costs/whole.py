"""What a whole graph costs on one device, its bodies by how often they run."""

from collections.abc import Mapping
from types import MappingProxyType

from byoc.costs.model import CostModel, Policy
from byoc.costs.pose import alone
from byoc.costs.trips import trips
from byoc.graph.index import GraphIndex


def whole(
    index: GraphIndex,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[float, float]:
    """Return seconds and operations of one run of a graph, all of it on one device, bodies included.

    `given` says how often some Loops and Scans run, by node name.
    """
    seconds, operations = alone(index, device, unknown)
    for number, bodies in index.bodies.items():
        each = trips(index, number, given).each
        for body in bodies if each else ():
            inside = whole(body.index, device, given, unknown)
            seconds += each * inside[0]
            operations += each * inside[1]
    return seconds, operations
