"""Striped schedules: rows of one layer, then rows of the next, so that few rows of a tensor are live.

`byoc.memory.stripes` chooses the turns and the places. This module states the rows of inputs that a row
of each layer depends on.
"""

from byoc.memory import stripes
from byoc.memory.stripes import ALL, SAME, Rows

from .arena import Place
from .boxes import Span
from .layers import Activation, Concat, Conv, Eltwise, Layer, Network, Pool
from .schedule import ALIGNMENT, Schedule, Turn, border_names, in_place, stored_tensors, whole

Reads = tuple[tuple[str, Rows], ...]


def striped(network: Network, method: str) -> Schedule:
    """Return a striped schedule; `method` finds the order of layers, as for whole tensors."""
    ordered = whole(network, method)
    if not network.layers:
        return ordered
    stored = stored_tensors(network)
    numbers = {layer.y.name: number for number, layer in enumerate(network.layers)}
    found = stripes.stripe(
        [stripes.Tensor(name, tensor.rows, tensor.row_bytes) for name, tensor in stored.items()],
        [_layer(network, network.layers[turn.number]) for turn in ordered.turns],
        border_names(stored, network.inputs),
        border_names(stored, network.outputs),
        ALIGNMENT,
    )
    places = {
        name: Place(ordered.places[name].number, place.offset, place.window)
        for name, place in found.places.items()
    }
    turns = tuple(Turn(numbers[b.layer], Span(b.first_row, b.rows)) for b in found.bands)
    return Schedule(turns, places, found.size, found.live)


def _layer(network: Network, layer: Layer) -> stripes.Layer:
    """Describe a layer to the planner: the rows that it reads of tensors in the arena."""
    rows = _rows(layer)
    over = [x.held for x in in_place(layer) if x.held not in network.constants]
    known = network.constants
    if rows is None:
        reads = tuple((name, ALL) for name in dict.fromkeys(x.held for x in layer.reads))
        mode: stripes.problem.Mode = "whole"
    else:
        reads, mode = rows, "rows"
    reads = tuple(each for each in reads if each[0] not in known)
    return stripes.Layer(layer.y.name, reads, (layer.y.held,), mode, tuple(dict.fromkeys(over)))


def _rows(layer: Layer) -> Reads | None:
    """Return the rows of each input that a row of a layer reads; None if it must run as a whole."""
    if isinstance(layer, Conv | Pool):
        return _windowed(layer)
    if isinstance(layer, Activation) or (isinstance(layer, Concat) and layer.axis in (2, 3)):
        return tuple(dict.fromkeys((x.held, SAME) for x in layer.reads))
    if isinstance(layer, Eltwise) and (layer.y.images == 1 or _is_flat(layer)):
        return tuple((x.held, SAME if x.rows == layer.y.rows else ALL) for x in layer.reads)
    return None


def _is_flat(layer: Eltwise) -> bool:
    """Whether every operand has all rows of the result."""
    return all(x.rows == layer.y.rows for x in layer.reads)


def _windowed(layer: Conv | Pool) -> Reads | None:
    x, window = layer.x, layer.window
    if x.images > 1 and not window.is_point:
        return None  # windows end at the borders of each image
    rows = Rows(window.extent[0], window.strides[0], window.pads[0])
    residual = layer.residual if isinstance(layer, Conv) else None
    return ((x.held, rows), *(((residual.held, SAME),) if residual is not None else ()))
