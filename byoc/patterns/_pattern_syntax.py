"""Lines of patterns: their syntax, properties of operators, and a graph's nodes as the matcher reads."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from byoc._dataclasses import dataclass
from byoc.model import GraphIndex, describe_node
from byoc.model.schemas import OperatorSchema, find_schemas, list_onnx_operators
from byoc.patterns._contraction_order import ContractionOrder

ANY_OPERATOR = "*"
"""The operator that stands for any operator."""

Number = int | float
Scalar = int | float | str

_OPERATOR = r"(?:\*|[A-Za-z_][\w.]*)"
_LINE = re.compile(
    rf"""\s* (?P<outputs> [A-Za-z_]\w* (?: \s*,\s* [A-Za-z_]\w* )* ) \s* = \s*
    (?P<ops> {_OPERATOR} (?: \s*\|\s* {_OPERATOR} )* ) \s*
    (?: < (?P<attributes> (?: "[^"]*" | '[^']*' | [^<>"'] )* ) > \s* )?
    \( (?P<operands> [^()]* ) \) \s* (?P<optional> \? )? \s*""",
    re.ASCII | re.VERBOSE,
)
_NAME = re.compile(r"([A-Za-z_]\w*)([?!]{0,2})", re.ASCII)
_ATTRIBUTE = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]inf", re.ASCII)
_COMMENT = re.compile(r"""((?:"[^"]*"|'[^']*'|[^"'#])*)#.*""", re.DOTALL)
_TEXT = re.compile(r"""("[^"]*"|'[^']*')""")
_MAX_DIGITS = 20  # of a 64-bit number, and its sign


@dataclass(frozen=True)
class PatternOperand:
    """An operand of a line: a name, or a literal.

    An `optional` operand may be left out; a `constant` one must be known before the model runs. A
    literal has its elements in `value`, and `vector` if it was written as a list. The `name` of a
    literal is made of the line's name and the operand's position.
    """

    name: str
    optional: bool = False
    constant: bool = False
    value: tuple[Number, ...] | None = None
    vector: bool = False


@dataclass(frozen=True)
class AttributeTest:
    """The allowed values of an attribute: a set of values, ranges, or its absence."""

    name: str
    values: tuple[Scalar | tuple[Scalar, ...], ...] = ()
    ranges: tuple[tuple[Number, Number], ...] = ()
    absent: bool = False
    text: str = ""


@dataclass(frozen=True)
class PatternLine:
    """One line of a pattern.

    `outputs` has an empty name for an output written `_`. `line_number` is that in the text. With
    `allows_more`, further operands may follow; an `optional` line may be missing from the graph.
    """

    outputs: tuple[str, ...]
    ops: tuple[str, ...]
    operands: tuple[PatternOperand, ...]
    line_number: int = 0
    attributes: tuple[AttributeTest, ...] = ()
    allows_more: bool = False
    optional: bool = False

    @cached_property
    def output(self) -> str:
        """The first output that has a name. It is also the name of the line."""
        return next(filter(None, self.outputs), "")

    @cached_property
    def matches_any_operator(self) -> bool:
        """True if the line stands for any operator."""
        return self.ops[0] == ANY_OPERATOR


def strip_comment(line: str) -> str:
    """Remove a `#` comment from a line. A `#` inside quotes does not begin a comment."""
    found = _COMMENT.fullmatch(line)
    return (found[1] if found else line).strip()


def parse_line(text: str, number: int) -> PatternLine:
    """Parse one line of a pattern. Raises ValueError, with one line for each mistake."""
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is not of the form y = Op(a, b?)")
    outputs = tuple(part.strip() for part in found["outputs"].split(","))
    name = next((output for output in outputs if output != "_"), "")
    problems: list[str] = []
    if not name:
        problems.append("no output has a name")
    operands: list[PatternOperand] = []
    parts = list(_split(found["operands"], ","))
    more = bool(parts) and parts[-1] == "..."
    for position, part in enumerate(parts[:-1] if more else parts):
        try:
            operands.append(_parse_operand(part, f"{name}_{position}"))
        except ValueError as error:
            problems.append(str(error))
    attributes: list[AttributeTest] = []
    for part in _split(found["attributes"] or "", ","):
        try:
            attributes.append(_parse_attribute(part))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return PatternLine(
        tuple("" if output == "_" else output for output in outputs),
        tuple(op.strip() for op in found["ops"].split("|")),
        tuple(operands),
        number,
        tuple(attributes),
        more,
        found["optional"] is not None,
    )


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text between separators, except separators inside lists and quotes."""
    if not text.strip():
        return
    depth, quote, part = 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[]":
            depth += 1 if character == "[" else -1
        elif character == separator and depth == 0:
            yield part.strip()
            part = ""
            continue
        part += character
    yield part.strip()


def _parse_operand(text: str, literal_name: str) -> PatternOperand:
    found = _NAME.fullmatch(text)
    if found is not None and found[1] != "_" and found[2] not in ("??", "!!"):
        return PatternOperand(found[1], "?" in found[2], "!" in found[2])
    bare = text.removesuffix("?").strip()
    optional = bare != text
    if bare.startswith("[") and bare.endswith("]"):
        elements = tuple(_parse_number(part) for part in _split(bare[1:-1], ","))
        return PatternOperand(literal_name, optional, True, elements, vector=True)
    if _FLOAT.fullmatch(bare):
        return PatternOperand(literal_name, optional, True, (_parse_number(bare),))
    raise ValueError(f"'{text}' is not the name of an operand")


def _parse_attribute(text: str) -> AttributeTest:
    found = _ATTRIBUTE.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is not of the form attribute = value")
    name, written = found.groups()
    values: list[Scalar | tuple[Scalar, ...]] = []
    ranges = []
    absent = False
    for part in _split(written, "|"):
        low, dots, high = part.partition("..")
        if part == "absent":
            absent = True
        elif part.startswith("[") and part.endswith("]"):
            values.append(tuple(map(_parse_scalar, _split(part[1:-1], ","))))
        elif dots and not _TEXT.fullmatch(part):
            ranges.append((_parse_number(low.strip()), _parse_number(high.strip())))
            if ranges[-1][0] > ranges[-1][1]:
                raise ValueError(f"{name}: the range {part} is empty")
        else:
            values.append(_parse_scalar(part))
    if not (values or ranges or absent):
        raise ValueError(f"'{text}' is not of the form attribute = value")
    return AttributeTest(name, tuple(values), tuple(ranges), absent, written)


def _parse_scalar(text: str) -> Scalar:
    return text[1:-1] if _TEXT.fullmatch(text) else _parse_number(text)


def _parse_number(text: str) -> Number:
    if _INTEGER.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    if not _FLOAT.fullmatch(text):
        hint = f'; a text is in quotes: "{text}"' if text.replace("_", "").isalpha() else ""
        raise ValueError(f"'{text}' is not a number{hint}")
    return float(text)


def parse_return(text: str) -> Sequence[str] | None:
    """Parse the names of a `return` line; None if the line is not a `return`."""
    if not re.match(r"return\b(?!\s*=)", text):
        return None
    return [part.strip() for part in text.removeprefix("return").split(",")]


# Properties of the operators that patterns name, over all their ONNX versions.

# Operators whose operands may be exchanged (ONNX's operator documentation).
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# The characters that `function_label` escapes: all but letters, digits that do not begin a word, and
# dots between words.
_ODD = re.compile(r"(?<![a-zA-Z0-9])\.|\.(?![a-zA-Z])|(?<!.)[0-9]|[^a-zA-Z0-9.]", re.DOTALL)

# Operators with bodies, which the function of a composite cannot hold.
OPERATORS_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@cache
def operand_counts(op: str) -> tuple[int, int] | None:
    """Return the least and the most inputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    if not schemas:
        return None
    return min(s.min_input for s in schemas), max(s.max_input for s in schemas)


@cache
def output_count(op: str) -> int | None:
    """Return the most outputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return max(s.max_output for s in schemas) if schemas else None


@cache
def attribute_names(op: str) -> frozenset[str] | None:
    """Return the names of the attributes of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return frozenset(name for s in schemas for name in s.attributes) if schemas else None


@cache
def has_variadic_output(op: str) -> bool:
    """Return whether the number of outputs changes the meaning of an operator, as for Split."""
    return any(s.outputs and s.outputs[-1].variadic for s in find_schemas(op))


def counts_trailing_inputs(schema: OperatorSchema | None) -> bool:
    """Return whether an empty name at the end of the inputs differs from leaving it out.

    It does for operators that count their inputs (Sum), and may for unknown ones. onnxruntime reads an
    empty second input of Split as sizes.
    """
    if schema is None or schema.op_type == "Split":
        return True
    return bool(schema.inputs) and schema.inputs[-1].variadic


def function_label(op: str) -> str:
    """Return a unique part of a function name for an operator: `relu`, `acme__Op`.

    ONNX operators are in lower case. For other domains a dot becomes `__`, and other characters that are
    neither letters nor digits become `_0..._` with their code.
    """
    if op in list_onnx_operators() and "." not in op:
        return op.lower()
    dotted = op if "." in op else f".{op}"
    return _ODD.sub(lambda found: f"_0{ord(found[0]):x}_", dotted).replace(".", "__")


CONSTANT = "!"
"""Stands for the operator of a tensor that is known before the model runs."""


# The nodes of a graph as plain values, read once since the matcher looks at each many times.


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The operators (`Conv`, `com.microsoft.Gelu`), inputs and outputs of a graph by node number."""

    index: GraphIndex
    ops: Sequence[str]
    inputs: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    sources: Sequence[tuple[str, ...]]
    """The operator that makes each input of each node: `!` for constants, empty for graph inputs."""
    attribute_cache: dict[int, Mapping[str, Any]]

    @classmethod
    def from_index(cls, index: GraphIndex) -> "NodeTable":
        """Read the nodes of a graph, without the empty names at the end of their inputs and outputs."""
        ops = [kind.operator for kind in index.node_kinds]
        inputs = list(map(strip_trailing_empty, index.node_inputs))
        outputs = list(map(strip_trailing_empty, index.node_outputs))
        maker = {name: op for op, names in zip(ops, outputs, strict=True) for name in names if name}
        maker |= dict.fromkeys((*index.stored_tensors, *index.sparse_initializers), CONSTANT)
        for number in index.constant_nodes:
            maker |= dict.fromkeys(outputs[number], CONSTANT)
        sources = [tuple([maker.get(name, "") for name in names]) for names in inputs]
        return cls(index, ops, inputs, outputs, sources, {})

    @cached_property
    def by_op(self) -> Mapping[str, Sequence[int]]:
        """The nodes of each operator, in order; all nodes under `*`."""
        found: dict[str, list[int]] = {ANY_OPERATOR: list(range(len(self.ops)))}
        for number, op in enumerate(self.ops):
            found.setdefault(op, []).append(number)
        return found

    @cached_property
    def order(self) -> ContractionOrder:
        """The order of the nodes before any are joined."""
        return ContractionOrder(self.index)

    def attributes(self, number: int) -> Mapping[str, Any]:
        """Return the attributes in effect on a node, defaults included."""
        if number not in self.attribute_cache:
            self.attribute_cache[number] = self.index.get_attributes(self.index.nodes[number])
        return self.attribute_cache[number]

    def describe(self, number: int) -> str:
        """Return the description of a node for messages."""
        return describe_node(self.index.nodes[number])


def strip_trailing_empty(names: Sequence[str]) -> tuple[str, ...]:
    """Remove the empty names at the end of a list: operands that are left out."""
    given = tuple(names)
    if not given or given[-1]:
        return given
    while given and not given[-1]:
        given = given[:-1]
    return given
