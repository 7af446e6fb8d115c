"""The striping problem and its plan: tensors of rows, layers, and the units of layers that run together.

Only numbers, no ONNX. A tensor is stored row by row, height outermost: `[H][C][W]` or `[H][W][C]`; the
planner does not distinguish them. A tensor without rows, such as the result of a fully connected layer,
is one row.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field

LayerMode = Literal["rows", "whole", "reduction"]


@dataclass(frozen=True)
class OperandRows:
    """The rows of an operand that one row of the result reads.

    Row `r` reads `extent` rows from `r * stride // repeat - before` on; rows outside the operand are
    padding. `stride` is at least 0: later rows never read earlier rows than those before them.
    """

    extent: int = 1
    stride: int = 1
    before: int = 0
    repeat: int = 1

    def first_row(self, row: int, height: int) -> int:
        """Return the first row that result row `row` or any later one reads, `height` for none."""
        return min(max(row * self.stride // self.repeat - self.before, 0), height)

    def end_row(self, row: int, height: int) -> int:
        """Return the end of the rows that result row `row` and all earlier ones read."""
        return min(max(row * self.stride // self.repeat - self.before + self.extent, 0), height)


SAME_ROW = OperandRows()
"""Row `r` reads row `r`: elementwise layers, normalizations, pointwise convolutions."""

ALL_ROWS = OperandRows(extent=1 << 40, stride=0)
"""Every row: fully connected layers, Softmax, and the one row of a tensor for each channel."""


@dataclass(frozen=True)
class RowTensor:
    """A tensor of `rows` rows of `row_bytes` bytes each."""

    name: str
    rows: int
    row_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class RowLayer:
    """One operation.

    `mode` defines its rows: `rows`, one row of each of `writes` at a time, all with the same number of
    rows; `whole`, everything at once; `reduction`, one row of the first operand at a time (read with
    `SAME_ROW`), accumulated into the single row of the result, which is complete after the last one.
    `may_overwrite` are operands read with `SAME_ROW` whose row the same row of the first result may
    overwrite, element by element. `scratch` are bytes needed while the layer runs.
    """

    name: str
    reads: tuple[tuple[str, OperandRows], ...]
    writes: tuple[str, ...]
    mode: LayerMode = "rows"
    may_overwrite: tuple[str, ...] = ()
    scratch: int = 0


@dataclass(frozen=True)
class RowBand:
    """Rows `[first_row, first_row + rows)` of a layer, computed at once.

    They are rows of its results; of its first operand if the layer is a reduction.
    """

    layer: str
    first_row: int
    rows: int


@dataclass(frozen=True)
class RowWindow:
    """The window of a tensor: row `r` is at byte `offset + (r % window) * row_bytes` of the arena."""

    offset: int
    window: int
    row_bytes: int

    def row_offset(self, row: int) -> int:
        """Return the byte at which row `row` begins."""
        return self.offset + row % self.window * self.row_bytes


@dataclass(frozen=True)
class StripedPlan:
    """Bands in order of execution, and a window for each tensor in an arena of `size` bytes.

    `groups` are the layers of each cascade, whose bands are interleaved. `scratch` gives the offset of
    each layer's scratch. `live` is the peak of the bytes in use, scratch and windows included: a lower
    bound on the arena for these bands. `limits` are messages about searches cut short because the
    network is large.
    """

    bands: tuple[RowBand, ...]
    places: dict[str, RowWindow]
    scratch: dict[str, int]
    size: int
    groups: tuple[tuple[str, ...], ...]
    live: int = 0
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowNetwork:
    """Tensors, and layers in an executable order.

    `inputs` exist before the first layer, `outputs` are read after the last one. Raises ValueError,
    naming the layer or tensor, if the order cannot be executed, if the rows of a layer do not match its
    tensors, or if a tensor has no rows.
    """

    tensors: dict[str, RowTensor]
    layers: tuple[RowLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Check the network, and count the rows of each layer."""
        flat = [each.name for each in self.tensors.values() if each.rows < 1 or each.row_bytes < 0]
        if flat:
            raise ValueError(f"tensor {flat[0]!r} has no rows")
        unknown = [name for name in self.inputs if name not in self.tensors]
        if unknown:
            raise ValueError(f"the input {unknown[0]!r} is no tensor")
        there = set(self.inputs)
        steps: dict[str, int] = {}
        for layer in self.layers:
            missing = [name for name, _ in layer.reads if name not in there]
            if missing:
                raise ValueError(
                    f"layer {layer.name!r} reads {missing[0]!r}, which nothing has made yet"
                )
            if there.intersection(layer.writes):
                raise ValueError(f"layer {layer.name!r} writes a tensor that is there already")
            unknown = [name for name in layer.writes if name not in self.tensors]
            if unknown:
                raise ValueError(f"layer {layer.name!r} writes {unknown[0]!r}, which is no tensor")
            there.update(layer.writes)
            steps[layer.name] = _count_steps(layer, self.tensors)
        if len(steps) < len(self.layers):
            raise ValueError("two layers have the same name")
        unmade = [name for name in self.outputs if name not in there]
        if unmade:
            raise ValueError(f"nothing makes the output {unmade[0]!r}")
        object.__setattr__(self, "steps", steps)


