"""Models made to do harm: each is refused in one sentence, or planned for without harm, and soon."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse, prepared
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import (
    TensorType,
    check_model,
    prepare_model,
    read_model_file,
)

SMALL = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
TERA = 1 << 40


def refused(model: ModelProto | Path) -> str:
    with pytest.raises(InputError) as caught:
        if isinstance(model, Path):
            prepare_model(read_model_file(model), "m", model.parent)
        else:
            prepare_model(model, "m")
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix("m: ")


def with_tensor(**fields: object) -> ModelProto:
    model = parse(SMALL)
    model.graph.initializer.append(TensorProto(name="w", **fields))  # type: ignore[arg-type]
    return model


def _number(value: int) -> bytes:
    small, rest = value & 127, value >> 7
    return bytes([small | 128]) + _number(rest) if rest else bytes([small])


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes, a text or a message, as protobuf writes it."""
    return _number(number << 3 | 2) + _number(len(data)) + data


def nested(depth: int) -> bytes:
    """Return the bytes of a model with bodies inside one another, deeper than protobuf writes them."""
    graph = _field(2, b"innermost")
    for _ in range(depth):
        kind = _number(20 << 3) + _number(AttributeProto.GRAPH)
        attribute = _field(1, b"then_branch") + _field(6, graph) + kind
        node = _field(1, b"c") + _field(2, b"y") + _field(4, b"If") + _field(5, attribute)
        graph = _field(1, node) + _field(2, b"g")
    opset = _field(1, b"") + _number(2 << 3) + _number(17)
    return _number(1 << 3) + _number(8) + _field(7, graph) + _field(8, opset)


@pytest.mark.parametrize("depth", [40, 400, 4000])
def test_bodies_hundreds_deep_in_a_file(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(nested(depth))
    assert refused(path).startswith(f"{path}: not an ONNX model, or a truncated one")
    path.write_bytes(nested(20))
    assert refused(path).startswith("not valid ONNX: Nodes in a graph must be topologically sorted")


@pytest.mark.parametrize("depth", [40, 400, 4000])
def test_bodies_hundreds_deep_in_memory(depth: int) -> None:
    model = parse(SMALL)
    graph = model.graph
    for _ in range(depth):
        node = graph.node.add(op_type="If", input=["c"], output=["z"])
        graph = node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g
    assert refused(model) == "bodies are nested too deeply, or the model is too large"


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("what", ["y = If (c) <then_branch = t () => (float y) { ", "y = f (seq("])
def test_text_thousands_deep(what: str, tmp_path: Path) -> None:
    """ONNX's own parser recurses until the process dies."""
    path = tmp_path / "m.onnxtxt"
    path.write_text(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (bool c) => (float y) { ' + what * 100_000
    )
    assert refused(path) == f"{path}: bodies are nested too deeply"
    flat = "g (float[2] x) => (float[2] y) { # ((((\n" + "a = Relu (x)\n" * 200 + "y = Neg (x) }"
    path.write_text(f'<ir_version: 8, opset_import: ["" : 17], doc_string: "{"(" * 200}\\"">\n{flat}')
    assert "bodies are nested" not in refused(path)


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (lambda m: m.graph.node[0], "name"),
        (lambda m: m.graph.node[0], "output"),
        (lambda m: m.graph.input[0], "name"),
        (lambda m: m.opset_import[0], "domain"),
        (lambda m: m.graph.node[0].attribute[0].g, "name"),
    ],
)
def test_text_that_is_none(place: object, field: str) -> None:
    """protobuf hands out bytes where it should be text, and no code expects these."""
    model = parse(SMALL)
    model.graph.node[0].attribute.add(name="a", type=AttributeProto.GRAPH).g.name = "b"
    assert "UTF-8" not in refused(model)
    message = place(model)  # type: ignore[operator]
    if field == "output":
        message.output[0] = "QQQQ"
    else:
        setattr(message, field, "QQQQ")
    broken = ModelProto.FromString(model.SerializeToString().replace(b"QQQQ", b"\xff\xfeQQ"))
    assert refused(broken) == f"not valid ONNX: {message.DESCRIPTOR.name}.{field} is not UTF-8 text"


def test_names_with_line_breaks_make_one_line() -> None:
    model = parse(SMALL)
    model.graph.initializer.append(TensorProto(name="a\nb\u2028c", data_type=1, dims=[2], raw_data=b"1"))
    assert refused(model).startswith(r"tensor 'a\nb\u2028c' holds 1 bytes")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dims": [TERA], "raw_data": b"1234"},
            "tensor 'w' holds 4 bytes, but its shape and dtype ask for 4398046511104",
        ),
        (
            {"dims": [1 << 62, 1 << 62], "raw_data": b""},
            f"tensor 'w' holds 0 bytes, but its shape and dtype ask for {1 << 126}",
        ),
        ({"dims": [TERA], "float_data": [1.0]}, "tensor 'w': "),
        ({"dims": [1 << 32, 1 << 32], "float_data": []}, "tensor 'w': "),
    ],
)
def test_tensors_that_declare_terabytes(fields: dict[str, object], message: str) -> None:
    assert refused(with_tensor(data_type=TensorProto.FLOAT, **fields)).startswith(message)


