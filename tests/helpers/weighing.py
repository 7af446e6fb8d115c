"""What rounds weights on samples behind the door of quantization, and a model to try it on."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from byoc.quantization._weight_samples import (
    ReplaceableWeights,
    RoundedModel,
    WeightOption,
    choose_options,
    measure_output_noise,
)
from helpers.support import parse

__all__ = [
    "ReplaceableWeights",
    "RoundedModel",
    "WeightOption",
    "choose_options",
    "make_branching",
    "measure_output_noise",
]

BRANCHING = """g (float[n, 8] x, float[8] d) => (float[n, 8] y, float[n, 8] z, float one)
<float[8] d = {1, 2, 3, 4, 5, 6, 7, 8}> {
    two = Constant <value_float = 2.0> ()
    ut = Transpose <perm = [1, 0]> (u)
    a = MatMul(x, v)
    size = Shape(a)
    g = MatMul(d, v)
    s = Add(a, g)
    b = MatMul(s, ut)
    r = Relu(b)
    whole = Reshape(r, size)
    sum = ReduceSum <keepdims = 0> (whole)
    positive = Greater(sum, two)
    c = MatMul(r, v)
    kept = SequenceConstruct(c, a)
    y = SequenceAt(kept, first)
    e = Mul(y, two)
    z = MatMul(e, w)
    one = Add(two, two)
}"""


def make_branching() -> onnx.ModelProto:
    """Return a model with weights `u`, `v`, `w` of 8 x 8, three products by `v`, one by `u` transposed.

    It has a default input, a sequence, and an If whose bodies capture tensors from far before.
    """
    model = parse(BRANCHING)
    rng = np.random.default_rng(3)
    for name in "uvw":
        value = rng.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    bodies = [
        helper.make_graph(
            [helper.make_node("Add", ["c", captured], ["o"])],
            f"with_{captured}",
            [],
            [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
        )
        for captured in ("a", "x")
    ]
    branch = helper.make_node("If", ["positive"], ["f"], then_branch=bodies[0], else_branch=bodies[1])
    places = {node.output[0]: place for place, node in enumerate(model.graph.node)}
    model.graph.node.insert(places["kept"], branch)
    next(node for node in model.graph.node if node.output[0] == "kept").input[0] = "f"
    return model
