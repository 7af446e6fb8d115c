"""The grouper: nodes become composites and QDQ groups; and composites that nearly matched.

Larger matches go first, equal ones in the order of the file and then of the nodes; a node belongs to at
most one unit. Contracting each unit to one node never makes a cycle.

Placement needs one set of units. Where accelerators have different units of the same nodes, composites
are opened (`open_units`): their nodes are units, and the composites are candidates. What cannot be
opened is joined; on each accelerator the joint unit is made of that accelerator's own units.

If a composite that was not chosen overlaps a chosen one, without being part of it, both are candidates:
their nodes stay single units, and the placement chooses candidates that share no node.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import YES, Cause, CauseKind, Verdict, join_verdicts, refuse
from byoc.model import GraphIndex, get_node_name
from byoc.numerics import merge_groups, sort_topologically
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._matcher import (
    PATH_ATTEMPTS,
    Mark,
    Match,
    NodeGroup,
    Unit,
    check_closed,
    check_conditions,
    describe_rejection,
)
from byoc.patterns._pattern import Pattern, PatternForm, lines_needed
from byoc.patterns._pattern_search import AttemptBudget, Binding, PatternSearch
from byoc.patterns._pattern_syntax import NodeTable, PatternLine
from byoc.patterns._qdq_groups import (
    check_unaccepted_nodes,
    find_candidates,
    form_qdq_groups,
    free_nodes,
)

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


# Near misses: places where a composite nearly matched, and the reason why it did not.


_MAX_AROUND = 2_000  # nodes around one, for what a pattern lacks
_MAX_ATTEMPTS = 200_000  # in one call, for all patterns: a few seconds
_MAX_ATTEMPTS_AT_A_NODE = 500  # of matching with a line left out
_MAX_READERS = 4  # readers of a tensor that are tried
_ORDINALS = ("no", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a composite nearly matched.

    `pattern` is the composite's name, `node` the node of the last line that matched, `nodes` all nodes
    that matched, and `matched` how many lines did, out of `lines`. `reason` continues a sentence that
    begins with the name. `blocked` is the node that did not fit, if there is one.
    """

    pattern: str
    node: int
    matched: int
    lines: int
    reason: str
    nodes: frozenset[int] = frozenset()
    blocked: int | None = None

    def __str__(self) -> str:
        """Return `conv_bn_relu matched to its second line; ...`."""
        return f"{self.pattern} {self.reason}"


def find_near_misses(
    index: GraphIndex,
    patterns: Sequence[Pattern],
    marks: Sequence[Mark],
    node: int | None = None,
    matches: Sequence[Match] | None = None,
) -> list[NearMiss]:
    """Find where patterns nearly matched, ordered by node and then by pattern.

    A miss has at least half of the pattern's lines, and two; the line that failed counts as one of the
    two if its operator fits. Of several misses of one pattern that share a node, the one with the most
    lines is returned. Nodes in a composite are no misses, unless `node` asks for the misses at one node.
    `matches` are the composites of the graph, found here if not given. The number of attempts is
    limited.
    """
    table = NodeTable.from_index(index)
    if matches is None:
        matches = find_composites(index, patterns, marks)
    in_composites = {number for match in matches for number in match.nodes.values()}
    own: dict[str, set[int]] = {}
    for match in matches:
        own.setdefault(match.pattern.name, set()).update(match.nodes.values())
    explorer = _Explorer(table, free_nodes(index, marks), marks)
    rows: list[tuple[int, int, NearMiss]] = []
    attempts_left = _MAX_ATTEMPTS
    for position, pattern in enumerate(patterns):
        explorer.attempts_left = share = attempts_left // (len(patterns) - position)
        excluded = in_composites if node is None else own.get(pattern.name, set())
        most_lines = max(len(form.nodes) for form in pattern.forms)
        near = None if node is None else _nodes_around(table, node, most_lines)
        misses = [
            miss
            for form in pattern.forms
            for miss in _FormExplorer(explorer, pattern, form).misses(excluded, near)
            if excluded.isdisjoint(miss.nodes) and (node is None or node in (*miss.nodes, miss.blocked))
        ]
        attempts_left -= share - max(explorer.attempts_left, 0)
        seen: set[int] = set()
        for miss in sorted(misses, key=lambda miss: (-miss.matched, miss.node)):
            nodes = miss.nodes if miss.blocked is None else miss.nodes | {miss.blocked}
            if seen.isdisjoint(nodes):
                seen |= nodes
                rows.append((miss.node, position, miss))
    return [miss for _, _, miss in sorted(rows, key=lambda row: row[:2])]