def test_terabytes_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = with_tensor(data_type=TensorProto.FLOAT, dims=[TERA], data_location=TensorProto.EXTERNAL)
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    path.write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(b"1234")
    assert refused(path) == (
        "tensor 'w' has external data in 'w.bin' up to byte 4398046511104, but the file has 4"
    )


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "a/../../w.bin", "link"])
def test_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (folder / "link").symlink_to(tmp_path / "w.bin")
    model = with_tensor(data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    model.graph.initializer[0].external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert refused(path) == (
        f"tensor 'w' has external data in '{location}', which is not inside the model's folder"
    )


def test_vectors_that_declare_terabytes_are_not_gone_through() -> None:
    """ONNX propagates values element by element, through every vector whose length is known."""
    ready = prepared(
        f"g (float[1] x) => (float[N] y) <int64[1] s = {{{TERA}}}> "
        "{ k = ConstantOfShape (s)\n y = Add (x, k) }"
    )
    assert ready.index.types["y"] == TensorType("float32", (TERA,))


def test_neither_are_those_in_bodies() -> None:
    text = f"""g (bool c, float[1] x) => (float[N] y) {{
      y = If (c) <then_branch = t () => (float[N] p) {{ s = Constant <value = int64[1] {{{TERA}}}> ()
                                                        k = ConstantOfShape (s)
                                                        p = Add (x, k) }},
                  else_branch = e () => (float[1] q) {{ q = Neg (x) }}> }}"""
    assert prepared(text).index.types["y"].dtype == "float32"


def _make_doubling_functions(times: int) -> ModelProto:
    """Return a model of functions each of which calls the one before twice."""
    calls = "\n".join(
        f'<domain: "a", opset_import: ["" : 17, "a" : 1]> F{k} (p) => (q) {{ '
        + (f"r = a.F{k - 1} (p)\n q = a.F{k - 1} (r) }}" if k else "q = Relu (p) }")
        for k in range(times + 1)
    )
    head = '<ir_version: 10, opset_import: ["" : 17, "a" : 1]>'
    return onnx.parser.parse_model(
        f"{head}\ng (float[2] x) => (float[2] y) {{ y = a.F{times} (x) }}\n{calls}"
    )


@pytest.mark.parametrize("check", [lambda model: prepare_model(model, "m"), check_model])
def test_functions_that_stand_for_a_billion_nodes(check: Callable[[ModelProto], object]) -> None:
    with pytest.raises(InputError, match=r"its functions stand for more than 1048576 nodes$"):
        check(_make_doubling_functions(30))


def test_shapes_in_functions_of_many_nodes_are_not_inferred() -> None:
    (note,) = prepare_model(_make_doubling_functions(18), "m").notes
    assert note == "shapes are known only where stated: its functions stand for more than 250000 nodes"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "g (float[2] x, float[2] x) => (float[2] y) { y = Relu (x) }",
            "'x' has been used as graph input",
        ),
        ("g (float[2] x) => (float[2] y) { y, y = Dropout (x) }", "'y' has been used as output"),
        ("g (float[2] x) => (float[2] x) { x = Relu (x) }", "the nodes form a cycle through Relu 'x'"),
        (
            """g (bool c, float[2] x) => (float[2] y) { a = Relu (y)
              y = If (c) <then_branch = t () => (float[2] p) { p = Neg (a) },
                          else_branch = e () => (float[2] q) { q = Neg (x) }> }""",
            "the nodes form a cycle through ",
        ),
        (
            """g (bool c, float[2] x) => (float[2] y) {
              y = If (c) <then_branch = t () => (float[2] p) { p = Add (r, x)
                                                               r = Neg (p) },
                          else_branch = e () => (float[2] q) { q = Neg (x) }> }""",
            "input 'r' of node",
        ),
    ],
)
def test_cycles_and_double_names(text: str, says: str) -> None:
    assert says in refused(parse(text))


@pytest.mark.parametrize("size", [2, 2000])
def test_double_initializers(size: int) -> None:
    tensor = numpy_helper.from_array(np.zeros(size, np.float32), "w")
    model = parse(SMALL)
    model.graph.initializer.extend([tensor, tensor])
    assert "w" in refused(model)
    again = parse(f"g (float[{size}] x) => (float[{size}] y) {{ w = Neg (x)\n y = Add (x, w) }}")
    again.graph.initializer.append(tensor)
    assert "'w'" in refused(again)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("y = l.f(x, x)", "f 'y' has 2 inputs, but its function 1"),
        ("y, z = l.f(x)", "f 'y' has 2 outputs, but its function 1"),
    ],
)
def test_calls_with_more_values_than_the_function_has(call: str, message: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "l": 1]>
        g (float[2] x) => (float[2] y) {{ {call} }}
        <domain: "l", opset_import: ["": 17]> f (a) => (b) {{ b = Relu(a) }}""")
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_model(model)
    with pytest.raises(InputError, match=f"^m: {re.escape(message)}$"):
        prepare_model(model, "m")


@pytest.mark.parametrize(("first", "second"), ["FF", "FG", "GF", "GG"])
def test_functions_that_call_themselves(first: str, second: str) -> None:
    model = parse(SMALL, ir=10)
    model.graph.node[0].op_type, model.graph.node[0].domain = "F", "a"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("a", 1)]
    model.opset_import.append(opsets[1])
    for name, callee in (("F", first), ("G", second)):
        call = helper.make_node(callee, ["p"], ["q"], domain="a")
        model.functions.append(helper.make_function("a", name, ["p"], ["q"], [call], opsets))
    assert refused(model).startswith("not valid ONNX: Cycle detected in model-local function references")
