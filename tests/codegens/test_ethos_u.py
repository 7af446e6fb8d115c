"""The codegen `ethos_u`: Vela asked what it takes, its graphs run on Arm's reference model."""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.ethos_u import EthosU
from byoc.codegens.ethos_u.lower_regions import EthosUOptions, TooSlowError, compile_graphs, lower_region
from compiling import refusal, region
from ethos_u_models import CASES, Case
from helpers.cutting import original
from helpers.quantized import feed, list_codes
from onnx import numpy_helper

import byoc
from byoc import zoo
from byoc.codegen import (
    Artifact,
    CompileError,
    Cycles,
    NotHereError,
    can_estimate,
    find_codegen,
    parse_codegen_options,
)
from byoc.numerics import compute_signal_to_noise

pytestmark = [
    pytest.mark.ethos_u,
    pytest.mark.skipif(find_spec("ethosu") is None, reason="ethos-u-vela is not installed"),
]
executed = pytest.mark.skipif(
    "BYOC_TOSA_PYTHON" not in os.environ and find_spec("tosa_reference_model") is None,
    reason="BYOC_TOSA_PYTHON names no interpreter with the TOSA reference model",
)
CONV = CASES["conv"]
BROAD = Case("r = MaxPool<kernel_shape=[2,2],dilations=[2,2]>(dx)", "[1,8,8,10]")
"""What has no TOSA operators."""
LONG = Case("r = AveragePool<kernel_shape=[2,2],strides=[4,4]>(dx)", "[1,8,3,3]")
"""What Vela refuses."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The region and Vela's result of each case; Vela is asked about all at once."""
    regions = {
        name: region(case.make_model(), tmp_path_factory.mktemp("case")) for name, case in CASES.items()
    }
    graphs = [lower_region(each)[0] for each in regions.values()]
    results = compile_graphs(graphs, EthosUOptions())
    return {
        name: (regions[name], graph, result)
        for name, graph, result in zip(regions, graphs, results, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_vela_compiles_an_operator(name: str, compiled: dict[str, Any]) -> None:
    result = compiled[name][2]

    assert not isinstance(result, CompileError), result
    assert result.cycles > 0


MIXED = """<ir_version: 10, opset_import: ["" : 21]>
g (int8[1, 8, 6, 5] x) => (int8[1, 8, 6, 5] y)
<float s = {0.05}, int8 z = {3}, float w = {0.0003}, int16 v = {0}, float t = {0.07}, int8 u = {-5}> {
    d = DequantizeLinear(x, s, z)  i = Identity(d)  q = QuantizeLinear(i, w, v)
    e = DequantizeLinear(q, w, v)  r = Relu(e)  p = QuantizeLinear(r, w, v)
    f = DequantizeLinear(p, w, v)  j = Identity(f)  y = QuantizeLinear(j, t, u)
}"""
"""From int8 to int16 and back, as the quantizer writes it between units of the two types."""


@executed
def test_types_change_between_units_as_in_onnxruntime(tmp_path: Path) -> None:
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(MIXED), strict_mode=True)
    for number, each in enumerate(proto.graph.node):
        each.name = f"n{number}"
    made = region(proto, tmp_path)
    graph = lower_region(made)[0]
    (result,) = compile_graphs([graph], EthosUOptions())
    assert not isinstance(result, CompileError), result
    inputs = feed(proto)
    artifact = Artifact({"region.tosa": graph}, {"inputs": json.dumps(list(range(len(made.inputs))))})
    found = EthosU().load(made, artifact)(inputs)["y"]
    expected = original(proto, inputs)["y"]
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 20


@executed
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnxruntime_does(name: str, compiled: dict[str, Any]) -> None:
    made, graph, _ = compiled[name]
    proto = CASES[name].make_model()
    inputs = feed(proto)
    artifact = Artifact({"region.tosa": graph}, {"inputs": json.dumps(list(range(len(made.inputs))))})

    given = EthosU().load(made, artifact)(inputs)

    for output, expected in original(proto, inputs).items():
        assert given[output].dtype == expected.dtype
        assert given[output].shape == expected.shape
        assert np.unique(expected).size > 2
        distance = np.abs(given[output].astype(int) - expected.astype(int))
        assert distance.max() <= (1 if CASES[name].differing else 0)
        assert (distance > 0).mean() <= CASES[name].differing


@executed
@pytest.mark.parametrize("name", CASES)
def test_it_is_within_one_unit_at_the_ends_of_its_type(name: str, compiled: dict[str, Any]) -> None:
    """Of all integers that operands may be, the lowest and the highest of each among them."""
    made, graph, _ = compiled[name]
    proto = CASES[name].make_model()
    artifact = Artifact({"region.tosa": graph}, {"inputs": json.dumps(list(range(len(made.inputs))))})
    run = EthosU().load(made, artifact)
    for rows in ((0, 0), (1, 1), (0, 1), (1, 0), (2, 2), (3, 4), (100, 3)):
        inputs = {
            value.name: list_codes(
                [dim.dim_value for dim in value.type.tensor_type.shape.dim], CASES[name].dtype, row
            )
            for value, row in zip(proto.graph.input, rows, strict=False)
        }
        given = run(inputs)
        for output, expected in original(proto, inputs).items():
            assert np.abs(given[output].astype(int) - expected.astype(int)).max() <= 1, rows


SCALED = [
    (name, scale)
    for name, case in CASES.items()
    for scale in ("sx", "so", "sy", "ws")
    if scale in {tensor.name for tensor in case.make_model().graph.initializer}
]


@executed
@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_a_negative_scale_is_refused_or_right(name: str, scale: str, tmp_path: Path) -> None:
    """It turns the order of integers: a Relu would keep the wrong end."""
    proto = CASES[name].make_model()
    for tensor in proto.graph.initializer:
        if tensor.name == scale:
            values = -numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(values, scale))
    made = region(proto, tmp_path)
    try:
        graph, places = lower_region(made)
    except CompileError as error:
        assert error.nodes
        return

    assert scale == "ws"  # of a constant operand, whose real numbers are computed
    artifact = Artifact({"region.tosa": graph}, {"inputs": json.dumps(places)})
    inputs = feed(proto)
    found, expected = EthosU().load(made, artifact)(inputs), original(proto, inputs)
    assert np.abs(found["y"].astype(int) - expected["y"].astype(int)).max() <= 1


