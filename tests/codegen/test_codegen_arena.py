"""The plan of a region's activations, carried out: every operation on bytes of one array of its size."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from helpers.support import parse
from numpy.typing import NDArray

from byoc.boundary.contracts import TensorContract
from byoc.bundle import open_bundle
from byoc.codegen import Arena, Region
from byoc.errors import InputError
from byoc.pipeline import partition

Arrays = Mapping[str, NDArray[np.generic]]
RULES = """target: one
codegen: reference
cost_model: dla
regions: phase
dtype: any
ops:
- op: [Relu, Neg, Reshape, Add, Concat, Sigmoid, Conv, MaxPool, Transpose]
composites:
- {name: conv_relu, pattern: "c = Conv(x, w, b?)\\ny = Relu(c)"}
"""
BRANCHES = """
b (float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y)
<int64[2] flat = {4, 64}, int64[4] back = {1, 4, 8, 8}> {
  a = Relu(x)
  b = Neg(a)
  c = Reshape(b, flat)
  d = Neg(c)
  e = Reshape(d, back)
  f = Add(e, a)
  y = Concat <axis = 1> (f, b)
}
"""
SKIPS = """
s (float[1, 2, 9, 9] x) => (float[1, 2, 9, 9] y, float[1, 2, 4, 4] z)
<float[2, 2, 1, 1] w = {0.5, -1, 2, 0.25},
 float[2, 1, 3, 3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1}>
{
  a = Conv(x, w)
  b = Relu(a)
  c = Conv <group = 2, pads = [1, 1, 1, 1]> (b, v)
  d = Sigmoid(c)
  e = Add(d, b)
  y = Neg(e)
  z = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
}
"""
QUANTIZED = """
q (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
<float s = {0.05}, int8 o = {3}, float[2, 2, 1, 1] w = {0.5, -1, 2, 0.25}>
{
  a = QuantizeLinear(x, s, o)
  b = DequantizeLinear(a, s, o)
  c = Conv(b, w)
  d = QuantizeLinear(c, s, o)
  e = DequantizeLinear(d, s, o)
  f = DequantizeLinear(a, s, o)
  g = Add(e, f)
  h = QuantizeLinear(g, s, o)
  y = DequantizeLinear(h, s, o)
}
"""


def region_of(model: onnx.ModelProto | str, rules: str, folder: Path) -> Region:
    bundle = folder / "m.byoc"
    partition(model, rules, output=bundle, verify=False, strategy="all-supported")
    (_, region, _), *_ = open_bundle(bundle).regions()
    return region


def executed(region: Region, arena: Arena, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
    """Run the region operation by operation; tensors that have a place are kept nowhere else."""
    model = region.load(fold=True)
    memory = np.full(arena.size, 0xA5, np.uint8)
    loose: dict[str, NDArray[np.generic]] = {}
    shapes: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]] = {}

    def write(name: str, value: NDArray[np.generic]) -> None:
        if name not in arena.places:
            loose[name] = value
            return
        place = arena.places[name]
        shapes[name] = (value.dtype, value.shape)
        memory[place.offset : place.offset + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)

    def read(name: str) -> NDArray[np.generic]:
        if name not in arena.places:
            return loose[name]
        dtype, shape = shapes[name]
        start = arena.places[name].offset
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(memory[start : start + size].tobytes(), dtype).reshape(shape)

    for tensor in model.graph.initializer:
        loose[tensor.name] = onnx.numpy_helper.to_array(tensor)
    for name, value in feeds.items():
        write(name, value)
    operations = {each.name: each for each in region.operations()}
    assert sorted(operations) == sorted(arena.order)
    for name in arena.order:
        node = operations[name].node
        inputs = [each for each in node.input if each]
        graph = onnx.helper.make_graph(
            [node],
            "one",
            [onnx.helper.make_empty_tensor_value_info(each) for each in dict.fromkeys(inputs)],
            [onnx.helper.make_empty_tensor_value_info(each) for each in node.output if each],
        )
        alone = onnx.helper.make_model(
            graph, opset_imports=model.opset_import, functions=model.functions
        )
        results = onnx.reference.ReferenceEvaluator(alone).run(
            None, {each: read(each) for each in inputs}
        )
        for each, value in zip(filter(None, node.output), results, strict=True):
            write(each, value)
    return {each.inner: read(each.name) for each in region.outputs}


@pytest.mark.parametrize("net", [BRANCHES, SKIPS, QUANTIZED])
@pytest.mark.parametrize("alignment", [1, 64])
def test_the_plan_can_be_carried_out(net: str, alignment: int, tmp_path: Path) -> None:
    ops = RULES.replace("Transpose]", "Transpose, QuantizeLinear, DequantizeLinear]")
    region = region_of(parse(net, ir=10, opset=21), written(tmp_path, ops), tmp_path)
    arena = region.arena(alignment)
    feeds = {each.name: sample(each) for each in region.inputs}
    wanted = onnx.reference.ReferenceEvaluator(region.load()).run(None, dict(feeds))
    found = executed(region, arena, feeds)
    for name, value in zip((each.inner for each in region.outputs), wanted, strict=True):
        np.testing.assert_array_equal(found[name], value)
    assert arena.is_minimal
    assert all(place.offset % alignment == 0 for place in arena.places.values())
    assert max(place.offset + place.bytes for place in arena.places.values()) == arena.size


def test_what_is_computed_as_one_has_no_place_inside(tmp_path: Path) -> None:
    region = region_of(parse(SKIPS), written(tmp_path, RULES), tmp_path)
    assert "a" not in region.arena().places
    assert "b" in region.arena().places


def test_conversions_of_layout_take_nothing(tmp_path: Path) -> None:
    net = "n (float[1, 2, 9, 9] x) => (float[1, 2, 7, 7] y) { y = MaxPool <kernel_shape = [3, 3]> (x) }"
    packed = RULES.replace("ops:", "layout: {activations: NHWC}\nops:")
    region = region_of(parse(net), written(tmp_path, packed), tmp_path)
    assert len(region.model.graph.node) == 3
    arena = region.arena(1)
    assert len(arena.order) == 1
    assert arena.size == 4 * 2 * (9 * 9 + 7 * 7)


def test_extents_that_are_not_known_are_one_sentence(tmp_path: Path) -> None:
    region = region_of(
        parse("n (float[N] x) => (float[N] y) { y = Neg(x) }"), written(tmp_path, RULES), tmp_path
    )
    with pytest.raises(InputError, match=rf"{region.name}: 'x' is float32\[N\]: an extent is not known"):
        region.arena()


def written(folder: Path, rules: str) -> str:
    path = folder / "one.yaml"
    path.write_text(rules, "utf-8")
    return str(path)


def sample(contract: TensorContract) -> NDArray[np.generic]:
    shape = [extent for extent in contract.type.shape or () if isinstance(extent, int)]
    return np.random.default_rng(1).standard_normal(shape).astype(contract.type.dtype)
