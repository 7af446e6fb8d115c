"""Querying a cost model: many prices at once, unknown ones, whole graphs with bodies."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from math import inf, isnan, prod
from numbers import Real
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.boundary.convert import find_own_quantization
from byoc.costs._cost_model import (
    FREE,
    MAX_JOULES,
    THOUSAND_YEARS,
    Converting,
    CostModel,
    EstimatingCosts,
    Occupying,
    Price,
    Task,
    Unknown,
)
from byoc.costs._graph_tasks import GraphTasks, build_tasks
from byoc.costs._measured_costs import STAND_IN_LINE
from byoc.costs._objective import Policy
from byoc.errors import (
    Cause,
    CauseKind,
    InputError,
    describe_error,
    must_propagate,
    shorten_text,
    suggest_nearest,
)
from byoc.model import (
    GraphIndex,
    describe_node,
    evaluate_dim,
    get_node_name,
    get_stated_attributes,
    is_onnx,
)
from byoc.patterns import NodeGroup, Unit
from byoc.placement import Occupancy

Floats = NDArray[np.float64]

_MAX_LISTED = 3  # units without a price in the error; the first say what is missing
_MAX_CHARACTERS = 200  # of a cost plug-in's text in a sentence of ours
MAX_BYTES = 2**62
"""More than any memory holds; shapes can state more than a 64-bit number can hold."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of units or tasks on one device, by row.
    `seconds` and `joules` are float64; joules are NaN if the model does not give them. `unknown` (bool)
    marks rows whose price is an estimate; `why` has the reason for them, and is empty for the others.
    """

    model: str
    seconds: Floats
    joules: Floats
    unknown: NDArray[np.bool_]
    why: Sequence[str]

    def require_known(self, rows: Iterable[int], names: Sequence[str]) -> None:
        """Raise InputError if the price of one of the rows is unknown; `names` names all rows."""
        missing = [row for row in rows if self.unknown[row]]
        if not missing:
            return
        lines = [f"{names[row]}: {self.why[row]}" for row in missing[:_MAX_LISTED]]
        if len(missing) > _MAX_LISTED:
            lines.append(f"and {len(missing) - _MAX_LISTED} more")
        what = f"{len(missing)} of {len(names)} units have no known cost on {self.model}"
        raise InputError(f"{what}: {'; '.join(lines)}")


def price_each_node(model: CostModel, tasks: GraphTasks, free: Collection[int] = ()) -> Prices:
    """Return the price of each node of a graph, run one by one.

    Constant nodes cost nothing, nor do those in `free`.
    """
    found = [price_task(model, task) for task in tasks.distinct]
    of = tasks.task_of_node.copy()
    of[list(free)] = len(found)  # the last, which is free, as number -1 of constant nodes is
    return _select_prices(model, [*found, (FREE, "")], of)


def price_host_units(
    model: CostModel, tasks: GraphTasks, units: Sequence[NodeGroup], free: Collection[int] = ()
) -> tuple[Prices, Floats]:
    """Return the price of each unit on the host, where the nodes of a composite run one by one.

    With it come the seconds of each unit (float64) that are of nodes with a shape or an operator that is
    not known. The nodes in `free` cost nothing.
    """
    each = price_each_node(model, tasks, free)
    counts = [len(unit.nodes) for unit in units]
    nodes = np.array([node for unit in units for node in unit.nodes], np.int64)
    row = np.repeat(np.arange(len(units)), counts)
    unknown = np.bincount(row, each.unknown[nodes], len(units)) > 0
    rough = np.where(each.unknown & tasks.estimated, each.seconds, 0.0)
    prices = Prices(
        model.name,
        np.bincount(row, each.seconds[nodes], len(units)).astype(np.float64),
        np.bincount(row, each.joules[nodes], len(units)).astype(np.float64),
        unknown,
        [
            next(each.why[node] for node in unit.nodes if each.unknown[node]) if is_unknown else ""
            for unit, is_unknown in zip(units, unknown.tolist(), strict=True)
        ],
    )
    return prices, np.bincount(row, rough[nodes], len(units)).astype(np.float64)


def price_device_units(model: CostModel, tasks: GraphTasks, units: Sequence[Unit]) -> Prices:
    """Return the price of each unit on an accelerator, where a composite runs as one.

    Tensors inside a composite cause no memory traffic there.
    """
    distinct, of = find_device_tasks(tasks, units)
    return _select_prices(model, [price_task(model, task) for task in distinct], of)


def find_device_tasks(tasks: GraphTasks, units: Sequence[Unit]) -> tuple[list[Task], NDArray[np.int64]]:
    """Return the tasks that an accelerator's cost model is asked for, and the number of each unit's.

    Every node of the graph has its task among them, whether it is a unit or not; the numbers are int64
    (units,), -1 for a constant node.
    """
    found = list(tasks.distinct)
    of = np.empty(len(units), np.int64)
    seen: dict[object, int] = {}
    for row, unit in enumerate(units):
        if unit.kind == "node":
            of[row] = tasks.task_of_node[unit.nodes[0]]
            continue
        task = tasks.make_composite_task(_name_composite(tasks, unit), unit.nodes)
        number = seen.setdefault((*task.key, task.work), len(found))
        if number == len(found):
            found.append(task)
        of[row] = number
    return found, of


def _name_composite(tasks: GraphTasks, unit: Unit) -> str:
    """Return the name of a composite in cost models; a QDQ group of one operator is `QDQ/Conv`."""
    if unit.composite is not None:
        return unit.composite if unit.kind == "composite" else f"QDQ/{unit.composite}"
    ops = [tasks[node].op for node in unit.nodes]
    return "QDQ/" + "+".join(op for op in ops if op not in ("QuantizeLinear", "DequantizeLinear"))


def transfer_prices(
    model: CostModel, sizes: Sequence[int], converted: Sequence[int] = ()
) -> tuple[Floats, Floats]:
    """Return seconds and joules of sending tensors of the given bytes to a device, or back.

    `converted` has for each tensor the bytes that change dtype or layout on the way; empty: none.
    """
    number: dict[tuple[int, int], int] = {}
    pairs = zip(sizes, converted or repeat(0, len(sizes)), strict=True)
    of = np.array([number.setdefault(pair, len(number)) for pair in pairs], np.int64)
    capped = ((min(size, MAX_BYTES), min(changed, MAX_BYTES)) for size, changed in number)
    found = [_check_price(model, _ask(model, "transfer", *pair)) for pair in capped]
    prices = _select_prices(model, [(each, "") for each in found], of)
    return prices.seconds, prices.joules


def ask_link_includes_conversions(model: CostModel) -> bool:
    """Return whether a model's transfers include conversions; True if it does not state it."""
    return not isinstance(model, Converting) or bool(_ask(model, "converting"))


