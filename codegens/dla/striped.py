"""Striped schedules: rows of one layer, then rows of the next, so that few rows of a tensor are live.

`byoc.memory.stripes` chooses the turns and the places. This module states the rows of inputs that a row
of each layer depends on.
"""

from byoc.memory import stripes
from byoc.memory.stripes import ALL_ROWS, SAME_ROW, OperandRows

from .arena import TensorAddress
from .boxes import AxisSpan
from .layers import ActivationLayer, ConcatLayer, ConvLayer, EltwiseLayer, MachineLayer, LayerNetwork, PoolLayer
from .schedule import ARENA_ALIGNMENT, LayerSchedule, LayerRows, boundary_names, overwritable_operands, stored_tensors, schedule_whole

RowReads = tuple[tuple[str, OperandRows], ...]


def schedule_striped(network: LayerNetwork, method: str) -> LayerSchedule:
    """Return a striped schedule; `method` finds the order of layers, as for whole tensors."""
    ordered = schedule_whole(network, method)
    if not network.layers:
        return ordered
    stored = stored_tensors(network)
    numbers = {layer.y.name: number for number, layer in enumerate(network.layers)}
    found = stripes.stripe(
        [stripes.RowTensor(name, tensor.rows, tensor.row_bytes) for name, tensor in stored.items()],
        [_describe_layer(network, network.layers[turn.number]) for turn in ordered.turns],
        boundary_names(stored, network.inputs),
        boundary_names(stored, network.outputs),
        ARENA_ALIGNMENT,
    )
    places = {
        name: TensorAddress(ordered.places[name].number, place.offset, place.window)
        for name, place in found.places.items()
    }
    turns = tuple(LayerRows(numbers[b.layer], AxisSpan(b.first_row, b.rows)) for b in found.bands)
    return LayerSchedule(turns, places, found.size, found.live)


def _describe_layer(network: LayerNetwork, layer: MachineLayer) -> stripes.RowLayer:
    """Describe a layer to the planner: the rows that it reads of tensors in the arena."""
    rows = _rows_read(layer)
    over = [x.storage_name for x in overwritable_operands(layer) if x.storage_name not in network.constants]
    known = network.constants
    if rows is None:
        reads = tuple((name, ALL_ROWS) for name in dict.fromkeys(x.storage_name for x in layer.reads))
        mode: stripes.problem.Mode = "whole"
    else:
        reads, mode = rows, "rows"
    reads = tuple(each for each in reads if each[0] not in known)
    return stripes.RowLayer(layer.y.name, reads, (layer.y.storage_name,), mode, tuple(dict.fromkeys(over)))


def _rows_read(layer: MachineLayer) -> RowReads | None:
    """Return the rows of each input that a row of a layer reads; None if it must run as a whole."""
    if isinstance(layer, ConvLayer | PoolLayer):
        return _window_rows(layer)
    if isinstance(layer, ActivationLayer) or (isinstance(layer, ConcatLayer) and layer.axis in (2, 3)):
        return tuple(dict.fromkeys((x.storage_name, SAME_ROW) for x in layer.reads))
    if isinstance(layer, EltwiseLayer) and (layer.y.images == 1 or _is_flat(layer)):
        return tuple((x.storage_name, SAME_ROW if x.rows == layer.y.rows else ALL_ROWS) for x in layer.reads)
    return None


def _is_flat(layer: EltwiseLayer) -> bool:
    """Whether every operand has all rows of the result."""
    return all(x.rows == layer.y.rows for x in layer.reads)


def _window_rows(layer: ConvLayer | PoolLayer) -> RowReads | None:
    x, window = layer.x, layer.window
    if x.images > 1 and not window.is_point:
        return None  # windows end at the borders of each image
    rows = OperandRows(window.extent[0], window.strides[0], window.pads[0])
    residual = layer.residual if isinstance(layer, ConvLayer) else None
    return ((x.storage_name, rows), *(((residual.storage_name, SAME_ROW),) if residual is not None else ()))