def _count_steps(layer: RowLayer, tensors: dict[str, RowTensor]) -> int:
    """Return the number of rows of the layer; 1 if it runs at once."""
    if not layer.writes:
        raise ValueError(f"layer {layer.name!r} writes nothing")
    height = tensors[layer.writes[0]].rows
    if layer.mode == "whole":
        return 1
    if layer.mode == "rows":
        if any(tensors[name].rows != height for name in layer.writes):
            raise ValueError(f"the results of layer {layer.name!r} have different numbers of rows")
        return height
    if len(layer.writes) > 1 or height != 1 or not layer.reads or layer.reads[0][1] != SAME_ROW:
        raise ValueError(f"layer {layer.name!r} is no reduction of rows to one row")
    return tensors[layer.reads[0][0]].rows


# Layers that run row by row together, and the storages that their tensors share.
#
# A layer that overwrites an operand reuses its storage, whose rows then change from one tensor to
# the next. If nobody else reads the operand, the two layers also form one unit, whose row `r` is
# row `r` of both.
#
# Row `r` of the result may overwrite row `r` of the operand if nobody reads that row later. This
# holds for an operand with one reader, and also if the other readers necessarily come first: the
# last layer of a residual block adds the block's result to row `r` of the shortcut, and the first
# layer of the block has read that row by then. The rows a layer has to have computed before a row
# of another follow from the rows each one reads, in any order of the bands.


@dataclass(frozen=True)
class StorageRead:
    """Rows of a storage that a unit reads, as left by the unit `maker`; -1 for an input."""

    storage: int
    rows: OperandRows
    maker: int


@dataclass(frozen=True)
class RowUnit:
    """Layers by name, executed one after another for each row; `steps` is the number of rows.

    Tensors between the unit's own layers are not in `reads`. `makes` are storages. `last_reader` is the
    last unit that reads a result: -1 if there is none, the number of units for an output.
    """

    layers: tuple[str, ...]
    mode: LayerMode
    steps: int
    reads: tuple[StorageRead, ...]
    makes: tuple[int, ...]
    scratch: int
    last_reader: int


@dataclass(frozen=True)
class RowStorage:
    """Tensors that occupy the same rows one after another.

    `maker` is the unit that makes the first of them, -1 for an input; `writers` are all units that make
    one. `readers` are those of the last tensor, which is an output if `kept`: its rows stay live to the
    end. `touched` are all units that read or make the storage, sorted.
    """

    tensors: tuple[str, ...]
    rows: int
    row_bytes: int
    maker: int
    writers: tuple[int, ...]
    readers: tuple[tuple[int, OperandRows], ...]
    touched: tuple[int, ...]
    kept: bool

    @property
    def last(self) -> int:
        """The last unit that reads or makes it."""
        return self.touched[-1] if self.touched else -1


