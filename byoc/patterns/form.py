"""Variants of a pattern, and the lines that remain when optional ones are left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from byoc.patterns.syntax import PatternOperand, PatternLine
from byoc.patterns.table import CONSTANT


@dataclass(frozen=True)
class PatternForm:
    """The lines of one variant of a pattern, in topological order.

    `outputs` names the tensors that the variant returns, `variant_number` is the index of its text in
    the pattern, and `left_out` has the optional lines that were removed.
    """

    nodes: tuple[PatternLine, ...]
    outputs: tuple[str, ...]
    variant_number: int = 0
    left_out: tuple[PatternLine, ...] = ()

    @cached_property
    def root(self) -> PatternLine:
        """The last line, at which matching begins."""
        return self.nodes[-1]

    @cached_property
    def starts(self) -> tuple[tuple[PatternLine, tuple[str, ...]], ...]:
        """The lines at which matching may begin, each with the lines that are then left out."""
        found: list[tuple[PatternLine, tuple[str, ...]]] = [(self.root, ())]
        while found[-1][0].optional:
            line, missing = found[-1]
            before = line.operands[0].name
            if before not in self.makers:
                break
            found.append((self.makers[before][0], (*missing, line.output)))
        return tuple(found)

    @cached_property
    def required(self) -> tuple[PatternLine, ...]:
        """The lines that are present whichever optional lines are missing."""
        least = self.without(frozenset(node.output for node in self.nodes if node.optional))
        return least.nodes if least is not None else ()

    @cached_property
    def makers(self) -> Mapping[str, tuple[PatternLine, int]]:
        """Every name that a line makes, with the line and the position among its outputs."""
        return {
            name: (node, position)
            for node in self.nodes
            for position, name in enumerate(node.outputs)
            if name
        }

    @cached_property
    def possible_makers(self) -> Mapping[str, tuple[tuple[int, frozenset[str]], ...]]:
        """For each line, the operators that may make its operands, by operand position.

        Operands that any operator may make are not listed.
        """
        possible = {
            node.output: [(i, self._operators_making(operand)) for i, operand in enumerate(node.operands)]
            for node in self.nodes
        }
        return {
            name: tuple((position, ops) for position, ops in operands if ops is not None)
            for name, operands in possible.items()
        }

    def _operators_making(self, operand: PatternOperand) -> frozenset[str] | None:
        """Return the operators that may make an operand, None if any may."""
        if operand.constant:
            return None if operand.optional else frozenset({CONSTANT})
        ops: set[str] = set()
        name = operand.name
        while True:
            if name not in self.makers or self.makers[name][0].matches_any_operator:
                return None
            line = self.makers[name][0]
            ops.update(line.ops)
            if not line.optional:
                return frozenset(ops)
            name = line.operands[0].name

    @cached_property
    def operands(self) -> tuple[PatternOperand, ...]:
        """The operands that no line makes, in order of first use, including literals."""
        found: dict[str, PatternOperand] = {}
        for operand in (operand for node in self.nodes for operand in node.operands):
            if operand.name not in self.makers:
                found.setdefault(operand.name, operand)
        return tuple(found.values())

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the operands that no line makes: the signature of the composite."""
        return tuple(operand.name for operand in self.operands)

    @cached_property
    def _reduced_forms(self) -> dict[frozenset[str], "PatternForm | None"]:
        return {frozenset(): self}

    def without(self, missing: frozenset[str]) -> "PatternForm | None":
        """Return the variant without some optional lines, None if it would then return an input.

        The first operand of a removed line replaces its output. Lines that only removed lines read are
        removed with them.
        """
        if missing not in self._reduced_forms:
            self._reduced_forms[missing] = self._make_without(missing)
        return self._reduced_forms[missing]

    def _make_without(self, missing: frozenset[str]) -> "PatternForm | None":
        instead: dict[str, str] = {}
        kept: list[PatternLine] = []
        for node in self.nodes:
            operands = tuple(replace_operand(operand, instead) for operand in node.operands)
            if node.output in missing:
                instead[node.output] = operands[0].name
            else:
                kept.append(replace(node, operands=operands))
        leaving = tuple(instead.get(name, name) for name in self.outputs)
        live = lines_needed(kept, leaving)
        made = {name for node in live for name in node.outputs if name}
        if not made.issuperset(leaving) or len(set(leaving)) < len(leaving):
            return None
        there = {node.output for node in live}
        gone = tuple(node for node in self.nodes if node.output not in there)
        return PatternForm(live, leaving, self.variant_number, gone)


def replace_operand(operand: PatternOperand, replacements: Mapping[str, str]) -> PatternOperand:
    """Return an operand under the name that replaces its own, if any does."""
    name = operand.name
    while name in replacements:
        name = replacements[name]
    return operand if name == operand.name else PatternOperand(name, operand.optional, operand.constant)


def lines_needed(nodes: Sequence[PatternLine], names: Sequence[str]) -> tuple[PatternLine, ...]:
    """Return the lines needed to make the given names, in their order."""
    wanted = set(names)
    kept: list[PatternLine] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.insert(0, node)
            wanted.update(operand.name for operand in node.operands)
    return tuple(kept)
