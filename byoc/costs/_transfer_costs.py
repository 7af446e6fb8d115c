"""Transfers between units: the tensors, and the costs of transfer, dtype and layout conversions.

Conversions are tasks like any other. Those on the host are priced by its cost model, unless the link of
the device includes them; those on the device by the device's. State that an accelerator keeps is not
sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.convert import (
    BoundaryFormat,
    Conversion,
    TransposeOffer,
    TransposeShares,
    make_transfer_lookup,
)
from byoc.costs._cost_model import FREE, CostModel, Price, Task
from byoc.costs._graph_tasks import GraphTasks
from byoc.costs._objective import Objective
from byoc.costs._price_query import (
    MAX_BYTES,
    Floats,
    ask_link_includes_conversions,
    price_task,
    transfer_prices,
)
from byoc.costs._work import Work
from byoc.costs._work_attention import SHAPES
from byoc.costs._work_node import Sizes
from byoc.model import GraphIndex, StatePair
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


def find_unit_tensors(index: GraphIndex, tasks: GraphTasks, units: Sequence[NodeGroup]) -> UnitTensors:
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
    outputs, readers, size = index.outputs, index.consumers, tasks.sizes.by_name
    for name, row in _find_produced_tensors(index, units):
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


def _find_produced_tensors(index: GraphIndex, units: Sequence[NodeGroup]) -> Iterator[tuple[str, int]]:
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
    does not give them. `sizes` (int64) are the bytes sent. `shares` has the images that the device
    transposes itself, by name, as it costs less than on the host.
    """

    to_device: Floats
    to_host: Floats
    sizes: NDArray[np.int64]
    shares: Mapping[str, TransposeShares] = field(default_factory=dict)


def price_transfers(  # noqa: PLR0913, PLR0917 - tensors and both sides of the boundary
    host: CostModel,
    device: CostModel,
    wants: BoundaryFormat,
    tasks: GraphTasks,
    own: frozenset[int],
    moved: UnitTensors,
    taken: NDArray[np.bool_],
    objective: Objective,
) -> TransferCosts:
    """Return the cost of sending tensors to a device in the form it wants, and back.
    `own` are the QuantizeLinear and DequantizeLinear nodes that byoc inserted. `taken` (units,) says
    which units the device takes. Unknown costs of conversions are estimated under any policy, as
    conversions are not part of the user's model.

    Where the device may transpose an image, that is priced once for each unit that it takes and that
    reads the image, since each may be in a region of its own; the cheaper side counts, by `objective`.
    """
    crossing = make_transfer_lookup(tasks.index, wants, own, tasks.sizes.fallback)
    some = [
        (row, each)
        for row, (name, whole) in enumerate(zip(moved.names, moved.whole, strict=True))
        if whole and (each := crossing(name)) is not None
    ]
    sizes = np.array([min(size, MAX_BYTES) for size in moved.sizes], np.int64)
    converted = np.zeros(len(sizes), np.int64)
    link_converts = ask_link_includes_conversions(device)
    rows = np.array([row for row, _ in some], np.int64)
    sizes[rows] = [min(each.bytes, MAX_BYTES) for _, each in some]
    if link_converts:
        converted[rows] = [min(each.converted_bytes, MAX_BYTES) for _, each in some]
    base = np.stack(transfer_prices(device, sizes.tolist(), converted.tolist()), axis=1)
    if not some:
        return TransferCosts(base, base, sizes)
    there, back = base.copy(), base.copy()
    prices = _ConversionPrices(tasks, {"host": None if link_converts else host, "device": device})
    # Tensors of one type share a crossing.
    distinct = {id(each): each for _, each in some}
    enters = {key: prices.sum_prices(each.entering) for key, each in distinct.items()}
    leaves = {key: prices.sum_prices(each.leaving) for key, each in distinct.items()}
    there[rows] += np.array([enters[id(each)] for _, each in some])
    back[rows] += np.array([leaves[id(each)] for _, each in some])
    shares: dict[str, TransposeShares] = {}
    for row, each in some:
        if each.offer is None:
            continue
        readers = sum(bool(taken[unit]) for unit in moved.consumers[row])
        offered = _OfferedTransposes(device, prices, each.offer, int(sizes[row]), link_converts)
        found = offered.choose(objective, readers, there[row], back[row])
        there[row], back[row], shares[moved.names[row]] = found
    return TransferCosts(there, back, sizes, {k: v for k, v in shares.items() if v != TransposeShares()})


