"""The explanation of a model for an accelerator, graph by graph."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from byoc.model import GraphIndex, Model, get_node_name, get_operator_name
from byoc.patterns import Mark, NearMiss, Unit
from byoc.rules import Attempt, Objection, Target


@dataclass(frozen=True, eq=False)
class RefusedNode:
    """A node that the accelerator does not support.

    `graph_path` is that of the body that contains it, empty for the main graph. `attempts` are the rules
    that were tried, the nearest first; they include the grouper's reasons if a rule accepts the node and
    it is refused nevertheless. `reasons` are those of the first attempt. A DequantizeLinear or
    QuantizeLinear that goes with a refused operator has no attempts. `operations` is the compute of the
    node.
    """

    graph_path: str
    index: GraphIndex
    number: int
    attempts: tuple[Attempt, ...]
    reasons: tuple[Objection, ...]
    operations: float

    @property
    def name(self) -> str:
        """The node's name, or its first output."""
        return get_node_name(self.index.nodes[self.number])

    @property
    def op(self) -> str:
        """The operator, as rule files write it."""
        return get_operator_name(self.index.nodes[self.number])


@dataclass(frozen=True, eq=False)
class GraphExplanation:
    """The explanation of one graph: the main graph, or the body at `graph_path`."""

    graph_path: str
    index: GraphIndex
    marks: Sequence[Mark]
    units: Sequence[Unit]
    near_misses: Sequence[NearMiss]
    operations: Mapping[int, float]
    quantized: bool
    """True if the target has rules for quantized operators."""

    @cached_property
    def unit_of(self) -> dict[int, Unit]:
        """The unit of each node that is not constant."""
        return {number: unit for unit in self.units for number in unit.nodes}

    @cached_property
    def supported_nodes(self) -> Set[int]:
        """The nodes that the accelerator supports."""
        return {number for unit in self.units if unit.verdict for number in unit.nodes}


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of a model for a target. `asked` has pairs of a graph and a node number."""

    model: Model
    target: Target
    graphs: tuple[GraphExplanation, ...]
    asked: tuple[tuple[GraphExplanation, int], ...]
    refusals: tuple[RefusedNode, ...]
    estimated: float
    """the share of the work, in seconds on the built-in host, whose shapes or operators are not known"""

    def __repr__(self) -> str:
        """Return the model, the accelerator and how many kinds of refusals there are."""
        return f"Explanation({self.model!r}, {self.target.name!r}, refusals={len(self.refusals)})"

    @property
    def operations(self) -> float:
        """The compute of all nodes of the model."""
        return sum(sum(graph.operations.values()) for graph in self.graphs)

    @property
    def refused_operations(self) -> float:
        """The compute of the refused nodes."""
        return sum(refusal.operations for refusal in self.refusals)

    @property
    def composites(self) -> dict[str, int]:
        """The number of matches of each composite of the target, in the order of its file."""
        found = Counter(unit.composite for graph in self.graphs for unit in graph.units)
        return {pattern.name: found[pattern.name] for pattern in self.target.patterns}