def test_slopes_that_are_too_coarse_for_the_result_are_refused(tmp_path: Path) -> None:
    case = replace(CASES["prelu"], dtype="int16", opset=21)
    weights = {"w": case.stored["w"].astype(np.int16), "sx": np.float32(1.7), "sy": np.float32(0.013)}
    case = replace(case, stored={**case.stored, **weights})

    error = refusal(region(case.make_model(), tmp_path), "ethos_u")

    assert "too fine for the slopes of a PRelu" in str(error)


@pytest.mark.parametrize("rules", ["ethos-u55", "ethos-u65", "ethos-u85"])
def test_a_relu_of_a_negative_scale_stays_on_the_host(rules: str, tmp_path: Path) -> None:
    case = replace(CASES["relu"], stored={"sx": np.float32(-0.05), "sy": np.float32(-0.05)})
    proto = case.make_model()

    result = byoc.partition(proto, rules, output=tmp_path / "b", strategy="all-supported")

    assert not result.report.regions
    inputs = feed(proto)
    found = byoc.load(tmp_path / "b")(inputs)
    np.testing.assert_array_equal(found["y"], original(proto, inputs)["y"])


def test_an_artifact_has_the_stream_and_velas_figures(tmp_path: Path) -> None:
    made = region(CONV.make_model(), tmp_path)
    small, large = (
        EthosU().compile(made, EthosUOptions(accelerator=name))
        for name in ("ethos-u55-32", "ethos-u85-256")
    )

    with np.load(_write(tmp_path / "stream.npz", small.files["region.npz"])) as stream:
        assert {"cmd_data", "weight_data"} <= set(stream)
    assert small.files["region.tosa"] == large.files["region.tosa"]
    assert small.metadata["accelerator"] == "ethos-u55-32"
    assert int(small.metadata["cycles"]) > int(large.metadata["cycles"])
    assert int(small.metadata["sram"]) > 0
    assert "sram_limit" not in small.metadata  # a U55 shares the memory with others
    assert int(large.metadata["sram"]) <= int(large.metadata["sram_limit"]) == 384 * 1024
    assert int(small.metadata["flash"]) > 0
    assert EthosU().compatible(made, small)
    assert not EthosU().compatible(made, Artifact(small.files, {**small.metadata, "vela": "1.0"}))


def test_the_estimate_is_velas_at_the_clock_of_the_system(tmp_path: Path) -> None:
    made = region(CONV.make_model(), tmp_path)
    codegen: Any = find_codegen("ethos_u")
    assert can_estimate(codegen)
    seconds = {}
    for system in ("Ethos_U55_High_End_Embedded", "Ethos_U55_Deep_Embedded"):
        options = parse_codegen_options(codegen, {"system_config": system})
        artifact = codegen.compile(made, options)
        estimate = codegen.estimate(made, options, artifact)
        assert isinstance(estimate, Cycles)
        seconds[estimate.hertz] = estimate.seconds

    assert set(seconds) == {500e6, 200e6}
    assert seconds[200e6] > 2 * seconds[500e6]