def ask_link_occupancy(model: CostModel) -> Occupancy:
    """Return the resource that a model's transfers keep busy; nothing if it does not state it.

    Raises InputError if a third-party model fails, or names no such resource.
    """
    if not isinstance(model, Occupying):
        return Occupancy.nothing
    found = _ask(model, "occupies")
    known = list(Occupancy)
    if not isinstance(found, str) or found not in known:
        text = shorten_text(str(found), _MAX_CHARACTERS)
        raise InputError(
            f"cost model {model.name}: occupies gave {text!r}, not one of {', '.join(known)}"
        )
    return Occupancy(found)


def price_launch(model: CostModel) -> Price:
    """Return the cost of starting one region."""
    return _check_price(model, _ask(model, "launching"))


def price_task(model: CostModel, task: Task) -> tuple[Price, str]:
    """Return a task's price and the reason why it is an estimate, empty if the model knows it.

    Raises InputError if a third-party model fails or does not return a price.
    """
    if task.view:
        return FREE, ""
    found = _ask(model, "execution", task)
    if not isinstance(found, Unknown):
        return _check_price(model, found), ""
    why = shorten_text(str(found.why), _MAX_CHARACTERS) or f"{model.name} does not say why"
    if isinstance(model, EstimatingCosts):
        return _check_price(model, _ask(model, "estimate", task)), why
    if task.parts:
        parts = [price_task(model, part)[0] for part in task.parts]
        return Price(sum(p.seconds for p in parts), sum(p.joules for p in parts)), why
    return Price(STAND_IN_LINE.evaluate(task.work)), why


