"""`Region.graph()`: regions as graphs of onnx_graphsurgeon, changed and exported again."""

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from helpers.support import parse
from onnx import TensorProto, helper

from byoc import zoo
from byoc.bundle import open_bundle
from byoc.codegen import Region, read_region
from byoc.onnxrt import open_session, run_session
from byoc.pipeline import partition

LOOP = """
g (float[4] x) => (float[4] y) <int64 n = {3}, bool go = {1}> {
  y = Loop(n, go, x) <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] s)
    { d = Identity(c) t = Relu(x) s = Add(a, t) }>
}"""
INTEGERS = """
g (uint8[2, 4] x) => (uint8[2, 4] y) <float s = {0.5}, uint8 z = {128}> {
  d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, s, z)
}"""


def saved(model: onnx.ModelProto, folder: Path) -> Region:
    onnx.save(model, folder / "region.onnx")
    return read_region(folder / "region.onnx", "acme_0", "acme")


def same_numbers(region: Region, exported: onnx.ModelProto) -> None:
    onnx.checker.check_model(exported, full_check=True)
    kinds = {value.name: value.type for value in region.inputs}
    random = np.random.default_rng(0)
    given = {
        name: (random.random(kind.shape) * 100 - 30).astype(kind.dtype) for name, kind in kinds.items()
    }
    expected = run_session(open_session(region.load()), given)
    found = run_session(open_session(exported), given)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_network_round_trips(tmp_path: Path) -> None:
    partition(
        zoo.load("squeezenet"), "dla", output=tmp_path / "b", strategy="all-supported", verify=False
    )
    region = open_bundle(tmp_path / "b").regions()[0][1]

    graph = region.graph()

    assert len(graph.nodes) == len(region.nodes)
    assert {function.name for function in graph.functions} == {f.name for f in region.model.functions}
    same_numbers(region, gs.export_onnx(graph))


def test_a_composite_is_a_node_or_its_body(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) b = Relu(a) y = Add(b, x) }")
    (tmp_path / "acme.yaml").write_text(
        "target: acme\ncost_model: dla\ndtype: float32\nops:\n  - op: [Add, Relu]\n"
        "composites:\n  - name: add_relu\n    pattern: |\n      s = Add(p, q)\n      r = Relu(s)\n"
    )
    partition(
        model,
        tmp_path / "acme.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="reference",
    )
    region = open_bundle(tmp_path / "b").regions()[0][1]

    assert [node.op for node in region.graph().nodes] == ["add_relu", "Add"]
    assert [node.op for node in region.graph(inline=True).nodes] == ["Add", "Relu", "Add"]
    same_numbers(region, gs.export_onnx(region.graph()))


@pytest.mark.parametrize("text", [LOOP, INTEGERS])
def test_bodies_and_integers_round_trip(text: str, tmp_path: Path) -> None:
    region = saved(parse(text), tmp_path)

    same_numbers(region, gs.export_onnx(region.graph()))


def test_a_tensor_is_one_object_inside_and_outside_of_a_body(tmp_path: Path) -> None:
    graph = saved(parse(LOOP), tmp_path).graph()

    graph.tensors()["x"].name = "renamed"

    exported = gs.export_onnx(graph)
    onnx.checker.check_model(exported, full_check=True)
    (body,) = [each.g for each in exported.graph.node[0].attribute if each.name == "body"]
    assert body.node[1].input == ["renamed"]


def test_changing_the_graph_leaves_the_region_as_it_is(tmp_path: Path) -> None:
    text = "g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"
    region = saved(parse(text), tmp_path)
    before = region.load().SerializeToString()
    graph = region.graph()

    graph.nodes.pop()
    graph.outputs = [graph.nodes[0].outputs[0].to_variable(np.float32, [1, 4])]
    graph.cleanup()

    assert [node.op_type for node in gs.export_onnx(graph).graph.node] == ["Add"]
    assert region.load().SerializeToString() == before


def test_nodes_of_constants_can_be_folded(tmp_path: Path) -> None:
    text = "g (float[1] x) => (float[1] y) <float[1] h = {1.5}> { e = Neg(h) y = Add(x, e) }"
    region = saved(parse(text), tmp_path)

    (node,) = region.graph(fold=True).nodes

    np.testing.assert_array_equal(node.inputs[1].values, np.float32([-1.5]))


def test_constants_of_four_bits_are_kept_unless_they_are_read(tmp_path: Path) -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) <float s = {0.5}> { d = DequantizeLinear(w, s) y = Add(x, d) }"
    )
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [2], [-3, 5]))
    graph = saved(model, tmp_path).graph()

    kept = gs.export_onnx(graph).graph.initializer
    assert {tensor.name: tensor.data_type for tensor in kept}["w"] == TensorProto.INT4
    assert graph.tensors()["w"].values.tolist() == [-3, 5]
    with pytest.raises(ValueError, match="size does not match"):
        gs.export_onnx(graph)