def _nodes_around(table: NodeTable, node: int, steps: int) -> Collection[int]:
    """Return the nodes at most a number of edges away from one, in either direction."""
    index = table.index
    reached, edge = {node}, {node}
    for _ in range(steps):
        makers = {index.producers.get(name, -1) for n in edge for name in table.inputs[n]} - {-1}
        readers = {n for e in edge for name in table.outputs[e] for n in index.consumers.get(name, ())}
        edge = (makers | readers) - reached
        reached |= edge
        if len(reached) > _MAX_AROUND:
            break
    return reached


@dataclass(frozen=True, slots=True)
class _Probe:
    """The longest partial match at one node, and the reason why it is not longer (empty: it is whole).

    `line` could not be bound to the node `blocked`, whose operator `fits`.
    """

    bound: Binding
    reason: str = ""
    fits: bool = False
    whole: bool = False
    blocked: int | None = None
    line: PatternLine | None = None

    @property
    def depth(self) -> tuple[int, bool, bool]:
        """The sort key: how many lines are bound, then whether the failed line is required, and fits."""
        optional = self.line is not None and self.line.optional
        return len(self.bound.nodes), not optional, self.fits


@dataclass
class _Explorer:
    """A search for partial matches in a graph, with a limit on the attempts that are left."""

    table: NodeTable
    free: Collection[int]
    marks: Sequence[Mark]
    attempts_left: int = 0

    def probe(self, form: PatternForm, number: int) -> _Probe:
        """Find the longest partial match of a form with its last line at a node."""
        best = nothing = _Probe(Binding({}, {}, {}, {}), "there was too much to look through")
        if self.attempts_left <= 0:
            return nothing

        def record_failure(bound: Binding, line: PatternLine, node: int | None, reason: str) -> None:
            nonlocal best
            fits = node is not None and (line.matches_any_operator or self.table.ops[node] in line.ops)
            probe = _Probe(bound, reason, fits, blocked=node, line=line)
            if best is nothing or probe.depth > best.depth:
                best = probe

        attempts = AttemptBudget(_MAX_ATTEMPTS_AT_A_NODE)
        search = PatternSearch(form, self.table, self.free, attempts, record_failure, self._why_not_free)
        first: Binding | None = None
        for bound in search.find_at(number):
            first = first or bound
            if check_closed(form, bound, self.table)[0]:
                first = bound
                break
        self.attempts_left -= _MAX_ATTEMPTS_AT_A_NODE - max(attempts.left, 0)
        return best if first is None else _Probe(first, whole=True)

    def _why_not_free(self, number: int) -> str:
        if number in self.table.index.constant_nodes:
            return f"{self.table.describe(number)} is known before the model runs"
        return describe_rejection(self.table.index.nodes[number], self.marks[number])


