"""Mutants of a module: its source with one small change, made by the operators of cosmic-ray.

Besides those of cosmic-ray there are two operators of our own, in its interface: a condition that always
or never holds, which is what a forgotten check looks like, and a statement that is left out. Annotations
are not changed, since a change there says nothing about tests. Nor are operators replaced by all others:
`a + b` becomes `a - b`, not also `a << b`, whose TypeError any test kills.
"""

import ast
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

ARITHMETIC = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "FloorDiv": "Mul",
    "Div": "Mul",
    "Mod": "FloorDiv",
    "Pow": "Mul",
    "BitOr": "BitAnd",
    "BitAnd": "BitOr",
    "BitXor": "BitOr",
    "LShift": "RShift",
    "RShift": "LShift",
}
"""The operator that replaces each arithmetic operator."""

LEFT_OUT = {"VariableReplacer", "VariableInserter", "ExceptionReplacer", "RemoveDecorator"}
"""Operators of cosmic-ray that need arguments or make modules that cannot be imported."""


_KEPT = re.compile(r"\b(strict|frozen|eq|slots)=(True|False)")

Change = tuple[Operator, str, int]
"""An operator, its name, and which of its places in a module it changes."""


@dataclass(frozen=True)
class Mutant:
    """A module's source with one change, `before` and `after` being the line that differs, stripped."""

    path: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names this mutant in `equivalent.yaml`, whatever is changed elsewhere in the module."""
        return self.path, self.function, self.before, self.after


class _FixCondition(Operator):
    """Replace the condition of an `if`, of a comprehension too, by True or False."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type in {"if_stmt", "comp_if"}:
            for place in self._conditions(node):
                position = node.children[place].start_pos, node.children[place].end_pos
                yield from (position, position)

    def mutate(self, node: Any, index: int) -> Any:
        place = self._conditions(node)[index // 2]
        node.children[place] = parso.parse(" False" if index % 2 else " True")
        return node

    @classmethod
    def examples(cls) -> Sequence[Any]:
        return ()

    @staticmethod
    def _conditions(node: Any) -> list[int]:
        return [
            place + 1
            for place, child in enumerate(node.children)
            if child.type == "keyword" and child.value in {"if", "elif"}
        ]


class _DropStatement(Operator):
    """Replace a call whose result is not used, or an addition to a variable, by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and self._can_go(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        prefix = node.children[0].get_first_leaf().prefix
        node.children[0] = parso.parse(f"{prefix}pass")
        return node

    @classmethod
    def examples(cls) -> Sequence[Any]:
        return ()

    @staticmethod
    def _can_go(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            return statement.children[1].type == "operator" and statement.children[1].value != "="
        return statement.type == "atom_expr"


def sample_mutants(root: Path, paths: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the modules at `paths`, all where there are fewer, the same for a seed.

    A place in the source is chosen first, each as likely as the others, then one of its mutants.
    """
    places: dict[tuple[str, Any], list[Change]] = {}
    for path in paths:
        source = (root / path).read_text(encoding="utf-8")
        for position, change in _find_places(source):
            places.setdefault((path, position), []).append(change)
    generator = random.Random(seed)
    order = sorted(places)
    generator.shuffle(order)
    found: list[Mutant] = []
    for path, position in order:
        mutant = _make_mutant(root, path, position[0], generator.choice(places[path, position]))
        if mutant is not None:
            found.append(mutant)
        if len(found) == count:
            break
    return sorted(found, key=lambda mutant: (mutant.path, mutant.line, mutant.after))


def _list_operators() -> Iterator[tuple[str, Operator]]:
    yield "FixCondition", _FixCondition()
    yield "DropStatement", _DropStatement()
    for full_name in plugins.operator_names():
        name = full_name.rpartition("/")[2]
        kind, _, change = name.partition("_")
        before, _, after = change.partition("_")
        if name in LEFT_OUT or (kind == "ReplaceBinaryOperator" and ARITHMETIC[before] != after):
            continue
        if kind == "ReplaceComparisonOperator" and ("Is" in before) != ("Is" in after):
            continue
        if before in {"Is", "IsNot"} and after not in {"Is", "IsNot"}:
            continue
        yield name, plugins.get_operator(full_name)()


def _find_places(source: str) -> Iterator[tuple[Any, Change]]:
    """Yield the position and the change of each mutant outside annotations."""
    tree = get_ast(source)
    for name, operator in _list_operators():
        occurrence = 0
        for node in ast_nodes(tree):
            for position in operator.mutation_positions(node):
                if not _is_annotation(node):
                    yield position, (operator, name, occurrence)
                occurrence += 1


def _is_annotation(node: Any) -> bool:
    while node.parent is not None:
        parent = node.parent
        if parent.type == "funcdef" and parent.annotation is node:
            return True
        if parent.type == "tfpdef" or (parent.type == "annassign" and parent.children[1] is node):
            return True
        node = parent
    return False


def _make_mutant(root: Path, path: str, start: tuple[int, int], change: Change) -> Mutant | None:
    """Return a mutant; None where it is the same, no Python, or an assertion that is left out.

    cosmic-ray takes `**` in a call for a power. `strict` and `frozen` assert what holds for every input,
    `eq=False` that nothing compares such values, and `slots` that nothing adds to them.
    """
    operator, name, occurrence = change
    source = (root / path).read_text(encoding="utf-8")
    changed = mutate_code(source, operator, occurrence)
    try:
        if changed is None or _parse(changed) == _parse(source):
            return None
    except SyntaxError:
        return None
    pairs = zip(source.splitlines(), changed.splitlines(), strict=False)
    before, after = next((a.strip(), b.strip()) for a, b in pairs if a != b)
    if _KEPT.sub(r"\1=", after) == _KEPT.sub(r"\1=", before):
        return None
    return Mutant(path, find_function(source, start[0]), start[0], name, before, after, changed)


def _parse(source: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.dump(ast.parse(source))


def find_function(source: str, line: int) -> str:
    """Return the qualified name of the function or class around a line; empty at the module's level."""
    names: list[str] = []
    nodes: Sequence[ast.AST] = ast.parse(source).body
    while True:
        inside = [
            node
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.lineno <= line <= (node.end_lineno or 0)
        ]
        if not inside:
            return ".".join(names)
        names.append(inside[0].name)
        nodes = inside[0].body


def find_statement(source: str, line: int) -> range:
    """Return the lines of the smallest statement around a line, those of its head if it has a body."""
    best = range(line, line + 1)
    size = 10**9
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if (node.end_lineno or 0) - node.lineno < size:
            size = (node.end_lineno or 0) - node.lineno
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno
            best = range(node.lineno, max(end or 0, node.lineno) + 1)
    return best


def find_changed_functions(
    mutant: Mutant, original: str, functions: Mapping[tuple[str, int], FunctionType]
) -> list[tuple[FunctionType, CodeType]] | None:
    """Return the live functions that a mutant changes with their new code.

    None where it changes what runs when the module is imported, so that it must be imported anew.
    `functions` are those of the module by qualified name and first line.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = compile(original, mutant.path, "exec"), compile(mutant.source, mutant.path, "exec")
    found: list[tuple[FunctionType, CodeType]] = []
    waiting = [pair]
    while waiting:
        old, new = waiting.pop()
        if old == new:
            continue
        function = functions.get((old.co_qualname, old.co_firstlineno))
        if function is not None and len(function.__code__.co_freevars) == len(new.co_freevars):
            found.append((function, new))
            continue
        parts = [
            [part for part in code.co_consts if isinstance(part, CodeType) == nested]
            for code in (old, new)
            for nested in (False, True)
        ]
        same = (old.co_code, old.co_names, parts[0]) == (new.co_code, new.co_names, parts[2])
        if not same or len(parts[1]) != len(parts[3]):
            return None
        waiting += zip(parts[1], parts[3], strict=True)
    return found
