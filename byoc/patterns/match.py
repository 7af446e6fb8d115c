"""The matcher: backtracking over the graph index, from a pattern's last line to its inputs.

Operands of commutative operators match in either order. Two lines never bind one node, a name always
binds one tensor, and what a match makes inside may be used only inside, bodies of If and Loop included.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, permutations

from onnx import NodeProto

from byoc.graph.composites import Composite, Line
from byoc.graph.index import GraphIndex
from byoc.graph.walk import bodies, is_onnx
from byoc.patterns.pattern import Pattern, PatternNode

# Operators whose two operands may be exchanged without changing the result (ONNX operator docs).
_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# Commutative operands below one another can be ordered in exponentially many ways. Real patterns are
# found or refused within a few dozen attempts; what needs more than this counts as not found.
_MOST_ATTEMPTS = 5_000


@dataclass(frozen=True)
class Match:
    """Where a pattern was found: line's name to node, and name to tensor (empty: left out)."""

    pattern: Pattern
    nodes: Mapping[str, int]
    tensors: Mapping[str, str]

    def as_composite(self, index: GraphIndex) -> Composite:
        """Return what the match becomes in the graph that it was found in."""
        nodes = index.nodes
        lines = tuple(
            Line(
                line.output,
                nodes[self.nodes[line.output]].op_type,
                tuple(name for name, _ in line.operands),
                self.nodes[line.output],
            )
            for line in self.pattern.nodes
        )
        # Every choice is in the name as soon as one differs: a_mul_add is not a_add_mul.
        pairs = list(zip(lines, self.pattern.nodes, strict=True))
        other = [bound.op.lower() for bound, line in pairs if len(line.ops) > 1]
        if all(bound.op == line.ops[0] for bound, line in pairs):
            other = []
        return Composite(
            index=index,
            name="_".join((self.pattern.name, *other)),
            lines=lines,
            inputs={name: self.tensors.get(name, "") for name in self.pattern.inputs},
        )


_Nodes = Mapping[str, int]
_Tensors = Mapping[str, str]
_Bound = tuple[_Nodes, _Tensors]
_Pairs = Sequence[tuple[tuple[str, bool], str]]


def match_at(pattern: Pattern, node: int, index: GraphIndex, free: Container[int]) -> Match | None:
    """Return the first match whose last line is the given node, None when there is none.

    Only nodes in `free` are matched.
    """
    search = _Search({line.output: line for line in pattern.nodes}, index, free, count())
    for nodes, tensors in search.node(pattern.root, node, {}, {}):
        if _closed(pattern, nodes, tensors, index):
            return Match(pattern, nodes, tensors)
    return None


@dataclass(frozen=True)
class _Search:
    """The backtracking: each method yields every way to bind what it is given."""

    lines: Mapping[str, PatternNode]
    index: GraphIndex
    free: Container[int]
    attempts: Iterator[int]

    def node(self, line: PatternNode, number: int, nodes: _Nodes, tensors: _Tensors) -> Iterator[_Bound]:
        node = self.index.nodes[number]
        if next(self.attempts) > _MOST_ATTEMPTS or any(True for _ in bodies(node)):
            return
        if node.op_type not in line.ops or not is_onnx(node):
            return
        if number not in self.free or number in nodes.values() or not node.output[0]:
            return
        if any(map(self.index.is_used, node.output[1:])):
            return
        bound = {**nodes, line.output: number}
        named = {**tensors, line.output: node.output[0]}
        for inputs in _orders(line, node):
            yield from self.operands(list(zip(line.operands, inputs, strict=True)), bound, named)

    def operands(self, pairs: _Pairs, nodes: _Nodes, tensors: _Tensors) -> Iterator[_Bound]:
        if not pairs:
            yield nodes, tensors
            return
        ((name, optional), tensor), *rest = pairs
        if name in tensors:
            if tensors[name] == tensor:
                yield from self.operands(rest, nodes, tensors)
        elif name not in self.lines:
            if tensor or optional:
                yield from self.operands(rest, nodes, {**tensors, name: tensor})
        else:
            producer = self.index.producer.get(tensor)
            if producer is None or self.index.nodes[producer].output[0] != tensor:
                return
            for found, named in self.node(self.lines[name], producer, nodes, tensors):
                yield from self.operands(rest, found, named)


def _orders(line: PatternNode, node: NodeProto) -> Iterator[tuple[str, ...]]:
    """Yield the node's inputs, padded to the line's operands, in each order that means the same."""
    given = tuple(node.input)
    while given and not given[-1]:
        given = given[:-1]
    if len(given) > len(line.operands):
        return
    padded = given + ("",) * (len(line.operands) - len(given))
    if node.op_type in _COMMUTATIVE and len(padded) == 2:
        yield from dict.fromkeys(permutations(padded))
    else:
        yield padded


def _closed(pattern: Pattern, nodes: _Nodes, tensors: _Tensors, index: GraphIndex) -> bool:
    """Return whether what is made inside, but for the output, is used inside only, and as no input."""
    inside = set(nodes.values())
    made = {tensors[line] for line in nodes}
    if any(tensors.get(name) in made for name in pattern.inputs):
        return False
    for line, number in nodes.items():
        if line == pattern.root.output:
            continue
        tensor = index.nodes[number].output[0]
        if tensor in index.outputs or not inside.issuperset(index.consumers.get(tensor, ())):
            return False
    return True
