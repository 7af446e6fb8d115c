"""Decomposed activations are one operator before a model is quantized, and compute the same."""

import numpy as np
import pytest
from onnx.helper import make_node
from quantizing import OPS, built, quantize, ranges, samples, target, values, weights

from byoc.model import Model

FORMS = {
    "Paddle's hard swish": (
        [
            make_node("Add", ["c", "three"], ["a"]),
            make_node("Clip", ["a", "zero", "six"], ["l"]),
            make_node("Mul", ["c", "l"], ["m"]),
            make_node("Div", ["m", "six"], ["h"], "swish"),
        ],
        "HardSwish",
    ),
    "PyTorch's hard swish": (
        [
            make_node("HardSigmoid", ["c"], ["s"], alpha=1 / 6, beta=0.5),
            make_node("Mul", ["c", "s"], ["h"], "swish"),
        ],
        "HardSwish",
    ),
    "hard sigmoid": (
        [
            make_node("Add", ["c", "three"], ["a"]),
            make_node("Clip", ["a", "zero", "six"], ["l"]),
            make_node("Div", ["l", "six"], ["h"]),
        ],
        "HardSigmoid",
    ),
}


def make_network(form: str, opset: int = 13) -> Model:
    """Return a convolution, a decomposed activation, and a convolution."""
    nodes = [
        make_node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        *FORMS[form][0],
        make_node("Conv", ["h", "w1"], ["y"], "second"),
    ]
    stored = {
        "w0": 3 * weights(0, 4, 3, 1, 1),
        "b0": weights(1, 4),
        "w1": weights(2, 4, 4, 1, 1),
        "three": np.asarray(3, np.float32),
        "zero": np.asarray(0, np.float32),
        "six": np.asarray(6, np.float32),
    }
    return built(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, stored, opset)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_it_is_one_operator_that_computes_the_same(form: str) -> None:
    model = make_network(form)
    to = target(ops=[*OPS, "HardSwish", "HardSigmoid"])
    found = quantize(model, [to], ranges(model)).floats
    assert [node.op_type for node in found.index.nodes] == ["Conv", FORMS[form][1], "Conv"]
    assert quantize(found, [to], ranges(model)).floats is found
    inputs = samples(model, 1)[0]
    np.testing.assert_allclose(
        values(found, inputs)["y"], values(model, inputs)["y"], rtol=1e-4, atol=1e-5
    )
    made = quantize(found, [to], ranges(model))
    assert set(made.units) == {"first", "swish" if "swish" in form else "h", "second"}


def test_what_no_target_takes_stays() -> None:
    model = make_network("PyTorch's hard swish")
    found = quantize(model, [target()], ranges(model)).floats
    assert [node.op_type for node in found.index.nodes] == ["Conv", "HardSigmoid", "Mul", "Conv"]
