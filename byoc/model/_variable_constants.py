"""Constants that the user declares variable: inputs of the model, with the constant as their default.

Whoever calls the model may give such an input another value, as the weights of another adapter (Hu et
al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021). ONNX has that from IR version 4 on: an
initializer that is an input, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from onnx import ModelProto, TensorProto

from byoc.errors import InputError, suggest_nearest
from byoc.model._editable_graph import EditableGraph
from byoc.model._graph_index import GraphIndex
from byoc.model._model_loading import Model, prepare_model
from byoc.model._outline import set_ir_version
from byoc.model._tensor_data import add_input
from byoc.model._walk import copy_without


def make_variable(model: Model, patterns: Sequence[str]) -> Model:
    """Return a model in which the constants that patterns match (`*lora*`) are inputs with a default.

    They are initializers, and Constant nodes of the main graph by their outputs. Raises InputError for a
    pattern that matches none.
    """
    if not patterns:
        return model
    index = model.index
    stored = {tensor.name: tensor for tensor in model.structure.graph.initializer}
    known = [name for name in (*stored, *_find_constant_nodes(index)) if index.is_constant(name)]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        matched = [name for name in known if fnmatchcase(name, pattern)]
        if not matched:
            near = suggest_nearest(pattern, known)
            raise InputError(f"{model.source}: variable: no constant is called '{pattern}'{near}")
        chosen |= dict.fromkeys(matched)
    result = prepare_model(_add_inputs(model, chosen), model.source, model.folder, heavy=model.heavy)
    return replace(
        result, make_samples=model.make_samples, planned=model.planned, variable=tuple(chosen)
    )


def _find_constant_nodes(index: GraphIndex) -> dict[str, TensorProto]:
    """Return the tensors of Constant nodes that have one, by the names of their outputs."""
    return {
        node.output[0]: attribute.t
        for node in index.nodes
        if node.op_type == "Constant" and not node.domain
        for attribute in node.attribute
        if attribute.name == "value"
    }


def _add_inputs(model: Model, names: dict[str, None]) -> ModelProto:
    """Return a copy of a model in which constants of some names are inputs, too."""
    constants = _find_constant_nodes(model.index)
    proto = copy_without(model.structure)
    set_ir_version(proto, model.index)
    graph = EditableGraph(proto.graph)
    graph.remove(
        *(each for each in graph.nodes if each.op_type == "Constant" and each.output[0] in names)
    )
    graph.write_to(proto.graph)
    for name in names:
        if name in constants:
            proto.graph.initializer.add().CopyFrom(constants[name])
            proto.graph.initializer[-1].name = name
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in names:
        add_input(proto.graph, stored[name])
    return proto
