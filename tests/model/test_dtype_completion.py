"""Dtypes that follow from schemas behind operators that nobody infers."""

import onnx
import pytest
from helpers.support import parse

from byoc.model import prepare_model


def types(text: str, *domains: str) -> dict[str, str]:
    """Return the types of all tensors of a model whose operators may be in further domains."""
    model = parse(text)
    for domain in domains:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return {name: str(kind) for name, kind in prepare_model(model, "test").index.types.items()}


def test_the_weight_of_a_product_says_what_its_data_is() -> None:
    found = types(
        "g (float[2,4] x) => (float y) <float[4,4] w = {" + ",".join(["1"] * 16) + "}> "
        "{ a = com.acme.Odd (x)\n b = Relu (a)\n c = MatMul (b, w)\n d = Sigmoid (c)\n"
        "y = com.acme.Odd (d) }",
        "com.acme",
    )
    assert {name: found[name] for name in "abcd"} == dict.fromkeys("abcd", "float32[...]")


def test_a_stated_output_says_what_comes_before() -> None:
    found = types(
        "g (float[2,4] x) => (float16[2,4] y) { a = com.acme.Odd (x)\n y = Relu (a) }", "com.acme"
    )
    assert found["a"] == "float16[...]"


def test_indices_and_flags_have_the_one_dtype_of_their_schema() -> None:
    found = types(
        "g (float[2,4] x) => (float y) { s = com.acme.Odd (x)\n c = com.acme.Flag (x)\n"
        "t = Reshape (x, s)\n"
        "y = Where (c, t, t) }",
        "com.acme",
    )
    assert (found["s"], found["c"], found["t"]) == ("int64[...]", "bool[...]", "float32[...]")


def test_nothing_is_said_where_nothing_follows() -> None:
    found = types(
        "g (float[2,4] x) => (float y) { a = com.acme.Odd (x)\n b = Relu (a)\n y = com.acme.Odd (b) }",
        "com.acme",
    )
    assert found.keys() == {"x", "y"}


def test_bodies_are_completed() -> None:
    text = (
        "g (bool c, float[2] x) => (float y) { a = com.acme.Odd (x)\n y = If (c) <"
        "then_branch = p () => (float r) { q = Relu (a)\n w = Add (q, x)\n r = Abs (w) }, "
        "else_branch = n () => (float m) { m = Identity (x) }> }"
    )
    model = parse(text)
    model.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    index = prepare_model(model, "test").index
    (body, _) = index.bodies[1]
    assert {name: str(body.index.types[name]) for name in "qw"} == {
        "q": "float32[...]",
        "w": "float32[...]",
    }


def test_operators_of_onnxruntime_take_part() -> None:
    pytest.importorskip("onnxruntime")
    found = types(
        "g (float[1,4] x) => (float y) { t = com.microsoft.SampleOp (x)\n y = Relu (t) }",
        "com.microsoft",
    )
    assert found["t"].startswith("float32[")
    assert found["y"].startswith("float32[")


def test_functions_of_the_model_are_not_taken_for_operators() -> None:
    model = parse(
        "g (float[2] x, float16[2] z) => (int32[2] v) { y = own.Add (x, z)\n v = Identity (y) }"
    )
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    nodes = [onnx.helper.make_node("Cast", ["b"], ["c"], to=onnx.TensorProto.INT32)]
    imports = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "Add", ["a", "b"], ["c"], nodes, imports))
    assert str(prepare_model(model, "test").index.types["y"]) == "int32[2]"
