"""What stands in a model never becomes C code: names, documentation, attributes, bytes of tensors."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, refusal, region, same
from helpers.cutting import ramp
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("emx_onnx_cgen")

# Ends the comment that it is written into, and runs when the library is loaded.
CODE = '*/ __attribute__((constructor)) static void f(void) {{ fclose(fopen("{0}", "w")); }} /*'
LINE = '\n__attribute__((constructor)) static void g(void) {{ fclose(fopen("{0}", "w")); }}\n//'


def _in_names(proto: onnx.ModelProto, text: str) -> None:
    proto.graph.node[0].name = text
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = text


def _in_the_graphs_name(proto: onnx.ModelProto, text: str) -> None:
    proto.graph.name = text


def _in_documentation(proto: onnx.ModelProto, text: str) -> None:
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = text


def _in_metadata(proto: onnx.ModelProto, text: str) -> None:
    proto.producer_name = proto.domain = proto.producer_version = text
    for message in (proto, proto.graph, proto.graph.node[0]):
        message.metadata_props.add(key=text, value=text)


def _in_an_operator_set(proto: onnx.ModelProto, text: str) -> None:
    proto.opset_import.append(helper.make_opsetid(text, 1))


@pytest.mark.parametrize(
    "put", [_in_names, _in_the_graphs_name, _in_documentation, _in_metadata, _in_an_operator_set]
)
@pytest.mark.parametrize("code", [CODE, LINE])
def test_texts_of_a_model_are_not_compiled(
    code: str, put: Callable[[onnx.ModelProto, str], None], tmp_path: Path
) -> None:
    proto = parse("g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }")
    text = code.format(tmp_path / "ran")
    put(proto, text)

    _, artifact, run = compiled(proto, tmp_path, "c")

    same(run({"x": ramp(2, 3)}), {"y": -np.maximum(ramp(2, 3), 0)})
    assert not (tmp_path / "ran").exists()
    assert b"constructor" not in artifact.files["region.c"]


def test_boundary_tensors_keep_apart_whatever_their_names(tmp_path: Path) -> None:
    names = ["u_0", "t_x", "*/", "*/ ", "x"]
    inputs = ", ".join(f"float[2] i{number}" for number in range(5))
    proto = parse(f"g ({inputs}) => (float[2] y) {{ y = Sum(i0, i1, i2, i3, i4) }}")
    for value, name in zip(proto.graph.input, names, strict=True):
        value.name = name
    proto.graph.node[0].input[:] = names
    given = {name: ramp(2) * 10**number for number, name in enumerate(names)}

    _, _, run = compiled(proto, tmp_path, "c")

    same(run(given), {"y": sum(given.values())})


@pytest.mark.parametrize("part", ["value", "name"])
def test_an_attribute_with_such_text_is_refused(part: str, tmp_path: Path) -> None:
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    text = CODE.format("ran")
    proto.graph.node[0].attribute.append(
        helper.make_attribute(*(("extra", text) if part == "value" else (text, 1)))
    )

    error = refusal(region(proto, tmp_path), "c")

    assert "characters that are not written into C source" in str(error)
    assert error.nodes == ("y",)


def test_bytes_of_a_tensor_in_an_attribute_end_no_comment(tmp_path: Path) -> None:
    """emx-onnx-cgen writes attributes into the comment of the node, tensors with escaped bytes."""
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    tensor = numpy_helper.from_array(np.frombuffer(b"1*/1", np.float32), "t")
    proto.graph.node[0].attribute.append(helper.make_attribute("extra", tensor))

    _, artifact, run = compiled(proto, tmp_path, "c")

    assert b"1*/1" not in artifact.files["region.c"]
    assert b"float_data: " in artifact.files["region.c"]
    same(run({"x": ramp(2)}), {"y": np.maximum(ramp(2), 0)})


def test_texts_of_a_tensor_that_would_end_a_comment_are_refused(tmp_path: Path) -> None:
    proto = parse("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    tensor = helper.make_tensor("t", TensorProto.STRING, [1], [b"*/ int evil; /*"])
    proto.graph.node[0].attribute.append(helper.make_attribute("extra", tensor))

    assert "the attribute 'extra'" in str(refusal(region(proto, tmp_path), "c"))
