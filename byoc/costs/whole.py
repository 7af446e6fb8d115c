"""The cost of a whole graph on one device, bodies weighted by trip count."""

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from byoc.boundary.crossing import find_own_quantization
from byoc.costs.model import CostModel, Policy, Price
from byoc.costs.prices import node_prices
from byoc.costs.task import build_tasks
from byoc.costs.trips import count_trips
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe_node


def price_graph(
    index: GraphIndex,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[Price, float]:
    """Return the price and the operations of one run of a graph on one device, bodies included.

    `given` has trip counts of some Loops and Scans, by node name.
    """
    price, operations = price_nodes(index, device, unknown)
    for number in index.bodies:
        inside, inner = price_bodies(index, number, device, given, unknown)
        price = Price(price.seconds + inside.seconds, price.joules + inside.joules)
        operations += inner
    return price, operations


def price_bodies(
    index: GraphIndex,
    number: int,
    device: CostModel,
    given: Mapping[str, float] = MappingProxyType({}),
    unknown: Policy = Policy.estimate,
) -> tuple[Price, float]:
    """Return the price and the operations of a node's bodies for one run of the node."""
    each = count_trips(index, number, given).count
    seconds = joules = operations = 0.0
    for body in index.bodies[number] if each else ():
        inside, inner = price_graph(body.index, device, given, unknown)
        seconds += each * inside.seconds
        joules += each * inside.joules
        operations += each * inner
    return Price(seconds, joules), operations


def price_nodes(
    index: GraphIndex, device: CostModel, unknown: Policy = Policy.estimate
) -> tuple[Price, float]:
    """Return the price and the operations of a graph whose nodes run on a device one by one.

    Nodes with bodies are left out. Quantization that byoc inserted costs nothing. If a cost is unknown,
    `Policy.refuse` raises InputError and `Policy.host` gives infinity; for the host pass
    `unknown.on_host`.
    """
    works = build_tasks(index)
    prices = node_prices(device, works)
    left = index.bodies.keys() | find_own_quantization(index)
    rows = [i for i in range(len(index.nodes)) if works.task_of_node[i] >= 0 and i not in left]
    if unknown is Policy.refuse:
        prices.require_known(rows, [describe_node(node) for node in index.nodes])
    operations = float(works.operations[rows].sum())
    if unknown is Policy.host and prices.unknown[rows].any():
        return Price(inf, inf), operations
    return Price(float(prices.seconds[rows].sum()), float(prices.joules[rows].sum())), operations
