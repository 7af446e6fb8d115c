"""Models of a single node, to ask a compiler about each node of a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from byoc.codegen._identical_regions import CanonicalNames
from byoc.errors import ByocError, Verdict
from byoc.model import extract_nodes, get_node_name, prepare_model

T = TypeVar("T")


@dataclass(frozen=True)
class SingleNode:
    """A node of a model's graph as a model of its own, with the constants that it reads."""

    node: NodeProto
    model: ModelProto

    def standard_model(self) -> ModelProto:
        """Return the model in standard operators: each composite is replaced by its body."""
        return inline_local_functions(self.model) if self.model.functions else self.model


def node_names(nodes: Iterable[NodeProto]) -> list[str]:
    """Return the nodes' names for a CompileError: their names, or else their first outputs."""
    return [get_node_name(node) for node in nodes]


def split_into_nodes(model: ModelProto) -> Iterator[SingleNode]:
    """Yield each node of a model's graph, in order. The model must hold all its data.

    Raises InputError when the model is not valid.
    """
    index = prepare_model(model, model.graph.name or "the model").index
    for position, node in enumerate(index.nodes):
        name = node.name or node.op_type
        yield SingleNode(node, extract_nodes(index, [position], name, index.type_protos))


def check_each_node(model: ModelProto, check: Callable[[SingleNode], T]) -> list[T]:
    """Return the result of `check` for each node of a model's graph, in order.

    Nodes that differ only in the names of their tensors are checked once. Raises as `split_into_nodes`.
    """
    keys: list[bytes] = []
    results: dict[bytes, T] = {}
    for single in split_into_nodes(model):
        keys.append(_similarity_key(single))
        if keys[-1] not in results:
            results[keys[-1]] = check(single)
    return [results[key] for key in keys]


def find_refused_nodes(
    load: Callable[[], ModelProto], check: Callable[[ModelProto], Sequence[Verdict]]
) -> list[str]:
    """Return the names of the nodes of a model that a codegen refuses alone; none if it cannot tell."""
    try:
        model = load()
        verdicts = check(model)
    except ByocError:
        return []
    return node_names(node for node, yes in zip(model.graph.node, verdicts, strict=True) if not yes)


def _similarity_key(single: SingleNode) -> bytes:
    """Return a key that is equal for nodes that differ only in the names of their tensors."""
    twin = ModelProto()
    twin.CopyFrom(single.model)
    CanonicalNames().rename_graph(twin.graph)
    return twin.SerializeToString(deterministic=True)
