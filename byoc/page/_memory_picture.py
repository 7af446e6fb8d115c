"""The memory of the main graph's activations over the steps of a run, as the page draws it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from byoc.bundle import DecidedGraph, DecisionDocument
from byoc.memory.arena import find_lowest_gap

_MOST_TENSORS = 400
"""The number of tensors that are drawn, the largest: others are too thin to be seen."""


def make_memory_picture(decisions: DecisionDocument) -> dict[str, Any]:
    """Return the largest activations of the main graph with live ranges and offsets, as JSON.

    Offsets are planned greedily: the largest tensor first, each at the lowest offset that is free
    during its live range (`by-size` of `byoc.memory.arena`). `buffers` has a row for each tensor: its
    number, offset and bytes, the first and the last step of its live range, and its device. `peak` is
    the end of the highest buffer and `total` the sum of all, in bytes; `why` says what is left out.
    """
    graph = decisions.graphs[0]
    found = sorted(_list_live_ranges(graph, decisions), key=lambda row: (-row[1], row[0]))
    steps = len(graph.units.kinds)
    shown, left = found[:_MOST_TENSORS], found[_MOST_TENSORS:]
    ranges = np.array([row[2:4] for row in shown], np.int64).reshape(-1, 2)
    offsets: list[int] = []
    for number, (_, size, first, last, _) in enumerate(shown):
        before = ranges[:number]
        together = np.flatnonzero((before[:, 0] <= last) & (before[:, 1] >= first)).tolist()
        spans = [(offsets[other], offsets[other] + shown[other][1]) for other in together]
        offsets.append(find_lowest_gap(spans, size))
    buffers = [
        [tensor, at, size, first, last, device]
        for at, (tensor, size, first, last, device) in zip(offsets, shown, strict=True)
    ]
    why = f"{len(left)} smaller tensors are left out." if left else ""
    return {
        "buffers": buffers,
        "steps": steps,
        "peak": max((at + row[1] for at, row in zip(offsets, shown, strict=True)), default=0),
        "total": sum(row[1] for row in shown),
        "why": why,
    }


def _list_live_ranges(
    graph: DecidedGraph, decisions: DecisionDocument
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield tensor, bytes, first and last step, and device of each activation of known size.

    Steps are units in topological order. A live range ends with the step of the last read.
    """
    tensors, nodes = graph.tensors, graph.nodes
    first_step, last_step = dict.fromkeys(graph.inputs, 0), dict.fromkeys(graph.inputs, 0)
    device = dict.fromkeys(graph.inputs, 0)
    for unit, inputs, outputs in zip(nodes.units, nodes.inputs, nodes.outputs, strict=True):
        for tensor in inputs if unit >= 0 else ():
            last_step[tensor] = max(unit, last_step.get(tensor, 0))
        for tensor in outputs if unit >= 0 else ():
            first_step[tensor] = unit
            last_step[tensor] = max(unit, last_step.get(tensor, 0))
            device[tensor] = graph.units.devices[unit]
    last_step.update(dict.fromkeys(graph.outputs, len(graph.units.kinds) - 1))
    hidden = {-1, *tensors.constant, *_list_inner_tensors(graph)}
    for tensor, first in first_step.items():
        kind = -1 if tensor in hidden else tensors.types[tensor]
        size = None if kind < 0 else decisions.types[kind].bytes
        if size:
            yield tensor, size, first, last_step[tensor], device[tensor]


def _list_inner_tensors(graph: DecidedGraph) -> Iterator[int]:
    """Yield the tensors inside of units on accelerators, which run as one: nothing stores them."""
    units = graph.nodes.units
    maker: dict[int, int] = {}
    for node, outputs in enumerate(graph.nodes.outputs):
        unit = units[node]
        if unit >= 0 and graph.units.devices[unit]:
            maker.update(dict.fromkeys(outputs, unit))
    for node, inputs in enumerate(graph.nodes.inputs):
        for tensor in inputs:
            if maker.get(tensor, units[node]) != units[node]:
                del maker[tensor]
    yield from maker.keys() - {*graph.outputs, *_list_unread(graph)}


def _list_unread(graph: DecidedGraph) -> set[int]:
    """Return the tensors that nothing reads."""
    read = {tensor for inputs in graph.nodes.inputs for tensor in inputs}
    return {tensor for outputs in graph.nodes.outputs for tensor in outputs} - read
