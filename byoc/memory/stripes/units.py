"""Layers that run row by row together, and the storages that their tensors share.

An elementwise layer that writes over an operand that nobody else reads makes the same storage again: the
two tensors are one storage, and the two layers one unit, of which row `r` is row `r` of both.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from byoc.memory.stripes.problem import ALL, SAME, Layer, Mode, Network, Rows


@dataclass(frozen=True)
class Unit:
    """Layers by name, executed one after the other for each row; `steps` is how many times.

    `reads` and `makes` are storages by number, what passes between the unit's own layers left out.
    """

    layers: tuple[str, ...]
    mode: Mode
    steps: int
    reads: tuple[tuple[int, Rows], ...]
    makes: tuple[int, ...]
    scratch: int


@dataclass(frozen=True)
class Storage:
    """Tensors that take turns in the same rows; `maker` is a unit, -1 for a tensor that is given.

    `kept` says that it is an output: its rows live to the end.
    """

    tensors: tuple[str, ...]
    rows: int
    row_bytes: int
    maker: int
    readers: tuple[tuple[int, Rows], ...]
    kept: bool


@dataclass(frozen=True)
class Units:
    """A network as the planner sees it: units in an executable order, and storages by number."""

    units: tuple[Unit, ...]
    storages: tuple[Storage, ...]


def units_of(network: Network) -> Units:
    """Join what can be joined."""
    over = _written_over(network)
    chains = _chains(network, over)
    storage: dict[str, int] = {}
    tensors: list[list[str]] = []
    for name in [*network.inputs, *(name for layer in network.layers for name in layer.writes)]:
        storage[name] = storage[over[name]] if name in over else len(tensors)
        if name in over:
            tensors[storage[name]].append(name)
        else:
            tensors.append([name])
    units = [_unit(chain, network, storage) for chain in chains]
    maker = {number: index for index, unit in enumerate(units) for number in unit.makes}
    readers: dict[int, list[tuple[int, Rows]]] = defaultdict(list)
    for index, unit in enumerate(units):
        for number, rows in unit.reads:
            readers[number].append((index, rows))
    outputs = set(network.outputs)
    return Units(
        tuple(units),
        tuple(
            Storage(
                tuple(names),
                network.tensors[names[0]].rows,
                network.tensors[names[0]].row_bytes,
                maker.get(number, -1),
                tuple(readers[number]),
                not outputs.isdisjoint(names),
            )
            for number, names in enumerate(tensors)
        ),
    )


def _written_over(network: Network) -> dict[str, str]:
    """For each tensor that is written over another one, the other one."""
    reads: dict[str, int] = defaultdict(int)
    for layer in network.layers:
        for name, _ in layer.reads:
            reads[name] += 1
    maker = {name: layer for layer in network.layers for name in layer.writes}
    kept = {*network.outputs, *network.inputs}  # an input is made by no layer that could be joined
    found: dict[str, str] = {}
    for layer in network.layers:
        result = network.tensors[layer.writes[0]]
        for name in layer.over:
            other = network.tensors[name]
            if (
                layer.mode == "rows"
                and len(layer.writes) == 1
                and name not in kept
                and reads[name] == 1
                and (name, SAME) in layer.reads
                and (other.rows, other.row_bytes) == (result.rows, result.row_bytes)
                and maker[name].mode == "rows"
                and len(maker[name].writes) == 1
            ):
                found[result.name] = name
                break
    return found


def _chains(network: Network, over: dict[str, str]) -> list[list[Layer]]:
    """Layers that are one unit each, at the place of the last of them."""
    maker = {name: layer.name for layer in network.layers for name in layer.writes}
    joined = {maker[name] for name in over.values()}
    chain: dict[str, list[Layer]] = {}
    chains = []
    for layer in network.layers:
        under = over.get(layer.writes[0])
        chain[layer.name] = [*(chain[maker[under]] if under is not None else []), layer]
        if layer.name not in joined:
            chains.append(chain[layer.name])
    return chains


def _unit(chain: Sequence[Layer], network: Network, storage: dict[str, int]) -> Unit:
    inside = {name for layer in chain[:-1] for name in layer.writes}
    reads = [
        (storage[name], ALL if layer.mode == "whole" else rows)
        for layer in chain
        for name, rows in layer.reads
        if name not in inside
    ]
    return Unit(
        tuple(layer.name for layer in chain),
        chain[0].mode,
        network.steps[chain[0].name],
        tuple(dict.fromkeys(reads)),
        tuple(dict.fromkeys(storage[name] for name in chain[-1].writes)),
        max(layer.scratch for layer in chain),
    )
