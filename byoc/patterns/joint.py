"""Units for several accelerators at once: what each takes as one need not be what another does.

Placement needs one set of units. Where the units of two accelerators overlap they are joined, and on
each of them the joint unit is what that accelerator makes of its nodes: one composite, or several units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from byoc.graph.index import GraphIndex
from byoc.patterns.group import single, sorted_units
from byoc.patterns.unit import Unit
from byoc.verdict import YES, Mark, Verdict, refuse


@dataclass(frozen=True, eq=False)
class JointUnit:
    """What is placed as one, and for each accelerator the units that it is there.

    The units in `on[d]` have the `nodes` among them, each once.
    """

    name: str
    nodes: tuple[int, ...]
    on: tuple[tuple[Unit, ...], ...]

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Whether each accelerator takes it: all of it, or the reasons of the parts that it refuses."""
        return tuple(
            refuse(*dict.fromkeys(reason for unit in units for reason in unit.verdict.reasons))
            if not all(unit.verdict for unit in units)
            else YES
            for units in self.on
        )

    def taken(self, number: int) -> bool:
        """Return whether an accelerator takes all of it."""
        return all(unit.verdict for unit in self.on[number])

    @property
    def must(self) -> bool:
        """Whether an accelerator that takes it says that it has to run there."""
        for number, units in enumerate(self.on):
            for unit in units:
                if unit.must and self.taken(number):
                    return True
        return False


def joint(
    index: GraphIndex, units: Sequence[Sequence[Unit]], marks: Sequence[Sequence[Mark]]
) -> list[JointUnit]:
    """Return units for several accelerators, in topological order, from the units of each.

    Where joining would have units wait for one another in a circle, composites of the later accelerators
    go, and their nodes are units of their own there.
    """
    if len(units) == 1:
        return [JointUnit(unit.name, unit.nodes, ((unit,),)) for unit in units[0]]
    of_node = [{node: unit for unit in each for node in unit.nodes} for each in units]
    kept = len(units)
    while True:
        found = [_unit(index, block, of_node, marks) for block in _blocks(units[:kept])]
        ordered = sorted_units(index, found)
        if len(ordered) == len(found) or kept == 1:
            return ordered
        kept -= 1


def _blocks(units: Sequence[Sequence[Unit]]) -> list[tuple[int, ...]]:
    """Return the nodes that belong together, each once: those of overlapping units are joined."""
    parent = {node: node for unit in units[0] for node in unit.nodes}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for unit in (unit for each in units for unit in each):
        for node in unit.nodes[1:]:
            parent[root(node)] = root(unit.nodes[0])
    blocks: dict[int, list[int]] = {}
    for node in sorted(parent):
        blocks.setdefault(root(node), []).append(node)
    return [tuple(block) for block in blocks.values()]


def _unit(
    index: GraphIndex,
    block: tuple[int, ...],
    of_node: Sequence[Mapping[int, Unit]],
    marks: Sequence[Sequence[Mark]],
) -> JointUnit:
    inside = set(block)
    on = []
    for units, said in zip(of_node, marks, strict=True):
        parts: dict[int, Unit] = {}
        for node in block:
            unit = units[node]
            if not inside.issuperset(unit.nodes):
                unit = single(index, node, said[node])
            parts[unit.nodes[0]] = unit
        on.append(tuple(parts.values()))
    return JointUnit(on[0][0].name, block, tuple(on))
