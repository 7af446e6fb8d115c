"""The codegen `openvino`: real compiles, blobs that fit and do not fit, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import CASES, at_once, compiled, computes, model, refusal, region, same, with_composite
from helpers.cutting import original, ramp
from helpers.support import VANILLA, parse, sample_cases

import byoc
from byoc.codegen import Artifact, Executable, Oracle, Stamped, find_codegen
from byoc.errors import InputError, MissingRuntimeError

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
    assert isinstance(found, Stamped)


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


def test_arrays_that_are_not_contiguous_or_not_writable(tmp_path: Path) -> None:
    _, _, run = compiled(parse(RELU), tmp_path, "openvino")
    x = np.asfortranarray(ramp(2, 3))
    fixed = ramp(2, 3)
    fixed.flags.writeable = False

    same(run({"x": x}), {"y": np.maximum(x, 0)})
    same(run({"x": fixed}), {"y": np.maximum(fixed, 0)})


@pytest.mark.parametrize("code", ["q", "Q", "l", "L"])
def test_both_of_cs_types_of_64_bits_are_read(code: str, tmp_path: Path) -> None:
    kind = "int64" if code.islower() else "uint64"
    _, _, run = compiled(
        parse(f"g ({kind}[3] x) => ({kind}[3] y) {{ y = Add(x, x) }}"), tmp_path, "openvino"
    )

    same(run({"x": np.array([1, 2, 3], code)}), {"y": np.array([2, 4, 6], kind)})


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
    from byoc.codegens.openvino import openvino_device as device  # noqa: PLC0415 - what is replaced

    monkeypatch.setattr(device, "_MAX_IN_MEMORY", most)
    proto = with_composite()
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
    monkeypatch.setattr(openvino, "import_blob", lambda *given: opened.append(given))

    run = _load(made, Artifact(artifact.files, {**artifact.metadata, mark: "another"}))

    same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})
    assert not opened


def test_a_blob_that_openvino_does_not_take_is_compiled_anew(tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "openvino")
    whole = artifact.files["region.blob"]

    for blob in (b"", b"no blob at all", whole[: len(whole) // 2]):
        run = _load(made, Artifact({"region.blob": blob}, artifact.metadata))
        same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


ROTARY = {
    "onnx": """<ir_version: 10, opset_import: ["" : 23]>
        g (float[B, S, 64] x, int64[B, S] at) => (float[B, S, 64] y) {
          y = RotaryEmbedding <num_heads = 4> (x, c, d, at)
        }""",
    "microsoft": """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[B, S, 64] x, int64[B, S] at) => (float[B, S, 64] y) {
          y = com.microsoft.RotaryEmbedding <num_heads = 4> (x, at, c, d)
        }""",
}


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("extents", [("B", "S"), ("2", "5")], ids=["open", "fixed"])
def test_a_blob_that_computes_something_else_is_not_stored(
    name: str, extents: tuple[str, str], tmp_path: Path
) -> None:
    """OpenVINO 2026.4.1 imports a RotaryEmbedding as garbage, ONNX's as well as onnxruntime's."""
    batch, length = extents
    proto = onnx.parser.parse_model(ROTARY[name].replace("[B, S", f"[{batch}, {length}"))
    angles = np.outer(np.arange(32), 10.0 ** -np.linspace(0, 3, 8)).astype(np.float32)
    tables = {"c": np.cos(angles), "d": np.sin(angles)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(t, n) for n, t in tables.items())
    made, artifact, run = compiled(proto, tmp_path, "openvino")
    inputs = {"x": ramp(2, 5, 64), "at": np.tile(np.arange(5), (2, 1))}
    anew = _load(made, Artifact(artifact.files, artifact.metadata))
    expected = original(proto, inputs)["y"]

    for one in (run, anew):
        np.testing.assert_allclose(one(inputs)["y"], expected, rtol=1e-4, atol=1e-3)
    imported = _import_anyhow(made, inputs)["y"]
    assert not np.abs(imported - expected).max() < 0.1 * np.ptp(expected)
    assert artifact.files == {}


def _import_anyhow(made: Any, inputs: dict[str, np.ndarray]) -> Any:
    """Return what a region's blob computes, stored or not."""
    from byoc.codegens.openvino import openvino_device as device  # noqa: PLC0415 - what is asked
    from byoc.codegens.openvino.openvino_blob import OpenVINOExecutor  # noqa: PLC0415
    from byoc.codegens.openvino.openvino_options import OpenVINOOptions  # noqa: PLC0415

    model, names = device.compile_region_model(made, OpenVINOOptions())
    imported = device.import_blob(model.export_model().getvalue(), OpenVINOOptions())
    return OpenVINOExecutor(imported, names, made.outputs)(inputs)


