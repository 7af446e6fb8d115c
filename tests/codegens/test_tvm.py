"""The codegen `tvm`: real compiles, libraries run here and refused here, and what TVM refuses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import (
    CASES,
    IN_FEW_REGIONS,
    compiled,
    computes,
    model,
    refusal,
    region,
    same,
    with_composite,
)
from helpers.cutting import original, ramp
from helpers.support import VANILLA, parse

import byoc
from byoc.codegen import (
    Artifact,
    Executable,
    Executor,
    NotHereError,
    Oracle,
    Region,
    Stamped,
    find_codegen,
)

pytestmark = pytest.mark.tvm
pytest.importorskip("tvm")

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
DET = "g (float[2,2] x) => (float y) { r = Relu(x) d = Det(r) y = Neg(d) }"
SMALL = "pools, concat and softmax"
Compiled = tuple[Region, Artifact, Executor]


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compiled(parse(RELU), tmp_path_factory.mktemp("relu"), "tvm")


@pytest.mark.parametrize("name", IN_FEW_REGIONS)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    computes(name, tmp_path, "tvm")


@pytest.mark.parametrize("given", [{"target": "generic"}, {"level": "0"}], ids=str)
def test_it_computes_the_same_in_other_ways(given: dict[str, str], tmp_path: Path) -> None:
    computes("conv and relu", tmp_path, "tvm", **given)


def test_it_runs_here_and_can_be_asked() -> None:
    found = find_codegen("tvm")

    for ability in (Executable, Oracle, Stamped):
        assert isinstance(found, ability)


def test_unsigned_integers_stay_unsigned(tmp_path: Path) -> None:
    text = """g (uint8[4] a, uint8[4] b1, uint16[2] c, uint32[2] d) =>
      (uint8[4] e, bool[4] f, uint16[2] h, uint32[2] i, float[4] j) {
      e = Max(a, b1) f = Less(a, b1) h = Div(c, c) i = Add(d, d) j = Cast<to=1>(a) }"""
    proto = model(text)
    inputs = {
        "a": np.array([0, 200, 130, 255], np.uint8),
        "b1": np.array([1, 100, 255, 3], np.uint8),
        "c": np.array([40000, 65535], np.uint16),
        "d": np.array([2**31, 7], np.uint32),
    }

    _, _, run = compiled(proto, tmp_path, "tvm")

    same(run(inputs), original(proto, inputs))


def test_arrays_that_are_not_contiguous_or_not_writable(relu: Compiled) -> None:
    _, _, run = relu
    fixed = ramp(2, 3)
    fixed.flags.writeable = False

    for x in (np.asfortranarray(ramp(2, 3)), fixed, ramp(4, 6)[::2, ::-2]):
        first = run({"x": x})
        run({"x": x * 0})
        same(first, {"y": np.maximum(x, 0)})


def test_bfloat16_crosses(tmp_path: Path) -> None:
    proto = parse("g (bfloat16[2,2] x) => (bfloat16[2,2] y) { y = Relu(x) }")
    _, _, run = compiled(proto, tmp_path, "tvm")
    x = ramp(2, 2).astype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

    found = run({"x": x})["y"]

    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(x.astype(np.float32), 0))


def test_composites_are_inlined(tmp_path: Path) -> None:
    proto = with_composite()
    x = ramp(1, 3, 8, 8)

    _, _, run = compiled(proto, tmp_path, "tvm")

    same(run({"x": x}), original(proto, {"x": x}))


def test_the_same_region_gives_the_same_bytes(tmp_path: Path) -> None:
    found: Any = find_codegen("tvm")
    made = region(model(CASES[SMALL][0]), tmp_path)

    first, second = (found.compile(made, found.Options()) for _ in range(2))

    assert dict(first.files) == dict(second.files)
    assert dict(first.metadata) == dict(second.metadata)
    assert found.compatible(made, first)


@pytest.mark.parametrize("mark", ["tvm", "machine", "processor"])
def test_a_library_whose_stamp_does_not_fit_is_not_loaded(mark: str, relu: Compiled) -> None:
    made, artifact, _ = relu
    found: Any = find_codegen("tvm")

    verdict = found.compatible(made, Artifact(artifact.files, {**artifact.metadata, mark: "another"}))

    assert found.compatible(made, artifact)
    assert "another" in str(verdict)


def test_what_is_for_a_better_processor_is_compiled_and_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from byoc.codegens import tvm as codegen  # noqa: PLC0415 - optional

    monkeypatch.setattr(codegen, "find_processor", lambda: "x86-64-v3")
    if os.uname().machine != "x86_64":
        pytest.skip("x86-64-v4 is a processor of x86-64")

    with pytest.raises(NotHereError, match="compiled for x86-64-v4, and this processor is x86-64-v3"):
        compiled(parse(RELU), tmp_path, "tvm", target="x86-64-v4")


def test_what_is_no_library_is_refused(relu: Compiled) -> None:
    made, artifact, _ = relu
    found: Any = find_codegen("tvm")

    for damaged in (b"", b"no library", artifact.files["region.so"][:200]):
        with pytest.raises(byoc.InputError, match="TVM does not load the library"):
            found.load(made, Artifact({"region.so": damaged}, artifact.metadata))


def test_a_refusal_names_the_nodes_at_fault(tmp_path: Path) -> None:
    error = refusal(region(parse(DET), tmp_path), "tvm")

    assert "not supported for frontend ONNX: Det" in str(error)
    assert error.nodes == ("d",)
    assert error.lasting


def test_operators_of_other_domains_are_not_taken_for_those_of_onnx(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = com.microsoft.Gelu(x) }"
    proto = parse(text)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))

    error = refusal(region(proto, tmp_path), "tvm")

    assert "com.microsoft.Gelu is not an operator of ONNX" in str(error)


def test_it_judges_each_node_of_a_model() -> None:
    found: Any = find_codegen("tvm")

    verdicts = found.check(parse(DET), found.Options())

    assert [bool(verdict) for verdict in verdicts] == [True, False, True]
    assert "not supported for frontend ONNX: Det" in str(verdicts[1])


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, _, run = compiled(model(CASES[SMALL][0]), tmp_path, "tvm")
    run(CASES[SMALL][1])

    assert capfd.readouterr() == ("", "")


def test_without_tvm_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['tvm'] = None\n"
        "from byoc.codegen import MissingRuntimeError\n"
        "from byoc.codegens.tvm import tvm_package\n"
        "try: tvm_package()\n"
        "except MissingRuntimeError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "pip install 'apache-tvm>=" in ran.stdout


def test_a_network_is_cut_compiled_and_verified(tmp_path: Path) -> None:
    result = byoc.partition(
        "zoo:squeezenet", str(VANILLA), output=tmp_path / "b", strategy="all-supported", codegen="tvm"
    )

    assert result.verification is not None
    assert result.verification.passed
    assert result.plan.regions
