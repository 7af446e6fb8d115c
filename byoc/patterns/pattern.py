"""The pattern language: a composite as the lines of ONNX text that compute it.

    c = Conv(x, w, b?)
    n = BatchNormalization(c, scale, bias, mean, var)
    y = Relu(n)

A name that no line makes is an input; `b?` may be left out; `A|B(...)` stands for either operator. The
last line makes the composite's output. An operator with fewer inputs than the pattern gives does not
match, nor does one with more.
"""

import re
from dataclasses import dataclass

_LINE = re.compile(r"^\s*(\w+)\s*=\s*([\w.]+(?:\s*\|\s*[\w.]+)*)\s*\(([^()]*)\)\s*$")
_NAME = re.compile(r"^[A-Za-z_]\w*(\?)?$")


@dataclass(frozen=True)
class PatternNode:
    """One line: what it makes, the operators it may be, and its operands (name, optional)."""

    output: str
    ops: tuple[str, ...]
    operands: tuple[tuple[str, bool], ...]


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

    Raises ValueError naming the line: not of the form, a name made twice or read before it is made, a
    line that nothing reads.
    """
    nodes: list[PatternNode] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"line {number}: '{line.strip()}' is not of the form y = Op(a, b?)")
        output, ops, operands = match.groups()
        nodes.append(
            PatternNode(
                output,
                tuple(op.strip() for op in ops.split("|")),
                tuple(_operand(number, part.strip()) for part in operands.split(",") if part.strip()),
            )
        )
    if not nodes:
        raise ValueError("the pattern is empty")
    _check_flow(nodes)
    return Pattern(name, tuple(nodes))


def _operand(number: int, text: str) -> tuple[str, bool]:
    if not _NAME.match(text):
        raise ValueError(f"line {number}: '{text}' is not the name of an operand")
    return text.removesuffix("?"), text.endswith("?")


def _check_flow(nodes: list[PatternNode]) -> None:
    outputs = [node.output for node in nodes]
    for i, node in enumerate(nodes):
        if node.output in outputs[:i]:
            raise ValueError(f"'{node.output}' is made twice")
        for name, _ in node.operands:
            if name in outputs[i:]:
                raise ValueError(f"'{name}' is read before it is made")
    read = {name for node in nodes for name, _ in node.operands}
    for name in outputs[:-1]:
        if name not in read:
            raise ValueError(f"nothing reads '{name}', and only the last line makes the output")
