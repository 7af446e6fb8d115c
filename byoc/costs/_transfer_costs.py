"""Transfers between units: the tensors, and the costs of transfer, dtype and layout conversions.

Conversions are tasks like any other. Those on the host are priced by its cost model, unless the link of
the device includes them; those on the device by the device's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from byoc.boundary.convert import BoundaryFormat, Conversion, make_transfer_lookup
from byoc.costs._cost_model import FREE, CostModel, Price
from byoc.costs._price_query import (
    MAX_BYTES,
    Floats,
    link_includes_conversions,
    price_task,
    transfer_prices,
)
from byoc.costs._task import Task, Tasks
from byoc.costs._work import Work
from byoc.costs._work_bytes import SHAPES
from byoc.costs._work_sizes import Sizes
from byoc.model import GraphIndex
from byoc.patterns import NodeGroup

# A shape is sent as one 64-bit number for each dimension.
_DIM_BYTES = 8


@dataclass(frozen=True, eq=False)
class UnitTensors:
    """The tensors that pass between units: name, producing unit (-1: host), consuming units, bytes.

    `whole` is False if only the shape of the tensor is sent.
    """

    names: list[str]
    producers: list[int]
    consumers: list[list[int]]
    sizes: list[int]
    whole: list[bool]


def find_unit_tensors(index: GraphIndex, works: Tasks, units: Sequence[NodeGroup]) -> UnitTensors:
    """Return the tensors that pass between units.

    Consumers that only ask for a tensor's shape read a small tensor of its own, `NAME:shape`: they come
    after the producer, but the data is not sent to them.
    """
    unit_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    shape_readers = {
        i for i, kind in enumerate(index.node_kinds) if kind.op_type in SHAPES and kind.is_onnx
    }
    names: list[str] = []
    producers: list[int] = []
    consumers: list[list[int]] = []
    sizes: list[int] = []
    whole: list[bool] = []
    outputs, readers, size = index.outputs, index.consumers, works.sizes.by_name
    for name, row in _produced_tensors(index, units):
        read = readers.get(name, ())
        if len(read) == 1 and not shape_readers:  # as most are
            user = unit_of[read[0]]
            users = [user] if user != row else []
        else:
            users = sorted({unit_of[node] for node in read if node not in shape_readers} - {row})
        if users or name in outputs:
            names.append(name)
            producers.append(row)
            consumers.append(users)
            sizes.append(size[name].bytes)
            whole.append(True)
        if shape_readers:
            shaped = {unit_of[node] for node in read if node in shape_readers} - {*users, row}
            if shaped:
                names.append(f"{name}:shape")
                producers.append(row)
                consumers.append(sorted(shaped))
                sizes.append(_DIM_BYTES * len(size[name].shape))
                whole.append(False)
    return UnitTensors(names, producers, consumers, sizes, whole)


def _produced_tensors(index: GraphIndex, units: Sequence[NodeGroup]) -> Iterator[tuple[str, int]]:
    """Yield every tensor with its producing unit, -1 for tensors from outside."""
    for name in (*index.inputs, *index.captured_names):
        yield name, -1
    outputs = index.node_outputs
    for row, unit in enumerate(units):
        for node in unit.nodes:
            for name in outputs[node]:
                if name:
                    yield name, row


@dataclass(frozen=True, eq=False)
class TransferCosts:
    """Cost of sending tensors to a device and back, by row.
    `to_device` and `to_host` are float64 (tensors, 2), seconds and joules; joules are NaN if a model
    does not give them. `sizes` (int64) are the bytes sent.
    """

    to_device: Floats
    to_host: Floats
    sizes: NDArray[np.int64]


def price_transfers(  # noqa: PLR0913, PLR0917 - tensors and both sides of the boundary
    host: CostModel,
    device: CostModel,
    wants: BoundaryFormat,
    works: Tasks,
    own: frozenset[int],
    moved: UnitTensors,
) -> TransferCosts:
    """Return the cost of sending tensors to a device in the form it wants, and back.
    `own` are the QuantizeLinear and DequantizeLinear nodes that byoc inserted. Unknown costs of
    conversions are estimated under any policy, as conversions are not part of the user's model.
    """
    crossing = make_transfer_lookup(works.index, wants, own, works.sizes.fallback)
    some = [
        (row, each)
        for row, (name, whole) in enumerate(zip(moved.names, moved.whole, strict=True))
        if whole and (each := crossing(name)) is not None
    ]
    sizes = np.array([min(size, MAX_BYTES) for size in moved.sizes], np.int64)
    converted = np.zeros(len(sizes), np.int64)
    link_converts = link_includes_conversions(device)
    rows = np.array([row for row, _ in some], np.int64)
    sizes[rows] = [min(each.bytes, MAX_BYTES) for _, each in some]
    if link_converts:
        converted[rows] = [min(each.converted_bytes, MAX_BYTES) for _, each in some]
    base = np.stack(transfer_prices(device, sizes.tolist(), converted.tolist()), axis=1)
    if not some:
        return TransferCosts(base, base, sizes)
    there, back = base.copy(), base.copy()
    prices = _ConversionPrices(works, {"host": None if link_converts else host, "device": device})
    # Tensors of one type share a crossing.
    distinct = {id(each): each for _, each in some}
    enters = {key: prices.sum_prices(each.entering) for key, each in distinct.items()}
    leaves = {key: prices.sum_prices(each.leaving) for key, each in distinct.items()}
    there[rows] += np.array([enters[id(each)] for _, each in some])
    back[rows] += np.array([leaves[id(each)] for _, each in some])
    return TransferCosts(there, back, sizes)


@dataclass(frozen=True, eq=False)
class _ConversionPrices:
    """Prices of conversions by who runs them; None if another price includes them."""

    works: Tasks
    models: dict[str, CostModel | None]
    _seen: dict[tuple[str, int | Conversion], Price] = field(default_factory=dict)

    def sum_prices(self, conversions: Iterable[Conversion]) -> tuple[float, float]:
        """Return the seconds and joules of some conversions, one after another."""
        found = [self._price(each) for each in conversions]
        return sum(each.seconds for each in found), sum(each.joules for each in found)

    def _price(self, conversion: Conversion) -> Price:
        model = self.models[conversion.by]
        if model is None:
            return FREE
        node = conversion.node
        key = conversion.by, conversion if node is None else int(self.works.task_of_node[node])
        if key not in self._seen:
            task = _task(conversion) if node is None else self.works[node]
            self._seen[key] = price_task(model, task)[0]
        return self._seen[key]


def _task(conversion: Conversion) -> Task:
    """Return the task of a conversion that is not a node of the graph; it computes nothing."""
    kinds = conversion.before, conversion.after
    sizes = Sizes({str(i): kind for i, kind in enumerate(kinds) if kind is not None})
    known = sizes.is_known("0") and sizes.is_known("1")
    touched = float(min(sizes.get_bytes("0") + sizes.get_bytes("1"), MAX_BYTES))
    return Task(
        op=conversion.op,
        work=Work(0.0, touched, not known),
        dtype=kinds[1].dtype if kinds[1] else "float32",
        inputs=kinds[:1],
        outputs=kinds[1:],
        attributes=dict(conversion.attributes),
        sized=known,
    )