@dataclass(frozen=True)
class _FormExplorer:
    """The near misses of one form of a pattern; each line is searched for with the lines it needs."""

    explorer: _Explorer
    pattern: Pattern
    form: PatternForm
    _probes: dict[tuple[str, int], _Probe] = field(default_factory=dict)

    @cached_property
    def _parts(self) -> Mapping[str, PatternForm]:
        """Each line with the lines that it needs, as a form in which it is not optional."""
        parts = {self.form.root.output: self.form}
        for line in self.form.nodes[:-1]:
            outputs = tuple(filter(None, line.outputs))
            kept = lines_needed(self.form.nodes, outputs)
            nodes = (*kept[:-1], replace(line, optional=False))
            parts[line.output] = PatternForm(nodes, outputs, self.form.variant_number)
        return parts

    def misses(self, excluded: Collection[int], near: Collection[int] | None) -> Iterator[NearMiss]:
        """Yield the near misses, searching backwards from the last line and then from earlier lines.

        The node of the last line that matched is among those `near` (None: all) and not `excluded`.
        """
        starts = {line.output for line, _ in self.form.starts}
        by_op = self.explorer.table.by_op
        for line in reversed(self.form.nodes):
            ops = () if line.matches_any_operator else line.ops
            for number in sorted(number for op in ops for number in by_op.get(op, ())):
                if self.explorer.attempts_left <= 0:
                    return
                if number in excluded or (near is not None and number not in near):
                    continue
                probe = self._probe(line, number)
                if line is self.form.root or (probe.whole and line.output in starts):
                    yield from self._misses_at_root(number, probe)
                elif probe.whole:
                    yield from self._misses_after(line, probe)

    def _probe(self, line: PatternLine, number: int) -> _Probe:
        key = (line.output, number)
        if key not in self._probes:
            self._probes[key] = self.explorer.probe(self._parts[line.output], number)
        return self._probes[key]

    def _misses_at_root(self, number: int, probe: _Probe) -> Iterator[NearMiss]:
        """Yield the miss with the last line at a node: a line is missing, or a check fails."""
        count, matched = self._line_count(probe), len(probe.bound.nodes)
        if not probe.whole:
            if _is_near(matched, count, probe.fits):
                reason = f"matched {matched} of its {count} lines; {probe.reason}"
                yield self._miss(number, matched, reason, probe)
            return
        form = self.form.without(frozenset({*probe.bound.missing, *self._left_out_at_end(probe)}))
        if form is None:
            return
        if len(form.outputs) > 1:
            self.explorer.attempts_left -= PATH_ATTEMPTS
        table, matched = self.explorer.table, count
        verdict, node = check_closed(form, probe.bound, table)
        if not verdict:
            at = next((line for line, bound in probe.bound.nodes.items() if bound == node), None)
            if at is not None:
                matched = sum(line.output in probe.bound.nodes for line in self._parts[at].nodes)
        else:
            verdict = check_conditions(self.pattern, form, probe.bound, table.index)
            if verdict:
                nodes = probe.bound.nodes.values()
                verdict = check_unaccepted_nodes(table.index, nodes, self.explorer.marks)
        if not verdict:
            yield self._miss(number, matched, f"{_describe_progress(matched, count)}; {verdict}", probe)

    def _misses_after(self, line: PatternLine, probe: _Probe) -> Iterator[NearMiss]:
        """Yield the miss in which the lines up to one match, and none that reads it does."""
        table = self.explorer.table
        matched, count = len(probe.bound.nodes), self._line_count(probe)
        number = probe.bound.nodes[line.output]
        name = next((o for o in line.outputs if o and self._lines_reading(o)), line.output)
        next_lines = self._lines_reading(name)
        if name not in probe.bound.tensors or not next_lines:
            return
        readers = table.index.consumers.get(probe.bound.tensors[name], ())
        fitting = [
            (later, reader)
            for reader in readers
            for later in next_lines
            if table.ops[reader] in later.ops or later.matches_any_operator
        ]
        if not _is_near(matched, count, bool(fitting)):
            return
        if not fitting:
            wants = " or ".join(dict.fromkeys(op for later in next_lines for op in later.ops))
            node, others = table.describe(number), ", ".join(map(table.describe, readers[:2]))
            instead = f"{node} is read by {others}" if others else f"no node reads {node}"
            reason = f"{_describe_progress(matched, count)}; its next line wants {wants}, and {instead}"
            yield self._miss(number, matched, reason, probe)
            return
        tried = [self._probe(later, reader) for later, reader in fitting[:_MAX_READERS]]
        if any(other.whole or len(other.bound.nodes) > matched for other in tried):
            return  # reported from there
        reason = f"{_describe_progress(matched, count)}; {tried[0].reason}"
        yield self._miss(number, matched, reason, replace(probe, blocked=tried[0].blocked))

    def _lines_reading(self, name: str) -> list[PatternLine]:
        """Return the lines that may read a name, including lines after optional ones."""
        names, lines = {name}, []
        for line in self.form.nodes:
            if any(operand.name in names for operand in line.operands):
                lines.append(line)
                if line.optional and line.operands[0].name in names:
                    names.add(line.output)
        return lines

    def _left_out_at_end(self, probe: _Probe) -> Sequence[str]:
        """Return the optional lines after the last line that matched."""
        bound = probe.bound.nodes
        return next((missing for line, missing in self.form.starts if line.output in bound), ())

    def _line_count(self, probe: _Probe) -> int:
        """Count the required lines of the form, and the optional ones that were tried."""
        tried = {*probe.bound.nodes, probe.line.output if probe.line is not None else ""}
        return sum(not line.optional or line.output in tried for line in self.form.nodes)

    def _miss(self, number: int, matched: int, reason: str, probe: _Probe) -> NearMiss:
        nodes = frozenset({number, *probe.bound.nodes.values()})
        lines = self._line_count(probe)
        return NearMiss(self.pattern.name, number, matched, lines, reason, nodes, probe.blocked)


def _is_near(matched: int, count: int, fits: bool) -> bool:
    """Return whether enough lines match: half, and two, one of which may be the one that failed."""
    return matched > 0 and matched + fits >= 2 and 2 * matched >= count


def _describe_progress(matched: int, count: int) -> str:
    if matched == count:
        return "matched to its last line"
    if matched >= len(_ORDINALS):
        return f"matched to its line {matched}"
    return f"matched to its {_ORDINALS[matched]} line"
