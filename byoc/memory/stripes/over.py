"""Which layers write over an operand, row by row.

The result's row `r` may lie where the operand's row `r` was if nobody reads that row afterwards. That
is so for an operand with one reader, and also where the other readers come first of necessity: the last
layer of a residual block adds to row `r` of the shortcut what the block made of it, and the block's
first layer has read that row by then. Which rows a layer has to have computed before another one's row
follows from what each reads, whatever the order of the bands.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from byoc.memory.stripes.problem import SAME, Layer, Network, Rows

_Rows = NDArray[np.int64]

_FAR = 64
"""A layer writes over an operand that others read only if it is made at most so many layers before."""


def written_over(network: Network) -> dict[str, str]:
    """For each tensor that is written over another one, the other one.

    A shortcut goes before an operand with a single reader: such a one is dead again at once anyway.
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
        fits = [name for name in layer.over if _fits(network, layer, name)]
        for name in sorted(fits, key=lambda each: -len(readers[each])):
            others = [other for other in readers[name] if other != number]
            if readers[name].count(number) == 1 and (
                not others or _is_last(network, maker.get(name, -1), number, name, others)
            ):
                found[layer.writes[0]] = name
                break
    return found


def _fits(network: Network, layer: Layer, name: str) -> bool:
    one, other = network.tensors[layer.writes[0]], network.tensors[name]
    alike = (one.rows, one.row_bytes) == (other.rows, other.row_bytes)
    return alike and (name, SAME) in layer.reads and name not in network.outputs


def _is_last(network: Network, maker: int, number: int, name: str, others: Sequence[int]) -> bool:
    """Whether the other readers have read a row before the layer's row of that number can run."""
    if max(others) > number or number - maker > _FAR:
        return False
    done = _done_before(network, number, maker)
    rows = np.arange(network.tensors[name].rows)
    for other in others:
        layer = network.layers[other]
        steps = network.steps[layer.name]
        count = done.get(other, np.zeros_like(rows))
        for read, each in layer.reads:
            if read == name:
                begins = starts(each, count) if layer.mode != "whole" else np.zeros_like(count)
                if not np.all((count >= steps) | (begins > rows)):
                    return False
    return True


def _done_before(network: Network, number: int, maker: int) -> Mapping[int, _Rows]:
    """For the layers between `maker` and `number`, the rows done before each row of layer `number`."""
    target = network.layers[number]
    wanted: dict[str, _Rows] = {}
    _want(network, target, np.arange(1, network.steps[target.name] + 1), wanted)
    done: dict[int, _Rows] = {}
    for other in range(number - 1, maker, -1):
        layer = network.layers[other]
        steps = network.steps[layer.name]
        rows = [wanted[name] for name in layer.writes if name in wanted]
        if not rows:
            continue
        most = np.maximum.reduce(rows)
        done[other] = most if layer.mode == "rows" else np.where(most > 0, steps, 0)
        _want(network, layer, done[other], wanted)
    return done


def _want(network: Network, layer: Layer, count: _Rows, wanted: dict[str, _Rows]) -> None:
    """Note what the first `count` rows of a layer read."""
    for name, rows in layer.reads:
        height = network.tensors[name].rows
        ends = np.clip(starts(rows, count - 1) + rows.extent, 0, height)
        ends = np.where(count > 0, height if layer.mode == "whole" else ends, 0)
        wanted[name] = np.maximum(wanted[name], ends) if name in wanted else ends


def starts(rows: Rows, row: _Rows) -> _Rows:
    """The first row that each result row reads, not clipped."""
    return row * rows.stride // rows.repeat - rows.before
