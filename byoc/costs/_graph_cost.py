"""The cost of a whole graph on one device, its bodies weighted by their trip counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import onnx

from byoc.boundary.convert import find_own_quantization
from byoc.costs._cost_model import CostModel, Price
from byoc.costs._graph_tasks import build_tasks
from byoc.costs._objective import Policy
from byoc.costs._price_query import price_each_node
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    GraphIndex,
    describe_node,
    get_input,
    get_node_name,
    get_stated_attributes,
    is_onnx,
)

# The trip count of a loop of which nothing is known.
ESTIMATED_TRIPS = 8
_MOST = 10**12
_SCAN_WITHOUT_BATCH = 9


@dataclass(frozen=True, slots=True)
class TripCount:
    """The number of runs of each body for one run of the node; `note` says if it was estimated."""

    count: float
    note: str = ""


def can_partition_bodies(index: GraphIndex, number: int) -> bool:
    """Return whether regions may form in a node's bodies, which the runtime must be able to run."""
    node = index.nodes[number]
    if not is_onnx(node) or number not in index.bodies:
        return False
    if node.op_type == "Scan":
        return index.opsets.get("", 1) >= _SCAN_WITHOUT_BATCH
    return node.op_type in ("If", "Loop")


def check_trips(index: GraphIndex, given: Mapping[str, float]) -> None:
    """Raise InputError for an impossible trip count, or for a node without bodies."""
    graphs = index.walk()
    known = [get_node_name(graph.nodes[i]) for graph in graphs for i in graph.bodies]
    for name, number in given.items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise InputError(
                f"trips of '{name}': no such node{suggest_nearest(name, known)}; with bodies: {there}"
            )
        if not isinstance(number, (int, float)) or not 0 <= number < _MOST:
            raise InputError(f"trips of '{name}': {number!r} is not a number of times")


def count_trips(index: GraphIndex, number: int, given: Mapping[str, float]) -> TripCount:
    """Return the trip count of a node's bodies; `given` overrides it by node name."""
    node = index.nodes[number]
    if get_node_name(node) in given:
        return TripCount(given[get_node_name(node)])
    if node.op_type == "If":
        return TripCount(1 / len(index.bodies[number]))
    if node.op_type == "Loop":
        count = _constant_integer(index, node.input[0]) if node.input else None
        if count is not None and _runs_to_its_count(index, number):
            return TripCount(max(count, 0))
    if node.op_type == "Scan":
        attributes = get_stated_attributes(node)
        scanned = len(node.input) - int(attributes.get("num_scan_inputs", 1))
        shape = index.get_shape(node.input[scanned]) if 0 <= scanned < len(node.input) else None
        axis = next(iter(attributes.get("scan_input_axes", [0])), 0)
        extent = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
        if isinstance(extent, int):
            return TripCount(extent)
    return TripCount(
        ESTIMATED_TRIPS,
        f"{describe_node(node)} counts as {ESTIMATED_TRIPS} trips, as their number is not known",
    )


def _runs_to_its_count(index: GraphIndex, number: int) -> bool:
    """Return whether nothing stops a Loop before its trip count.
    Its conditions must be constant or absent, and the body must pass its condition on or give a
    constant.
    """
    node = index.nodes[number]
    if get_input(node, 1) and not index.is_constant(node.input[1]):
        return False
    body = index.bodies[number][0].index
    given, result = body.graph.input[1].name, next(iter(body.outputs))
    while result != given and not body.is_constant(result):
        maker = body.producers.get(result)
        if maker is None or body.nodes[maker].op_type != "Identity":
            return False
        result = body.nodes[maker].input[0]
    return True


def _constant_integer(index: GraphIndex, name: str) -> int | None:
    """Return the value of a constant integer, None if it is not one stored in the model."""
    tensor = index.stored_tensors.get(name)
    number = index.producers.get(name)
    if tensor is None and number is not None and index.nodes[number].op_type == "Constant":
        tensor = next((a.t for a in index.nodes[number].attribute if a.name == "value"), None)
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    value = onnx.numpy_helper.to_array(tensor)
    return int(value.item()) if value.size == 1 and value.dtype.kind in "iu" else None


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


def sum_host_seconds(
    index: GraphIndex, host: CostModel, given: Mapping[str, float] = MappingProxyType({})
) -> tuple[float, float]:
    """Return the seconds of one run of a graph on the host that are estimates, and all of them.

    Estimates are those of nodes with a shape or an operator that is not known, bodies included.
    """
    tasks = build_tasks(index)
    prices = price_each_node(host, tasks, find_own_quantization(index) | index.bodies.keys())
    estimated = float(prices.seconds[prices.unknown & tasks.estimated].sum())
    total = float(prices.seconds.sum())
    for number, bodies in index.bodies.items():
        each = count_trips(index, number, given).count
        for body in bodies:
            inside, whole = sum_host_seconds(body.index, host, given)
            estimated, total = estimated + each * inside, total + each * whole
    return estimated, total


def price_nodes(
    index: GraphIndex, device: CostModel, unknown: Policy = Policy.estimate
) -> tuple[Price, float]:
    """Return the price and the operations of a graph whose nodes run on a device one by one.

    Nodes with bodies are left out. Quantization that byoc inserted costs nothing. If a cost is unknown,
    `Policy.refuse` raises InputError and `Policy.host` gives infinity; for the host pass
    `unknown.on_host`.
    """
    tasks = build_tasks(index)
    prices = price_each_node(device, tasks)
    left = index.bodies.keys() | find_own_quantization(index)
    rows = [i for i in range(len(index.nodes)) if tasks.task_of_node[i] >= 0 and i not in left]
    if unknown is Policy.refuse:
        prices.require_known(rows, [describe_node(node) for node in index.nodes])
    operations = float(tasks.operations[rows].sum())
    if unknown is Policy.host and prices.unknown[rows].any():
        return Price(inf, inf), operations
    return Price(float(prices.seconds[rows].sum()), float(prices.joules[rows].sum())), operations
