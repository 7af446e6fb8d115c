"""How far the lines of a form are there at a node, and what is in the way of the next."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from byoc.patterns.closed import closed_objection, condition_objection
from byoc.patterns.form import Form, needed
from byoc.patterns.match import PATH_ATTEMPTS
from byoc.patterns.pattern import Pattern
from byoc.patterns.qdq import border_objection
from byoc.patterns.search import Attempts, Bound, Search
from byoc.patterns.syntax import PatternNode
from byoc.patterns.table import Table
from byoc.patterns.unit import not_taken
from byoc.verdict import Mark

_MOST_ATTEMPTS = 500  # in one search; what is found out until then is told
_MOST_READERS = 4
_ORDINALS = ("no", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a composite nearly was.

    `pattern` is its name, `node` the node of the last line that matched, `nodes` all that matched,
    `matched` how many lines did out of `lines`, `reason` a sentence that goes on after the name.
    """

    pattern: str
    node: int
    matched: int
    lines: int
    reason: str
    nodes: frozenset[int] = frozenset()
    blocked: int | None = None
    """The node that was in the way, where it is one."""

    def __str__(self) -> str:
        """Return `conv_bn_relu matched to its second line; ...`."""
        return f"{self.pattern} {self.reason}"


@dataclass(frozen=True, slots=True)
class _Probe:
    """How far a form got from one node: what was bound, and what was in the way (empty: nothing)."""

    bound: Bound
    reason: str = ""
    fits: bool = False
    """Whether the operator of the node that was in the way fits."""
    whole: bool = False
    blocked: int | None = None
    line: PatternNode | None = None
    """The line that could not be bound."""

    @property
    def depth(self) -> tuple[int, bool, bool]:
        """What sorts probes: the lines bound; then whether what failed has to be there, and fits."""
        optional = self.line is not None and self.line.optional
        return len(self.bound.nodes), not optional, self.fits


@dataclass(frozen=True)
class Explorer:
    """Searches with notes taken; each line of a form is searched for with those before it."""

    table: Table
    free: Collection[int]
    marks: Sequence[Mark]
    left: list[int] = field(default_factory=lambda: [0])
    """How many attempts there may still be, in a list of one."""

    def misses(
        self,
        pattern: Pattern,
        form: Form,
        barred: Collection[int],
        looked_at: Collection[int] | None,
    ) -> Iterator[NearMiss]:
        """Yield what nearly matched of a form: from its last line back, and from each line before on.

        The last node that matched is one of those looked at (None: all), and none of those barred.
        """
        parts = {line.output: _up_to(form, line) for line in form.nodes}
        starts = {line.output for line, _ in form.starts}
        known: dict[tuple[str, int], _Probe] = {}
        for line in reversed(form.nodes):
            part = parts[line.output]
            for number in self._numbers(line):
                if self.left[0] <= 0:
                    return
                if number in barred or (looked_at is not None and number not in looked_at):
                    continue
                probe = self._probe(part, number, known)
                if line is form.root or (probe.whole and line.output in starts):
                    yield from self._of_root(pattern, form, parts, number, probe)
                elif probe.whole:
                    yield from self._onwards(pattern, form, parts, line, probe, known)

    def _numbers(self, line: PatternNode) -> Sequence[int]:
        if line.any:
            return ()
        return sorted(number for op in line.ops for number in self.table.by_op.get(op, ()))

    def _of_root(
        self, pattern: Pattern, form: Form, parts: Mapping[str, Form], number: int, probe: _Probe
    ) -> Iterator[NearMiss]:
        count = _count(form, probe)
        if not probe.whole:
            matched = len(probe.bound.nodes)
            if _is_near(matched, count, probe.fits):
                reason = f"matched {matched} of its {count} lines; {probe.reason}"
                yield _miss(pattern, form, number, matched, reason, probe)
            return
        whole = form.without(frozenset({*probe.bound.missing, *_later(form, probe)}))
        if whole is None:
            return
        if len(whole.outputs) > 1:
            self.left[0] -= PATH_ATTEMPTS
        reason, node = closed_objection(whole, probe.bound, self.table)
        if reason:
            at = next((line for line, bound in probe.bound.nodes.items() if bound == node), None)
            matched = sum(line.output in probe.bound.nodes for line in parts[at].nodes) if at else count
        else:
            matched = count
            reason = condition_objection(pattern, whole, probe.bound, self.table.index)
            nodes = probe.bound.nodes.values()
            reason = reason or border_objection(self.table.index, nodes, self.marks)
        if reason:
            yield _miss(pattern, form, number, matched, f"{_to(matched, count)}; {reason}", probe)

    def _onwards(  # noqa: PLR0913, PLR0917 - where it is, and what is known
        self,
        pattern: Pattern,
        form: Form,
        parts: Mapping[str, Form],
        line: PatternNode,
        probe: _Probe,
        known: dict[tuple[str, int], _Probe],
    ) -> Iterator[NearMiss]:
        """Yield why the lines up to one are there, and the next one is not."""
        matched, count = len(probe.bound.nodes), _count(form, probe)
        number = probe.bound.nodes[line.output]
        name = next((o for o in line.outputs if o and _readers(form, o)), line.output)
        next_lines = _readers(form, name)
        if name not in probe.bound.tensors or not next_lines:
            return
        readers = self.table.index.consumers.get(probe.bound.tensors[name], ())
        fitting = [
            (later, number)
            for number in readers
            for later in next_lines
            if self.table.ops[number] in later.ops or later.any
        ]
        wants = " or ".join(dict.fromkeys(op for later in next_lines for op in later.ops))
        called = self.table.called(number)
        if not _is_near(matched, count, bool(fitting)):
            return
        if not fitting:
            others = ", ".join(map(self.table.called, readers[:2]))
            instead = f"{called} is read by {others}" if others else f"no node reads {called}"
            reason = f"{_to(matched, count)}; its next line wants {wants}, and {instead}"
            yield _miss(pattern, form, number, matched, reason, probe)
            return
        tried = [self._probe(parts[later.output], n, known) for later, n in fitting[:_MOST_READERS]]
        if any(other.whole or len(other.bound.nodes) > matched for other in tried):
            return  # told from there
        reason = f"{_to(matched, count)}; {tried[0].reason}"
        probe = replace(probe, blocked=tried[0].blocked)
        yield _miss(pattern, form, number, matched, reason, probe)

    def _probe(self, part: Form, number: int, known: dict[tuple[str, int], _Probe]) -> _Probe:
        key = (part.root.output, number)
        if key not in known:
            known[key] = self._search(part, number)
        return known[key]

    def _search(self, part: Form, number: int) -> _Probe:
        nothing = _Probe(Bound({}, {}, {}, {}), "there was too much to look through")
        best = nothing
        if self.left[0] <= 0:
            return best

        def note(bound: Bound, line: PatternNode, node: int | None, reason: str) -> None:
            nonlocal best
            fits = node is not None and (line.any or self.table.ops[node] in line.ops)
            found = _Probe(bound, reason, fits, blocked=node, line=line)
            if best is nothing or found.depth > best.depth:
                best = found

        attempts = Attempts(_MOST_ATTEMPTS)
        search = Search(part, self.table, self.free, attempts, note, self._why)
        first: Bound | None = None
        for bound in search.at(number):
            first = first or bound
            if not closed_objection(part, bound, self.table)[0]:
                first = bound
                break
        self.left[0] -= _MOST_ATTEMPTS - max(attempts.left, 0)
        return best if first is None else _Probe(first, whole=True)

    def _why(self, number: int) -> str:
        if number in self.table.index.constant_nodes:
            return f"{self.table.called(number)} is known before the model runs"
        return not_taken(self.table.index.nodes[number], self.marks[number])


