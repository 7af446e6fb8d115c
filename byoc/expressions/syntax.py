"""Conditions as trees: the part of CEL that conditions are written in, read from text.

Not in it, since no fact needs it: mappings, bytes, unsigned literals, `null`, comments and types of its
own. Evaluation is in `byoc.expressions.values`; the `cel` package says first whether a text is CEL at
all.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

WALKS = ("all", "exists", "exists_one", "existsOne", "map", "filter")
TYPES = ("bool", "int", "double", "string", "list")
"""What `type` gives, and what can be compared with it."""
_FUNCTIONS = ("size", "int", "uint", "double", "string", "type")
_METHODS = {"size": 0, "contains": 1, "startsWith": 1, "endsWith": 1, "matches": 1}
_DEEPEST = 60


@dataclass(frozen=True, eq=False)
class Node:
    """A part of an expression."""

    @property
    def parts(self) -> tuple["Node", ...]:
        """What it is made of."""
        return ()

    @cached_property
    def depth(self) -> int:
        """How many parts are inside one another."""
        return 1 + max((part.depth for part in self.parts), default=0)


@dataclass(frozen=True, eq=False)
class Literal(Node):
    """A number, a text, true or false."""

    value: Any


@dataclass(frozen=True, eq=False)
class Name(Node):
    """A fact, or what a walk calls the elements."""

    name: str


@dataclass(frozen=True, eq=False)
class Member(Node):
    """`of.name`, or with `asked`, `has(of.name)`."""

    of: Node
    name: str
    asked: bool = False

    @property
    def parts(self) -> tuple[Node, ...]:
        """What has the member."""
        return (self.of,)


@dataclass(frozen=True, eq=False)
class Made(Node):
    """What an operator, a function or a method makes; `[]` a list, `[.]` an element, `?` a choice."""

    by: str
    given: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        """The operands."""
        return self.given


@dataclass(frozen=True, eq=False)
class Walk(Node):
    """`of.kind(variable, body)`; of a `map` with three arguments, `only` is the second."""

    kind: str
    of: Node
    variable: str
    body: Node
    only: Node | None = None

    @property
    def parts(self) -> tuple[Node, ...]:
        """The list, then what is asked of its elements."""
        return (self.of, self.body) if self.only is None else (self.of, self.only, self.body)


Path = tuple[str, ...]


def paths(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield what an expression reads, as names: `("X", "quantized", "dtype")`, up to an element."""
    if isinstance(node, Walk):
        yield from paths(node.of, bound)
        for part in node.parts[1:]:
            yield from paths(part, bound | {node.variable})
        return
    path = path_of(node)
    if path is None:
        for part in node.parts:
            yield from paths(part, bound)
    elif path[0] not in bound:
        yield path


def path_of(node: Node) -> Path | None:
    """Return the names that lead to a member of a member of a fact, None for anything else."""
    if isinstance(node, Name):
        return (node.name,)
    if isinstance(node, Member):
        before = path_of(node.of)
        return None if before is None else (*before, node.name)
    return None


def subtrees(node: Node) -> Iterator[Node]:
    """Yield a part and all that it is made of, the whole first."""
    yield node
    for part in node.parts:
        yield from subtrees(part)


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>[rR]?(?:'{3}.*?'{3}|"{3}.*?"{3}))
    | (?P<short>[rR](?:'[^']*'|"[^"]*")|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
    | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>//|&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]])
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BINDS = {
    **{"||": 1, "&&": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5},
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
}
_CHOICE = 0
_ESCAPE = re.compile(
    r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xX][0-9a-fA-F]{2}|[0-3][0-7]{2}|.)", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read(text: str) -> Node:
    """Return the tree of an expression; raises ValueError with a sentence where it is not one."""
    return _Reader(list(_tokens(text))).whole()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found["mark"] == "//":
            raise ValueError(f"`{text[at:].strip()[:20]}` cannot be in a condition")
        kind = found.lastgroup or ""
        yield ("string" if kind in ("text", "short") else kind), found[kind]
        at = found.end()
    yield "end", ""


