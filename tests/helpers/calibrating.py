"""A small network with seeded weights, samples for it, and what its tensors really are on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from byoc.model import Model, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from helpers.support import parse

TEXT = """g (float[1, 3, 8, 8] x) => (float[1, 5] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    s = Sigmoid(c)
    m = Mul(r, s)
    p = GlobalAveragePool(m)
    f = Flatten(p)
    y = MatMul(f, v)
}"""
METHODS = ("minmax", "percentile", "entropy", "mse")
ACTIVATIONS = ["x", "c", "r", "s", "m", "p", "f", "y"]


def network() -> onnx.ModelProto:
    generator = np.random.default_rng(7)
    proto = parse(TEXT)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("v", (4, 5))):
        values = generator.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


def inputs(number: int) -> list[dict[str, NDArray[Any]]]:
    generator = np.random.default_rng(3)
    spread = np.linspace(0.5, 2.0, number)  # so that the greatest values are not in the first sample
    shape = (1, 3, 8, 8)
    return [{"x": (generator.standard_normal(shape) * s).astype(np.float32)} for s in spread]


def truth(
    proto: onnx.ModelProto, names: Sequence[str], samples: Sequence[Mapping[str, Any]]
) -> dict[str, NDArray[Any]]:
    """Return all values of some tensors over all samples, flat."""
    every = onnx.ModelProto()
    every.CopyFrom(proto)
    given = {value.name for value in proto.graph.input}
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    with without_optimizations():
        session = open_session(every)
    runs = [{**sample, **run_session(session, sample)} for sample in samples]
    return {name: np.concatenate([run[name].ravel() for run in runs]) for name in names}


@pytest.fixture
def net() -> Model:
    return prepare_model(network(), "net.onnx")


WIDE = """g (float[1, 8, 32, 32] x) => (float[1, 8] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w0)
    b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1]> (b, w1)
    d = Relu(c)
    e = Conv <pads = [1, 1, 1, 1]> (d, w2)
    f = Relu(e)
    h = Conv <pads = [1, 1, 1, 1]> (f, w3)
    p = GlobalAveragePool(h)
    y = Flatten(p)
}"""


def wide_network() -> onnx.ModelProto:
    """Return a network whose convolutions are cheapest in integers on `dla`."""
    generator = np.random.default_rng(5)
    proto = parse(WIDE)
    for name, shape in (("w0", (64, 8)), ("w1", (64, 64)), ("w2", (64, 64)), ("w3", (8, 64))):
        values = generator.standard_t(2.5, (*shape, 3, 3)) / np.sqrt(9 * shape[1])
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return proto


def wide_inputs(number: int) -> list[dict[str, NDArray[Any]]]:
    """Return samples for `wide_network`."""
    generator = np.random.default_rng(3)
    return [{"x": generator.standard_normal((1, 8, 32, 32)).astype(np.float32)} for _ in range(number)]
