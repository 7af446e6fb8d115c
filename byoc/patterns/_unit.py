"""Units: the smallest things that the placement assigns to a device; the annotations of nodes."""

from dataclasses import dataclass
from typing import Literal, Protocol

from onnx import NodeProto

from byoc.errors import Verdict
from byoc.model import describe_node
from byoc.patterns._matcher import Match

Kind = Literal["node", "composite", "qdq"]


class NodeGroup(Protocol):
    """Anything that stands for some nodes of a graph."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The numbers of the nodes, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """The annotation of a node.

    `verdict` is yes if a rule accepts it; `rule` is the location of that rule (`ops[3]`, or `dla.yaml:
    ops[3]` if inherited), else empty. If `standalone` is False the node is supported only inside a
    composite; if `is_required` is True it has to run on the accelerator. `accepts_plain` and
    `accepts_quantized` tell whether a rule accepts the node as it is, or between DequantizeLinear and
    QuantizeLinear; they are valid only if the verdict is yes. `not_quantized` is why no rule accepts
    the latter, of a node that stands there; else it is empty.
    """

    verdict: Verdict
    rule: str = ""
    standalone: bool = True
    is_required: bool = False
    accepts_plain: bool = True
    accepts_quantized: bool = False
    not_quantized: str = ""


@dataclass(frozen=True)
class Unit:
    """Nodes that are placed together, in topological order: one node, a composite, or a QDQ group.

    `match` is set for a composite, and for a QDQ group around one. `verdict` says whether the
    accelerator supports the unit, `rules` names the rules that accepted its nodes, and `must` says
    whether one of these rules requires the accelerator.
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
        """The name of the composite, None if the unit is not one."""
        return self.match.pattern.name if self.match else None


def describe_rejection(node: NodeProto, mark: Mark) -> str:
    """Describe why the rules do not accept a node, with the first of their reasons."""
    reason = next(iter(mark.verdict.reasons), "").removeprefix(f"{node.op_type}: ")
    return f"{describe_node(node)} is not taken by the rules: {reason}"
