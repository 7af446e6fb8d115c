"""Regions of small models, compiled and run by a codegen, and what they must compute."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import original, ramp
from helpers.support import parse

from byoc.codegen import (
    Artifact,
    CompileError,
    Executor,
    Region,
    find_codegen,
    parse_codegen_options,
    read_region,
)

WEIGHTS = {
    "w": ramp(4, 3, 3, 3),
    "b": ramp(4),
    "m": ramp(16, 5),
    "many": ramp(64, 256),
    "shape": np.array([2, 8], np.int64),
    "none": np.zeros((0,), np.float32),
}

# Text, inputs. Constants of WEIGHTS that a text names are initializers of its model.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "conv and relu": (
        "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c) }",
        {"x": ramp(1, 3, 8, 8)},
    ),
    "strided convolution": (
        "g (float[1,3,8,8] x) => (float[1,4,3,3] y) { y = Conv<strides=[2,2]>(x, w) }",
        {"x": ramp(1, 3, 8, 8)},
    ),
    "gemm": (
        "g (float[2,16] x) => (float[2,5] y) { y = Gemm<alpha=0.5>(x, m) }",
        {"x": ramp(2, 16)},
    ),
    "large constant": (
        "g (float[2,64] x) => (float[2,256] y) { y = MatMul(x, many) }",
        {"x": ramp(2, 64)},
    ),
    "pools, concat and softmax": (
        """g (float[1,2,6,6] x) => (float[1,4] y) {
          a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
          b1 = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)
          c = Concat<axis=1>(a, b1)
          d = GlobalAveragePool(c)
          e = Flatten(d)
          y = Softmax<axis=1>(e)
        }""",
        {"x": ramp(1, 2, 6, 6)},
    ),
    "several outputs, not in order": (
        "g (float[2,3] x) => (float[3,2] z, float[2,3] y, float[2,3] w1)"
        " { y = Relu(x) w1 = Neg(y) z = Transpose<perm=[1,0]>(w1) }",
        {"x": ramp(2, 3)},
    ),
    "scalars": (
        "g (float s, float t) => (float y, float z) { y = Add(s, t) z = Neg(y) }",
        {"s": np.array(1.5, np.float32), "t": np.array(2.5, np.float32)},
    ),
    "empty": (
        "g (float[0,3] e, float[2,3] x) => (float[2,3] y, float[0,3] z)"
        " { z = Relu(e) y = Concat<axis=0>(x, z) }",
        {"e": np.zeros((0, 3), np.float32), "x": ramp(2, 3)},
    ),
    "int64": (
        "g (int64[3] i, float[5] x) => (int64[3] j, float[3] y)"
        " { j = Add(i, i) y = Gather<axis=0>(x, i) }",
        {"i": np.array([4, 0, 2]), "x": ramp(5)},
    ),
    "bool and int8": (
        "g (bool[3] p, int8[3] i, int8[3] j) => (bool[3] q, int8[3] k)"
        " { q = Not(p) k = Where(p, i, j) }",
        {
            "p": np.array([True, False, True]),
            "i": np.array([-128, 2, 127], np.int8),
            "j": np.array([4, -5, 6], np.int8),
        },
    ),
    "float16": (
        "g (float16[2,2] x) => (float16[2,2] y) { y = Add(x, x) }",
        {"x": ramp(2, 2).astype(np.float16)},
    ),
    "a constant shape": (
        "g (float[16] x) => (float[2,8] y) { y = Reshape(x, shape) }",
        {"x": ramp(16)},
    ),
    "constants computed": (
        "g (float[2,5] x) => (float[2,16] y) { t = Transpose<perm=[1,0]>(m) y = MatMul(x, t) }",
        {"x": ramp(2, 5)},
    ),
    "a name of C": (
        "g (float[2] INFINITY, float[2] malloc) => (float[2] double) { double = Sub(INFINITY, malloc) }",
        {"INFINITY": ramp(2), "malloc": ramp(2) * 3},
    ),
    "an input that passes": (
        "g (float[2] x) => (float[2] y) { y = Dropout(x) }",
        {"x": ramp(2)},
    ),
    "an input that nobody reads": (
        "g (float[2] u, float[3] x) => (float[3] y) { y = Relu(x) }",
        {"u": ramp(2), "x": ramp(3)},
    ),
}


# What is about the interface of a region, and so has one of its own; the others fit into one.
_ALONE = ("several outputs, not in order", "an input that passes", "an input that nobody reads")
IN_FEW_REGIONS = [*_ALONE, "all others together"]
"""What `computes` takes in place of a case, for compilers that take seconds for each region."""


def model(text: str) -> onnx.ModelProto:
    """Return the model of a text, with the constants that it names."""
    proto = parse(text)
    used = {name for node in proto.graph.node for name in node.input}
    used |= {value.name for value in proto.graph.output}
    for name in WEIGHTS.keys() & used:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS[name], name))
    return proto


def region(proto: onnx.ModelProto, folder: Path) -> Region:
    """Return a model as a region whose large constants lie in a file beside it."""
    path = folder / "acc_0.onnx"
    stored = onnx.ModelProto()
    stored.CopyFrom(proto)  # saving changes it
    onnx.save(stored, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return read_region(path, "acc_0", "acc")


def compiled(
    proto: onnx.ModelProto, folder: Path, codegen: str, **options: str
) -> tuple[Region, Artifact, Executor]:
    """Return a model's region, its artifact, and what runs it."""
    made = region(proto, folder)
    found: Any = find_codegen(codegen)
    artifact = found.compile(made, parse_codegen_options(found, options))
    return made, artifact, found.load(made, artifact)