@dataclass(frozen=True)
class RowUnits:
    """A network as the planner sees it: units in an executable order, and numbered storages."""

    units: tuple[RowUnit, ...]
    storages: tuple[RowStorage, ...]


def build_row_units(network: RowNetwork) -> RowUnits:
    """Join layers into units, and tensors into storages."""
    over = find_overwrites(network)
    chains = _build_chains(network, over)
    made = [name for layer in network.layers for name in layer.writes]
    rows: list[list[str]] = []
    storage: dict[str, int] = {}
    for name in [*network.inputs, *made]:
        if name not in over:
            storage[name] = len(rows)
            rows.append([name])
        else:
            storage[name] = storage[over[name]]
            rows[storage[name]].append(name)
    return _UnitBuilder(network, chains, rows, storage).build()


def _build_chains(network: RowNetwork, over: Mapping[str, str]) -> list[list[RowLayer]]:
    """Return the layers of each unit, at the position of the last of them."""
    maker = {name: layer for layer in network.layers for name in layer.writes}
    reads: dict[str, int] = defaultdict(int)
    for layer in network.layers:
        for name, _ in layer.reads:
            reads[name] += 1
    joined = {
        name
        for name in over.values()
        if name in maker
        and reads[name] == 1
        and maker[name].mode == "rows"
        and len(maker[name].writes) == 1
    }
    chain: dict[str, list[RowLayer]] = {}
    chains = []
    for layer in network.layers:
        under = over.get(layer.writes[0], "")
        chain[layer.name] = [*(chain[maker[under].name] if under in joined else []), layer]
        if layer.writes[0] not in joined:
            chains.append(chain[layer.name])
    return chains


class _UnitBuilder:
    """The makers and readers of tensors and storages, unit by unit."""

    def __init__(
        self,
        network: RowNetwork,
        chains: Sequence[Sequence[RowLayer]],
        rows: Sequence[Sequence[str]],
        storage: Mapping[str, int],
    ) -> None:
        self.network, self.chains, self.rows, self.storage = network, chains, rows, storage
        self.kept = frozenset(network.outputs)
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[tuple[int, OperandRows]]] = defaultdict(list)
        self.reads: list[dict[StorageRead, None]] = [{} for _ in chains]
        for number, chain in enumerate(chains):
            for layer in chain:
                self.maker.update(dict.fromkeys(layer.writes, number))
        for number, chain in enumerate(chains):
            inside = {name for layer in chain[:-1] for name in layer.writes}
            for layer in chain:
                for name, rows_read in layer.reads:
                    if name not in inside:
                        each = ALL_ROWS if layer.mode == "whole" else rows_read
                        self.readers[name].append((number, each))
                        self.reads[number][
                            StorageRead(storage[name], each, self.maker.get(name, -1))
                        ] = None

    def build(self) -> RowUnits:
        """Return all units and storages."""
        return RowUnits(
            tuple(self._unit(number) for number in range(len(self.chains))),
            tuple(self._storage(names) for names in self.rows),
        )

    def _unit(self, number: int) -> RowUnit:
        chain = self.chains[number]
        writes = chain[-1].writes
        readers = [reader for name in writes for reader, _ in self.readers[name]]
        kept = not self.kept.isdisjoint(writes)
        return RowUnit(
            tuple(layer.name for layer in chain),
            chain[0].mode,
            self.network.steps[chain[0].name],
            tuple(self.reads[number]),
            tuple(dict.fromkeys(self.storage[name] for name in writes)),
            max(layer.scratch for layer in chain),
            len(self.chains) if kept else max(readers, default=-1),
        )

    def _storage(self, names: Sequence[str]) -> RowStorage:
        tensor = self.network.tensors[names[0]]
        writers = tuple(dict.fromkeys(self.maker[name] for name in names if name in self.maker))
        readers = {reader for name in names for reader, _ in self.readers[name]}
        return RowStorage(
            tuple(names),
            tensor.rows,
            tensor.row_bytes,
            self.maker.get(names[0], -1),
            writers,
            tuple(self.readers[names[-1]]),
            tuple(sorted(readers.union(writers))),
            names[-1] in self.kept,
        )


