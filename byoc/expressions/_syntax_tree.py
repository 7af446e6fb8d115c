"""Syntax trees of conditions, and the facts that a tree reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

COMPREHENSIONS = ("all", "exists", "exists_one", "existsOne", "map", "filter")
"""The methods of a list that evaluate an expression for each element."""
TYPES = ("bool", "int", "double", "string", "list")
"""The results of `type`, and the names that can be compared with them."""


@dataclass(frozen=True, eq=False)
class ExpressionNode:
    """A node of a syntax tree."""

    @property
    def parts(self) -> tuple["ExpressionNode", ...]:
        """The nodes directly below this one."""
        return ()

    @cached_property
    def depth(self) -> int:
        """The number of nodes on the longest way down, this one included."""
        return 1 + max((part.depth for part in self.parts), default=0)


@dataclass(frozen=True, eq=False)
class Literal(ExpressionNode):
    """A number, a text, true or false."""

    value: Any


@dataclass(frozen=True, eq=False)
class Name(ExpressionNode):
    """The name of a fact, or of the element in a comprehension."""

    name: str


@dataclass(frozen=True, eq=False)
class Member(ExpressionNode):
    """`of.name`, or `has(of.name)` if `is_test`."""

    of: ExpressionNode
    name: str
    is_test: bool = False

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The node that has the member."""
        return (self.of,)


@dataclass(frozen=True, eq=False)
class OperatorCall(ExpressionNode):
    """An operator, function or method with its operands.

    `operator` is its symbol or name. `[]` makes a list, `[.]` gives an element, `-.` negates, and `?` is
    the conditional operator.
    """

    operator: str
    operands: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The operands."""
        return self.operands


@dataclass(frozen=True, eq=False)
class Comprehension(ExpressionNode):
    """`of.kind(variable, body)`; for a `map` with three arguments, `only` is the second."""

    kind: str
    of: ExpressionNode
    variable: str
    body: ExpressionNode
    only: ExpressionNode | None = None

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        """The list, then the expressions that are evaluated for each element."""
        return (self.of, self.body) if self.only is None else (self.of, self.only, self.body)


MemberPath = tuple[str, ...]
"""The names of a fact and of members of it: `("X", "quantized", "dtype")`."""


def find_paths(node: ExpressionNode, bound: frozenset[str] = frozenset()) -> Iterator[MemberPath]:
    """Yield the paths that an expression reads, each up to the first index.

    `bound` are the names of elements, which are no facts.
    """
    if isinstance(node, Comprehension):
        yield from find_paths(node.of, bound)
        for part in node.parts[1:]:
            yield from find_paths(part, bound | {node.variable})
        return
    path = path_of(node)
    if path is None:
        for part in node.parts:
            yield from find_paths(part, bound)
    elif path[0] not in bound:
        yield path


def path_of(node: ExpressionNode) -> MemberPath | None:
    """Return the path of a name or of a member of a path, None for any other node."""
    if isinstance(node, Name):
        return (node.name,)
    if isinstance(node, Member):
        before = path_of(node.of)
        return None if before is None else (*before, node.name)
    return None


def walk_tree(node: ExpressionNode) -> Iterator[ExpressionNode]:
    """Yield a node and all nodes below it, parents first."""
    yield node
    for part in node.parts:
        yield from walk_tree(part)
