"""Types that hold at run time, whatever the file states: inferred from the inputs and constants alone.

A partitioned model states no other shapes. Where onnxruntime cannot infer a type, behind a function for
instance, it computes with the stated one, and refuses a model in which that does not fit.
"""

from collections.abc import Mapping

from onnx import ModelProto, TypeProto

from byoc.model._graph_index import GraphIndex
from byoc.model._skeletons import replace_weights
from byoc.model._tensor_data import get_graph_types
from byoc.model._walk import walk_graphs
from byoc.model.inference import clear_output_shapes, infer_types


def find_certain_types(root: GraphIndex) -> dict[GraphIndex, Mapping[str, TypeProto]]:
    """Return the certain types of each graph of a model, bodies included, by its index."""
    typed = infer_types(_make_bare_skeleton(root.proto), {}).typed_graph
    if typed is None:
        return {index: {} for index in root.walk()}
    certain = GraphIndex(root.proto, get_graph_types(typed), typed)
    return {
        index: get_graph_types(other.typed_graph) if other.typed_graph is not None else {}
        for index, other in zip(root.walk(), certain.walk(), strict=True)
    }


def _make_bare_skeleton(proto: ModelProto) -> ModelProto:
    """Return a model without large weights, and with no type stated beyond its inputs."""
    result = replace_weights(proto, "value_info")
    for graph in walk_graphs(result.graph):
        del graph.value_info[:]
        clear_output_shapes(graph)
    return result
