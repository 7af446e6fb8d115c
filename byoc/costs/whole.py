"""The cost of a whole graph on one device, bodies weighted by trip count."""

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from byoc.boundary.crossing import own_quantization
from byoc.costs.model import CostModel, Policy, Price
from byoc.costs.prices import node_prices
from byoc.costs.task import tasks
from byoc.costs.trips import trips
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe


def whole(
    index: GraphIndex,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[Price, float]:
    """Return the price and the operations of one run of a graph on one device, bodies included.

    `given` has trip counts of some Loops and Scans, by node name.
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
    """Return the price and the operations of a node's bodies for one run of the node."""
    each = trips(index, number, given).each
    seconds = joules = operations = 0.0
    for body in index.bodies[number] if each else ():
        inside, inner = whole(body.index, device, given, unknown)
        seconds += each * inside.seconds
        joules += each * inside.joules
        operations += each * inner
    return Price(seconds, joules), operations


def alone(
    index: GraphIndex, device: CostModel, unknown: Policy = Policy.estimate
) -> tuple[Price, float]:
    """Return the price and the operations of a graph whose nodes run on a device one by one.

    Nodes with bodies are left out. Quantization that byoc inserted costs nothing. If a cost is unknown,
    `Policy.refuse` raises InputError and `Policy.host` gives infinity; for the host pass
    `unknown.on_host`.
    """
    works = tasks(index)
    prices = node_prices(device, works)
    left = index.bodies.keys() | own_quantization(index)
    rows = [i for i in range(len(index.nodes)) if works.of[i] >= 0 and i not in left]
    if unknown is Policy.refuse:
        prices.require(rows, [describe(node) for node in index.nodes])
    operations = float(works.operations[rows].sum())
    if unknown is Policy.host and prices.unknown[rows].any():
        return Price(inf, inf), operations
    return Price(float(prices.seconds[rows].sum()), float(prices.joules[rows].sum())), operations