@dataclass(frozen=True, eq=False)
class _OfferedTransposes:
    """The Transposes of an image on the device, for those on the host; `size` bytes are sent."""

    device: CostModel
    prices: "_ConversionPrices"
    offer: TransposeOffer
    size: int
    link_converts: bool

    def choose(
        self, objective: Objective, readers: int, there: Floats, back: Floats
    ) -> tuple[Floats, Floats, TransposeShares]:
        """Return the cheaper prices, (2,) each, and the shares of the sides that the device wins.

        `there` and `back` are the prices with the host's Transposes.
        """
        offer, sum_prices = self.offer, self.prices.sum_prices
        enter, leave = (
            None if each is None else np.array(sum_prices([each]))
            for each in (offer.entering, offer.leaving)
        )
        converted = self.offer.other_bytes if self.link_converts else 0
        base = np.stack(transfer_prices(self.device, [self.size], [converted]), axis=1)[0]
        plain_there = base + np.array(sum_prices(offer.other_entering))
        plain_back = base + np.array(sum_prices(offer.other_leaving))
        enters = leaves = False
        new_there, new_back = there, back
        if enter is not None and readers:
            new_there = plain_there + readers * enter
            enters = bool(objective.combine(*new_there) < objective.combine(*there))
        entering = None if enter is None else _share(objective, enter, there - plain_there)
        leaving = None if leave is None else _share(objective, leave, back - plain_back)
        if leave is not None and leaving is not None and (entering is not None or not readers):
            # The device's other regions may have to transpose what leaves as ONNX has it.
            new_back = plain_back + leave + (readers * enter if enter is not None else 0)
            leaves = bool(objective.combine(*new_back) < objective.combine(*back))
        shares = TransposeShares(
            entering if enters or (leaves and readers) else None, leaving if leaves else None
        )
        return new_there if enters else there, new_back if leaves else back, shares


def _share(objective: Objective, part: Floats, whole: Floats) -> float | None:
    """Return a price, (2,) in seconds and joules, as a share of another; None if that is nothing."""
    found = float(objective.combine(*whole))
    return float(objective.combine(*part)) / found if found > 0 else None


@dataclass(frozen=True, eq=False)
class _ConversionPrices:
    """Prices of conversions by who runs them; None if another price includes them."""

    tasks: GraphTasks
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
        key = conversion.by, conversion if node is None else int(self.tasks.task_of_node[node])
        if key not in self._seen:
            task = _task(conversion) if node is None else self.tasks[node]
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


# State that an accelerator keeps between calls, such as a decoder's cache, and what it saves.
#
# What a call gives as `present` is the `past` of the next one. Where one unit alone reads the past
# and makes the present, both are where that unit runs, and only who else reads the present gets it
# sent. That is a matter of which tensors cross, so that the placement stays an exact problem.


@dataclass(frozen=True)
class KeptPair:
    """A pair of state that some accelerators keep, and the unit that reads and makes it.

    `past` and `present` are rows of the problem's tensors, `accelerators` the numbers of those that keep
    it, 0 for the first one. `is_read` says that other units read the present.
    """

    pair: StatePair
    unit: int
    past: int
    present: int
    accelerators: tuple[int, ...]
    is_read: bool


def find_kept_pairs(
    tensors: UnitTensors,
    pairs: Sequence[StatePair],
    keeps_state: Sequence[bool],
    runs: NDArray[np.bool_],
) -> tuple[KeptPair, ...]:
    """Return the pairs of state that accelerators keep.

    `keeps_state` says which accelerators keep state; `runs`, bool (units, accelerators), which units
    each may run.
    A pair counts as sent where several units read the past, or another one makes the present; and where
    other units read the present and an accelerator may run the unit that does not keep state, since the
    host then needs it as an output as well.
    """
    rows = {name: row for row, name in enumerate(tensors.names)}
    found = []
    for pair in pairs:
        past, present = rows.get(pair.past), rows.get(pair.present)
        if past is None or present is None or not tensors.whole[past]:
            continue
        unit = tensors.producers[present]
        if unit < 0 or tensors.consumers[past] != [unit]:
            continue
        runners = np.flatnonzero(runs[unit]).tolist()
        keepers = tuple(each for each in runners if keeps_state[each])
        is_read = bool(tensors.consumers[present])
        if not keepers or (is_read and len(keepers) < len(runners)):
            continue
        found.append(KeptPair(pair, unit, past, present, keepers, is_read))
    return tuple(found)


def zero_kept_transfers(
    transfers: TransferCosts, accelerator: int, pairs: Sequence[KeptPair]
) -> TransferCosts:
    """Return the costs of an accelerator's transfers, with 0 for the state that it keeps.

    A present that others read is sent to them as before.
    """
    kept = [each for each in pairs if accelerator in each.accelerators]
    if not kept:
        return transfers
    past = [each.past for each in kept]
    present = [each.present for each in kept if not each.is_read]
    to_device, to_host = transfers.to_device.copy(), transfers.to_host.copy()
    sizes = transfers.sizes.copy()
    to_device[past] = 0
    to_host[present] = 0
    sizes[[*past, *present]] = 0
    return replace(transfers, to_device=to_device, to_host=to_host, sizes=sizes)


def find_unneeded_outputs(pairs: Sequence[KeptPair]) -> frozenset[str]:
    """Return the presents that the host does not need as outputs.

    They are those that other units read: such a pair is kept wherever its unit may run, and the present
    is sent to its readers alone. One that nothing reads may be made by an accelerator that keeps no
    state, which sends it; for those that keep it `zero_kept_transfers` makes that 0.
    """
    return frozenset(each.pair.present for each in pairs if each.is_read)
