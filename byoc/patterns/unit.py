"""What the partitioner places: one node, a composite taken whole, or a QDQ group."""

from dataclasses import dataclass
from typing import Literal, Protocol

from onnx import NodeProto

from byoc.graph.walk import describe
from byoc.patterns.match import Match
from byoc.verdict import Mark, Verdict

Kind = Literal["node", "composite", "qdq"]


class HasNodes(Protocol):
    """What stands for some nodes of a graph."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The numbers of the nodes, in rising order."""
        ...


@dataclass(frozen=True)
class Unit:
    """Nodes that are placed together, in topological order.

    `match` is there for a composite, and for a QDQ group around one. `verdict` says whether the
    accelerator takes the unit, `rules` which rules accepted its nodes, `must` whether one of these says
    that it has to run there.
    """

    name: str
    nodes: tuple[int, ...]
    verdict: Verdict
    rules: tuple[str, ...]
    match: Match | None = None
    kind: Kind = "node"
    must: bool = False

    @property
    def composite(self) -> str | None:
        """The composite's name, None for a single node."""
        return self.match.pattern.name if self.match else None


def not_taken(node: NodeProto, mark: Mark) -> str:
    """Return that the rules do not take a node, with the first of their reasons."""
    reason = next(iter(mark.verdict.reasons), "").removeprefix(f"{node.op_type}: ")
    return f"{describe(node)} is not taken by the rules: {reason}"