def _up_to(form: Form, line: PatternNode) -> Form:
    """Return a line and those that it needs as a form of their own, in which the line is there."""
    if line is form.root:
        return form
    outputs = tuple(filter(None, line.outputs))
    kept = needed(form.nodes, outputs)
    return Form((*kept[:-1], replace(line, optional=False)), outputs, form.variant)


def _readers(form: Form, name: str) -> list[PatternNode]:
    """Return the lines that may read what a name stands for, those behind optional ones included."""
    names, found = {name}, []
    for line in form.nodes:
        if any(operand.name in names for operand in line.operands):
            found.append(line)
            if line.optional and line.operands[0].name in names:
                names.add(line.output)
    return found


def _later(form: Form, probe: _Probe) -> list[str]:
    """Return the optional lines at the end that a match which begins before them leaves out."""
    missing: list[str] = []
    for line, before in form.starts:
        if line.output in probe.bound.nodes:
            missing = list(before)
            break
    return missing


def _count(form: Form, probe: _Probe) -> int:
    """Return how many lines a form has: those that have to be there, and others that are tried."""
    tried = {*probe.bound.nodes, probe.line.output if probe.line is not None else ""}
    return sum(not line.optional or line.output in tried for line in form.nodes)


def _is_near(matched: int, count: int, fits: bool) -> bool:
    """Return whether enough lines are there to tell: half, and two, if the next one's operator fits."""
    return matched > 0 and matched + fits >= 2 and 2 * matched >= count


def _to(matched: int, count: int) -> str:
    if matched == count:
        return "matched to its last line"
    ordinal = _ORDINALS[matched] if matched < len(_ORDINALS) else f"{matched}th"
    return f"matched to its {ordinal} line"


def _miss(  # noqa: PLR0913, PLR0917 - the fields of a miss
    pattern: Pattern, form: Form, number: int, matched: int, reason: str, probe: _Probe
) -> NearMiss:
    nodes = frozenset({number, *probe.bound.nodes.values()})
    return NearMiss(pattern.name, number, matched, _count(form, probe), reason, nodes, probe.blocked)
