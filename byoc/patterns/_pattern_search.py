"""The backtracking search: every way to bind the lines of a form to nodes of a graph.

It goes from a line to the lines that make its operands and, if several outputs leave, from a bound
tensor to its readers. It is not recursive, and the number of attempts is limited: nested commutative
operands can be ordered in exponentially many ways, while real patterns are found or refused within a few
dozen attempts.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import permutations
from math import isclose, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import YES, Verdict, refuse
from byoc.model import GraphIndex, get_constant_value
from byoc.patterns._pattern import PatternForm, replace_operand
from byoc.patterns._pattern_syntax import (
    COMMUTATIVE,
    AttributeTest,
    NodeTable,
    PatternLine,
    PatternOperand,
    Scalar,
    attribute_names,
    has_variadic_output,
)

MAX_ATTEMPTS = 5_000  # of matching one pattern at one node

_Goals = tuple[tuple[str, str], "_Goals | None"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A partial match: lines to nodes, names to tensors (empty: left out), further operands by line.

    `missing` has the optional lines that are left out, each with the name that replaces its output.
    `goals` is a linked list of names that lines make, each with the tensor that it must be.
    """

    nodes: Mapping[str, int]
    tensors: Mapping[str, str]
    more: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, str]
    goals: _Goals | None = None


FailureCallback = Callable[[Binding, PatternLine, int | None, str], None]
"""Receives each dead end: what was bound, the line that could not be, at which node, and why."""


@dataclass
class AttemptBudget:
    """The number of times that a line may still be tried on a node."""

    left: int = MAX_ATTEMPTS


