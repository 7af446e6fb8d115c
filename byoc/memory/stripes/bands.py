"""Moments of a clock to bands: rows of a layer that can be computed at once become one band.

That is so where no other unit runs in between, and no row that is written lies over a row that the same
band reads: over a row, that is, that was dead only after the first of these rows had been computed.
"""

from collections.abc import Iterator, Sequence

from byoc.memory.stripes.problem import SAME, Band, Network, Place
from byoc.memory.stripes.units import Unit, Units

_Bytes = list[tuple[int, int]]


def joined(
    network: Network, units: Units, moments: Sequence[int], places: Sequence[Place]
) -> Iterator[Band]:
    """The bands, for the unit that runs at each moment and the place of each storage."""
    done = [0] * len(units.units)
    heights = {layer.name: network.tensors[layer.writes[0]].rows for layer in network.layers}
    now = 0
    while now < len(moments):
        number = moments[now]
        unit, row = units.units[number], done[number]
        most = now
        while most < len(moments) and moments[most] == number:
            most += 1
        rows = _rows_at_once(unit, units, places, row, most - now)
        done[number] += rows
        now += rows
        for layer in unit.layers:
            yield Band(layer, row, heights[layer] if unit.mode == "whole" else rows)


def _rows_at_once(unit: Unit, units: Units, places: Sequence[Place], row: int, most: int) -> int:
    rows = 1
    while rows < most and _apart(unit, units, places, row, rows + 1):
        rows += 1
    return rows


def _apart(unit: Unit, units: Units, places: Sequence[Place], row: int, rows: int) -> bool:
    written: _Bytes = []
    for number in unit.makes:
        if unit.mode == "rows" and rows > places[number].window:
            return False  # nobody reads it
        written += _occupied(places[number], row, row + rows)
    read: _Bytes = []
    for each in unit.reads:
        if each.storage in unit.makes and each.rows == SAME:
            continue  # the layer writes over it, row by row
        height = units.storages[each.storage].rows
        first, end = each.rows.first(row, height), each.rows.end(row + rows - 1, height)
        read += _occupied(places[each.storage], first, end)
    return not any(a < d and c < b for a, b in written for c, d in read)


def _occupied(place: Place, first: int, end: int) -> _Bytes:
    """The bytes of rows `[first, end)`, two stretches where they go round."""
    if end - first >= place.window:
        return [(place.offset, place.offset + place.window * place.row_bytes)]
    if end <= first:
        return []
    begin = place.row(first)
    stop = place.row(end - 1) + place.row_bytes
    if begin < stop:
        return [(begin, stop)]
    return [(begin, place.offset + place.window * place.row_bytes), (place.offset, stop)]