def test_the_same_region_gives_the_same_bytes(tmp_path: Path) -> None:
    made = region(CONV.make_model(), tmp_path)
    first, second = (EthosU().compile(made, EthosUOptions()) for _ in range(2))

    assert first.files == second.files
    assert first.metadata == second.metadata


@pytest.mark.parametrize("memory", ["Sram_Only", "Shared_Sram"])
def test_a_memory_mode_is_velas(memory: str, tmp_path: Path) -> None:
    made = region(CONV.make_model(), tmp_path)
    artifact = EthosU().compile(made, EthosUOptions(memory_mode=memory, optimise="Size"))

    assert artifact.metadata["memory_mode"] == memory


def test_what_vela_does_not_know_is_its_own_sentence(tmp_path: Path) -> None:
    error = refusal(region(CONV.make_model(), tmp_path), "ethos_u", memory_mode="Nowhere")

    assert "Nowhere" in str(error)


def test_what_has_no_operators_is_refused_by_name(tmp_path: Path) -> None:
    error = refusal(region(BROAD.make_model(), tmp_path), "ethos_u")

    assert str(error) == "MaxPool is taken of images, without dilation"
    assert error.nodes == ("n1",)


def test_what_vela_refuses_is_found_by_asking_about_each(tmp_path: Path) -> None:
    error = refusal(region(LONG.make_model(), tmp_path), "ethos_u")

    assert str(error).startswith("Vela refuses it: ")
    assert error.nodes == ("n1",)


@pytest.mark.parametrize(
    ("line", "shape", "axis"),
    [
        ("v = DequantizeLinear<axis=1>(w, ws) r = Conv(dx,v)", (8, 8, 1, 1), 1),
        ("v = DequantizeLinear<axis=0>(w, ws) r = ConvTranspose(dx,v)", (8, 8, 1, 1), 0),
    ],
)
def test_scales_of_another_axis_than_the_results_channels_are_refused(
    line: str, shape: tuple[int, ...], axis: int, tmp_path: Path
) -> None:
    weights = np.arange(64, dtype=np.int8).reshape(shape)
    stored = {"w": weights, "ws": np.linspace(0.01, 0.02, 8, dtype=np.float32)}
    error = refusal(region(Case(line, stored=stored).make_model(), tmp_path), "ethos_u")

    assert f"the weights 'w' have scales along axis {axis}, not {1 - axis}" in str(error)


def test_a_pool_with_a_window_of_padding_alone_is_refused(tmp_path: Path) -> None:
    line = "r = AveragePool<kernel_shape=[2,2],pads=[2,2,2,2]>(dx)"
    error = refusal(region(Case(line, "[1,8,13,15]").make_model(), tmp_path), "ethos_u")

    assert str(error) == "an AveragePool with a window of padding alone is not taken"


def test_a_graph_that_takes_too_long_is_given_up_and_the_next_is_compiled(tmp_path: Path) -> None:
    graph = lower_region(region(CONV.make_model(), tmp_path))[0]
    first, second = compile_graphs([graph, graph], EthosUOptions(), limit=0.001)

    assert isinstance(first, TooSlowError)
    assert str(second) == "Vela gave no answer in 0.001 s of processor time"


def test_all_that_is_not_taken_is_named_at_once(tmp_path: Path) -> None:
    line = "a = Hardmax(dx) b = QuantizeLinear(a,sx,z) c = DequantizeLinear(b,sx,z) r = Hardmax(c)"
    error = refusal(region(Case(line).make_model(), tmp_path), "ethos_u")

    assert str(error) == "no TOSA operators are written for Hardmax, and 1 more are not taken"
    assert error.nodes == ("n1", "n4")


