"""The pattern language: a composite as the lines of ONNX text that compute it.

    c = Conv(x, w, b?)
    n = BatchNormalization(c, scale, bias, mean, var)
    y = Relu(n)

A name that no line makes is an input; `b?` may be left out; `A|B(...)` stands for either operator. The
last line makes the composite's output. An operator with fewer inputs than the pattern gives does not
match, nor does one with more.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^\s*([A-Za-z_]\w*)\s*=\s*(\w+(?:\s*\|\s*\w+)*)\s*\(([^()]*)\)\s*$", re.ASCII)
_NAME = re.compile(r"^[A-Za-z_]\w*\??$", re.ASCII)

# The matcher recurses from line to line.
_MOST_LINES = 100


@dataclass(frozen=True)
class PatternNode:
    """One line: what it makes, the operators it may be, its operands (name, optional), its number."""

    output: str
    ops: tuple[str, ...]
    operands: tuple[tuple[str, bool], ...]
    line: int = 0


@dataclass(frozen=True)
class Pattern:
    """A composite's name and its lines, in topological order; the last makes the output."""

    name: str
    nodes: tuple[PatternNode, ...]

    @property
    def root(self) -> PatternNode:
        """The line that makes the output."""
        return self.nodes[-1]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names that no line makes, in order of first use: the composite's signature."""
        made = {node.output for node in self.nodes}
        names = (name for node in self.nodes for name, _ in node.operands)
        return tuple(dict.fromkeys(name for name in names if name not in made))


def parse(name: str, text: str) -> Pattern:
    """Return the pattern that a text describes.

    Raises ValueError, a line for each mistake, naming its line in the text: not of the form, a name made
    twice or read before it is made, a `?` on what a line makes, a line that nothing reads.
    """
    nodes: list[PatternNode] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            problems.append(f"line {number}: '{line.strip()}' is not of the form y = Op(a, b?)")
            continue
        output, ops, given = match.groups()
        operands = [part.strip() for part in given.split(",")] if given.strip() else []
        wrong = [operand for operand in operands if not _NAME.match(operand)]
        problems.extend(f"line {number}: '{operand}' is not the name of an operand" for operand in wrong)
        nodes.append(
            PatternNode(
                output,
                tuple(op.strip() for op in ops.split("|")),
                tuple((operand.removesuffix("?"), operand.endswith("?")) for operand in operands),
                number,
            )
        )
    if len(nodes) > _MOST_LINES:
        problems.append(f"the pattern has {len(nodes)} lines, at most {_MOST_LINES} are possible")
    if not problems:
        problems.extend(_flow(nodes) if nodes else ["the pattern is empty"])
    if problems:
        raise ValueError("\n".join(problems))
    return Pattern(name, tuple(nodes))


def _flow(nodes: Sequence[PatternNode]) -> Iterator[str]:
    """Yield what is wrong between the lines."""
    outputs = [node.output for node in nodes]
    read = {name for node in nodes for name, _ in node.operands}
    for i, node in enumerate(nodes):
        place = f"line {node.line}"
        for other in outputs:
            if other.startswith(f"{node.output}_"):  # `c_x` of one and `c` of the other meet in names
                yield f"{place}: the name '{node.output}' is the beginning of '{other}'"
        if node.output in outputs[:i]:
            yield f"{place}: '{node.output}' is made twice"
        elif node.output not in read and i < len(nodes) - 1:
            yield f"{place}: nothing reads '{node.output}', and only the last line makes the output"
        for name, optional in node.operands:
            if name not in outputs[:i] and name in outputs[i:]:
                yield f"{place}: '{name}' is read before it is made"
            elif optional and name in outputs:
                yield f"{place}: '{name}?' is made by a line, so it cannot be left out"
