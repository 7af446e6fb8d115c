"""The ends of a network: what stands before its first linear operators, and behind its last ones.

Little is computed there, and what is rounded there is never averaged: a Concat of boxes and scores has
one scale for both, the Sigmoid of a score near zero a step of 1/255, and so has a sample before it is
normalized.
"""

from collections.abc import Collection, Mapping, Sequence

from byoc.model import GraphIndex, get_node_name, is_onnx
from byoc.quantization._arithmetic import WEIGHTED
from byoc.quantization._ranges import Range, Ranges

_LEVELS = 255


def find_tail_units(index: GraphIndex, units: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or behind them."""
    linear: set[int] = set()
    for number in reversed(range(len(index.nodes))):
        readers = {user for name in index.nodes[number].output for user in index.consumers.get(name, ())}
        if _is_linear(index, number) or not linear.isdisjoint(readers):
            linear.add(number)
    return _find_units_without(index, units, linear)


def find_head_units(index: GraphIndex, units: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or before them."""
    linear: set[int] = set()
    for number in range(len(index.nodes)):
        makers = {index.producers[name] for name in index.reads[number] if name in index.producers}
        if _is_linear(index, number) or not linear.isdisjoint(makers):
            linear.add(number)
    return _find_units_without(index, units, linear)


def _find_units_without(
    index: GraphIndex, units: Mapping[str, Sequence[str]], numbers: Collection[int]
) -> tuple[str, ...]:
    names = {get_node_name(index.nodes[number]) for number in numbers}
    return tuple(name for name, nodes in units.items() if names.isdisjoint(nodes))


def count_levels(index: GraphIndex, units: Collection[str], ranges: Ranges) -> int:
    """Count the steps, of 255, that a Concat among units leaves to the narrowest tensor that it reads.

    255 where there is none. Ranges that a user gave as scales do not count.
    """
    least = _LEVELS
    for node in index.nodes:
        if node.op_type != "Concat" or not is_onnx(node) or get_node_name(node) not in units:
            continue
        entries = [ranges.tensors.get(name) for name in node.input]
        widths = [
            max(each.high, 0.0) - min(each.low, 0.0) for each in entries if isinstance(each, Range)
        ]
        widths = [width for width in widths if width > 0]
        if widths:
            least = min(least, int(_LEVELS * min(widths) / max(widths)))
    return least


def _is_linear(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and (node.op_type in WEIGHTED or number in index.bodies)
