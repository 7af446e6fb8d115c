"""The lowest offsets of a few compounds, by trying everything."""

from collections.abc import Iterator, Mapping

from byoc.memory.offsets.packing import Packing

FEW = 4
"""Compounds: so many take at most some thousand tries."""


def lowest(packing: Packing) -> list[int]:
    """Return offsets that need as few bytes as any.

    Placing one after another, each as low as it goes, finds the lowest for compounds of one part, in
    some sequence. One of several parts can lie around another, so here each also goes on top of any
    that it may not meet: pushed down as far as they go, all stand on the ground or on one that does.
    """
    best = _best(packing, {}, sum(compound.size for compound in packing.compounds) + 1)
    assert best is not None
    return [best[number] for number in range(len(packing.compounds))]


def _best(packing: Packing, there: Mapping[int, int], below: int) -> dict[int, int] | None:
    """Return the lowest offsets for all, where some are there and it takes less than `below` bytes."""
    if max((at + packing.compounds[n].size for n, at in there.items()), default=0) >= below:
        return None
    if len(there) == len(packing.compounds):
        return dict(there)
    best = None
    for number in set(range(len(packing.compounds))) - there.keys():
        for at in _places(packing, there, number):
            found = _best(packing, {**there, number: at}, below)
            if found is not None:
                best = found
                below = max(at + packing.compounds[n].size for n, at in found.items())
    return best


def _places(packing: Packing, there: Mapping[int, int], number: int) -> Iterator[int]:
    met = [(there[n], low, high) for n, low, high in packing.conflicts[number] if n in there]
    for at in {0, *(other + high for other, _, high in met)}:
        if at >= 0 and not any(low < at - other < high for other, low, high in met):
            yield at
