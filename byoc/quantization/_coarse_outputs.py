"""Outputs that eight bits are too coarse for: a few values are so large that the others share few steps.

A map of scores before their Sigmoid may reach from -40,000 to 20,000 where nine tenths of it lie within
700; an answer is where it is above zero. Noise as a share of the whole power does not show that nothing
is left of these tenths, so there noise counts by the size of each value.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import VIEW_OPERATORS, GraphIndex, get_node_name, is_onnx
from byoc.numerics import convert_to_db
from byoc.quantization._fixed_ranges import has_fixed_range

_USUAL = (0.05, 0.95)  # the quantiles between which values are usual
_NEAR = 0.1  # the quantile of sizes below which values are near to 0
_FEW_STEPS = 8  # of 255; usual values of the trained networks tried spread over 29 and more, or below 3
_LEVELS = 255
_MAX_ACCURACY = 30.0  # dB; more does not count: errors are then 3 % of the deviation of usual values

Outputs = Sequence[Mapping[str, Any]]


def count_usual_steps(index: GraphIndex, expected: Outputs) -> dict[str, float]:
    """Return the float outputs whose usual values lie within few steps of 255, and how many those are.

    `expected` is what the float model gives for samples. An output whose range an operator fixes, as a
    Sigmoid does, is left out: there a value near 0 means 0, however many there are.
    """
    found = {}
    for name, first in expected[0].items():
        if not isinstance(first, np.ndarray) or first.dtype.kind != "f" or has_fixed_range(index, name):
            continue
        values = _join(expected, name)
        if not values.size:
            continue
        low, high = np.quantile(values, _USUAL)
        width = max(float(values.max()), 0.0) - min(float(values.min()), 0.0)
        steps = _LEVELS * float(high - low) / width if width > 0 else float(_LEVELS)
        if 0 < steps < _FEW_STEPS:
            found[name] = steps
    return found


def measure_size_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the signal-to-noise ratio (variance to noise) of the sizes of an output, to 30 dB.

    Sizes are asinh(x / s), where a tenth of the values that are not 0 are nearer to 0 than s: so noise
    counts by itself in these, and in larger ones by its share of the value.
    """
    signal, other = _join(expected, name), _join(actual, name)
    sizes = np.abs(signal[signal != 0])
    near = max(float(np.quantile(sizes, _NEAR)), float(np.finfo(np.float32).tiny)) if sizes.size else 1.0
    signal, other = np.arcsinh(signal / near), np.arcsinh(other / near)
    noise = float(np.mean((signal - other) ** 2))
    return min(convert_to_db(float(np.var(signal)), noise), _MAX_ACCURACY)


def find_units_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], tensors: Collection[str]
) -> tuple[str, ...]:
    """Return the units (nodes by name) that make tensors, nearest first.

    The search goes on through views and nodes in no unit, which round nothing, to what makes their
    operands.
    """
    owners = {node: name for name, nodes in units.items() for node in nodes}
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting = list(tensors)
    while waiting:
        number = index.producers.get(waiting.pop(0))
        if number is None or number in seen:
            continue
        seen.add(number)
        unit = owners.get(get_node_name(index.nodes[number]))
        if unit is not None:
            found[unit] = None
        if unit is None or _is_view(index, number):
            waiting += index.reads[number]
    return tuple(found)


def list_read_tensors(
    index: GraphIndex, units: Mapping[str, Sequence[str]], names: Collection[str]
) -> tuple[str, ...]:
    """Return the tensors that some of the units read, and none of them makes."""
    nodes = {node for name in names for node in units[name]}
    numbers = [number for number, node in enumerate(index.nodes) if get_node_name(node) in nodes]
    made = {name for number in numbers for name in index.nodes[number].output}
    return tuple(name for number in numbers for name in index.reads[number] if name not in made)


def _is_view(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and node.op_type in VIEW_OPERATORS


def _join(outputs: Outputs, name: str) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(each[name], np.float64).ravel() for each in outputs])