def test_a_blob_that_no_sample_can_be_run_of_is_not_stored(tmp_path: Path) -> None:
    """Whole numbers of a sample are 0 and 1, which here are no shape of six elements."""
    text = "g (float[2,3] x, int64[2] n) => (float[A,B] y) { y = Reshape(x, n) }"
    _, artifact, run = compiled(parse(text), tmp_path, "openvino")

    assert artifact.files == {}
    same(run({"x": ramp(2, 3), "n": np.array([3, 2])}), {"y": ramp(2, 3).reshape(3, 2)})


def test_a_blob_is_not_stored_where_comparing_it_crashes_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from byoc.codegens.openvino import openvino_blob as blob  # noqa: PLC0415 - what is replaced

    proto = parse("g (float[4] x, int64[1] n) => (float[1] y) { y = Gather(x, n) }")
    compiling = compiled(proto, tmp_path, "openvino")[1]
    monkeypatch.setattr(blob, "_PATIENCE", 0.0)
    hanging = compiled(proto, tmp_path, "openvino")[1]
    monkeypatch.setattr(blob, "_PATIENCE", 60.0)
    monkeypatch.setattr(sys, "executable", "false")
    crashing = compiled(proto, tmp_path, "openvino")[1]

    assert [bool(each.files) for each in (compiling, hanging, crashing)] == [True, False, False]


def test_a_blob_of_large_constants_is_not_stored(tmp_path: Path) -> None:
    proto = parse(
        "g (float[2,3] x) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,0,1,2}> "
        "{ y = MatMul(x, w) }"
    )
    x = ramp(2, 3)

    for limit, stored in (("48", True), ("47", False)):
        _, artifact, run = compiled(proto, subfolder(tmp_path, limit), "openvino", blob_limit=limit)
        assert bool(artifact.files) == stored
        reason = "it would hold more weights than blob_limit, 47 bytes"
        told = f"what is compiled is not stored, and loading compiles it: {reason}"
        assert artifact.metadata.get("note") == (None if stored else told)
        same(run({"x": x}), original(proto, {"x": x}))


def few_bits(name: str) -> onnx.ModelProto:
    """Return a product with weights of 4 bits in blocks of 32, of a row's 64."""
    generator = np.random.default_rng(0)
    scales = (generator.random((2, 48)) * 0.02 + 0.01).astype(np.float32)
    if name == "MatMulNBits":
        nodes = [
            onnx.helper.make_node(
                name, ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=48, bits=4, block_size=32
            )
        ]
        packed = generator.integers(0, 256, (48, 2, 16)).astype(np.uint8)
        stored = [onnx.numpy_helper.from_array(packed, "w")]
        scales = np.ascontiguousarray(scales.T).reshape(-1)
    else:
        nodes = [
            onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=32),
            onnx.helper.make_node("MatMul", ["x", "f"], ["y"]),
        ]
        weights = generator.integers(-8, 8, 64 * 48)
        stored = [onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [64, 48], weights)]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [4, 64])],
        [onnx.helper.make_tensor_value_info("y", 1, [4, 48])],
        [*stored, onnx.numpy_helper.from_array(scales, "s")],
    )
    domains = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=10)


@pytest.mark.parametrize("name", ["MatMulNBits", "DequantizeLinear"])
def test_activations_are_quantized_for_weights_of_few_bits_only_if_asked(
    name: str, tmp_path: Path
) -> None:
    proto = few_bits(name)
    x = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    expected = original(proto, {"x": x})["y"]

    off = {}
    for asked in ("0", "32"):
        made, artifact, run = compiled(
            proto, subfolder(tmp_path, asked), "openvino", dynamic_quantization=asked, threads="1"
        )
        anew = _load(made, Artifact({}, artifact.metadata))
        assert artifact.files
        found = [one({"x": x})["y"] for one in (run, anew)]
        off[asked] = [float(np.abs(y - expected).max() / np.ptp(expected)) for y in found]
        for one in (run, anew):
            assert one.model.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == int(asked)
    assert max(off["0"]) < 1e-6
    # Where the processor has no products of small integers (x86 without VNNI), the plug-in multiplies
    # in floats, whatever is asked.
    assert all(each < 1e-6 or 1e-3 < each < 1e-2 for each in off["32"])
    assert min(off["32"]) == max(off["32"])


