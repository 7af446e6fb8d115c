"""The ends of a network: what stands before its first linear operators, and behind its last ones.

Little is computed there, and what is rounded there is never averaged: a Concat of boxes and scores has
one scale for both, the Sigmoid of a score near zero a step of 1/255, and so has a sample before it is
normalized.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from byoc.model import GraphIndex, get_node_name, is_onnx
from byoc.quantization._arithmetic import WEIGHTED
from byoc.quantization._ranges import Range, Ranges

_LEVELS = 255
# With fewer for an operand of a Concat the ends stay in floating point, whatever the noise: large values
# beside small ones, as boxes beside scores, hide in a sum how inexact the small ones are.
_FEW_STEPS = 32


def find_tail_units(index: GraphIndex, units: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or behind them."""
    linear: set[int] = set()
    for number in reversed(range(len(index.nodes))):
        readers = {user for name in index.nodes[number].output for user in index.consumers.get(name, ())}
        if _is_linear(index, number) or not linear.isdisjoint(readers):
            linear.add(number)
    return _find_units_without(index, units, linear)


def find_tail_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], output: str
) -> tuple[str, ...]:
    """Return the units (nodes by name) without a linear operator in them or behind them, by an output.

    These are those that the output depends on.
    """
    seen: set[int] = set()
    waiting = [output]
    while waiting:
        number = index.producers.get(waiting.pop())
        if number is not None and number not in seen:
            seen.add(number)
            waiting += index.reads[number]
    before = {get_node_name(index.nodes[number]) for number in seen}
    return tuple(name for name in find_tail_units(index, units) if not before.isdisjoint(units[name]))


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


@dataclass(frozen=True)
class CoarseConcat:
    """A Concat in one of the units: the steps, of 255, that its narrowest operand gets."""

    unit: str
    operand: str
    steps: int

    def __str__(self) -> str:
        return f"'{self.unit}' leaves {self.steps} of {_LEVELS} steps to '{self.operand}'"


def find_coarse_concats(
    index: GraphIndex, units: Collection[str], ranges: Ranges
) -> tuple[CoarseConcat, ...]:
    """Return the Concats among units that leave fewer than 32 steps to an operand.

    Ranges that a user gave as scales do not count.
    """
    found = []
    for node in index.nodes:
        unit = get_node_name(node)
        if node.op_type != "Concat" or not is_onnx(node) or unit not in units:
            continue
        entries = {name: ranges.tensors.get(name) for name in node.input}
        widths = {
            name: max(each.high, 0.0) - min(each.low, 0.0)
            for name, each in entries.items()
            if isinstance(each, Range)
        }
        widths = {name: width for name, width in widths.items() if width > 0}
        if widths:
            narrow = min(widths, key=lambda name: widths[name])
            steps = int(_LEVELS * widths[narrow] / max(widths.values()))
            found += [CoarseConcat(unit, narrow, steps)] if steps < _FEW_STEPS else []
    return tuple(found)


def _is_linear(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and (node.op_type in WEIGHTED or number in index.bodies)