@dataclass(frozen=True)
class PatternSearch:
    """A search for one form in one graph.

    Only nodes in `free` are bound. A match that needs more than the allowed `attempts` is not found.
    """

    form: PatternForm
    table: NodeTable
    free: Container[int]
    attempts: AttemptBudget = field(default_factory=AttemptBudget)
    on_failure: FailureCallback | None = None
    why_not_free: Callable[[int], str] | None = None
    """Explains to `on_failure` why a node is not free."""

    def find_at(self, number: int) -> Iterator[Binding]:
        """Yield every way to bind the lines with the last line at a node, larger matches first.

        If the last line is optional, the line before it may be at the node instead.
        """
        for line, missing in self.form.starts:
            replaced = {name: self.form.makers[name][0].operands[0].name for name in missing}
            yield from self._complete(self._bind(Binding({}, {}, {}, replaced), line, number))

    def _complete(self, first: Iterator[Binding]) -> Iterator[Binding]:
        """Extend partial matches depth first, and yield those in which every line is bound."""
        pending = [first]
        while pending and self.attempts.left >= 0:
            state = next(pending[-1], None)
            if state is None:
                pending.pop()
            elif state.goals is not None:
                pending.append(self._meet_goal(state, state.goals))
            else:
                form = self.form.without(frozenset(state.missing))
                if form is None:
                    continue
                if state.nodes.keys() == {line.output for line in form.nodes}:
                    yield state
                else:
                    pending.append(self._bind_reader(state, form))

    def may_start(self, number: int) -> bool:
        """Return whether a node may be bound to a line at which matching begins."""
        return any(self.may_be(line, number) for line, _ in self.form.starts)

    def may_be(self, line: PatternLine, number: int) -> bool:
        """Return whether the operators of a node and of the makers of its inputs suit a line."""
        op = self.table.ops[number]
        if op not in line.ops and not line.matches_any_operator:
            return False
        sources = self.table.sources[number]
        wanted = self.form.possible_makers[line.output]
        if op in COMMUTATIVE and len(sources) == 2:
            return all(not ops.isdisjoint(sources) for _, ops in wanted)
        return all(position < len(sources) and sources[position] in ops for position, ops in wanted)

    def _meet_goal(self, state: Binding, goals: _Goals) -> Iterator[Binding]:
        """Yield every way to meet the first goal: bind the line that makes the name, or leave it out."""
        self.attempts.left -= 1
        (name, tensor), rest = goals
        if name in state.missing:
            operand = replace_operand(PatternOperand(name), state.missing)
            if operand.name not in self.form.makers:
                yield from self._bind_input(state, self.form.makers[name][0], operand, tensor, rest)
                return
            name = operand.name
        line, position = self.form.makers[name]
        if name in state.tensors:
            if state.tensors[name] == tensor:
                yield Binding(state.nodes, state.tensors, state.more, state.missing, rest)
            else:
                self._fail(state, line, None, f"'{name}' is '{state.tensors[name]}' and '{tensor}'")
            return
        producer = self.table.index.producers.get(tensor)
        if producer is None:
            self._fail(state, line, None, f"no node makes '{tensor}'")
        elif self.table.outputs[producer][position : position + 1] != (tensor,):
            reason = f"'{tensor}' is another output of {self._describe(producer)}"
            self._fail(state, line, producer, reason)
        else:
            yield from self._bind(state, line, producer, rest)
        if line.optional:
            missing = {**state.missing, name: line.operands[0].name}
            yield Binding(state.nodes, state.tensors, state.more, missing, ((name, tensor), rest))

    def _bind_input(
        self,
        state: Binding,
        line: PatternLine,
        operand: PatternOperand,
        tensor: str,
        goals: _Goals | None,
    ) -> Iterator[Binding]:
        """Bind an input that replaces a line which is left out."""
        verdict = self._check_operand(operand, tensor, state.tensors)
        if verdict:
            tensors = {**state.tensors, operand.name: tensor}
            yield Binding(state.nodes, tensors, state.more, state.missing, goals)
        else:
            self._fail(state, line, None, str(verdict))

    def _bind_reader(self, state: Binding, form: PatternForm) -> Iterator[Binding]:
        """Bind a line that no bound line reads, by a bound tensor that it reads."""
        for line in reversed(form.nodes):
            if line.output in state.nodes:
                continue
            bound = (state.tensors.get(o.name, "") for o in line.operands if o.value is None)
            tensor = next(filter(None, bound), "")
            if tensor:
                original = self.form.makers[line.output][0]
                for number in self.table.index.consumers.get(tensor, ()):
                    yield from self._bind(state, original, number)
                if line.optional:
                    missing = {**state.missing, line.output: original.operands[0].name}
                    yield replace(state, missing=missing)
                return

    def _bind(
        self, state: Binding, line: PatternLine, number: int, goals: _Goals | None = None
    ) -> Iterator[Binding]:
        """Yield every way to bind a line to a node; `goals` are to be met after it."""
        self.attempts.left -= 1
        if self.attempts.left < 0:
            return
        if self.on_failure is None and (number not in self.free or not self.may_be(line, number)):
            return
        verdict = self._check_node(state, line, number)
        if not verdict:
            self._fail(state, line, number, str(verdict))
            return
        made = dict(zip(line.outputs, self.table.outputs[number], strict=False))
        made.pop("", None)
        for inputs, further in self._input_orders(state, line, number):
            tensors = {**state.tensors, **made}
            wanted = []
            for written, tensor in zip(line.operands, inputs, strict=True):
                operand = replace_operand(written, state.missing) if state.missing else written
                verdict = self._check_operand(operand, tensor, tensors)
                if not verdict:
                    self._fail(state, line, number, f"{self._describe(number)}: {verdict}")
                    break
                if operand.name in self.form.makers:
                    wanted.append((operand.name, tensor))
                else:
                    tensors[operand.name] = tensor
            else:
                rest = goals
                for goal in reversed(wanted):
                    rest = (goal, rest)
                more = {**state.more, line.output: further} if line.allows_more else state.more
                nodes = {**state.nodes, line.output: number}
                yield Binding(nodes, tensors, more, state.missing, rest)

    def _check_node(self, state: Binding, line: PatternLine, number: int) -> Verdict:
        verdict = check_node(line, number, self.table)
        if not verdict:
            return verdict
        if number not in self.free:
            return refuse(self.why_not_free(number) if self.why_not_free else "it is not free")
        if number in state.nodes.values():
            return refuse(f"{self._describe(number)} is another line's already")
        return YES

    def _check_operand(
        self, operand: PatternOperand, tensor: str, tensors: Mapping[str, str]
    ) -> Verdict:
        if operand.name in self.form.makers:
            return YES if tensor else refuse(f"its operand {operand.name} is left out")
        if operand.value is None and tensors.get(operand.name, tensor) != tensor:
            return refuse(f"'{operand.name}' is '{tensors[operand.name]}' and '{tensor}'")
        return check_operand(operand, tensor, self.table.index)

    def _input_orders(
        self, state: Binding, line: PatternLine, number: int
    ) -> Iterator[tuple[Sequence[str], tuple[str, ...]]]:
        """Yield a node's inputs, padded to the line's operands, and the inputs beyond, in each order."""
        inputs, count = self.table.inputs[number], len(line.operands)
        if len(inputs) > count and not line.allows_more:
            reason = f"{self._describe(number)} has {len(inputs)} inputs, the pattern gives {count}"
            self._fail(state, line, number, reason)
            return
        padded = inputs + ("",) * (count - len(inputs))
        if len(padded) == 2 and all(padded) and self.table.ops[number] in COMMUTATIVE:
            orders = list(dict.fromkeys(permutations(padded)))
        else:
            orders = [padded]
        for order in orders:
            yield order[:count], order[count:]

    def _describe(self, number: int) -> str:
        """Describe a node for `on_failure`; empty without it, since describing is slow."""
        return self.table.describe(number) if self.on_failure is not None else ""

    def _fail(self, state: Binding, line: PatternLine, number: int | None, reason: str) -> None:
        if self.on_failure is not None:
            self.on_failure(state, line, number, reason)


