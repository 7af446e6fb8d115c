"""The ends of a network: units before its first linear operators, behind its last ones, before outputs.

Little is computed there, and what is rounded there is never averaged: a Concat of boxes and scores has
one scale for both, the Sigmoid of a score near zero a step of 1/255, and so has a sample before it is
normalized.
"""

from collections.abc import Collection, Mapping, Sequence

from byoc.model import VIEW_OPERATORS, GraphIndex, get_node_name, is_onnx
from byoc.quantization._arithmetic import WEIGHTED


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
    """Return the tail of one output: the units of `find_tail_units` that it depends on."""
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


def find_units_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], tensors: Collection[str]
) -> tuple[str, ...]:
    """Return the units (nodes by name) that make tensors, nearest first.

    Views and nodes in no unit round nothing: the search goes on to what makes their operands.
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


def _is_linear(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and (node.op_type in WEIGHTED or number in index.bodies)


def _is_view(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and node.op_type in VIEW_OPERATORS
