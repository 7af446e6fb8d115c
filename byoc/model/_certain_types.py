"""Types that hold at run time, whatever the file states: inferred from the inputs and constants alone.

A partitioned model states no other shapes. Where onnxruntime cannot infer a type, behind a function for
instance, it computes with the stated one, and refuses a model in which that does not fit.
"""

from collections.abc import Mapping

from onnx import TypeProto

from byoc.model._dimensions import name_open_dims
from byoc.model._graph_index import GraphIndex
from byoc.model._skeletons import replace_weights
from byoc.model._walk import walk_graphs
from byoc.model.inference import clear_output_shapes, infer_types

CertainTypes = Mapping[GraphIndex, Mapping[str, TypeProto]]
"""The certain types of each graph of a model, bodies included, by its index."""


def find_certain_types(root: GraphIndex) -> CertainTypes:
    """Return the certain types of each graph: those of a model that states none beyond its inputs.

    The types in `root` plan; they may follow from stated ones.
    """
    if root.certain:
        return {index: index.type_protos for index in root.walk()}
    pairs = zip(root.walk(), type_certainly(root).walk(), strict=True)
    return {index: other.type_protos for index, other in pairs}


def type_certainly(root: GraphIndex) -> GraphIndex:
    """Return an index of the same nodes whose types are certain: the given one, if its are.

    It is of a model without weights, and has no typed graph where inference fails.
    """
    if root.certain:
        return root
    bare = replace_weights(root.proto, "value_info")
    name_open_dims(bare)
    for graph in walk_graphs(bare.graph):
        del graph.value_info[:]
        clear_output_shapes(graph)
    found = infer_types(bare, {})
    return GraphIndex(bare, found.type_protos, found.typed_graph)