def test_accuracy_does_not_depend_on_what_openvino_takes_by_default(tmp_path: Path) -> None:
    able = pytest.importorskip("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    # A processor without bfloat16 computes more precisely than asked.
    half = "bf16" if "BF16" in able else "f32"
    for precision, name in (("f32", "f32"), ("bf16", half)):
        made, artifact, run = compiled(
            parse(RELU), subfolder(tmp_path, precision), "openvino", precision=precision, threads="1"
        )
        for one in (run, _load(made, Artifact({}, artifact.metadata))):
            model = one.model
            assert model.get_property("INFERENCE_PRECISION_HINT").get_type_name() == name
            assert model.get_property("KV_CACHE_PRECISION").get_type_name() in {precision, name}
            assert model.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == 0


def test_a_device_gets_the_properties_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from byoc.codegens.openvino import openvino_device as device  # noqa: PLC0415 - what is replaced
    from byoc.codegens.openvino.openvino_options import OpenVINOOptions  # noqa: PLC0415

    class Core:
        def get_property(self, device: str, name: str) -> list[str]:
            assert (device, name) == ("NPU", "SUPPORTED_PROPERTIES")
            return ["INFERENCE_PRECISION_HINT"]

    monkeypatch.setattr(device, "openvino_core", Core)

    assert device.select_properties(OpenVINOOptions(device="NPU")) == {"INFERENCE_PRECISION_HINT": "f32"}
    for name in ("CPU", "AUTO", "HETERO:CPU"):
        assert len(device.select_properties(OpenVINOOptions(device=name))) == 3


def test_without_a_blob_nothing_is_stored(tmp_path: Path) -> None:
    _, artifact, run = compiled(parse(RELU), tmp_path, "openvino", blob="no")

    assert not artifact.files
    same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


@pytest.mark.parametrize(
    ("text", "sentence", "nodes"),
    [
        (
            "g (float[2,2] x) => (float d, float e) { a = Relu(x) [blamed] d = Det(a) e = Det(x) }",
            "OpenVINO has no conversion for Det",
            ("blamed", "e"),
        ),
        (
            "g (float[1,2] x, float[3,2] y) => (float[1,3] z) { a = Neg(x) [blamed] z = MatMul(a, y) }",
            "OpenVINO refuses MatMul: Incompatible MatMul matrix dimension. First input dimension=2 at "
            "COL_INDEX_DIM=1 doesn't match the second input dimension=3 at ROW_INDEX_DIM=0",
            ("blamed",),
        ),
        (
            "g (int4[2,2] x, float[2,2] z) => (float[2,2] y) { c = Cast<to=1>(x) y = Add(c, z) }",
            "'x' is int4[2, 2]: packed types do not cross",
            ("c",),
        ),
    ],
)
def test_what_is_refused_is_one_sentence_and_names_the_nodes(
    text: str, sentence: str, nodes: tuple[str, ...], tmp_path: Path
) -> None:
    proto = parse(text, 10, 21 if "int4" in text else 17)

    error = refusal(region(proto, tmp_path), "openvino")

    assert (str(error), error.nodes) == (sentence, nodes)


def test_a_composite_that_is_refused_is_named(tmp_path: Path) -> None:
    proto = with_composite()
    proto.functions[0].node[1].op_type = "Det"
    proto.graph.node[0].name = "blamed"
    proto.graph.node.append(onnx.helper.make_node("Relu", ["x"], ["z"]))
    proto.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("z", 1, [1, 3, 8, 8]))
    proto.graph.output[0].type.tensor_type.shape.dim.pop()
    proto.graph.output[0].type.tensor_type.shape.dim.pop()

    error = refusal(region(proto, tmp_path), "openvino")

    assert error.nodes == ("blamed",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"threads": "-1"},
            "codegen openvino refuses its options: threads is -1, but must be at least 0",
        ),
        (
            {"dynamic_quantization": "-32"},
            "codegen openvino refuses its options: dynamic_quantization is -32, but must be at least 0",
        ),
        (
            {"precision": "f64"},
            "codegen openvino takes as option 'precision' one of f32, bf16, f16 (did you mean f16?), "
            "not 'f64'",
        ),
        (
            {"thread": "1"},
            "codegen openvino has no option 'thread' (did you mean threads?); "
            "it has: threads, precision, dynamic_quantization, integers, blob, blob_limit, device",
        ),
    ],
)
def test_options_are_checked(options: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        compiled(parse(RELU), tmp_path, "openvino", **options)
    assert str(caught.value) == sentence


def test_what_is_not_there_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from byoc.codegens.openvino import openvino_device as device  # noqa: PLC0415 - what is replaced

    with pytest.raises(MissingRuntimeError, match=r"^OpenVINO has no device 'TPU' here: "):
        compiled(parse(RELU), tmp_path, "openvino", device="TPU")
    monkeypatch.setitem(sys.modules, "openvino", None)
    device.openvino_package.cache_clear()
    with pytest.raises(MissingRuntimeError, match=r"^openvino is not installed \(pip install "):
        compiled(parse(RELU), tmp_path, "openvino")
    device.openvino_package.cache_clear()


def test_it_says_whether_a_blob_fits(tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "openvino")
    older = Artifact(artifact.files, {**artifact.metadata, "openvino": "2025.1"})
    found: Any = find_codegen("openvino")

    assert found.compatible(made, artifact)
    assert str(found.compatible(made, older)).startswith(
        "the blob was made for OpenVINO 2025.1, but this is 20"
    )
    assert found.compatible(made, Artifact({}, older.metadata))


def test_integers_are_left_out_where_they_make_openvino_crash(tmp_path: Path) -> None:
    proto = _quantized(zero=5)
    x = ramp(1, 4, 5, 5)

    _, artifact, run = compiled(proto, tmp_path, "openvino")

    assert artifact.metadata["integers"] == "false"
    expected = original(proto, {"x": x})["y"].astype(int)
    assert np.abs(run({"x": x})["y"].astype(int) - expected).max() <= 1


def test_quantized_models_are_computed_in_integers_unless_asked_otherwise(tmp_path: Path) -> None:
    proto = _quantized(zero=0)
    x = ramp(1, 4, 5, 5)
    expected = original(proto, {"x": x})["y"].astype(int)

    for asked, found in (({}, "true"), ({"integers": "no"}, "false")):
        _, artifact, run = compiled(proto, tmp_path, "openvino", **asked)
        assert artifact.metadata["integers"] == found
        assert np.abs(run({"x": x})["y"].astype(int) - expected).max() <= 1


def test_it_says_of_each_node_whether_it_takes_it() -> None:
    proto = parse(
        "g (float[2,2] x) => (float d, float[2,2] z)"
        " { y = Relu(x) d = Det(y) a = Relu(y) z = Gemm(a, a) }"
    )
    found: Any = find_codegen("openvino")

    assert [str(verdict) for verdict in found.check(proto, found.Options())] == [
        "yes",
        "OpenVINO has no conversion for Det",
        "yes",
        "yes",
    ]


@pytest.mark.parametrize("rules", [str(VANILLA), "openvino-cpu"], ids=["vanilla", "openvino-cpu"])
@pytest.mark.parametrize("name", sample_cases(["squeezenet", "shufflenet"], "squeezenet"))
def test_a_network_is_cut_compiled_and_verified(name: str, rules: str, tmp_path: Path) -> None:
    result = byoc.partition(
        f"zoo:{name}",
        rules,
        output=tmp_path / "b",
        strategy="all-supported",
        codegen=None if rules == "openvino-cpu" else "openvino",
    )

    assert result.verification is not None
    assert result.verification.passed
    assert result.plan.regions


def subfolder(folder: Path, name: str) -> Path:
    """Return a new folder in another."""
    (folder / name).mkdir()
    return folder / name


def _quantized(zero: int) -> onnx.ModelProto:
    """Return a model that OpenVINO 2026.4 crashes at as it makes it integer, unless `zero` is 0."""
    return parse(
        f"""g (float[1,4,5,5] x) => (int8[1,8,5,5] y) <float s = {{0.02}}, int8 z = {{{zero}}}> {{
          c = Concat<axis=1>(x, x)
          q = QuantizeLinear(c, s, z)
          d = DequantizeLinear(q, s, z)
          i = Identity(d)
          y = QuantizeLinear(i, s, z)
        }}"""
    )


def _load(made: Any, artifact: Artifact) -> Any:
    found: Any = find_codegen("openvino")
    return found.load(made, artifact)
