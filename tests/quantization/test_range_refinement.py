"""Of several ways to round a tensor the one is chosen that leaves less noise at the outputs."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node
from quantizing import built, quantize, ranges, samples, target, values, weights

from byoc.model import Model
from byoc.quantization import Range
from byoc.quantization._quantize_model import prepare_floats
from byoc.quantization._range_refinement import (
    RangeRefinement,
    falls_on_samples,
    measure_noise_by_sample,
    read_roundings,
    round_tensors,
)
from byoc.quantization._sensitivity import run_samples

SHAPE = [1, 4, 8, 8]


def make_chain() -> Model:
    """Return two convolutions with a Relu between them."""
    nodes = [
        make_node("Conv", ["x", "w0"], ["c"], "first"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Conv", ["r", "w1"], ["y"], "last"),
    ]
    stored = {"w0": weights(0, 4, 4, 1, 1), "w1": weights(1, 4, 4, 1, 1)}
    return prepare_floats(built(nodes, {"x": SHAPE}, {"y": SHAPE}, stored), [target()])


def round_with(model: Model, **other: Range) -> Any:
    """Return how tensors are rounded with measured ranges, or with another range of some."""
    found = ranges(model, samples(model, 8))
    tensors = {**found.tensors, **other}
    made = quantize(model, [target()], type(found)(**{**vars(found), "tensors": tensors}))
    return read_roundings(made.model)


def test_tensors_alone_are_rounded_for_all_that_read_them() -> None:
    model = make_chain()
    found = round_with(model)
    assert set(found) == {"x", "r", "y"}
    given = samples(model, 1)[0]
    for name in ("x", "r", "y"):
        proto = round_tensors(model, {name: found[name]})
        assert [value.name for value in proto.graph.output] == ["y"]
        made = run_samples(proto, model, [given])[0]["y"]
        computed = values(model, given)
        step, point = float(found[name].scale), int(found[name].zero_point)
        rounded = (np.clip(np.rint(computed[name] / step) + point, -128, 127) - point) * step
        expected = rounded
        if name == "x":
            expected = np.einsum("oc,bchw->bohw", weights(0, 4, 4), rounded)
        if name != "y":
            expected = np.einsum("oc,bchw->bohw", weights(1, 4, 4), np.maximum(expected, 0))
        np.testing.assert_allclose(made, expected, atol=1e-4)


def test_a_tensor_has_the_range_of_less_noise_and_no_other_is_changed() -> None:
    model = make_chain()
    given = samples(model, 8)
    expected = run_samples(model.proto, model, given)
    wide = round_with(model, r=Range(0.0, 100.0))
    narrow = round_with(model)
    found = RangeRefinement(model, given, expected, {"wide": [wide] * 2, "narrow": [narrow] * 2})
    assert found.choose() == {"r": "narrow"}
    back = RangeRefinement(model, given, expected, {"narrow": [narrow] * 2, "wide": [wide] * 2})
    assert back.choose() == {}


def test_a_little_less_noise_changes_nothing() -> None:
    model = make_chain()
    given = samples(model, 8)
    expected = run_samples(model.proto, model, given)
    plain = round_with(model)
    high = ranges(model, given).tensors["r"]
    assert isinstance(high, Range)
    wider = round_with(model, r=Range(0.0, 1.05 * high.high))  # 0.91 of its noise are left
    found = RangeRefinement(model, given, expected, {"wider": [wider] * 2, "plain": [plain] * 2})
    assert found.choose() == {}


def test_few_samples_change_nothing() -> None:
    model = make_chain()
    given = samples(model, 3)
    expected = run_samples(model.proto, model, given)
    roundings = {"wide": [round_with(model, r=Range(0.0, 100.0))] * 2, "narrow": [round_with(model)] * 2}
    assert RangeRefinement(model, given, expected, roundings).choose() == {}


@pytest.mark.parametrize(
    ("after", "deviations", "falls"),
    [
        ([0.5, 0.5, 0.5, 0.6], 2.0, True),
        ([0.001, 1.1, 1.1, 1.1], 2.0, False),  # one sample of four
        ([0.001, 1.1, 1.1, 1.1], 0.0, True),
        ([1.1, 1.1, 1.1, 1.2], 0.0, False),
    ],
)
def test_noise_falls_where_it_does_on_most_samples(
    after: list[float], deviations: float, falls: bool
) -> None:
    assert falls_on_samples(np.ones(4), np.asarray(after), deviations) == falls


def test_noise_of_samples_is_a_share_of_the_signal_of_all() -> None:
    def sample(y: float, z: float) -> dict[str, NDArray[np.float32]]:
        return {
            "y": np.full(2, y, np.float32),
            "z": np.full(1, z, np.float32),
            "n": np.zeros(1, np.int64),
        }

    found = measure_noise_by_sample([sample(3, 1), sample(1, 1)], [sample(3, 2), sample(2, 1)])
    np.testing.assert_allclose(found, [1 / 2, 2 / 20])