# Checks of one node or one constant against a line of a pattern.

# Relative tolerance of literals: exporters round 0.044715 and sqrt(2) differently, float16 included.
_LITERAL_TOLERANCE = 1e-3
# Relative tolerance of attributes, which are float32.
_ATTRIBUTE_TOLERANCE = 1e-6
_MAX_ELEMENTS_SHOWN = 8  # of a constant in a sentence


def check_node(line: PatternLine, number: int, table: NodeTable) -> Verdict:
    """Check the operator, outputs and attributes of a node against a line."""
    op = table.ops[number]
    if op not in line.ops and not line.matches_any_operator:
        return refuse(f"it wants {' or '.join(line.ops)}, and there is {table.describe(number)}")
    if number in table.index.bodies:
        return refuse(f"{table.describe(number)} has bodies")
    problem = _output_problem(line, op, table.outputs[number])
    for test in line.attributes:
        problem = problem or _attribute_problem(test, op, table.attributes(number))
    return refuse(f"{table.describe(number)}: {problem}") if problem else YES


def _output_problem(line: PatternLine, op: str, outputs: tuple[str, ...]) -> str | None:
    wanted, present = len(line.outputs), len(outputs)
    if any(line.outputs[present:]) or (wanted != present and has_variadic_output(op)):
        return f"it makes {present}, the pattern wants {wanted}"
    if any(name and not tensor for name, tensor in zip(line.outputs, outputs, strict=False)):
        return "it leaves out an output that the pattern wants"
    return None


def _attribute_problem(test: AttributeTest, op: str, values: Mapping[str, Any]) -> str | None:
    possible = attribute_names(op)
    if possible is not None and test.name not in possible:
        return None  # a line may have several operators, some without the attribute
    value = values.get(test.name)
    if value is None:
        return None if test.absent else f"{test.name} is absent, the pattern wants {test.text}"
    if any(_attribute_equals(value, wanted) for wanted in test.values):
        return None
    if _is_number(value) and any(low <= value <= high for low, high in test.ranges):
        return None
    return f"{test.name} is {value}, the pattern wants {test.text}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _attribute_equals(value: Any, wanted: Scalar | tuple[Scalar, ...]) -> bool:
    if isinstance(wanted, tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(map(_attribute_equals, value, wanted))
        )
    if _is_number(value) and not isinstance(wanted, str):
        return value == wanted or isclose(value, wanted, rel_tol=_ATTRIBUTE_TOLERANCE)
    return bool(value == wanted)


def check_operand(operand: PatternOperand, tensor: str, index: GraphIndex) -> Verdict:
    """Check a tensor (empty: left out) against an operand that no line makes."""
    if not tensor:
        return (
            YES if operand.optional else refuse(f"its operand {_describe_operand(operand)} is left out")
        )
    if operand.constant and not index.is_constant(tensor):
        return refuse(f"'{tensor}' is no constant, the pattern wants {_describe_operand(operand)}")
    if operand.value is None:
        return YES
    value = get_constant_value(index, tensor)
    if value is None or not _has_value(value, operand):
        return refuse(
            f"'{tensor}' is {_describe_value(value)}, the pattern wants {_describe_operand(operand)}"
        )
    return YES


def _has_value(value: NDArray[Any], operand: PatternOperand) -> bool:
    wanted = operand.value or ()
    if value.size != len(wanted) or value.dtype.kind in "OSUc":
        return False
    if value.dtype.kind in "iub":
        return all(int(a) == b for a, b in zip(value.reshape(-1), wanted, strict=True))
    try:
        elements = value.reshape(-1).astype(np.float64).tolist()
    except (TypeError, ValueError):  # text, and what numpy cannot convert
        return False
    return all(_is_close(a, b) for a, b in zip(elements, wanted, strict=True))


def _is_close(value: float, wanted: float) -> bool:
    if isinf(wanted) or isinf(value):
        return value == wanted
    return isclose(value, wanted, rel_tol=_LITERAL_TOLERANCE)


def _describe_operand(operand: PatternOperand) -> str:
    if operand.value is None:
        return f"{operand.name}!" if operand.constant else operand.name
    numbers = ", ".join(f"{number:g}" for number in operand.value)
    return f"[{numbers}]" if operand.vector else numbers


def _describe_value(value: NDArray[Any] | None) -> str:
    if value is None:
        return "not known"
    if value.size > _MAX_ELEMENTS_SHOWN:
        return f"a constant of {value.size} elements"
    is_float = value.dtype.kind == "f"
    numbers = ", ".join(f"{number:g}" if is_float else str(number) for number in value.flat)
    return numbers if value.size == 1 else f"[{numbers}]"
