"""Folding: what is known before the model runs is computed, with ONNX's own reference implementation."""

import onnx
from onnx import ModelProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.graph.copying import copy_without
from byoc.graph.index import GraphIndex, stated_types


def fold_constants(model: ModelProto) -> ModelProto:
    """Return the model with its constant nodes replaced by initializers.

    What these nodes read must be embedded; all other data may lie in files.
    """
    index = GraphIndex(model, stated_types(model))
    constant = sorted(index.constant_nodes)
    if not constant:
        return model
    read = {name for i in constant for name in index.reads[i]}
    made = [name for i in constant for name in index.nodes[i].output if index.is_used(name)]
    graph = onnx.helper.make_graph(
        [index.nodes[i] for i in constant],
        "constants",
        [],
        [onnx.ValueInfoProto(name=name) for name in made],
        [tensor for name, tensor in index.initializers.items() if name in read],
    )
    constants = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    values = ReferenceEvaluator(constants).run(None, {})
    result = copy_without(model, "node")
    result.graph.node.extend(n for i, n in enumerate(index.nodes) if i not in index.constant_nodes)
    result.graph.initializer.extend(map(numpy_helper.from_array, values, made))
    return result
