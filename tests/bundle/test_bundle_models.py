"""Odd but valid models: cut, packed, loaded, each gives what onnxruntime gives for the original."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN, DEVICE_ONLY, HOST_ONLY, cut, files, original, ramp, same_as_original
from helpers.support import parse
from onnx import TensorProto, numpy_helper

from byoc.pipeline import partition
from byoc.runtime import load

X = {"x": ramp(1, 4)}


def _check(model: onnx.ModelProto, folder: Path, regions: list[str], inputs: dict[str, Any]) -> None:
    result = cut(model, folder / "b")
    assert [region.name for region in result.plan.regions] == regions
    assert result.verification is not None
    assert result.verification.passed
    same_as_original(model, folder / "b", inputs)


@pytest.mark.parametrize(
    ("text", "regions"),
    [
        pytest.param(CHAIN, ["dla_0", "dla_1"], id="host between regions"),
        pytest.param(HOST_ONLY, [], id="nothing supported"),
        pytest.param(DEVICE_ONLY, ["dla_0"], id="everything supported"),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y, float[1, 4] k) <float[1, 4] k = {1, 2, 3, 4}> {
                y = Add(x, k)
            }""",
            ["dla_0"],
            id="an output that is an initializer",
        ),
        pytest.param(
            "g (float[1, 4] x) => (float[1, 4] x, float[1, 4] y) { y = Relu(x) }",
            ["dla_0"],
            id="an input that is an output",
        ),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y, float[1, 4] c) <float[1, 4] k = {1, 2, 3, 4}> {
                c = Relu(k)
                y = Add(x, c)
            }""",
            ["dla_0"],
            id="an output computed from constants, read by a region",
        ),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y) {
                k = Constant <value = float[1, 4] {1, 2, 3, 4}> ()
                d = Sigmoid(k)
                a = Add(x, d)
                b = Sub(a, d)
                y = Add(b, d)
            }""",
            ["dla_0", "dla_1"],
            id="a constant node read by host and regions",
        ),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y) {
                a = Relu(x)
                c = ReduceSum <keepdims = 0> (x)
                zero = Constant <value = float {0}> ()
                yes = Less(c, zero)
                y = If(yes) <
                    then_branch = t () => (float[1, 4] o) { o = Sub(a, x) },
                    else_branch = e () => (float[1, 4] p) { p = Identity(x) }
                >
            }""",
            ["dla_0"],
            id="an If whose body captures what a region made",
        ),
        pytest.param(
            """g (float[1, 4] x) => (string[2] s, float[1, 4] y) <string[2] s = {"a", "é b"}> {
                y = Relu(x)
            }""",
            ["dla_0"],
            id="a string constant as an output",
        ),
        pytest.param(
            """g (float[1, 4] x) => (string z, float[1, 4] y) <string[2] s = {"a", "é b"}> {
                top = ReduceMax <keepdims = 0> (x)
                which = Cast <to = 7> (top)
                z = Gather(s, which)
                y = Relu(x)
            }""",
            ["dla_0"],
            id="a string constant on the host",
        ),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y) {
                [dla_0] a = Sigmoid(x)
                [dla_1] b = Relu(a)
                dla_0 = Sigmoid(b)
                y = Relu(dla_0)
            }""",
            ["dla_0", "dla_1"],
            id="nodes and tensors named like regions",
        ),
        pytest.param(
            """g (float[1, 4] x) => (float[1, 4] y, float[1, 4] z) {
                a = Sigmoid(x)
                y = Relu(a)
                b = Relu(x)
                z = Sigmoid(b)
                unread = Relu(z)
            }""",
            ["dla_0"],
            id="a node that nobody reads",
        ),
    ],
)
def test_a_model_in_text(text: str, regions: list[str], tmp_path: Path) -> None:
    _check(parse(text), tmp_path, regions, X)


def test_no_inputs_at_all(tmp_path: Path) -> None:
    model = parse("g () => (float[2] y) <float[2] k = {1, 2}> { y = Relu(k) }")
    _check(model, tmp_path, [], {})


def test_several_outputs_of_a_region_used_out_of_order(tmp_path: Path) -> None:
    text = """g (float[1, 6] x) => (float[1, 2] last, float[1, 2] first, float[1, 6] whole) {
        r = Relu(x)
        p, q, s = Split <axis = 1, num_outputs = 3> (r)
        c = Relu(s)
        b = Relu(q)
        a = Relu(p)
        last = Sub(a, c)
        first = Sub(c, b)
        whole = Concat <axis = 1> (c, a, b)
    }"""
    _check(parse(text, opset=18), tmp_path, ["dla_0", "dla_1"], {"x": ramp(1, 6)})


def test_a_split_inside_a_region(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "target: dla\ncost_model: dla\ndtype: float32\nops:\n  - op: [Relu, Split, Sum]\n", "utf-8"
    )
    text = """g (float[1, 6] x) => (float[1, 2] late, float[1, 2] p) {
        p, q, s = Split <axis = 1, num_outputs = 3> (x)
        late = Sub(s, q)
    }"""
    model = parse(text, opset=18)
    result = partition(model, rules, output=tmp_path / "b", strategy="all-supported")
    assert result.plan.regions[0].interface.outputs == ("p", "q", "s")
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 6)})


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_an_input_with_a_default_may_be_left_out(op: str, tmp_path: Path) -> None:
    text = """g (float[1, 4] x, float[1, 4] k) => (float[1, 4] y) <float[1, 4] k = {1, 2, 3, 4}> {
        a = OP(x, k)
        y = Relu(a)
    }"""
    model = parse(text.replace("OP", op))
    _check(model, tmp_path, ["dla_0"], X)
    same_as_original(model, tmp_path / "b", X | {"k": np.zeros((1, 4), np.float32)})


