"""Layers that run row by row together, and the storages that their tensors share.

A layer that writes over an operand makes the same storage again, whose rows then change from one tensor
to the next. Where nobody else reads the operand, the two layers are one unit as well, of which row `r`
is row `r` of both.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byoc.memory.stripes.over import written_over
from byoc.memory.stripes.problem import ALL, Layer, Mode, Network, Rows


@dataclass(frozen=True)
class Read:
    """What a unit reads: rows of a storage, as the unit `maker` leaves them; -1 if they are given."""

    storage: int
    rows: Rows
    maker: int


@dataclass(frozen=True)
class Unit:
    """Layers by name, executed one after the other for each row; `steps` is how many times.

    What passes between the unit's own layers is not among its reads. `makes` are storages, and
    `last_reader` is the last unit that reads what it makes: -1 if nobody does, the number of units
    if a caller does.
    """

    layers: tuple[str, ...]
    mode: Mode
    steps: int
    reads: tuple[Read, ...]
    makes: tuple[int, ...]
    scratch: int
    last_reader: int


@dataclass(frozen=True)
class Storage:
    """Tensors that take turns in the same rows.

    `maker` is the unit that makes the first of them, -1 for one that is given, and `writers` are all
    units that make one. `readers` are those of the last one, which is an output if it is `kept`: its
    rows live to the end. `touched` are all units that read or make the storage, sorted.
    """

    tensors: tuple[str, ...]
    rows: int
    row_bytes: int
    maker: int
    writers: tuple[int, ...]
    readers: tuple[tuple[int, Rows], ...]
    touched: tuple[int, ...]
    kept: bool

    @property
    def last(self) -> int:
        """The last unit that reads or makes it."""
        return self.touched[-1] if self.touched else -1


@dataclass(frozen=True)
class Units:
    """A network as the planner sees it: units in an executable order, and storages by number."""

    units: tuple[Unit, ...]
    storages: tuple[Storage, ...]


def units_of(network: Network) -> Units:
    """Join what can be joined."""
    over = written_over(network)
    chains = _chains(network, over)
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
    return _Builder(network, chains, rows, storage).units()


def _chains(network: Network, over: Mapping[str, str]) -> list[list[Layer]]:
    """Layers that are one unit each, at the place of the last of them."""
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
    chain: dict[str, list[Layer]] = {}
    chains = []
    for layer in network.layers:
        under = over.get(layer.writes[0], "")
        chain[layer.name] = [*(chain[maker[under].name] if under in joined else []), layer]
        if layer.writes[0] not in joined:
            chains.append(chain[layer.name])
    return chains


class _Builder:
    """Who makes and who reads what, a unit at a time."""

    def __init__(
        self,
        network: Network,
        chains: Sequence[Sequence[Layer]],
        rows: Sequence[Sequence[str]],
        storage: Mapping[str, int],
    ) -> None:
        self.network, self.chains, self.rows, self.storage = network, chains, rows, storage
        self.kept = frozenset(network.outputs)
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[tuple[int, Rows]]] = defaultdict(list)
        self.reads: list[dict[Read, None]] = [{} for _ in chains]
        for number, chain in enumerate(chains):
            for layer in chain:
                self.maker.update(dict.fromkeys(layer.writes, number))
        for number, chain in enumerate(chains):
            inside = {name for layer in chain[:-1] for name in layer.writes}
            for layer in chain:
                for name, rows_read in layer.reads:
                    if name not in inside:
                        each = ALL if layer.mode == "whole" else rows_read
                        self.readers[name].append((number, each))
                        self.reads[number][Read(storage[name], each, self.maker.get(name, -1))] = None

    def units(self) -> Units:
        """All units and storages."""
        return Units(
            tuple(self._unit(number) for number in range(len(self.chains))),
            tuple(self._storage(names) for names in self.rows),
        )

    def _unit(self, number: int) -> Unit:
        chain = self.chains[number]
        writes = chain[-1].writes
        readers = [reader for name in writes for reader, _ in self.readers[name]]
        kept = not self.kept.isdisjoint(writes)
        return Unit(
            tuple(layer.name for layer in chain),
            chain[0].mode,
            self.network.steps[chain[0].name],
            tuple(self.reads[number]),
            tuple(dict.fromkeys(self.storage[name] for name in writes)),
            max(layer.scratch for layer in chain),
            len(self.chains) if kept else max(readers, default=-1),
        )

    def _storage(self, names: Sequence[str]) -> Storage:
        tensor = self.network.tensors[names[0]]
        writers = tuple(dict.fromkeys(self.maker[name] for name in names if name in self.maker))
        readers = {reader for name in names for reader, _ in self.readers[name]}
        return Storage(
            tuple(names),
            tensor.rows,
            tensor.row_bytes,
            self.maker.get(names[0], -1),
            writers,
            tuple(self.readers[names[-1]]),
            tuple(sorted(readers.union(writers))),
            names[-1] in self.kept,
        )
