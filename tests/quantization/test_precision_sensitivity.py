"""What each unit costs: the quantized model with floating point for all but some of its units."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from numpy.typing import NDArray
from onnx import numpy_helper

from byoc.model import Model, prepare_model
from byoc.quantization import KeptAccuracy, QuantizedModel, calibrate, quantize
from byoc.quantization._accuracy_measures import measure_accuracy, run_samples
from byoc.quantization._accuracy_test import measure_roundings, measure_sensitivities, quantize_only
from byoc.rules import load_rules
from byoc.support import show_progress

# Composites, a residual, a host operator that reads what is quantized, a Relu that stands alone.
TEXT = """g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] side, float[1, 5] y) {
    [first] c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    s = Sigmoid(r)
    n = Conv <pads = [1, 1, 1, 1]> (s, w2)
    side = Add(n, r)
    k = Relu(side)
    p = GlobalAveragePool(k)
    f = Flatten(p)
    y = Gemm(f, v)
}"""
Values = Mapping[str, Any]


def network() -> onnx.ModelProto:
    proto = parse(TEXT)
    generator = np.random.default_rng(5)
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,), "w2": (4, 4, 3, 3), "v": (4, 5)}.items():
        made = generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(made.astype(np.float32), name))
    return proto


def samples(count: int = 3, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Model:
    return prepare_model(network(), "net")


@pytest.fixture(scope="module")
def done(model: Model) -> QuantizedModel:
    return quantize(model, [load_rules(str(VANILLA))], calibrate(model, samples(8, seed=1)))


def every(done: QuantizedModel) -> set[str]:
    return {node for nodes in done.units.values() for node in nodes}


def run(done: QuantizedModel, nodes: Collection[str]) -> list[Values]:
    return run_samples(quantize_only(done.model.proto, nodes, every(done)), done.model, samples())


def equal(one: Sequence[Values], other: Sequence[Values]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_what_is_quantized_here(done: QuantizedModel) -> None:
    assert set(done.units) == {"r", "n", "side", "k", "p", "f", "y"}
    assert done.units["r"] == ("first", "r")


def test_with_nothing_kept_it_is_the_float_model(model: Model, done: QuantizedModel) -> None:
    found = run(done, ())
    assert equal(found, run_samples(model.proto, model, samples()))
    onnx.checker.check_model(quantize_only(done.model.proto, (), every(done)))


def test_with_all_kept_it_is_the_quantized_model(model: Model, done: QuantizedModel) -> None:
    found = run(done, every(done))
    assert equal(found, run_samples(done.model.proto, done.model, samples()))
    assert not equal(found, run_samples(model.proto, model, samples()))


def fake(value: NDArray[Any], scale: float, point: int) -> NDArray[Any]:
    """Return what QuantizeLinear and DequantizeLinear of int8 leave of a value."""
    inside = np.clip(np.rint(value / np.float32(scale)) + point, -128, 127)
    return ((inside - point) * np.float32(scale)).astype(np.float32)


def pair(done: QuantizedModel, name: str) -> tuple[float, int]:
    """Return scale and zero point of a tensor by its own name."""
    for node in done.model.index.nodes:
        told = {entry.key: entry.value for entry in node.metadata_props}
        if node.op_type == "QuantizeLinear" and told.get("byoc.tensor") == name:
            stored = done.model.index.initializers
            scale, point = (numpy_helper.to_array(stored[read]) for read in node.input[1:])
            return float(scale), int(point)
    raise KeyError(name)


def test_one_unit_alone_quantizes_what_it_reads(model: Model, done: QuantizedModel) -> None:
    """The Relu `k` reads `side`, which is quantized for it alone; what it makes is read by a unit."""
    every_tensor = prepare_model(network(), "net").proto
    every_tensor.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("k", "v"))
    del every_tensor.graph.output[-1]
    floats = run_samples(every_tensor, model, samples())
    weights = numpy_helper.to_array(next(t for t in network().graph.initializer if t.name == "v"))
    for got, real in zip(run(done, ["k"]), floats, strict=True):
        np.testing.assert_array_equal(got["side"], real["side"])
        side = fake(real["side"], *pair(done, "side"))
        y = np.maximum(side, 0).mean(axis=(2, 3)) @ weights
        np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
        assert not np.allclose(y, real["y"], rtol=1e-4, atol=1e-5)


def test_a_unit_pays_for_what_floating_point_reads_of_it(model: Model, done: QuantizedModel) -> None:
    """What `side` makes is an output of the model: it is quantized there, and only `k` is not paid."""
    real = run_samples(model.proto, model, samples())
    for got, wanted in zip(run(done, ["y"]), real, strict=True):
        scale, point = pair(done, "y")
        np.testing.assert_array_equal(got["y"], fake(got["y"], scale, point))
        np.testing.assert_array_equal(got["side"], wanted["side"])
    for got in run(done, ["side"]):
        np.testing.assert_array_equal(got["side"], fake(got["side"], *pair(done, "side")))


def test_one_tensor_alone_is_rounded_for_all_that_read_it(model: Model, done: QuantizedModel) -> None:
    variant = quantize_only(done.model.proto, (), every(done), "side")
    real = run_samples(model.proto, model, samples())
    weights = numpy_helper.to_array(next(t for t in network().graph.initializer if t.name == "v"))
    for got, wanted in zip(run_samples(variant, done.model, samples()), real, strict=True):
        side = fake(wanted["side"], *pair(done, "side"))
        np.testing.assert_array_equal(got["side"], side)
        y = np.maximum(side, 0).mean(axis=(2, 3)) @ weights
        np.testing.assert_allclose(got["y"], y, rtol=1e-4, atol=1e-5)
    expected = run_samples(model.proto, model, samples())
    alone = measure_roundings(done.model, done.units, expected, samples())
    assert set(alone) == {"x", "r", "s", "n", "side", "k", "p", "f", "y"}
    got = run_samples(variant, done.model, samples())
    assert alone["side"] == measure_accuracy(expected, got)


def test_noise_roughly_adds_up(model: Model, done: QuantizedModel) -> None:
    many = samples(16, seed=2)
    expected = run_samples(model.proto, model, many)
    steps: list[str] = []
    with show_progress(steps.append):
        alone = measure_sensitivities(done.model, done.units, expected, many)
    assert list(alone) == list(done.units)
    assert len(steps) == len(done.units)
    whole = measure_accuracy(expected, run_samples(done.model.proto, done.model, many))
    together = -10 * np.log10(sum(unit.noise for unit in alone.values()))
    assert whole.signal_to_noise == pytest.approx(together, abs=2.5)
    assert all(unit.signal_to_noise > whole.signal_to_noise - 0.5 for unit in alone.values())


def test_what_is_kept_is_that_of_the_worst_output() -> None:
    one, two = np.array([[3.0, 4.0]], np.float32), np.array([[6.0, 8.0]], np.float32)
    expected = [{"a": one, "b": one, "n": np.array([7])}, {"a": two, "b": two, "n": np.array([7])}]
    actual = [
        {"a": one, "b": one + 1, "n": np.array([9])},  # whole numbers do not count
        {"a": two[:, ::-1], "b": two, "n": np.array([9])},
    ]
    found = measure_accuracy(expected, actual)
    assert found.signal_to_noise == pytest.approx(10 * np.log10(125 / 8))  # of `a`, over both samples
    assert found.same_class == 0.5
    assert found.noise == pytest.approx(8 / 125)
    assert measure_accuracy(expected, expected) == KeptAccuracy(np.inf, 1.0)
