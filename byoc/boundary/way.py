"""Ways on the host from a tensor that crosses a border to the user's tensor that it is a form of."""

from dataclasses import dataclass, replace

from onnx import NodeProto

from byoc.boundary.scales import Scales
from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class Way:
    """The way on the host from a tensor that crosses, which the region knows as `inner`.

    `passed` are the tensors on the way, the one that crosses first; `steps` the conversions in the order
    of execution; `behind` those of them between the scales that were met and the border. `quantized` is
    whether scales that are met are still the border's: not beyond a node that changes them.
    """

    inner: str
    passed: tuple[str, ...]
    steps: tuple[NodeProto, ...] = ()
    scales: Scales | None = None
    behind: tuple[NodeProto, ...] = ()
    quantized: bool = True

    @property
    def name(self) -> str:
        """The tensor that crosses."""
        return self.passed[0]

    @property
    def at(self) -> str:
        """The tensor where the way has come to."""
        return self.passed[-1]

    @property
    def is_back(self) -> bool:
        """Whether the way leads against the order of execution; False where no step tells."""
        if not self.steps:
            return False
        reads, makes = self.steps[0].input[0], self.steps[0].output[0]
        return self.passed.index(makes) < self.passed.index(reads)

    def back(self, node: NodeProto) -> "Way":
        """Return the way that goes on from what a node makes to what it reads."""
        return replace(self, passed=(*self.passed, node.input[0]))

    def on(self, node: NodeProto) -> "Way":
        """Return the way that goes on from what a node reads to what it makes."""
        return replace(self, passed=(*self.passed, node.output[0]))


def maker(index: GraphIndex, name: str) -> tuple[GraphIndex, NodeProto | None]:
    """Return the node that makes a tensor and the index of its graph, None for what no node makes."""
    while True:
        number = index.producer.get(name)
        if number is not None:
            return index, index.nodes[number]
        if index.outer is None:
            return index, None
        index = index.outer
