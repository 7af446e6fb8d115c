"""QDQ groups: an operator between DequantizeLinear and QuantizeLinear, as the one unit that it is.

An int8 accelerator takes such a group or nothing: what is inside is floating point on paper only.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.graph.unshare import is_dequantize, is_float, is_quantize
from byoc.graph.walk import describe
from byoc.patterns.order import Order
from byoc.patterns.unit import Unit, not_taken
from byoc.verdict import Mark, refuse


def wrap(index: GraphIndex, units: Sequence[Unit], marks: Sequence[Mark]) -> list[Unit]:
    """Return the units with QDQ groups formed around those that a rule for quantized operators accepts.

    A group is the unit, the DequantizeLinear of each of its activations, which nothing else may read,
    and the QuantizeLinear nodes that alone read what it makes. Where one of these is missing and no
    other rule accepts the unit, it is refused with what is in the way. A DequantizeLinear fed by
    constants alone is a constant, and goes with its reader as any other does. A composite may hold
    DequantizeLinear and QuantizeLinear nodes of its own; there the group needs no others. A path that
    leaves a group and comes back, by a scale that is computed, is in the way, too.
    """
    grouper = _Grouper(index, {node: unit for unit in units for node in unit.nodes})
    order = Order(index)
    for unit in units:
        order.join(unit.nodes)
    result: dict[int, Unit] = {}
    absorbed: set[int] = set()
    for unit in units:
        quantized = unit.verdict and any(marks[node].quantized for node in unit.nodes)
        if not quantized or _is_border(index, unit):
            continue
        around, reason = grouper.around(unit.nodes)
        floats = [n for n in unit.nodes if not (marks[n].quantized or is_border(index.nodes[n]))]
        if floats and not reason:
            reason = f"no rule for quantized operators takes {describe(index.nodes[floats[0]])}"
        if not reason:
            between = order.join((*unit.nodes, *around))
            if between is not None:
                called = describe(index.nodes[between])
                reason = f"a path leaves it and comes back through {called}"
        if not reason:
            absorbed.update(around)
            nodes = tuple(sorted((*unit.nodes, *around)))
            result[unit.nodes[0]] = replace(unit, nodes=nodes, kind="qdq")
        elif not all(marks[node].plain for node in unit.nodes):
            said = f"{_called(index, unit)} is no whole QDQ group: {reason}"
            result[unit.nodes[0]] = replace(unit, verdict=refuse(said), rules=(), must=False)
    left = [unit for unit in units if unit.nodes[0] not in absorbed]
    return [result.get(unit.nodes[0], unit) for unit in left]


def is_border(node: NodeProto) -> bool:
    """Return whether a node is one of those that a group begins and ends with."""
    return is_dequantize(node) or is_quantize(node)


def border_objection(index: GraphIndex, nodes: Iterable[int], marks: Sequence[Mark]) -> str:
    """Return why nodes of a composite that no rule accepts cannot be in it, empty when they can.

    The DequantizeLinear and QuantizeLinear nodes of a whole group need no rule of their own.
    """
    inside = sorted(nodes)
    unasked = [node for node in inside if not marks[node].verdict]
    if not unasked:
        return ""
    core = [node for node in inside if not is_border(index.nodes[node])]
    if not core or not all(marks[node].quantized for node in core):
        return not_taken(index.nodes[unasked[0]], marks[unasked[0]])
    reason = _Grouper(index).around(inside)[1]
    return f"it is no whole QDQ group: {reason}" if reason else ""


def _is_border(index: GraphIndex, unit: Unit) -> bool:
    return len(unit.nodes) == 1 and is_border(index.nodes[unit.nodes[0]])


def _called(index: GraphIndex, unit: Unit) -> str:
    return unit.composite or index.nodes[unit.nodes[0]].op_type


@dataclass(frozen=True)
class _Grouper:
    """Finds what belongs to a group; `unit_of` has the units so far, None where there are none yet."""

    index: GraphIndex
    unit_of: Mapping[int, Unit] | None = None

    def around(self, nodes: Collection[int]) -> tuple[list[int], str]:
        """Return the nodes of a group beside some, and why there is no group (empty: there is)."""
        found: dict[int, None] = {}
        inside = set(nodes)
        made = {name for node in nodes for name in self.index.nodes[node].output if name}
        entering = (name for node in nodes for name in self._reads(node) if name not in made)
        for name in dict.fromkeys(entering):
            if self.index.is_constant(name) or not is_float(self.index, name):
                continue
            reason = self._before(name, inside, found)
            if reason:
                return [], reason
        for name in sorted(made, key=lambda name: self.index.producer[name]):
            readers = self.index.consumers.get(name, ())
            leaves = name in self.index.outputs or not inside.issuperset(readers)
            if not leaves or not is_float(self.index, name):
                continue
            reason = self._behind(name, inside, found)
            if reason:
                return [], reason
        if not found and not any(is_border(self.index.nodes[node]) for node in nodes):
            return [], "nothing that it reads or makes is quantized"
        return list(found), ""

    def _reads(self, number: int) -> Sequence[str]:
        """Return what has to be quantized of what a node reads: no scale of its own."""
        node = self.index.nodes[number]
        return node.input[:1] if is_border(node) else self.index.reads[number]

    def _before(self, name: str, inside: set[int], found: dict[int, None]) -> str:
        producer = self.index.producer.get(name, -1)
        if producer < 0:
            return f"its input '{name}' comes from outside the graph, not from a DequantizeLinear"
        node = self.index.nodes[producer]
        if not is_dequantize(node):
            return f"its input '{name}' is made by {describe(node)}, not by a DequantizeLinear"
        readers = [user for user in self.index.consumers[name] if user not in inside]
        if readers:
            return f"its input '{name}' is read by {describe(self.index.nodes[readers[0]])}, too"
        if name in self.index.outputs:
            return f"its input '{name}' is an output of the graph, too"
        return self._take(producer, found)

    def _behind(self, name: str, inside: set[int], found: dict[int, None]) -> str:
        if name in self.index.outputs:
            return f"its output '{name}' is an output of the graph, and is not quantized"
        for number in self.index.consumers[name]:
            if number in inside:
                continue
            node = self.index.nodes[number]
            if not is_quantize(node) or name in node.input[1:]:
                return f"its output '{name}' is read by {describe(node)}, not by a QuantizeLinear alone"
            reason = self._take(number, found)
            if reason:
                return reason
        return ""

    def _take(self, number: int, found: dict[int, None]) -> str:
        unit = self.unit_of.get(number) if self.unit_of is not None else None
        if self.unit_of is not None and (unit is None or len(unit.nodes) > 1):
            return f"{describe(self.index.nodes[number])} belongs to another composite"
        found[number] = None
        return ""
