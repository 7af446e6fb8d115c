"""Near misses: places where a composite nearly matched, and the reason why it did not."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from byoc.model import GraphIndex
from byoc.patterns._grouper import find_composites
from byoc.patterns._matcher import (
    PATH_ATTEMPTS,
    Mark,
    Match,
    check_closed,
    check_conditions,
    describe_rejection,
)
from byoc.patterns._pattern import Pattern, PatternForm, lines_needed
from byoc.patterns._pattern_search import AttemptBudget, Binding, PatternSearch
from byoc.patterns._pattern_syntax import NodeTable, PatternLine
from byoc.patterns._qdq_groups import check_unaccepted_nodes, free_nodes

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
    ordinal = _ORDINALS[matched] if matched < len(_ORDINALS) else f"{matched}th"
    return f"matched to its {ordinal} line"
