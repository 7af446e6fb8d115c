"""The two evaluators of ONNX that random models are held to: onnxruntime, and onnx.reference."""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from byoc.model import walk_graphs


def run_plain(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs by onnxruntime, without optimizations. Raises what it raises.

    It takes and gives no bfloat16 where numpy is concerned: such tensors are float32 outside.
    """
    short = {name for name, held in feeds.items() if _is_bfloat16(held)}
    model = _without_node_names(model)
    session = _open(_with_casts(model, short, ()))
    names = [each.name for each in session.get_outputs()]
    made = {each.name for each in session.get_outputs() if "bfloat16" in each.type}
    if made:
        session = _open(_with_casts(model, short, made))
    given = {name: held.astype(np.float32) if name in short else held for name, held in feeds.items()}
    found = dict(
        zip(names, session.run([_outside(n) if n in made else n for n in names], given), strict=True)
    )
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    return [value.astype(kind) if name in made else value for name, value in found.items()]


def _without_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without names of nodes: onnxruntime takes none twice, and they say nothing."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for graph in walk_graphs(plain.graph):
        for node in graph.node:
            node.name = ""
    for function in plain.functions:
        for node in function.node:
            node.name = ""
    return plain


def _is_bfloat16(held: Any) -> bool:
    return not isinstance(held, list) and held.dtype.name == "bfloat16"


def _outside(name: str) -> str:
    return f"{name} outside"


def _with_casts(
    model: onnx.ModelProto, inputs: Collection[str], outputs: Collection[str]
) -> onnx.ModelProto:
    if not inputs and not outputs:
        return model
    cast = onnx.ModelProto()
    cast.CopyFrom(model)
    for value in cast.graph.input:
        if value.name in inputs:
            name = value.name
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            value.name = name
            inner = f"{name} inside"
            for node in cast.graph.node:
                _rename_reads(node, name, inner)
            for result in cast.graph.output:
                if result.name == name:
                    result.name = inner  # an output that is an input; its name counts outside alone
            cast.graph.node.insert(0, helper.make_node("Cast", [name], [inner], to=TensorProto.BFLOAT16))
    for value in list(cast.graph.output):
        if value.name in outputs:
            cast.graph.node.append(
                helper.make_node("Cast", [value.name], [_outside(value.name)], to=TensorProto.FLOAT)
            )
            value.CopyFrom(helper.make_tensor_value_info(_outside(value.name), TensorProto.FLOAT, None))
    return cast


def _rename_reads(node: NodeProto, old: str, new: str) -> None:
    for place, name in enumerate(node.input):
        if name == old:
            node.input[place] = new
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            rename_tensor(attribute.g, old, new)


def _open(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs by onnx.reference. Raises what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def rename_tensor(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Rename a tensor of a body, its inner bodies included."""
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                rename_tensor(attribute.g, old, new)
    for value in graph.output:
        if value.name == old:
            value.name = new
