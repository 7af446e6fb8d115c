"""The backtracking: every way to bind the lines of a form to nodes, beginning with its last line.

It goes from a line to those that make its operands, and, where several outputs leave, from a tensor
that is bound to its readers. Nothing is recursive, and the number of attempts is bounded: commutative
operands below one another can be ordered in exponentially many ways, while real patterns are found or
refused within a few dozen attempts.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from byoc.patterns.fits import node_objection, operand_objection
from byoc.patterns.form import Form, renamed
from byoc.patterns.operators import COMMUTATIVE
from byoc.patterns.syntax import Operand, PatternNode
from byoc.patterns.table import Table

MOST_ATTEMPTS = 5_000


@dataclass(frozen=True, slots=True)
class Bound:
    """A match so far: lines to nodes, names to tensors (empty: left out), further operands by line.

    `missing` has the optional lines left out, each with what takes its place. `goals` are names of what
    lines make, each with the tensor it has to be, as a linked list.
    """

    nodes: Mapping[str, int]
    tensors: Mapping[str, str]
    more: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, str]
    goals: "_Goals | None" = None


_Goals = tuple[tuple[str, str], "_Goals | None"]

Note = Callable[[Bound, PatternNode, int | None, str], None]
"""Told of each dead end: what was bound, the line that could not be, on which node, and why."""


@dataclass
class Attempts:
    """How often a line may still be tried on a node."""

    left: int


@dataclass(frozen=True)
class Search:
    """Looks for one form in one graph.

    Only nodes in `free` are bound, and not more often than `attempts` allows; what would need more
    counts as not found.
    """

    form: Form
    table: Table
    free: Container[int]
    attempts: Attempts = field(default_factory=lambda: Attempts(MOST_ATTEMPTS))
    note: Note | None = None
    why: Callable[[int], str] | None = None
    """Says why a node is not free, for `note`."""

    def at(self, number: int) -> Iterator[Bound]:
        """Yield every way to bind the form's lines with its last line at a node, larger ones first.

        Where the last line is optional, that before it may be at the node, too.
        """
        for line, missing in self.form.starts:
            instead = {name: self.form.made[name][0].operands[0].name for name in missing}
            yield from self._all(self._bind(Bound({}, {}, {}, instead), line, number))

    def _all(self, first: Iterator[Bound]) -> Iterator[Bound]:
        pending = [first]
        while pending and self.attempts.left >= 0:
            state = next(pending[-1], None)
            if state is None:
                pending.pop()
            elif state.goals is not None:
                pending.append(self._next(state, state.goals))
            else:
                form = self.form.without(frozenset(state.missing))
                if form is None:
                    continue
                if state.nodes.keys() == {line.output for line in form.nodes}:
                    yield state
                else:
                    pending.append(self._forwards(state, form))

    def may_start(self, number: int) -> bool:
        """Return whether a node may be the last line's, by its operator and those before it."""
        return any(self.may_be(line, number) for line, _ in self.form.starts)

    def may_be(self, line: PatternNode, number: int) -> bool:
        """Return whether a node's operator, and those that make its inputs, are what a line wants."""
        op = self.table.ops[number]
        if op not in line.ops and not line.any:
            return False
        sources = self.table.sources[number]
        if op in COMMUTATIVE and len(sources) == 2:
            return all(not ops.isdisjoint(sources) for _, ops in self.form.sources[line.output])
        count = len(sources)
        return all(at < count and sources[at] in ops for at, ops in self.form.sources[line.output])

    def _next(self, state: Bound, goals: "_Goals") -> Iterator[Bound]:
        """Yield every way to take one more step: bind the line that makes a name, or leave it out."""
        self.attempts.left -= 1
        (name, tensor), rest = goals
        if name in state.missing:
            operand = renamed(Operand(name), state.missing)
            if operand.name not in self.form.made:
                yield from self._given(state, self.form.made[name][0], operand, tensor, rest)
                return
            name = operand.name
        line, position = self.form.made[name]
        if name in state.tensors:
            if state.tensors[name] == tensor:
                yield Bound(state.nodes, state.tensors, state.more, state.missing, rest)
            else:
                self._tell(state, line, None, f"'{name}' is '{state.tensors[name]}' and '{tensor}'")
            return
        producer = self.table.index.producer.get(tensor)
        if producer is None:
            self._tell(state, line, None, f"no node makes '{tensor}'")
        elif self.table.outputs[producer][position : position + 1] != (tensor,):
            self._tell(
                state, line, producer, f"'{tensor}' is another output of {self._called(producer)}"
            )
        else:
            yield from self._bind(state, line, producer, rest)
        if line.optional:
            missing = {**state.missing, name: line.operands[0].name}
            yield Bound(state.nodes, state.tensors, state.more, missing, ((name, tensor), rest))

    def _given(
        self,
        state: Bound,
        line: PatternNode,
        operand: Operand,
        tensor: str,
        goals: "_Goals | None",
    ) -> Iterator[Bound]:
        """Bind an input that takes the place of a line which is left out."""
        reason = self._operand(operand, tensor, state.tensors)
        if reason:
            self._tell(state, line, None, reason)
        else:
            tensors = {**state.tensors, operand.name: tensor}
            yield Bound(state.nodes, tensors, state.more, state.missing, goals)

    def _forwards(self, state: Bound, form: Form) -> Iterator[Bound]:
        """Bind a line that nothing bound reads, by a tensor that it reads."""
        for line in reversed(form.nodes):
            if line.output in state.nodes:
                continue
            known = (state.tensors.get(o.name, "") for o in line.operands if o.value is None)
            tensor = next(filter(None, known), "")
            if tensor:
                for number in self.table.index.consumers.get(tensor, ()):
                    yield from self._bind(state, self.form.made[line.output][0], number)
                if line.optional:
                    before = self.form.made[line.output][0].operands[0].name
                    yield replace(state, missing={**state.missing, line.output: before})
                return

    def _bind(
        self, state: Bound, line: PatternNode, number: int, goals: "_Goals | None" = None
    ) -> Iterator[Bound]:
        """Yield every way to bind a line to a node; `goals` are what is to be done behind it."""
        self.attempts.left -= 1
        if self.attempts.left < 0:
            return
        if self.note is None and (number not in self.free or not self.may_be(line, number)):
            return
        reason = node_objection(line, number, self.table)
        if not reason and number not in self.free:
            reason = self.why(number) if self.why is not None else "it is not free"
        if not reason and number in state.nodes.values():
            reason = f"{self._called(number)} is another line's already"
        if reason:
            self._tell(state, line, number, reason)
            return
        made = dict(zip(line.outputs, self.table.outputs[number], strict=False))
        made.pop("", None)
        for given, more in self._orders(state, line, number):
            tensors = {**state.tensors, **made}
            wanted = []
            for written, tensor in zip(line.operands, given, strict=True):
                operand = renamed(written, state.missing) if state.missing else written
                reason = self._operand(operand, tensor, tensors)
                if reason:
                    self._tell(state, line, number, f"{self._called(number)}: {reason}")
                    break
                if operand.name in self.form.made:
                    wanted.append((operand.name, tensor))
                else:
                    tensors[operand.name] = tensor
            else:
                rest = goals
                for goal in reversed(wanted):
                    rest = (goal, rest)
                further = {**state.more, line.output: more} if line.more else state.more
                bound = {**state.nodes, line.output: number}
                yield Bound(bound, tensors, further, state.missing, rest)

    def _operand(self, operand: Operand, tensor: str, tensors: Mapping[str, str]) -> str:
        if operand.name in self.form.made:
            return "" if tensor else f"its operand {operand.name} is left out"
        if operand.value is None and tensors.get(operand.name, tensor) != tensor:
            return f"'{operand.name}' is '{tensors[operand.name]}' and '{tensor}'"
        return operand_objection(operand, tensor, self.table.index)

    def _orders(
        self, state: Bound, line: PatternNode, number: int
    ) -> Iterator[tuple[Sequence[str], tuple[str, ...]]]:
        """Yield a node's inputs, padded to the line's operands, and those beyond; in each order."""
        given, count = self.table.inputs[number], len(line.operands)
        if len(given) > count and not line.more:
            reason = f"{self._called(number)} has {len(given)} inputs, the pattern gives {count}"
            self._tell(state, line, number, reason)
            return
        padded = given + ("",) * (count - len(given))
        if len(padded) == 2 and all(padded) and self.table.ops[number] in COMMUTATIVE:
            orders = list(dict.fromkeys(permutations(padded)))
        else:
            orders = [padded]
        for order in orders:
            yield order[:count], order[count:]

    def _called(self, number: int) -> str:
        return self.table.called(number) if self.note is not None else ""

    def _tell(self, state: Bound, line: PatternNode, number: int | None, reason: str) -> None:
        if self.note is not None:
            self.note(state, line, number, reason)