_Rows = NDArray[np.int64]

_FAR = 64
"""A layer writes over an operand that others read only if it is made at most so many layers before."""


def find_overwrites(network: RowNetwork) -> dict[str, str]:
    """Return for each tensor that overwrites another one, the other one.

    A shortcut is preferred to an operand with a single reader, which dies at once anyway.
    """
    readers: dict[str, list[int]] = defaultdict(list)
    maker: dict[str, int] = {}
    for number, layer in enumerate(network.layers):
        for name, _ in layer.reads:
            readers[name].append(number)
        maker.update(dict.fromkeys(layer.writes, number))
    found: dict[str, str] = {}
    for number, layer in enumerate(network.layers):
        if layer.mode != "rows" or len(layer.writes) > 1:
            continue
        fits = [name for name in layer.may_overwrite if _can_overwrite(network, layer, name)]
        for name in sorted(fits, key=lambda each: -len(readers[each])):
            others = [other for other in readers[name] if other != number]
            if readers[name].count(number) == 1 and (
                not others or _is_last_reader(network, maker.get(name, -1), number, name, others)
            ):
                found[layer.writes[0]] = name
                break
    return found


def _can_overwrite(network: RowNetwork, layer: RowLayer, name: str) -> bool:
    one, other = network.tensors[layer.writes[0]], network.tensors[name]
    alike = (one.rows, one.row_bytes) == (other.rows, other.row_bytes)
    return alike and (name, SAME_ROW) in layer.reads and name not in network.outputs


def _is_last_reader(
    network: RowNetwork, maker: int, number: int, name: str, others: Sequence[int]
) -> bool:
    """Tell whether the other readers have read a row before the same row of layer `number` can run."""
    if max(others) > number or number - maker > _FAR:
        return False
    done = _rows_done_before(network, number, maker)
    rows = np.arange(network.tensors[name].rows)
    for other in others:
        layer = network.layers[other]
        steps = network.steps[layer.name]
        count = done.get(other, np.zeros_like(rows))
        for read, each in layer.reads:
            if read == name:
                begins = first_rows_read(each, count) if layer.mode != "whole" else np.zeros_like(count)
                if not np.all((count >= steps) | (begins > rows)):
                    return False
    return True


def _rows_done_before(network: RowNetwork, number: int, maker: int) -> Mapping[int, _Rows]:
    """Return for each layer between `maker` and `number` the rows done before each row of `number`."""
    target = network.layers[number]
    wanted: dict[str, _Rows] = {}
    _record_needed_rows(network, target, np.arange(1, network.steps[target.name] + 1), wanted)
    done: dict[int, _Rows] = {}
    for other in range(number - 1, maker, -1):
        layer = network.layers[other]
        steps = network.steps[layer.name]
        rows = [wanted[name] for name in layer.writes if name in wanted]
        if not rows:
            continue
        most = np.maximum.reduce(rows)
        done[other] = most if layer.mode == "rows" else np.where(most > 0, steps, 0)
        _record_needed_rows(network, layer, done[other], wanted)
    return done


def _record_needed_rows(
    network: RowNetwork, layer: RowLayer, count: _Rows, wanted: dict[str, _Rows]
) -> None:
    """Record the rows that the first `count` rows of a layer read."""
    for name, rows in layer.reads:
        height = network.tensors[name].rows
        ends = np.clip(first_rows_read(rows, count - 1) + rows.extent, 0, height)
        ends = np.where(count > 0, height if layer.mode == "whole" else ends, 0)
        wanted[name] = np.maximum(wanted[name], ends) if name in wanted else ends


def first_rows_read(rows: OperandRows, row: _Rows) -> _Rows:
    """Return the first row that each result row reads, not clipped to the operand."""
    return row * rows.stride // rows.repeat - rows.before
