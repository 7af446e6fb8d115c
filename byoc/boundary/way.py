"""Paths on the host from a boundary tensor to the user's tensor that it is a form of."""

from dataclasses import dataclass, replace

from onnx import NodeProto

from byoc.boundary.scales import Scales
from byoc.graph.index import GraphIndex


@dataclass(frozen=True)
class ConversionPath:
    """The path on the host from a boundary tensor, which the region knows as `inner`.

    `passed` are the tensors on the path, the boundary tensor first; `steps` the conversions in the order
    of execution; `behind` those of them between the scales that were found and the boundary. `quantized`
    is whether scales that are found still apply to the boundary tensor, that is, no node on the path has
    changed them.
    """

    inner: str
    tensors: tuple[str, ...]
    steps: tuple[NodeProto, ...] = ()
    scales: Scales | None = None
    outer_steps: tuple[NodeProto, ...] = ()
    seeks_scales: bool = True

    @property
    def boundary_tensor(self) -> str:
        """The boundary tensor."""
        return self.tensors[0]

    @property
    def end(self) -> str:
        """The tensor at the current end of the path."""
        return self.tensors[-1]

    @property
    def is_backward(self) -> bool:
        """Whether the path leads against the order of execution; False if it has no step."""
        if not self.steps:
            return False
        reads, makes = self.steps[0].input[0], self.steps[0].output[0]
        return self.tensors.index(makes) < self.tensors.index(reads)

    def extend_backward(self, node: NodeProto) -> "ConversionPath":
        """Return the path extended from a node's output to its input."""
        return replace(self, passed=(*self.tensors, node.input[0]))

    def extend_forward(self, node: NodeProto) -> "ConversionPath":
        """Return the path extended from a node's input to its output."""
        return replace(self, passed=(*self.tensors, node.output[0]))


def find_producer(index: GraphIndex, name: str) -> tuple[GraphIndex, NodeProto | None]:
    """Return the node that makes a tensor, or None, and the index of the graph that the node is in."""
    while True:
        number = index.producers.get(name)
        if number is not None:
            return index, index.nodes[number]
        if index.outer is None:
            return index, None
        index = index.outer