def test_floats_are_refused(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    error = refusal(region(onnx.parser.parse_model(text), tmp_path), "ethos_u")

    assert "'x' is float32[4], and no integer of 8 or 16 bits" in str(error)


@pytest.mark.parametrize(
    ("case", "expected"),
    [(CONV, ""), (BROAD, "MaxPool is taken of images, without dilation"), (LONG, "Vela refuses it")],
)
def test_the_oracle_says_it_of_each_node(case: Case, expected: str) -> None:
    proto = case.make_model()
    verdicts = EthosU().check(proto, EthosUOptions())

    refused = [
        node.name for node, verdict in zip(proto.graph.node, verdicts, strict=True) if not verdict
    ]
    assert refused == (["n1", "n2"] if expected else [])
    assert all(expected in str(verdict) for verdict in verdicts if not verdict)


def test_the_oracle_says_it_of_a_dropout_whose_mask_nobody_reads() -> None:
    proto = Case("r, mask = Dropout(dx)").make_model()

    assert all(EthosU().check(proto, EthosUOptions()))


def test_without_the_reference_model_an_artifact_cannot_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = region(CONV.make_model(), tmp_path)
    artifact = EthosU().compile(made, EthosUOptions())
    monkeypatch.setenv("BYOC_TOSA_PYTHON", str(tmp_path / "python"))

    with pytest.raises(NotHereError, match=r"the TOSA reference model, .* is not here"):
        EthosU().load(made, artifact)


@executed
def test_a_network_is_the_quantized_one_up_to_its_noise(tmp_path: Path) -> None:
    """A step of a scale here and there grows through a network of 26 convolutions."""
    outputs = {}
    for codegen in ("reference", "ethos_u"):
        byoc.partition(
            "zoo:squeezenet",
            "ethos-u55",
            output=tmp_path / codegen,
            codegen=codegen,
            strategy="all-supported",
            precision=byoc.Precision("int8", None, "random"),
            verify=False,
            strict=True,
        )
        outputs[codegen] = byoc.load(tmp_path / codegen)(zoo.sample_inputs("squeezenet"))

    (given,), (expected,) = (list(made.values()) for made in outputs.values())
    assert np.argmax(given) == np.argmax(expected)
    assert compute_signal_to_noise(expected, given) > 40


@executed
def test_images_that_cross_in_onnxs_order_are_transposed_in_the_region(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text(
        "kind: roofline\nname: free\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\noverhead: 0.0\n"
        "launch: 0.0\nlink: {bandwidth: .inf, latency: 0.0}\n"
    )
    (tmp_path / "rules.yaml").write_text(
        "extends: ethos-u55\ntarget: u55\nlayout: {convert: either}\n"
        f"cost_model: {tmp_path / 'costs.yaml'}\n"
    )
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, 8, 6] x) => (float[1, 2, 8, 6] y)
        <float[2, 3, 1, 1] w = {1, 2, 3, -1, -2, -3}> { c = Conv(x, w)  y = Relu(c) }""")
    result = byoc.partition(
        model,
        tmp_path / "rules.yaml",
        output=tmp_path / "bundle",
        strategy="all-supported",
        precision=byoc.Precision("int8", None, "random"),
    )
    assert result.report.verification is not None
    assert result.report.verification.passed
    ((_, made, _),) = byoc.open_bundle(tmp_path / "bundle").regions()
    assert [each.converts["layout"] for each in (*made.inputs, *made.outputs)] == ["device", "device"]
    assert [each.type.shape for each in made.inputs] == [(1, 3, 8, 6)]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


SILU = """<ir_version: 10, opset_import: ["" : 18]>
g (int8[1, 8, 6, 5] x) => (int8[1, 8, 6, 5] y)
<float s = {0.05}, int8 z = {3}, float t = {0.03}, int8 u = {-100}> {
    d = DequantizeLinear(x, s, z)  g = Sigmoid(d)  m = Mul(d, g)  y = QuantizeLinear(m, t, u)
}"""
"""What is one operator from operator set 24 on; nothing is quantized inside."""


def _partition(proto: onnx.ModelProto, folder: Path) -> Any:
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    for number, each in enumerate(proto.graph.node):
        each.name = f"n{number}"
    return byoc.partition(proto, rules="ethos-u55", strategy="all-supported", output=folder)


@executed
def test_a_function_of_several_operators_is_one_table(tmp_path: Path) -> None:
    found = _partition(onnx.parser.parse_model(SILU), tmp_path / "bundle")

    (made,) = found.report.regions
    assert made.composites == {"silu": 1}
    assert found.verification is not None
    assert found.verification.worst is not None
    assert found.verification.worst.absolute == 0


@executed
@pytest.mark.parametrize(
    ("name", "result", "point"),
    [("conv", 0.01, 0), ("conv", 5.0, 100), ("conv of rows", 0.07, -5), ("depthwise", 0.02, -120)],
)
def test_a_function_of_sums_is_rounded_once(
    name: str, result: float, point: int, tmp_path: Path
) -> None:
    case = CASES[name]
    line = case.line.replace("r = Conv", "c = Conv") + " g = Sigmoid(c) r = Mul(c, g)"
    stored = {**case.stored, "sy": np.float32(result), "zy": np.int8(point)}
    proto = replace(case, line=line, stored=stored).make_model()

    found = _partition(proto, tmp_path / "bundle")

    (made,) = found.report.regions
    assert made.composites == {"conv_silu": 1}
    assert found.verification is not None
    worst = found.verification.worst
    assert worst is not None
    assert worst.absolute <= 1
    assert worst.differing < 0.02