def test_before_ir_4_an_initializer_is_no_input(tmp_path: Path) -> None:
    text = """g (float[1, 4] x, float[1, 4] k) => (float[1, 4] y) <float[1, 4] k = {1, 2, 3, 4}> {
        y = Add(x, k)
    }"""
    _check(parse(text, ir=3, opset=8), tmp_path, ["dla_0"], X)
    assert load(tmp_path / "b").inputs == ("x",)


def test_names_may_hold_anything(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) b = Sigmoid(a) y = Relu(b) }")
    new = {"x": "in put:0", "a": "/layer.1/Relu_output_0", "b": "ü 雪", "y": "../y\\n\"'[red]"}
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.name = new[value.name]
    for node in graph.node:
        node.name = f"/{node.op_type} {new[node.output[0]]}"
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    graph.name = "a/b c"
    _check(model, tmp_path, ["dla_0", "dla_1"], {"in put:0": ramp(1, 4)})


def test_a_model_file_may_be_called_anything(tmp_path: Path) -> None:
    path = tmp_path / "naïve models" / "a:car:b [red] ü.onnx"
    path.parent.mkdir()
    onnx.save(parse(CHAIN), path)
    cut(path, tmp_path / "out of it")
    same_as_original(parse(CHAIN), tmp_path / "out of it", X)


WEIGHT = ramp(400, 4)


def _external(name: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=WEIGHT.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data/w.bin"), ("offset", "64"), ("length", str(WEIGHT.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _initializer(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.initializer.append(tensor)


def _constant(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))


def _body(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.node[1].attribute[0].g.initializer.append(tensor)


def _body_constant(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["w"], value=tensor)
    model.graph.node[1].attribute[0].g.node.insert(0, node)


PLAIN = """g (float[400, 4] x) => (float[400, 4] y) {
    a = Add(x, w)
    b = Sub(a, w)
    y = Add(b, w)
}"""
BRANCHES = """g (float[400, 4] x, bool which) => (float[400, 4] y) {
    a = Relu(x)
    b = If(which) <
        then_branch = t () => (float[400, 4] o) { o = Sub(a, w) },
        else_branch = e () => (float[400, 4] p) { p = Identity(x) }
    >
    y = Relu(b)
}"""
OUTPUT = "g (float[400, 4] x) => (float[400, 4] y, float[400, 4] w) { y = Relu(x) }"
DEFAULT = "g (float[400, 4] x, float[400, 4] w) => (float[400, 4] y) { y = Add(x, w) }"


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    ("text", "put"),
    [
        pytest.param(PLAIN, _initializer, id="initializer"),
        pytest.param(PLAIN, _constant, id="constant node"),
        pytest.param(BRANCHES, _initializer, id="captured by a body"),
        pytest.param(BRANCHES, _body, id="in a body"),
        pytest.param(BRANCHES, _body_constant, id="constant node in a body"),
        pytest.param(OUTPUT, _initializer, id="output"),
        pytest.param(DEFAULT, _initializer, id="default of an input"),
    ],
)
def test_external_data_is_found_beside_the_model(
    text: str, put: Any, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (folder / "data/w.bin").write_bytes(b"\xff" * 64 + WEIGHT.tobytes() + b"\xff")
    model, whole = parse(text), parse(text)
    put(model, _external("w"))
    put(whole, numpy_helper.from_array(WEIGHT, "w"))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(tmp_path if elsewhere else folder)

    result = cut(folder / "m.onnx" if elsewhere else "m.onnx", tmp_path / "b")
    assert result.verification is not None
    (folder / "data/w.bin").unlink()
    inputs: dict[str, Any] = {"x": ramp(400, 4) * 3}
    for flag in (True, False):
        given = inputs | ({"which": np.array(flag)} if text is BRANCHES else {})
        same_as_original(whole, tmp_path / "b", given)
    assert not any(b"w.bin" in content for content in files(tmp_path / "b").values())


def test_fixed_dimensions_reach_the_bundle(tmp_path: Path) -> None:
    model = parse("g (float[batch, 4] x) => (float[batch, 4] y) { a = Relu(x) y = Sigmoid(a) }")
    cut(model, tmp_path / "b", dims={"batch": 3})
    x = ramp(3, 4)
    assert np.array_equal(load(tmp_path / "b")({"x": x})["y"], original(model, {"x": x})["y"])


def test_dimensions_left_open_take_any_extent(tmp_path: Path) -> None:
    model = parse("g (float[batch, 4] x) => (float[batch, 4] y) { a = Relu(x) y = Sigmoid(a) }")
    cut(model, tmp_path / "b")
    session = load(tmp_path / "b")
    for extent in (1, 3, 0):
        x = ramp(extent, 4)
        assert np.array_equal(session({"x": x})["y"], original(model, {"x": x})["y"])
