"""The codegen `iree`: real compiles, modules run here, elsewhere and not at all, and what is refused."""

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
    parse_codegen_options,
)

pytestmark = pytest.mark.iree
pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
IMAGE = """
<ir_version: 9, opset_import: ["" : 20]>
g (uint8[99] x) => (uint8[A,B,3] y) { z = Max(x, x) i = ImageDecoder(z) y = Identity(i) }
"""
CONVOLUTION = "conv and relu"
SMALL = "pools, concat and softmax"
ELSEWHERE = ["aarch64", "riscv64", "wasm32", "vulkan", "cuda"]
Compiled = tuple[Region, Artifact, Executor]


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compiled(parse(RELU), tmp_path_factory.mktemp("relu"), "iree")


@pytest.mark.parametrize("name", IN_FEW_REGIONS)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    computes(name, tmp_path, "iree")


@pytest.mark.parametrize("given", [{"target": "vmvx"}, {"target": "x86_64"}, {"threads": "1"}], ids=str)
def test_it_computes_the_same_in_other_ways(given: dict[str, str], tmp_path: Path) -> None:
    if given.get("target", "vmvx") not in {"vmvx", _machine()}:
        pytest.skip("this is another machine")
    computes(CONVOLUTION, tmp_path, "iree", **given)


def test_it_runs_here_and_can_be_asked() -> None:
    found = find_codegen("iree")

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

    _, _, run = compiled(proto, tmp_path, "iree")

    same(run(inputs), original(proto, inputs))


def test_arrays_that_are_not_contiguous_or_not_writable(relu: Compiled) -> None:
    _, _, run = relu
    fixed = ramp(2, 3)
    fixed.flags.writeable = False

    for x in (np.asfortranarray(ramp(2, 3)), fixed, ramp(4, 6)[::2, ::-2]):
        first = run({"x": x})
        run({"x": x * 0})
        same(first, {"y": np.maximum(x, 0)})


def test_open_dimensions_may_differ_from_run_to_run(tmp_path: Path) -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"
    _, _, run = compiled(parse(text), tmp_path, "iree")

    for extent in (2, 5, 0):
        x = ramp(extent, 3)
        same(run({"x": x}), {"y": np.maximum(x, 0)})


def test_bfloat16_crosses(tmp_path: Path) -> None:
    proto = parse("g (bfloat16[2,2] x) => (bfloat16[2,2] y) { y = Relu(x) }")
    _, _, run = compiled(proto, tmp_path, "iree")
    x = ramp(2, 2).astype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

    found = run({"x": x})["y"]

    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(x.astype(np.float32), 0))


def test_composites_are_inlined(tmp_path: Path) -> None:
    proto = with_composite()
    x = ramp(1, 3, 8, 8)

    _, _, run = compiled(proto, tmp_path, "iree")

    same(run({"x": x}), original(proto, {"x": x}))


def test_old_opsets_are_converted(tmp_path: Path) -> None:
    """In opset 9 Softmax is that of a matrix, and Dropout has a mask without a type."""
    text = '<ir_version: 4, opset_import: ["" : 9]> g (float[2,3,4] x) => (float[2,3,4] y)'
    proto = onnx.parser.parse_model(text + " { d = Dropout<ratio = 0.3>(x) y = Softmax<axis = 1>(d) }")

    _, _, run = compiled(proto, tmp_path, "iree")

    x = ramp(2, 3, 4)
    same(run({"x": x}), original(proto, {"x": x}))


@pytest.mark.parametrize("target", ["host", *ELSEWHERE, "vmvx"])
def test_the_same_region_gives_the_same_bytes_which_run_here_or_say_where(
    target: str, tmp_path: Path
) -> None:
    text, inputs = CASES[SMALL]
    found: Any = find_codegen("iree")
    made = region(model(text), tmp_path)
    options = parse_codegen_options(found, {"target": target})

    first, second = (found.compile(made, options) for _ in range(2))

    assert dict(first.files) == dict(second.files)
    assert dict(first.metadata) == dict(second.metadata)
    assert bool(found.compatible(made, first))
    try:
        run = found.load(made, first)
    except NotHereError as error:
        assert target in {*ELSEWHERE} - {_machine()}
        assert target in str(error)
    else:
        same(run(inputs), original(model(text), inputs))


def test_a_bundle_for_another_machine_is_written_and_says_so(tmp_path: Path) -> None:
    other = "riscv64" if _machine() == "x86_64" else "x86_64"
    onnx.save(parse(RELU), tmp_path / "m.onnx")

    result = byoc.partition(
        tmp_path / "m.onnx",
        str(VANILLA),
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="iree",
        codegen_options={"target": other},
    )

    assert len(result.plan.regions) == 1
    (told,) = result.report.regions
    assert f"compiled for {other}" in str(told.not_here)


@pytest.mark.parametrize("mark", ["iree", "machine", "processor_hash"])
def test_a_module_whose_stamp_does_not_fit_is_not_loaded(mark: str, relu: Compiled) -> None:
    made, artifact, _ = relu
    found: Any = find_codegen("iree")

    verdict = found.compatible(made, Artifact(artifact.files, {**artifact.metadata, mark: "another"}))

    assert found.compatible(made, artifact)
    assert "another" in str(verdict)


def test_what_is_no_module_is_refused(relu: Compiled) -> None:
    made, artifact, _ = relu
    found: Any = find_codegen("iree")

    for damaged in (b"", b"no module", artifact.files["region.vmfb"][:200]):
        with pytest.raises(byoc.InputError, match="IREE does not load the module"):
            found.load(made, Artifact({"region.vmfb": damaged}, artifact.metadata))


def test_a_refusal_names_the_nodes_at_fault(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(IMAGE)

    error = refusal(region(proto, tmp_path), "iree")

    assert str(error) == "IREE has no lowering for onnx.ImageDecoder"
    assert error.nodes == ("i",)


def test_a_crash_of_the_compiler_is_a_refusal(tmp_path: Path) -> None:
    """IREE 3.13 crashes at Unique."""
    error = refusal(region(parse("g (float[4] x) => (float[N] y) { y = Unique(x) }"), tmp_path), "iree")

    assert "its compiler ended with -" in str(error)
    assert not error.lasting


def test_what_it_does_not_know_of_a_target_is_refused(tmp_path: Path) -> None:
    error = refusal(region(parse(RELU), tmp_path), "iree", target="x86_64", processor="pentium9")

    assert "Unknown CPU" in str(error)


def test_it_judges_each_node_of_a_model() -> None:
    found: Any = find_codegen("iree")

    verdicts = found.check(onnx.parser.parse_model(IMAGE), found.Options())

    assert [str(verdict) for verdict in verdicts] == [
        "yes",
        "IREE has no lowering for onnx.ImageDecoder",
        "yes",
    ]


def test_without_iree_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['iree.runtime'] = None; sys.modules['iree'] = None\n"
        "from byoc.codegen import MissingRuntimeError\n"
        "from byoc.codegens.iree import runtime_package\n"
        "try: runtime_package()\n"
        "except MissingRuntimeError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "pip install 'iree-base-compiler>=" in ran.stdout


def _machine() -> str:
    from byoc.codegens.iree import IREEOptions  # noqa: PLC0415 - optional

    return str(IREEOptions().machine)