def keep_unknown_on_host(device: Prices, policy: Policy, taken: Sequence[bool]) -> dict[int, Cause]:
    """Return the units that a policy keeps on the host, with the reason.

    `taken` marks the units that the device would accept. Only `Policy.host` keeps any.
    """
    if policy is not Policy.host:
        return {}
    rows = np.flatnonzero(device.unknown & np.array(taken, np.bool_))
    return {
        row: Cause(CauseKind.COST, f"what it costs on {device.model} is not known: {device.why[row]}")
        for row in rows.tolist()
    }


def _select_prices(
    model: CostModel, found: Sequence[tuple[Price, str]], of: NDArray[np.int64]
) -> Prices:
    seconds = np.array([each.seconds for each, _ in found], np.float64)
    joules = np.array([each.joules for each, _ in found], np.float64)
    reasons = np.array([why for _, why in found], dtype=object)
    why = reasons[of].tolist() if found else []
    return Prices(model.name, seconds[of], joules[of], np.array([bool(w) for w in why], np.bool_), why)


def _ask(model: CostModel, method: str, *given: object) -> object:
    try:
        return getattr(model, method)(*given)
    except BaseException as error:  # a plug-in can fail in any way
        if must_propagate(error):
            raise
        raise InputError(
            f"cost model {model.name}: {method} failed with {describe_error(error)}"
        ) from error


def _check_price(model: CostModel, found: object) -> Price:
    """Return a valid price, capped so that sums stay finite; raise InputError for anything else."""
    if not isinstance(found, Price):
        raise InputError(f"cost model {model.name}: gave a {type(found).__name__}, not a Price")
    given = found.seconds, found.joules
    if not all(isinstance(part, Real) and not isinstance(part, bool) for part in given):
        kinds = " and ".join(type(part).__name__ for part in given)
        raise InputError(f"cost model {model.name}: gave a Price of {kinds}, not of two numbers")
    seconds, joules = map(float, given)
    if not seconds >= 0 or not (joules >= 0 or isnan(joules)):
        raise InputError(f"cost model {model.name}: gave {seconds} s, {joules} J")
    return Price(min(seconds, THOUSAND_YEARS), joules if isnan(joules) else min(joules, MAX_JOULES))


# The cost of a whole graph on one device, its bodies weighted by their trip counts.

# The trip count of a loop of which nothing is known.
ESTIMATED_TRIPS = 8
_MOST = 10**12
_SCAN_WITHOUT_BATCH = 9  # ONNX opset since which Scan has no batch axis


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
    """Return the trip count of a node's bodies; `given` overrides it by node name.

    One that depends on open dimensions is that at the planned sizes.
    """
    node = index.nodes[number]
    if get_node_name(node) in given:
        return TripCount(given[get_node_name(node)])
    if node.op_type == "If":
        return TripCount(1 / len(index.bodies[number]))
    if node.op_type == "Loop":
        values = index.values
        count = None if values is None else evaluate_dim(values.count_trips(number), index.planned.sizes)
        if count is not None:
            return TripCount(count)
    if node.op_type == "Scan":
        attributes = get_stated_attributes(node)
        scanned = len(node.input) - int(attributes.get("num_scan_inputs", 1))
        shape = index.get_shape(node.input[scanned]) if 0 <= scanned < len(node.input) else None
        axis = next(iter(attributes.get("scan_input_axes", [0])), 0)
        # Until operator set 8 the first axis is of sequences, each with own steps, the next of steps.
        axes = (0, 1) if index.get_opset(node) < _SCAN_WITHOUT_BATCH else (axis,)
        if shape is not None and all(-len(shape) <= each < len(shape) for each in axes):
            extents = [evaluate_dim(shape[each], index.planned.sizes) for each in axes]
            known = [each for each in extents if each is not None]
            if len(known) == len(axes):
                return TripCount(prod(known))
    return TripCount(
        ESTIMATED_TRIPS,
        f"{describe_node(node)} counts as {ESTIMATED_TRIPS} trips, as their number is not known",
    )


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
