"""The codegen `openvino`: real compiles, blobs that fit and do not fit, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import CASES, at_once, compiled, computes, model, region, same
from cutting import original, ramp
from support import parse

import byoc
from byoc.codegen import Artifact, CompileError, Executable, Oracle, find_codegen

pytestmark = pytest.mark.openvino
pytest.importorskip("openvino")

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    computes(name, tmp_path, "openvino")


def test_it_runs_here_and_can_be_asked() -> None:
    found = find_codegen("openvino")

    assert isinstance(found, Executable)
    assert isinstance(found, Oracle)


def test_outputs_keep_their_order_and_their_names(tmp_path: Path) -> None:
    proto = model(
        "g (float[2] x, float[3] u) => (float[2] y, float[2] x, float[4] b, float[2] z, float[2] y)"
        " { z = Identity(x) y = Neg(x) }"
    )
    made, artifact, run = compiled(proto, tmp_path, "openvino")
    x = ramp(2)

    anew = _load(made, Artifact({}, artifact.metadata))
    for one in (run, anew):
        found = one({"x": x, "u": ramp(3)})
        same(found, {"y": -x, "x": x, "b": ramp(4), "z": x})
        assert not np.shares_memory(found["x"], x)


def test_outputs_of_one_run_outlive_the_next(tmp_path: Path) -> None:
    _, _, run = compiled(parse(RELU), tmp_path, "openvino")

    first = run({"x": np.ones((2, 3), np.float32)})
    run({"x": np.zeros((2, 3), np.float32)})

    assert first["y"].min() == 1


def test_open_dimensions_may_differ_from_run_to_run(tmp_path: Path) -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"
    _, _, run = compiled(parse(text), tmp_path, "openvino")

    for extent in (2, 5, 0):
        x = ramp(extent, 3)
        same(run({"x": x}), {"y": np.maximum(x, 0)})


def test_bfloat16_crosses(tmp_path: Path) -> None:
    proto = parse("g (bfloat16[2,2] x) => (bfloat16[2,2] y) { y = Relu(x) }")
    _, _, run = compiled(proto, tmp_path, "openvino")
    x = ramp(2, 2).astype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

    found = run({"x": x})["y"]

    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(x.astype(np.float32), 0))


@pytest.mark.parametrize("most", [1 << 30, 0])
def test_composites_are_inlined(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from byoc.codegens.openvino import device  # noqa: PLC0415 - what is replaced

    monkeypatch.setattr(device, "_MOST_IN_MEMORY", most)
    proto = _with_composite()
    x = ramp(1, 3, 8, 8)

    _, _, run = compiled(proto, tmp_path, "openvino")

    same(run({"x": x}), original(proto, {"x": x}))


def test_threads_may_call_at_once(tmp_path: Path) -> None:
    text, _ = CASES["conv and relu"]
    proto = model(text)
    _, _, run = compiled(proto, tmp_path, "openvino")
    inputs = [{"x": ramp(1, 3, 8, 8) * scale} for scale in range(1, 41)]

    found = at_once(run, inputs)

    for given, outputs in zip(inputs, found, strict=True):
        same(outputs, run(given))
    same(found[0], original(proto, inputs[0]))


def test_the_numbers_are_the_same_compiled_imported_and_again(tmp_path: Path) -> None:
    text, inputs = CASES["conv and relu"]
    made, artifact, imported = compiled(model(text), tmp_path, "openvino")
    anew = _load(made, Artifact({}, artifact.metadata))

    np.testing.assert_array_equal(imported(inputs)["y"], anew(inputs)["y"])
    np.testing.assert_array_equal(imported(inputs)["y"], imported(inputs)["y"])


def test_an_imported_blob_computes_in_float32(tmp_path: Path) -> None:
    _, artifact, run = compiled(parse(RELU), tmp_path, "openvino", threads="1")

    chosen: Any = run
    assert chosen.model.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
    assert chosen.model.get_property("INFERENCE_NUM_THREADS") == 1
    assert artifact.metadata["precision"] == "f32"


@pytest.mark.parametrize("mark", ["openvino", "device_name", "device_abilities"])
def test_a_blob_whose_stamp_does_not_fit_is_not_opened(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from byoc.codegens import openvino  # noqa: PLC0415 - what is replaced

    made, artifact, _ = compiled(parse(RELU), tmp_path, "openvino")
    opened = []
    monkeypatch.setattr(openvino, "imported", lambda *given: opened.append(given))

    run = _load(made, Artifact(artifact.files, {**artifact.metadata, mark: "another"}))

    same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})
    assert not opened


def test_a_blob_that_openvino_does_not_take_is_compiled_anew(tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "openvino")
    whole = artifact.files["region.blob"]

    for blob in (b"", b"no blob at all", whole[: len(whole) // 2]):
        run = _load(made, Artifact({"region.blob": blob}, artifact.metadata))
        same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


def test_without_a_blob_nothing_is_stored(tmp_path: Path) -> None:
    _, artifact, run = compiled(parse(RELU), tmp_path, "openvino", blob="no")

    assert not artifact.files
    same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (
            "g (float[2,2] x) => (float d, float[2,2] y) { d = Det(x) y = CumProd(x, x) }",
            {},
            "OpenVINO has no conversion for CumProd, Det",
        ),
        (
            "g (float[1,2] x, float[3,2] y) => (float[1,3] z) { z = MatMul(x, y) }",
            {},
            "OpenVINO refuses MatMul: Incompatible MatMul matrix dimension. First input dimension=2 at "
            "COL_INDEX_DIM=1 doesn't match the second input dimension=3 at ROW_INDEX_DIM=0",
        ),
        (RELU, {"device": "TPU"}, None),
        (RELU, {"threads": "-1"}, "options: threads is -1, but must be at least 0"),
        (RELU, {"precision": "f64"}, "the option precision is 'f64', not one of f32, bf16, f16"),
        (
            RELU,
            {"thread": "1"},
            "there is no option 'thread' (did you mean threads?); "
            "there are threads, precision, blob, device",
        ),
    ],
)
def test_what_is_refused_is_one_sentence(
    text: str, options: dict[str, str], sentence: str | None, tmp_path: Path
) -> None:
    made = region(parse(text), tmp_path)

    with pytest.raises(CompileError) as caught:
        find_codegen("openvino").compile(made, options)
    told = str(caught.value)
    assert told == sentence if sentence else told.startswith("OpenVINO has no device 'TPU' here: ")
    assert "\n" not in told


def test_packed_types_do_not_cross(tmp_path: Path) -> None:
    proto = parse("g (int4[2,2] x) => (float[2,2] y) { y = Cast<to=1>(x) }", 10, 21)

    with pytest.raises(CompileError, match=r"^'x' is int4\[2, 2\]: packed types do not cross$"):
        find_codegen("openvino").compile(region(proto, tmp_path), {})


def test_it_says_of_each_node_whether_it_takes_it() -> None:
    proto = parse(
        "g (float[2,2] x) => (float d, float[2,2] z)"
        " { y = Relu(x) d = Det(y) a = Relu(y) z = Gemm(a, a) }"
    )
    found: Any = find_codegen("openvino")

    assert [str(verdict) for verdict in found.check(proto)] == [
        "yes",
        "OpenVINO has no conversion for Det",
        "yes",
        "yes",
    ]


@pytest.mark.parametrize("rules", ["dla", "openvino-cpu"])
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_is_cut_compiled_and_verified(name: str, rules: str, tmp_path: Path) -> None:
    result = byoc.partition(
        f"zoo:{name}", rules, output=tmp_path / "b", strategy="all-supported", codegen="openvino"
    )

    assert result.verification is not None
    assert result.verification.passed
    assert result.plan.regions


def _with_composite() -> onnx.ModelProto:
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


def _load(made: Any, artifact: Artifact) -> Any:
    found: Any = find_codegen("openvino")
    return found.load(made, artifact)
