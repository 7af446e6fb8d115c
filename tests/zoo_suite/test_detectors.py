"""The detectors' suite: its reading of `dla.yaml` on small models, and one detector held to it."""

import numpy as np
import pytest
from detectors import find_supported, measure
from helpers.support import parse
from reference_run import run_profiled


@pytest.mark.parametrize(
    ("nodes", "supported"),
    [
        ("y = Conv<pads = [1, 1, 1, 1]>(x, w)", True),
        ("y = Conv<pads = [3, 3, 3, 3]>(x, w)", False),
        ("y = Conv<dilations = [1, 5], pads = [0, 4, 0, 4]>(x, w)", False),
        ("k = Relu(w) y = Conv(x, k)", True),
        ("k = Slice(x, zero, four, zero) j = Transpose(w) y = Conv(x, w)", True),
        ("m = Mul(w, s) y = Conv(x, m)", False),
        ("y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(x)", True),
        ("y = MaxPool<kernel_shape = [3, 3], strides = [9, 1]>(x)", False),
        ("y = GlobalAveragePool(x)", True),
        ("y = Softmax(x)", False),
        ("i = NonZero(x) f = Cast<to = 1>(i) y = Relu(f)", False),
    ],
)
def test_rules_are_read_as_they_stand(nodes: str, supported: bool) -> None:
    model = parse(
        "g (float[1, 3, 8, 30] x, float s) => (float[a, b] y) <float[4, 3, 3, 3] w = {"
        + ", ".join(["0.5"] * 108)
        + "}, int64[1] zero = {0}, int64[1] four = {1}> {"
        + nodes
        + "}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 3, 8, 30), "s": ()}
    inputs = {name: np.asarray(rng.random(shape, np.float32)) for name, shape in shapes.items()}
    found = find_supported(model, run_profiled(model, inputs))
    last = str(len(model.graph.node) - 1)
    assert (last in found) == supported


def test_what_a_plain_reading_supports_is_what_byoc_finds() -> None:
    row = measure("ssdlite320")
    assert row.passed
    assert row.supported > 0.99
    assert row.placed > 0.99
    assert row.reported == pytest.approx(row.placed, abs=0.01)
    assert row.operations == pytest.approx(1.18e9, rel=0.01)
