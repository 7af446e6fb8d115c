"""From a file to a checked model, or to one sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse, prepared
from onnx import ModelProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import Dimensions, Model, TensorType, prepare_model, read_model_file

SMALL = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }"


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        prepare_model(read_model_file(path), str(path), path.parent)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def refused(model: ModelProto) -> str:
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(InputError) as caught:
        prepare_model(model, "m.onnx")
    assert model.SerializeToString(deterministic=True) == before
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("m.onnx: ")
    return message.removeprefix("m.onnx: ")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "text.onnx",
            b"I am no model.",
            "not an ONNX model, or a truncated one (14 bytes could not be decoded)",
        ),
        ("empty.onnx", b"", "not an ONNX model: it has no graph or names no operator set"),
        (
            "picture.onnx",
            b"\x89PNG\r\n\x1a\n",
            "not an ONNX model, or a truncated one (8 bytes could not be decoded)",
        ),
        ("bad.json", b"[1", "not an ONNX model, or a truncated one (2 bytes could not be decoded)"),
        ("empty.json", b"{}", "not an ONNX model: it has no graph or names no operator set"),
        (
            "bad.textproto",
            b"\xff\xfe",
            "not an ONNX model, or a truncated one (2 bytes could not be decoded)",
        ),
        (
            "tensor.onnx",
            numpy_helper.from_array(np.zeros(3)).SerializeToString(),
            "not an ONNX model: it has no graph or names no operator set",
        ),
        (
            "graph.onnx",
            parse(SMALL).graph.SerializeToString(),
            "not an ONNX model: it has no graph or names no operator set",
        ),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert refusal(path) == message


def test_a_model_cut_off_anywhere(tmp_path: Path) -> None:
    """A few beginnings happen to be whole fields; these lack the graph or the operator set."""
    whole = parse(SMALL).SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        assert refusal(path).startswith("not an ONNX model")


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "m.onnx") == "no such file"
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "m.onnx") == "no such file"
    assert refusal(tmp_path / ("n" * 300)) == "cannot be read: File name too long"


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a folder, not an ONNX model"


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("suffix", ["onnx", "json", "textproto", "onnxtxt"])
def test_the_forms_a_model_may_have(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    onnx.save(parse(SMALL), path)
    assert read_model_file(path) == parse(SMALL)


def model_of(graph: Callable[[ModelProto], None]) -> ModelProto:
    model = parse(SMALL)
    graph(model)
    return model


def test_no_graph_and_no_operator_set() -> None:
    wanted = "not an ONNX model: it has no graph or names no operator set"
    assert refused(model_of(lambda m: m.ClearField("graph"))) == wanted
    assert refused(model_of(lambda m: m.ClearField("opset_import"))) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("g (float[2] x) => (float[2] y) { y = Reluu (x) }", "No Op registered for Reluu"),
        ("g (float[2] x) => (float[2] y) { y = Add (x, gone) }", "input 'gone'"),
        ("g (float[2] x) => (float[2] y) { y = Relu (x)\n y = Neg (x) }", "'y' has been used as output"),
        ("g (float[2] x) => (float[2] y) { y = Relu <slope = 1> (x) }", "Unrecognized attribute: slope"),
        ("g (float[2] x) => (float[2] y) { y = Relu (x, x) }", "has input size 2"),
    ],
)
def test_what_the_checker_refuses(text: str, says: str) -> None:
    message = refused(parse(text))
    assert message.startswith("not valid ONNX: ")
    assert says in message


def test_versions_that_nobody_knows() -> None:
    assert "ir_version 99" in refused(parse(SMALL, ir=99))
    assert "ir_version" in refused(parse(SMALL, ir=0))


def test_a_cycle() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (b)\n a = Add (x, b)\n b = Relu (a) }")
    assert refused(model) in {
        "the nodes form a cycle through Add 'a'",
        "the nodes form a cycle through Relu 'b'",
    }


def test_bad_data_is_named_wherever_it_stands() -> None:
    short = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, raw_data=b"1234")
    wanted = "tensor 'w' holds 4 bytes, but its shape and dtype ask for 16"
    assert refused(model_of(lambda m: m.graph.initializer.append(short))) == wanted
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(short)
    assert refused(model_of(lambda m: m.graph.node.append(constant))) == wanted
    function = helper.make_function("f", "F", [], ["k"], [constant], [helper.make_opsetid("", 17)])
    assert refused(model_of(lambda m: m.functions.append(function))) == wanted
    values = TensorProto(name="w", dims=[1], data_type=TensorProto.FLOAT, raw_data=b"123")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [4])
    assert refused(model_of(lambda m: m.graph.sparse_initializer.append(sparse))) == (
        "tensor 'w' holds 3 bytes, but its shape and dtype ask for 4"
    )


def test_nodes_in_any_order_are_sorted() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (b)\n b = Abs (a)\n a = Relu (x) }")
    before = model.SerializeToString()
    ready = prepare_model(model, "test")
    assert [node.op_type for node in ready.proto.graph.node] == ["Relu", "Abs", "Neg"]
    assert model.SerializeToString() == before
    onnx.checker.check_model(ready.proto, full_check=True)


def rich(unsorted: bool = False) -> ModelProto:
    """Make a model with all the fields that tools tend to lose."""
    model = parse(
        """
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] unused = {3, 4}, float[2] a> {
          a = Add (x, w)
          y = Relu (a)
        }""",
        ir=10,
        opset=21,
    )
    model.producer_name, model.producer_version = "someone", "1.2"
    model.domain, model.model_version, model.doc_string = "com.acme", 7, "a model"
    helper.set_model_props(model, {"key": "value"})
    graph = model.graph
    graph.doc_string = "a graph"
    graph.metadata_props.add(key="graph", value="1")
    graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(
        key="S", value="w"
    )
    graph.input[0].doc_string = "an input"
    graph.input[0].type.denotation = "IMAGE"
    graph.initializer[0].doc_string = "a weight"
    graph.node[0].doc_string = "a node"
    graph.node[0].metadata_props.add(key="node", value="1")
    body = helper.make_node("Relu", ["p"], ["q"], doc_string="inside")
    function = helper.make_function("com.acme", "F", ["p"], ["q"], [body], [helper.make_opsetid("", 21)])
    function.overload, function.doc_string = "wide", "a function"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    if unsorted:
        nodes = [onnx.NodeProto(), onnx.NodeProto()]
        nodes[0].CopyFrom(graph.node[1])
        nodes[1].CopyFrom(graph.node[0])
        del graph.node[:]
        graph.node.extend(nodes)
    return model


def test_a_sorted_model_is_kept_as_it_is() -> None:
    model = rich()
    assert prepare_model(model, "test").proto is model


def test_sorting_touches_nothing_but_the_order() -> None:
    model = rich(unsorted=True)
    before = model.SerializeToString(deterministic=True)
    ready = prepare_model(model, "test").proto
    assert model.SerializeToString(deterministic=True) == before
    assert ready == rich()


def test_fixing_a_dimension_touches_nothing_else() -> None:
    model = rich()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    before = model.SerializeToString(deterministic=True)
    ready = prepare_model(model, "test", given=Dimensions({"N": 2})).proto
    assert model.SerializeToString(deterministic=True) == before
    assert ready == rich()


def test_weights_do_not_pass_through_checks_and_inference() -> None:
    """Large weights are left out of what the checker sees; types come out all the same."""
    model = parse("g (float[1, 64] x) => (float[1, M] y) { a = MatMul (x, w)\n y = Relu (a) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((64, 64), np.float32), "w"))
    before = model.SerializeToString()
    ready = prepare_model(model, "test")
    assert ready.index.types["a"] == TensorType("float32", (1, 64))
    assert ready.index.types["w"] == TensorType("float32", (64, 64))
    assert ready.index.is_constant("w")
    assert model.SerializeToString() == before
    assert [value.name for value in ready.proto.graph.input] == ["x"]


def test_small_constants_steer_inference() -> None:
    ready = prepared("g (float[2,6] x) => (float[A,B] y) <int64[2] s = {3, -1}> { y = Reshape (x, s) }")
    assert ready.index.types["y"] == TensorType("float32", (3, 4))


def test_weights_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = parse("g (float[2] x) => (float[2] y) { y = Add (x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    ready = prepare_model(read_model_file(path), str(path), tmp_path)
    assert ready.index.types["w"] == TensorType("float32", (2,))
    (tmp_path / "w.bin").write_bytes(b"1234")
    assert refusal(path) == "tensor 'w' has external data in 'w.bin' up to byte 8, but the file has 4"
    (tmp_path / "w.bin").unlink()
    assert refusal(path) == (
        "tensor 'w' has external data in 'w.bin', and there is no such file beside the model"
    )


@pytest.mark.parametrize("place", ["a constant node", "a body", "a body in a function"])
def test_data_beside_the_model_that_is_no_initializer_of_the_graph(tmp_path: Path, place: str) -> None:
    """Found in the model's folder, not the working directory; and never followed out of it."""
    (tmp_path / "s.bin").write_bytes(np.array([3, -1], np.int64).tobytes())
    stored = TensorProto(name="s", dims=[2], data_type=TensorProto.INT64)
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="s.bin")
    model = parse("g (float[2, 6] x) => (float[A, B] y) { y = Identity (x) }")
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["A", "B"])
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    if place == "a constant node":
        nodes.insert(0, helper.make_node("Constant", [], ["s"], value=stored))
    else:
        body = helper.make_graph(nodes, "body", [], [value], [stored])
        truth = helper.make_tensor("c", TensorProto.BOOL, [], [True])
        condition = helper.make_node("Constant", [], ["c"], value=truth)
        branches = {"then_branch": body, "else_branch": body}
        nodes = [condition, helper.make_node("If", ["c"], ["y"], **branches)]
    if place == "a body in a function":
        opset = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("acme", "F", ["x"], ["y"], nodes, opset))
        model.opset_import.append(helper.make_opsetid("acme", 1))
        nodes = [helper.make_node("F", ["x"], ["y"], domain="acme")]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    before = model.SerializeToString(deterministic=True)
    ready = prepare_model(model, "m.onnx", tmp_path)
    assert model.SerializeToString(deterministic=True) == before
    if place == "a constant node":
        assert ready.index.types["y"] == TensorType("float32", (3, 4))
    with pytest.raises(InputError, match=r"'s\.bin', and there is no such file beside the model$"):
        prepare_model(model, "m.onnx", tmp_path / "elsewhere")


