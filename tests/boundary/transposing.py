"""Models with hand-made regions, and what plain onnxruntime gives for them, before and after."""

from collections import Counter

import numpy as np
import onnx
from onnx import ModelProto

from byoc.onnxrt import open_session, run_session, without_optimizations


def inputs_of(model):
    draw = np.random.default_rng(0)
    shapes = {
        v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    return {name: draw.integers(-8, 8, shape).astype(np.float32) for name, shape in shapes.items()}


def outputs_of(model):
    with without_optimizations():
        return run_session(open_session(model), inputs_of(model))


def same(model, changed, tolerance=0.0):
    onnx.checker.check_model(changed, full_check=True)
    expected, found = outputs_of(model), outputs_of(changed)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=0, err_msg=name)


def parsed(text: str, opset: int = 17, **functions: str) -> ModelProto:
    """Return a model with regions of `dla`, by name: what is in a region in ONNX's text form."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "byoc.dla" : 1]>\n'
    tail = (
        f'<domain: "byoc.dla", opset_import: ["" : {opset}]> {name} {body}'
        for name, body in functions.items()
    )
    return onnx.parser.parse_model("\n".join([head + text, *tail]))


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


NEG = "(a) => (b) { b = Neg(a) }"
