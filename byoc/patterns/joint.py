"""Units for several accelerators at once, each of which may group the nodes differently.

Placement needs one set of units. Where the units of two accelerators overlap they are joined; on each
accelerator the joint unit is made of that accelerator's own units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from byoc.graph.index import GraphIndex
from byoc.patterns.group import make_single_unit, sort_units
from byoc.patterns.unit import Unit
from byoc.verdict import Mark, Verdict, refuse


@dataclass(frozen=True, eq=False)
class JointUnit:
    """Nodes that are placed together, and the units that they form on each accelerator.

    The units in `on_device[d]` have each of the `nodes` once.
    """

    name: str
    nodes: tuple[int, ...]
    on_device: tuple[tuple[Unit, ...], ...]

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """For each accelerator, whether it supports the whole unit; the reasons of all refused parts."""
        return tuple(
            refuse(*dict.fromkeys(reason for unit in units for reason in unit.verdict.reasons))
            for units in self.on_device
        )

    def is_supported(self, device: int) -> bool:
        """Return whether an accelerator supports the whole unit."""
        return all(unit.verdict for unit in self.on_device[device])

    @property
    def must(self) -> bool:
        """True if an accelerator that supports the unit requires it."""
        return any(
            self.is_supported(number) and any(unit.must for unit in units)
            for number, units in enumerate(self.on_device)
        )


def join_units(
    index: GraphIndex, units: Sequence[Sequence[Unit]], marks: Sequence[Sequence[Mark]]
) -> list[JointUnit]:
    """Join the units of several accelerators into one set of units, in topological order.

    If joining makes a cycle, the units of the last accelerator, then of the one before it, no longer
    take part in joining; their nodes are single units where the joint units cut through them.
    """
    if len(units) == 1:
        return [JointUnit(unit.name, unit.nodes, ((unit,),)) for unit in units[0]]
    unit_of = [{node: unit for unit in each for node in unit.nodes} for each in units]
    for count in range(len(units), 0, -1):
        joined = [_make_joint_unit(index, nodes, unit_of, marks) for nodes in _overlapping_nodes(units[:count])]
        ordered = sort_units(index, joined)
        if len(ordered) == len(joined):
            break
    return ordered


def _overlapping_nodes(units: Sequence[Sequence[Unit]]) -> list[tuple[int, ...]]:
    """Join overlapping units; return the nodes of each, by union-find."""
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


def _make_joint_unit(
    index: GraphIndex,
    nodes: tuple[int, ...],
    unit_of: Sequence[Mapping[int, Unit]],
    marks: Sequence[Sequence[Mark]],
) -> JointUnit:
    """Make a joint unit; nodes of units that reach beyond it are single units."""
    inside = set(nodes)
    on = []
    for units, own_marks in zip(unit_of, marks, strict=True):
        parts: dict[int, Unit] = {}
        for node in nodes:
            unit = units[node]
            if not inside.issuperset(unit.nodes):
                unit = make_single_unit(index, node, own_marks[node])
            parts[unit.nodes[0]] = unit
        on.append(tuple(parts.values()))
    return JointUnit(on[0][0].name, nodes, tuple(on))