def refusal(made: Region, codegen: str, **options: str) -> CompileError:
    """Return the error with which a codegen refuses a region."""
    found: Any = find_codegen(codegen)
    with pytest.raises(CompileError) as caught:
        found.compile(made, parse_codegen_options(found, options))
    assert "\n" not in str(caught.value)
    return caught.value


def same(given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that outputs are those expected, to float32's last digits."""
    assert set(given) == set(expected)
    for name, value in expected.items():
        assert given[name].dtype == value.dtype, name
        assert given[name].shape == value.shape, name
        np.testing.assert_allclose(given[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def join_cases(names: Iterable[str]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return cases side by side in one model, with their inputs; each has names of its own."""
    graph, given = onnx.GraphProto(name="g"), {}
    for number, name in enumerate(names):
        text, inputs = CASES[name]
        joined = onnx.compose.add_prefix(model(text), f"k{number}_")
        graph.MergeFrom(joined.graph)
        given |= {f"k{number}_{key}": value for key, value in inputs.items()}
    return onnx.helper.make_model(graph, opset_imports=joined.opset_import, ir_version=8), given


def computes(name: str, folder: Path, codegen: str, **options: str) -> None:
    """Assert that a codegen computes as onnxruntime does what CASES or IN_FEW_REGIONS name."""
    proto, inputs = join_cases(
        [name] if name in CASES else [each for each in CASES if each not in _ALONE]
    )
    _, _, run = compiled(proto, folder, codegen, **options)
    same(run(inputs), original(proto, inputs))


def at_once(run: Executor, inputs: list[dict[str, Any]], threads: int = 2) -> list[Mapping[str, Any]]:
    """Return what an executor gives for inputs, called from several threads."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, inputs))


def with_composite() -> onnx.ModelProto:
    """Return a model that calls a composite, whose last input is left out."""
    make = onnx.helper.make_node
    proto = model("g (float[1,3,8,8] x) => (float[1,4,8,8] y) { y = Conv(x, w) }")
    pads = onnx.AttributeProto(name="pads", type=onnx.AttributeProto.INTS, ref_attr_name="c_pads")
    convolution = make("Conv", ["x", "w", "b"], ["c"])
    convolution.attribute.append(pads)
    opset = onnx.helper.make_opsetid("", 17)
    body = [convolution, make("Relu", ["c"], ["y"])]
    proto.functions.append(
        onnx.helper.make_function(
            "byoc.acc", "conv_relu", ["x", "w", "b"], ["y"], body, [opset], ["c_pads"]
        )
    )
    call = make("conv_relu", ["x", "w", ""], ["y"], domain="byoc.acc", c_pads=[1, 1, 1, 1])
    proto.graph.node[0].CopyFrom(call)
    proto.opset_import.append(onnx.helper.make_opsetid("byoc.acc", 1))
    return proto
