"""Regions of odd shapes: what crosses twice, what has no elements, and what is too large."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dla_regions import agrees, executed, floats, mentioned, model

from byoc.codegen import ResourceError

SHAPES = {"square": np.array([2, 4, 8, 8]), "line": np.array([512])}
REGIONS = {
    "two inputs, two outputs": (
        "g (float[1,4,8,8] x, float[1,4,8,8] z) => (float[1,4,8,8] y, float[1,4,8,8] w)",
        "y = Add(x, z) w = Mul(x, z)",
    ),
    "an output that is read inside": (
        "g (float[1,4,8,8] x) => (float[1,4,8,8] a, float[1,4,8,8] y)",
        "a = Relu(x) y = Sigmoid(a)",
    ),
    "an output and a view of it": (
        "g (float[1,4,8,8] x) => (float[1,4,8,8] a, float[1,256] y)",
        "a = Sigmoid(x) y = Flatten(a)",
    ),
    "a view of rows": ("g (float[2,256] x) => (float[512] y)", "y = Reshape(x, line)"),
    "an image and back": (
        "g (float[2,4,8,8] x) => (float[2,4,8,8] y)",
        "t = Flatten(x) y = Reshape(t, square)",
    ),
    "an input that is an output": ("g (float[2,4] x) => (float[2,4] y)", "y = Dropout(x)"),
    "an input that is two outputs": (
        "g (float[2,4] x) => (float[2,4] y, float[2,4] z)",
        "y = Dropout(x) z = Dropout(y)",
    ),
    "an input that nothing reads": ("g (float[2,4] x, float[2,4] z) => (float[2,4] y)", "y = Relu(x)"),
    "one tensor twice": ("g (float[1,4,8,8] x) => (float[1,8,8,8] y)", "y = Concat<axis=1>(x, x)"),
    "no images": ("g (float[0,4,8,8] x) => (float[0,4,8,8] y)", "a = Relu(x) y = Sigmoid(a)"),
    "a part without elements": (
        "g (float[1,0] x, float[1,4] z) => (float[1,4] y)",
        "y = Concat<axis=1>(x, z)",
    ),
    "one number": ("g (float x) => (float y)", "y = Relu(x)"),
    "five axes": ("g (float[2,3,4,5,6] x) => (float[2,3,4,5,6] y)", "y = Sigmoid(x)"),
}
OPTIONS = ({}, {"scratchpad": "4096"}, {"stripes": "true"})


def given(proto: onnx.ModelProto) -> dict[str, Any]:
    """Return numbers for the inputs of a model."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return {
        each.name: floats(*(extent.dim_value for extent in each.type.tensor_type.shape.dim), seed=seed)
        for seed, each in enumerate(proto.graph.input)
        if each.name not in stored
    }


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "default")
@pytest.mark.parametrize("name", REGIONS)
def test_regions(name: str, options: dict[str, str], tmp_path: Path) -> None:
    header, body = REGIONS[name]
    proto = model(f"{header} {{ {body} }}", mentioned(body, SHAPES))
    agrees(proto, given(proto), tmp_path, **options)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batches(batch: int, tmp_path: Path) -> None:
    body = """
      c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(r)
      g = GlobalAveragePool(p) f = Flatten(g) y = Gemm(f, m)
    """
    constants = {"w": floats(8, 6, 3, 3), "m": floats(8, 5)}
    proto = model(f"g (float[{batch},6,9,7] x) => (float[{batch},5] y) {{ {body} }}", constants)
    agrees(proto, given(proto), tmp_path)


def test_a_program_of_too_many_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = import_module("byoc.codegens.dla.compiler.compile_region")
    monkeypatch.setattr(build, "_MAX_COMMANDS", 100)
    text = "g (float[1,4,64,64] x) => (float[1,4,64,64] y) { a = Sigmoid(x) y = Tanh(a) }"
    proto = model(text)
    with pytest.raises(ResourceError, match="more than 100 commands, most of them for '"):
        executed(proto, given(proto), tmp_path, scratchpad="2048")
    monkeypatch.setattr(build, "_MAX_COMMANDS", 400)
    agrees(proto, given(proto), tmp_path)


def test_an_arena_past_any_address(tmp_path: Path) -> None:
    proto = model("g (float[1,64,8192,8192] x) => (float[1,64,8192,8192] y) { y = Sigmoid(x) }")
    with pytest.raises(ResourceError, match="must have fewer than 4294967296"):
        executed(proto, {}, tmp_path)
