"""From layers and tensors to bands and places."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from byoc.memory.stripes.bands import joined
from byoc.memory.stripes.clock import Clock
from byoc.memory.stripes.cuts import Cuts
from byoc.memory.stripes.lives import Life, lives, scratches
from byoc.memory.stripes.pack import Packer
from byoc.memory.stripes.problem import Layer, Network, Place, StripedPlan, Tensor
from byoc.memory.stripes.units import Units, units_of


def stripe(
    tensors: Iterable[Tensor],
    layers: Iterable[Layer],
    inputs: Iterable[str],
    outputs: Iterable[str],
    alignment: int = 1,
) -> StripedPlan:
    """Choose the cascades, the order of their bands and the places that need the smallest arena found.

    `layers` are in an order that can be executed, which is kept where layers do not take turns.
    Offsets are multiples of `alignment`; rows are as long as the tensors say. Every row is computed
    once. Raises ValueError as `Network` does.
    """
    network = Network(
        {each.name: each for each in tensors}, tuple(layers), tuple(inputs), tuple(outputs)
    )
    units = units_of(network)
    cuts = Cuts(units)
    way = cuts.best()
    return planned(network, units, [cuts.clock(a, b) for a, b in pairwise(way)], alignment)


def planned(network: Network, units: Units, clocks: Sequence[Clock], alignment: int) -> StripedPlan:
    """The plan of these cascades."""
    each = lives(units, clocks)
    scratch = scratches(units, clocks)
    live = _most(each, scratch)
    everything = [*each, scratch]
    packing = Packer(everything, alignment).pack(live)
    places = [
        Place(offset, life.window, storage.row_bytes)
        for offset, life, storage in zip(packing.offsets, each, units.storages, strict=False)
    ]
    moments = np.concatenate([np.zeros(0, dtype=np.int32), *(clock.moments for clock in clocks)])
    return StripedPlan(
        tuple(joined(network, units, moments.tolist(), places)),
        {
            name: place
            for storage, place in zip(units.storages, places, strict=True)
            for name in storage.tensors
        },
        {layer.name: packing.offsets[-1] for layer in network.layers if layer.scratch},
        packing.size,
        tuple(
            tuple(name for unit in units.units[clock.first : clock.end] for name in unit.layers)
            for clock in clocks
        ),
        live,
    )


def _most(each: Sequence[Life], scratch: Life) -> int:
    """The most bytes in use at any moment."""
    total = scratch.high.copy()
    for life in each:
        total[life.start : life.end] += np.maximum(life.high - life.low, 0)
    return int(total.max(initial=0))
