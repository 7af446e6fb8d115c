"""Models of the zoo whose exports have fixed extents, with open ones."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from byoc.zoo import load_model


def open_inputs(name: str, *dims: str) -> onnx.ModelProto:
    """Return a model of the zoo whose inputs begin with open dimensions."""
    model = onnx.ModelProto()
    model.CopyFrom(load_model(f"zoo:{name}").proto)
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        for dim, own in zip(value.type.tensor_type.shape.dim, dims, strict=False):
            if value.name not in stored:
                dim.dim_param = own
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def open_bert() -> onnx.ModelProto:
    """Return the zoo's bert with an open batch and length: its export has both in constants."""
    model = open_inputs("bert", "batch", "length")
    constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Reshape" and "attention/self" in node.name:
            tensor = constants[node.input[1]].attribute[0].t
            wanted = numpy_helper.to_array(tensor).copy()
            wanted[:2] = 0  # as they are
            tensor.CopyFrom(numpy_helper.from_array(wanted))
        if node.output[0] == "/model/embeddings/Constant_1_output_0":  # positions
            nodes += [
                helper.make_node("Shape", ["input_ids"], ["extent"], start=1, end=2),
                helper.make_node("Squeeze", ["extent"], ["count"]),
                helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
                helper.make_node("Unsqueeze", ["numbers", "first"], [node.output[0]]),
            ]
        elif node.output[0] == "/model/Expand_output_0":  # the mask, for heads and queries
            nodes.append(
                helper.make_node("Unsqueeze", ["/model/Cast_output_0", "inner"], [node.output[0]])
            )
        else:
            nodes.append(node)
    reads: set[str] = {output.name for output in model.graph.output}
    kept = []
    for node in reversed(nodes):
        if not reads.isdisjoint(node.output):
            kept.append(node)
            reads.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    for name, value in (("zero", 0), ("one", 1), ("first", [0]), ("inner", [1, 2])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return model


def open_yolox() -> onnx.ModelProto:
    """Return the zoo's YOLOX with images of an open height and width, which are multiples of 32."""
    model = open_inputs("ddddocr_yolox")
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], ("h", "w"), strict=True):
        dim.dim_param = name
    return model
