"""The grouper: nodes become composites and QDQ groups, which are joined across accelerators.

Larger matches go first, equal ones in the order of the file and then of the nodes; a node belongs to at
most one unit. Contracting each unit to one node never makes a cycle.

Placement needs one set of units. Where accelerators have different units of the same nodes, composites
are opened (`open_units`): their nodes are units, and the composites are candidates. What cannot be
opened is joined; on each accelerator the joint unit is made of that accelerator's own units.

If a composite that was not chosen overlaps a chosen one, without being part of it, both are candidates:
their nodes stay single units, and the placement chooses candidates that share no node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from byoc.errors import YES, Cause, CauseKind, Verdict, join_verdicts, refuse
from byoc.model import GraphIndex, get_node_name
from byoc.numerics import merge_groups, sort_topologically
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._matcher import Mark, Match, NodeGroup, Unit
from byoc.patterns._pattern import Pattern
from byoc.patterns._qdq_groups import find_candidates, form_qdq_groups

__all__ = ["Unit", "find_composites", "group_matches", "group_units"]


T = TypeVar("T", bound=NodeGroup)


def group_units(index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]) -> list[Unit]:
    """Divide the main graph into units, in topological order; constant nodes belong to none."""
    return group_matches(index, find_candidates(index, patterns, marks), marks)


def group_matches(index: GraphIndex, candidates: Iterable[Match], marks: Sequence[Mark]) -> list[Unit]:
    """Divide the main graph into units, given the candidate matches."""
    matches = _choose_composites(index, candidates)
    inner = {node for match in matches for node in match.nodes.values()}
    units = [make_composite_unit(index, match, marks) for match in matches]
    for number, mark in enumerate(marks):
        if number not in inner and number not in index.constant_nodes:
            units.append(make_single_unit(index, number, mark))
    wrapped = form_qdq_groups(index, units, marks)
    ordered = sort_units(index, wrapped)
    if len(ordered) < len(wrapped):
        raise AssertionError("units form a cycle")
    return ordered


def find_composites(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> list[Match]:
    """Find the composites of the main graph: no two share a node, and no cycle between them."""
    return _choose_composites(index, find_candidates(index, patterns, marks))


def _choose_composites(index: GraphIndex, found: Iterable[Match]) -> list[Match]:
    """Choose matches greedily: no two share a node, and no cycle between them."""
    inner: set[int] = set()
    matches: list[Match] = []
    order = ContractionOrder(index)
    for match in found:
        nodes = set(match.nodes.values())
        if inner.isdisjoint(nodes) and order.join(nodes) is None:
            inner |= nodes
            matches.append(match)
    return matches


def make_composite_unit(index: GraphIndex, match: Match, marks: Sequence[Mark]) -> Unit:
    """Make a unit of a match."""
    nodes = tuple(sorted(match.nodes.values()))
    return Unit(
        name=get_node_name(index.nodes[match.root]),
        nodes=nodes,
        verdict=YES,
        rules=tuple(marks[node].rule for node in nodes if marks[node].verdict),
        match=match,
        kind="composite",
        must=any(marks[node].is_required for node in nodes),
    )


def make_single_unit(index: GraphIndex, number: int, mark: Mark) -> Unit:
    """Make a unit of one node."""
    verdict = mark.verdict
    if verdict and not mark.standalone:
        operator = index.nodes[number].op_type
        verdict = refuse(
            Cause(
                CauseKind.COMPOSITE,
                f"{operator} is taken only inside a composite",
                operator,
                f"{mark.rule}.standalone",
            )
        )
    rules = (mark.rule,) if verdict else ()
    must = bool(verdict) and mark.is_required
    return Unit(get_node_name(index.nodes[number]), (number,), verdict, rules, must=must)


def sort_units(index: GraphIndex, units: Sequence[T]) -> list[T]:
    """Sort units topologically, units that are ready at the same time by their last nodes.

    Units on a cycle, and those that depend on them, are left out.
    """
    ordered = sorted(units, key=lambda unit: unit.nodes[-1])
    row_of = {node: row for row, unit in enumerate(ordered) for node in unit.nodes}
    outputs, reads = index.node_outputs, index.reads
    maker = {name: row for node, row in row_of.items() for name in outputs[node] if name}
    before = []
    for row, unit in enumerate(ordered):
        rows = {maker[name] for node in unit.nodes for name in reads[node] if name in maker}
        rows.discard(row)
        before.append(rows)
    return [ordered[row] for row in sort_topologically(before)]


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
            units[0].verdict if len(units) == 1 else join_verdicts(unit.verdict for unit in units)
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
        joined = [
            _make_joint_unit(index, nodes, unit_of, marks) for nodes in _overlapping_nodes(units[:count])
        ]
        ordered = sort_units(index, joined)
        if len(ordered) == len(joined):
            break
    return ordered


def open_units(
    index: GraphIndex, units: Sequence[Sequence[Unit]], marks: Sequence[Sequence[Mark]]
) -> tuple[list[list[Unit]], list[list[Unit]]]:
    """Open composites where another accelerator has other units, so that each can place its own.

    Return the units of each accelerator, and its composites whose nodes are single units now. What
    stays whole are QDQ groups, composites with a node that their accelerator does not take alone, what
    overlaps with these, and what no second accelerator takes any part of.
    """
    unit_of = [{node: unit for unit in each for node in unit.nodes} for each in units]
    opened: set[int] = set()
    for nodes in _overlapping_nodes(units):
        parts = [[own[node] for node in nodes] for own in unit_of]
        taken = {tuple(unit.nodes for unit in own) for own in parts if any(unit.verdict for unit in own)}
        if len(taken) > 1 and all(
            len(unit.nodes) == 1 or (unit.kind == "composite" and _can_open(unit, own_marks))
            for own, own_marks in zip(parts, marks, strict=True)
            for unit in own
        ):
            opened.update(nodes)
    divided, rivals = [], []
    for each, own_marks in zip(units, marks, strict=True):
        open_here = [unit for unit in each if len(unit.nodes) > 1 and unit.nodes[0] in opened]
        alone = {node for unit in open_here for node in unit.nodes}
        kept = [unit for unit in each if unit.nodes[0] not in alone]
        kept += [make_single_unit(index, node, own_marks[node]) for node in sorted(alone)]
        divided.append(sort_units(index, kept) if open_here else list(each))
        rivals.append(open_here)
    return divided, rivals


def _can_open(unit: Unit, marks: Sequence[Mark]) -> bool:
    """Return whether an accelerator takes each node of a composite alone."""
    own = (marks[node] for node in unit.nodes)
    return all(mark.verdict and mark.accepts_plain and mark.standalone for mark in own)


def _overlapping_nodes(units: Sequence[Sequence[Unit]]) -> list[tuple[int, ...]]:
    """Join overlapping units; return the nodes of each."""
    nodes = sorted(node for unit in units[0] for node in unit.nodes)
    of = merge_groups(max(nodes, default=0) + 1, (unit.nodes for each in units for unit in each))
    blocks: dict[int, list[int]] = {}
    for node in nodes:
        blocks.setdefault(of[node], []).append(node)
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


def group_with_alternatives(
    index: GraphIndex, patterns: Sequence[Pattern], marks: Sequence[Mark]
) -> tuple[list[Unit], list[Unit]]:
    """Divide a graph into units in topological order, and return overlapping composites as well.

    The nodes of these composites are single units. Nodes that cannot run alone, or that are part of a
    QDQ group, are in no alternative: there the larger match is chosen, as `group_units` does.
    """
    found = find_candidates(index, patterns, marks)
    units = group_matches(index, found, marks)
    unit_of = {node: unit for unit in units for node in unit.nodes}
    alone = {
        number: make_single_unit(index, number, mark)
        for number, mark in enumerate(marks)
        if number in unit_of and mark.verdict and mark.accepts_plain and mark.standalone
    }
    opened: dict[tuple[int, ...], Unit] = {}
    rivals: dict[tuple[int, ...], Unit] = {}
    for match in found:
        nodes = tuple(sorted(match.nodes.values()))
        around = {unit_of[node].nodes: unit_of[node] for node in nodes if node in unit_of}.values()
        overlapping = [unit for unit in around if len(unit.nodes) > 1]
        involved = {*nodes, *(node for unit in overlapping for node in unit.nodes)}
        if (
            overlapping
            and not any(set(nodes) <= set(unit.nodes) for unit in around)
            and involved <= alone.keys()
            and all(unit.kind == "composite" for unit in overlapping)
        ):
            rivals.setdefault(nodes, make_composite_unit(index, match, marks))
            for unit in overlapping:
                opened[unit.nodes] = rivals.setdefault(unit.nodes, unit)
    if not rivals:
        return units, []
    kept = [unit for unit in units if unit.nodes not in opened]
    kept += [alone[node] for nodes in opened for node in nodes]
    return sort_units(index, kept), sorted(rivals.values(), key=lambda unit: unit.nodes)
