"""From the text of a condition to its syntax tree, and the facts that a tree reads.

It takes CEL without the parts that no fact needs: mappings, bytes, unsigned literals, `null`, comments
and types of its own. Errors of syntax say at which character (from 1) the text is wrong,
others name the part.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from byoc._dataclasses import dataclass
from byoc.errors import suggest_nearest

# Syntax trees of conditions, and the facts that a tree reads.

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


_FUNCTIONS = ("size", "int", "uint", "double", "string", "type")
_METHODS = {"size": 0, "contains": 1, "startsWith": 1, "endsWith": 1, "matches": 1}
_MAX_DEPTH = 60  # of nesting, below Python's own limit on recursion

# The words that CEL's specification reserves, beside true, false, null and in.
_RESERVED = frozenset(
    [
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("namespace", "package", "return", "var", "void", "while"),
    ]
)
_KEYWORDS = ("true", "false", "null", "in")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<long>[rR]?(?:'{3}.*?'{3}|"{3}.*?"{3}))
    | (?P<short>[rR](?:'[^']*'|"[^"]*")|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
    | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>//|&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]])
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_PRECEDENCE = {
    **{"||": 1, "&&": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5},
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
}
_ESCAPE = re.compile(
    r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xX][0-9a-fA-F]{2}|[0-3][0-7]{2}|.)", re.DOTALL
)
_ESCAPES = {
    **{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"},
    **{mark: mark for mark in "\\?\"'`"},
}


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def parse_expression(text: str) -> ExpressionNode:
    """Return the syntax tree of a condition. Raises ValueError with a sentence when it has none."""
    return _Parser(list(_split_tokens(text))).parse_all()


def _split_tokens(text: str) -> Iterator[_Token]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found["mark"] == "//":
            start = len(text) - len(text[at:].lstrip())
            raise ValueError(f"at character {start + 1}: `{text[start : start + 20]}` is not allowed")
        kind = found.lastgroup or ""
        yield _Token("string" if kind in ("long", "short") else kind, found[kind], found.start(kind))
        at = found.end()
    yield _Token("end", "", len(text))


@dataclass(eq=False)
class _Parser:
    """A recursive-descent parser; `at` is the number of the next token, `nesting` how deep it is."""

    tokens: list[_Token]
    at: int = 0
    nesting: int = 0

    def parse_all(self) -> ExpressionNode:
        result = self.parse_conditional()
        if self.tokens[self.at].kind != "end":
            raise self.make_unexpected(self.tokens[self.at])
        return result

    def parse_conditional(self) -> ExpressionNode:
        self.nesting += 1
        if self.nesting > _MAX_DEPTH:
            raise _too_deep()
        result = self.parse_binary(1)
        if self.accept("?"):
            then = self.parse_binary(1)
            self.expect(":")
            result = _limit_depth(OperatorCall("?", (result, then, self.parse_conditional())))
        self.nesting -= 1
        return result

    def parse_binary(self, least: int) -> ExpressionNode:
        """Parse operators that bind as strongly as `least` or more (precedence climbing)."""
        left = self.parse_unary()
        while (precedence := self.next_precedence()) >= least:
            operator = self.take().text
            right = self.parse_binary(precedence + 1)
            operands = _read_types(left, right), _read_types(right, left)
            left = _limit_depth(OperatorCall(operator, operands))
        return left

    def next_precedence(self) -> int:
        kind, text, _ = self.tokens[self.at]
        return _PRECEDENCE.get(text, 0) if kind in ("mark", "name") else 0

    def parse_unary(self) -> ExpressionNode:
        signs = []
        while self.tokens[self.at][:2] in (("mark", "!"), ("mark", "-")):
            signs.append(self.take().text)
        kind, text, start = self.tokens[self.at]
        if signs and signs[-1] == "-" and kind == "number" and isinstance(_read_number(f"-{text}"), int):
            # The least whole number has no positive counterpart.
            self.tokens[self.at] = _Token(kind, f"{signs.pop()}{text}", start)
        result = self.parse_postfix()
        for sign in reversed(signs):
            result = _limit_depth(OperatorCall("-." if sign == "-" else "!", (result,)))
        return result

    def parse_postfix(self) -> ExpressionNode:
        result = self.parse_primary()
        while True:
            if self.accept("["):
                result = OperatorCall("[.]", (result, self.parse_conditional()))
                self.expect("]")
            elif self.accept("."):
                name = self.take()
                if name.kind != "name" or name.text in _KEYWORDS:
                    raise self.make_missing("a name", name)
                is_call = self.accept("(")
                result = self.parse_method(result, name) if is_call else Member(result, name.text)
            else:
                return result
            _limit_depth(result)

    def parse_method(self, of: ExpressionNode, name: _Token) -> ExpressionNode:
        arguments = self.parse_list(")")
        if name.text not in COMPREHENSIONS:
            if _METHODS.get(name.text) != len(arguments):
                raise ValueError(f"there is no method `.{name.text}` with {len(arguments)} arguments")
            return OperatorCall(name.text, (of, *arguments))
        most = 3 if name.text == "map" else 2
        if not 2 <= len(arguments) <= most or not isinstance(arguments[0], Name):
            raise ValueError(
                f"`.{name.text}` takes a name for the elements, and an expression to evaluate for each"
            )
        only = arguments[1] if len(arguments) == 3 else None
        return Comprehension(name.text, of, arguments[0].name, arguments[-1], only)

    def parse_primary(self) -> ExpressionNode:
        token = self.take()
        kind, text, _ = token
        if kind == "number":
            return Literal(_read_number(text))
        if kind == "string":
            return Literal(_read_text(text))
        if kind == "name" and text in ("true", "false"):
            return Literal(text == "true")
        if kind == "name" and text == "null":
            raise ValueError("there is no null; `has(...)` asks whether something is known")
        if kind == "name" and text in _RESERVED:
            raise ValueError(f"at character {token.start + 1}: `{text}` is a reserved word")
        if kind == "name" and text != "in":
            return self.parse_call(text) if self.accept("(") else Name(text)
        if token[:2] == ("mark", "("):
            result = self.parse_conditional()
            self.expect(")")
            return result
        if token[:2] == ("mark", "["):
            return _limit_depth(OperatorCall("[]", tuple(self.parse_list("]"))))
        raise self.make_unexpected(token)

    def parse_call(self, name: str) -> ExpressionNode:
        arguments = self.parse_list(")")
        if name == "has":
            if len(arguments) != 1 or not isinstance(arguments[0], Member):
                raise ValueError("`has` takes a member, such as has(X.shape)")
            return Member(arguments[0].of, arguments[0].name, is_test=True)
        if name not in _FUNCTIONS:
            raise ValueError(f"there is no function `{name}`{suggest_nearest(name, _FUNCTIONS)}")
        if len(arguments) != 1:
            raise ValueError(f"`{name}` takes one argument")
        return _limit_depth(OperatorCall(name, tuple(arguments)))

    def parse_list(self, end: str) -> list[ExpressionNode]:
        """Parse expressions between commas up to `end`; a list may have a comma behind the last."""
        result: list[ExpressionNode] = []
        while not self.accept(end):
            result.append(self.parse_conditional())
            if not self.accept(","):
                self.expect(end)
                break
            if end == ")" and self.tokens[self.at][:2] == ("mark", end):
                raise self.make_unexpected(self.tokens[self.at])
        return result

    def take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, mark: str) -> bool:
        is_next = self.tokens[self.at][:2] == ("mark", mark)
        self.at += is_next
        return is_next

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise self.make_missing(f"`{mark}`", self.tokens[self.at])

    def make_missing(self, wanted: str, token: _Token) -> ValueError:
        before = f" before `{token.text}`" if token.text else ""
        return ValueError(f"at character {token.start + 1}: {wanted} is missing{before}")

    def make_unexpected(self, token: _Token) -> ValueError:
        problem = f"`{token.text}` is out of place" if token.text else "something is missing"
        return ValueError(f"at character {token.start + 1}: {problem}")


def _limit_depth(node: ExpressionNode) -> ExpressionNode:
    """Return a node. Raises ValueError when the tree below it is too deep."""
    if node.depth > _MAX_DEPTH:  # found without recursion: the depths of its parts are known
        raise _too_deep()
    return node


def _too_deep() -> ValueError:
    return ValueError(f"more than {_MAX_DEPTH} parts are nested in one another")


def _read_types(node: ExpressionNode, other: ExpressionNode) -> ExpressionNode:
    """Return a node in which names of types are texts, if it is compared with `type(...)`."""
    if not (isinstance(other, OperatorCall) and other.operator == "type"):
        return node
    if isinstance(node, OperatorCall) and node.operator == "[]":
        return OperatorCall("[]", tuple(_read_types(part, other) for part in node.operands))
    return Literal(node.name) if isinstance(node, Name) and node.name in TYPES else node


def _read_number(text: str) -> int | float:
    if text.lower().removeprefix("-").startswith("0x"):
        number = int(text, 16)
    elif text.removeprefix("-").isdigit():
        number = int(text) if len(text.lstrip("-0")) <= 20 else 1 << 64  # Python refuses very long ones
    else:
        return float(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"`{text[:40]}` is beyond the whole numbers of 64 bits")
    return number


def _read_text(token: str) -> str:
    is_raw = token[0] in "rR"
    body = token[1:] if is_raw else token
    body = body[3:-3] if body[:3] in ("'''", '"""') else body[1:-1]
    return body if is_raw else _ESCAPE.sub(_read_escape, body)


def _read_escape(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        if code not in _ESCAPES:
            raise ValueError(f"`\\{code}` is no escape sequence; a text such as r'\\d' has none")
        return _ESCAPES[code]
    number = int(code, 8) if len(code) == 3 and code.isdigit() else int(code[1:], 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError(f"`\\{code}` is no character")
    return chr(number)