def test_inference_that_fails_is_noted_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> ModelProto:
        raise onnx.shape_inference.InferenceError("Inferred shape\n and existing shape differ")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    ready = prepared("g (float[2] x) => (float[2] y) { a = Relu (x)\n y = Neg (a) }")
    assert {name: str(kind) for name, kind in ready.index.types.items()} == {
        **{"x": "float32[2]", "y": "float32[2]"},
        "a": "float32[...]",  # by the schemas of its readers
    }
    assert ready.notes == (
        "shapes are known only where stated: Inferred shape and existing shape differ",
    )


def test_shapes_that_do_not_fit_are_left_to_the_stated_ones() -> None:
    ready = prepared("g (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul (x, w) }")
    assert ready.index.types["y"] == TensorType("float32", (2, 5))


def test_operators_of_other_domains_pass() -> None:
    model = parse(SMALL)
    model.graph.node[0].domain = "com.acme"
    assert "com.acme" in refused(model)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert prepare_model(model, "test").index.opsets == {"": 17, "com.acme": 1}


@pytest.mark.parametrize(
    ("source", "name"),
    [("a/b/net.onnx", "net"), ("zoo:squeezenet", "squeezenet"), ("net", "net"), ("", "model")],
)
def test_short_names(source: str, name: str) -> None:
    assert Model(parse(SMALL), source, None, {}).name == name
