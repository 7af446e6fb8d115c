"""Regions of small models for the dla's compiler, and what they must compute."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from byoc.codegens.dla.compiler.compile_region import lower_region
from byoc.codegens.dla.compiler.layers import LayerNetwork
from onnx import numpy_helper

from byoc.codegen import Region, find_codegen, parse_codegen_options, read_region
from byoc.onnxrt import open_session, run_session, without_optimizations

Arrays = Mapping[str, Any]


def floats(*shape: int, seed: int = 0) -> Any:
    """Return numbers around 0."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bytes_of(*shape: int, dtype: str = "int8", seed: int = 0) -> Any:
    """Return integers over all of a type's range."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def model(text: str, constants: Arrays | None = None, opset: int = 17) -> onnx.ModelProto:
    """Return the model of a text, with constants by name; nodes are called by what they make."""
    proto = _parse(text, constants, f'"" : {opset}')
    onnx.checker.check_model(proto, full_check=True)
    return proto


def runtime_model(text: str, constants: Arrays | None = None, opset: int = 21) -> onnx.ModelProto:
    """Return the same of a text with operators that only onnxruntime has."""
    return _parse(text, constants, f'"" : {opset}, "com.microsoft" : 1')


def _parse(text: str, constants: Arrays | None, opsets: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{opsets}]>\n{text}")
    for node in proto.graph.node:
        node.name = node.name or node.output[0]
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return proto


def mentioned(text: str, constants: Arrays) -> dict[str, Any]:
    """Return those of some constants that a text names."""
    words = {*re.findall(r"\w+", text)}
    return {name: array for name, array in constants.items() if name in words}


def region(proto: onnx.ModelProto, folder: Path) -> Region:
    """Return a model as a region."""
    path = folder / "dla_0.onnx"
    onnx.save(proto, path)
    return read_region(path, "dla_0", "dla")


def network(proto: onnx.ModelProto, folder: Path) -> LayerNetwork:
    """Return a model as layers."""
    return lower_region(region(proto, folder))


def executed(proto: onnx.ModelProto, inputs: Arrays, folder: Path, **options: str) -> Arrays:
    """Return what the machine makes of a model."""
    found: Any = find_codegen("dla")
    made = region(proto, folder)
    artifact = found.compile(made, parse_codegen_options(found, options))
    outputs: Arrays = found.load(made, artifact)(inputs)
    return outputs


def agrees(proto: onnx.ModelProto, inputs: Arrays, folder: Path, **options: str) -> None:
    """Assert that the machine computes what onnxruntime does.

    Floats may be off by 1e-5 of the largest, integers by one unit.
    """
    found = executed(proto, inputs, folder, **options)
    with without_optimizations():
        wanted = run_session(open_session(proto), dict(inputs))
    assert found.keys() == wanted.keys()
    for name, expected in wanted.items():
        made = found[name]
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        if expected.dtype == np.float32:
            most = 1e-5 * np.abs(expected).max(initial=0)
            np.testing.assert_allclose(made, expected, rtol=0, atol=most, err_msg=name)
        else:
            assert np.abs(made.astype(int) - expected.astype(int)).max(initial=0) <= 1, name


# Something of each kind of layer, a residual among them.
NETWORK = """
g (float[1,6,20,20] x) => (float[1,10] y) {
  a = Conv<pads=[1,1,1,1]>(x, first, bias) b = Relu(a)
  c = Conv<group=12, pads=[1,1,1,1]>(b, deep) d = Clip(c, zero, six)
  e = Conv(d, point, bias) s = Add(e, b) f = Relu(s)
  p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(f)
  q = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(f)
  k = Concat<axis=1>(p, q) t = Sigmoid(k) m = Mul(k, t)
  v = GlobalAveragePool(m) w = Flatten(v) y = Gemm(w, last, ten)
}
"""
WEIGHTS = {
    "first": floats(12, 6, 3, 3),
    "bias": floats(12),
    "deep": floats(12, 1, 3, 3, seed=1),
    "point": floats(12, 12, 1, 1, seed=2),
    "last": floats(24, 10, seed=3),
    "ten": floats(10, seed=4),
    "zero": floats(1)[0] * 0,
    "six": floats(1)[0] * 0 + 6,
}
