"""What is said of a model: its graphs, the nodes asked about, and those that are refused."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from byoc.costs.trips import called
from byoc.graph.index import GraphIndex
from byoc.graph.load import Model
from byoc.patterns.explain import NearMiss
from byoc.patterns.unit import Unit
from byoc.rules.annotate import Attempt, Objection
from byoc.rules.load import Target
from byoc.rules.operators import name_of
from byoc.verdict import Mark


@dataclass(frozen=True, eq=False)
class Refusal:
    """A node that the accelerator does not take.

    `graph` is the body that it is in, empty for the main graph; `attempts` are the rules that were
    tried, the nearest first, the grouper's reasons among them where a rule accepts the node and it is
    refused all the same; `reasons` are those of the first. A DequantizeLinear or QuantizeLinear that
    goes with a refused operator has no attempts. `operations` is its compute.
    """

    graph: str
    index: GraphIndex
    number: int
    attempts: tuple[Attempt, ...]
    reasons: tuple[Objection, ...]
    operations: float

    @property
    def name(self) -> str:
        """What the node is called: its name, or its first output."""
        return called(self.index.nodes[self.number])

    @property
    def op(self) -> str:
        """The operator as rule files write it."""
        return name_of(self.index.nodes[self.number])

    @property
    def places(self) -> tuple[str, ...]:
        """Where in the rule file the reasons stand."""
        return tuple(reason.place for reason in self.reasons)


@dataclass(frozen=True, eq=False)
class Explained:
    """What was found in one graph: the main one, or the body that `graph` names."""

    graph: str
    index: GraphIndex
    marks: Sequence[Mark]
    units: Sequence[Unit]
    misses: Sequence[NearMiss]
    operations: Mapping[int, float]
    quantized: bool
    """Whether the target has rules for quantized operators."""

    @cached_property
    def unit_of(self) -> dict[int, Unit]:
        """The unit of each node that is not constant."""
        return {number: unit for unit in self.units for number in unit.nodes}

    @cached_property
    def taken(self) -> Set[int]:
        """The nodes that the accelerator takes."""
        return {number for unit in self.units if unit.verdict for number in unit.nodes}


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a target says of a model: the graphs, the nodes asked about, and those that it refuses.

    `asked` are pairs of a graph and a node number; `operations` is the compute of the whole model.
    """

    model: Model
    target: Target
    graphs: tuple[Explained, ...]
    asked: tuple[tuple[Explained, int], ...]
    refusals: tuple[Refusal, ...]

    @property
    def operations(self) -> float:
        """The compute of all nodes of the model."""
        return sum(sum(graph.operations.values()) for graph in self.graphs)

    @property
    def refused_operations(self) -> float:
        """The compute of the nodes that are refused."""
        return sum(refusal.operations for refusal in self.refusals)

    @property
    def composites(self) -> dict[str, int]:
        """How often each composite of the target was found, in the order of its file."""
        found = Counter(unit.composite for graph in self.graphs for unit in graph.units)
        return {pattern.name: found[pattern.name] for pattern in self.target.patterns}