@dataclass(eq=False)
class _Reader:
    """What is left of the tokens; each method reads one kind of part."""

    tokens: list[tuple[str, str]]
    at: int = 0
    inside: int = 0

    def whole(self) -> Node:
        result = self.expression()
        if self.tokens[self.at][0] != "end":
            raise ValueError(f"`{self.tokens[self.at][1]}` is out of place")
        if result.depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} parts inside one another")
        return result

    def expression(self) -> Node:
        condition = self.binary(1)
        if not self.given("?"):
            return condition
        held = self.binary(1)
        self.need(":")
        return Made("?", (condition, held, self.expression()))

    def binary(self, least: int) -> Node:
        left = self.unary()
        while (binds := self.binds()) >= least:
            by = self.next()
            right = self.binary(binds + 1)
            left = Made(by, (_typed(left, right), _typed(right, left)))
        return left

    def binds(self) -> int:
        kind, text = self.tokens[self.at]
        return _BINDS.get(text, _CHOICE) if kind in ("mark", "name") else _CHOICE

    def unary(self) -> Node:
        signs = []
        while self.tokens[self.at] in (("mark", "!"), ("mark", "-")):
            signs.append(self.next())
        kind, text = self.tokens[self.at]
        if signs and signs[-1] == "-" and kind == "number" and text.isdigit():
            self.tokens[self.at] = kind, f"{signs.pop()}{text}"  # the least number has no positive one
        result = self.postfix()
        for sign in reversed(signs):
            result = Made("-." if sign == "-" else "!", (result,))
        return result

    def postfix(self) -> Node:
        result = self.primary()
        while True:
            if self.given("["):
                result = Made("[.]", (result, self.expression()))
                self.need("]")
            elif self.given("."):
                kind, name = self.tokens[self.at]
                if kind != "name":
                    raise ValueError(f"a name is missing before `{name}`")
                self.at += 1
                result = self.method(result, name) if self.given("(") else Member(result, name)
            else:
                return result

    def method(self, of: Node, name: str) -> Node:
        given = self.listed(")")
        if name not in WALKS:
            if _METHODS.get(name) != len(given):
                raise ValueError(f"`.{name}` with {len(given)} arguments is not there")
            return Made(name, (of, *given))
        if not 2 <= len(given) <= (3 if name == "map" else 2) or not isinstance(given[0], Name):
            raise ValueError(f"`{name}` takes a name for the elements, and what is asked of them")
        only = given[1] if len(given) == 3 else None
        return Walk(name, of, given[0].name, given[-1], only)

    def primary(self) -> Node:
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return Literal(_number(text))
        if kind == "string":
            return Literal(_text(text))
        if kind == "name" and text in ("true", "false"):
            return Literal(text == "true")
        if kind == "name" and text == "null":
            raise ValueError("there is no null; `has(...)` asks whether something is known")
        if kind == "name":
            return self.call(text) if self.given("(") else Name(text)
        if text == "(":
            result = self.expression()
            self.need(")")
            return result
        if text == "[":
            return Made("[]", tuple(self.listed("]")))
        raise ValueError(f"`{text}` is out of place")

    def call(self, name: str) -> Node:
        given = self.listed(")")
        if name == "has":
            if len(given) != 1 or not isinstance(given[0], Member):
                raise ValueError("`has` takes a member, such as has(X.shape)")
            return Member(given[0].of, given[0].name, asked=True)
        if name not in _FUNCTIONS:
            raise ValueError(f"it calls {name}, which there is not")
        if len(given) != 1:
            raise ValueError(f"`{name}` takes one argument")
        return Made(name, tuple(given))

    def listed(self, end: str) -> list[Node]:
        result: list[Node] = []
        while not self.given(end):
            result.append(self.expression())
            if not self.given(","):
                self.need(end)
                break
        return result

    def given(self, mark: str) -> bool:
        there = self.tokens[self.at] == ("mark", mark)
        self.at += there
        return there

    def need(self, mark: str) -> None:
        if not self.given(mark):
            raise ValueError(f"`{mark}` is missing before `{self.tokens[self.at][1]}`")

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]


def _typed(node: Node, other: Node) -> Node:
    """Return a name of a type as such where it stands beside `type(...)`."""
    if not (isinstance(other, Made) and other.by == "type"):
        return node
    if isinstance(node, Made) and node.by == "[]":
        return Made("[]", tuple(_typed(part, other) for part in node.given))
    return Literal(node.name) if isinstance(node, Name) and node.name in TYPES else node


def _number(text: str) -> int | float:
    if text.lower().startswith("0x"):
        number = int(text, 16)
    elif text.removeprefix("-").isdigit():
        number = int(text) if len(text) <= 20 else 1 << 64
    else:
        return float(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"`{text[:40]}` is beyond the whole numbers of 64 bits")
    return number


def _text(token: str) -> str:
    raw = token[0] in "rR"
    body = token[1:] if raw else token
    body = body[3:-3] if body[:3] in ("'''", '"""') else body[1:-1]
    return body if raw else _ESCAPE.sub(_escaped, body)


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "uUxX" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if len(code) == 3 else _ESCAPES.get(code, code)
