"""What a whole graph costs on one device, its bodies by how often they run."""

from collections.abc import Mapping
from types import MappingProxyType

from byoc.costs.model import CostModel, Policy, Price
from byoc.costs.pose import alone
from byoc.costs.trips import trips
from byoc.graph.index import GraphIndex


def whole(
    index: GraphIndex,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[Price, float]:
    """Return the price and the operations of one run of a graph on one device, bodies included.

    `given` says how often some Loops and Scans run, by node name.
    """
    price, operations = alone(index, device, unknown)
    for number in index.bodies:
        inside, inner = whole_bodies(index, number, device, given, unknown)
        price = Price(price.seconds + inside.seconds, price.joules + inside.joules)
        operations += inner
    return price, operations


def whole_bodies(
    index: GraphIndex,
    number: int,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[Price, float]:
    """Return the price and the operations of a node's bodies for one run of it, trips counted."""
    each = trips(index, number, given).each
    seconds = joules = operations = 0.0
    for body in index.bodies[number] if each else ():
        inside, inner = whole(body.index, device, given, unknown)
        seconds += each * inside.seconds
        joules += each * inside.joules
        operations += each * inner
    return Price(seconds, joules), operations
