"""The codegen `rknn`, with stand-ins for Rockchip's toolkit and runtime: what it says and checks.

The stand-ins know networks of one Relu. What the toolkit itself builds is tests/rknn_rules's to ask.
"""

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.rknn import RKNN, RKNNOptions
from helpers.support import parse

import byoc
from byoc.codegen import (
    ON_OWN_CPU,
    YES,
    Artifact,
    CompileError,
    Cycles,
    MissingRuntimeError,
    NotHereError,
    Region,
    format_options,
    read_region,
)
from byoc.codegen.drivers import DriverError, DriverLibrary, build_driver
from byoc.errors import InputError
from byoc.runtime import load_executor

STAND_IN = Path(__file__).parent / "rknn_stand_in"
FLOATS = "g (float[2,3,4,5] x) => (float[2,3,4,5] y) {{ [{name}] y = Relu(x) }}"
INTEGERS = """g (int8[2,3,4,5] x) => (int8[2,3,4,5] y)
  <float s = {{0.25}}, int8 z = {{-3}}>
{{ [{name}] d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, s, z) }}"""

OPEN = """g (float[2,3,4,5] x, int64[1] a) => (float[i,j,k,l] y)
{{ [{name}] y = ReduceSum<keepdims=1>(x, a) }}"""
LAYERS = """g (int8[2,3,4,5] x) => (int8[2,3,4,5] y)
  <float s = {{0.25}}, int8 z = {{-3}}>
{{ [{name}] d = DequantizeLinear(x, s, z) r = Relu(d) q = QuantizeLinear(r, s, z)
   e = DequantizeLinear(q, s, z) t = Relu(e) y = QuantizeLinear(t, s, z) }}"""


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an interpreter with the stand-in for the toolkit in the place of the SDK's."""
    python = tmp_path / "python"
    folder = STAND_IN / "toolkit"
    python.write_text(  # byoc starts it with -I, which would hide the stand-in
        f'#!/bin/sh\nshift\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setenv("BYOC_RKNN_PYTHON", str(python))
    return python


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Build the stand-in for librknnrt; the compiler's command that finds it and its header."""
    command = f"cc -I{STAND_IN} -L{tmp_path} -Wl,-rpath,{tmp_path}"
    library = tmp_path / "librknnrt.so"
    built = os.system(f"cc -std=c99 -shared -fPIC -I{STAND_IN} {STAND_IN / 'rknnrt.c'} -o {library} -lm")
    assert built == 0
    monkeypatch.setenv("BYOC_CC", command)
    return command


def write_region(text: str, folder: Path, name: str = "r") -> Region:
    path = folder / f"{name}.onnx"
    onnx.save(parse(text.format(name=name), 8, 17), path)
    return read_region(path, "region", "rknn-rk3588")


def draw(region: Region, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return values for a region's input, negative ones among them."""
    contract = region.inputs[0].type
    drawn = np.random.default_rng(seed).integers(-128, 128, contract.shape)
    return drawn.astype(contract.dtype) * (1 if contract.dtype == "int8" else np.float32(0.5))


def compute_relu(region: Region, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, np.array(-3 if x.dtype == np.int8 else 0, x.dtype))


@pytest.mark.parametrize("text", [FLOATS, INTEGERS])
def test_a_region_is_built_and_run_on_the_simulator(text: str, toolkit: Path, tmp_path: Path) -> None:
    region = write_region(text, tmp_path)
    codegen = RKNN()

    artifact = codegen.compile(region, RKNNOptions())
    made = codegen.load(region, artifact)({"x": draw(region)})

    assert list(artifact.files) == ["region.rknn"]
    assert artifact.metadata["toolkit"] == "0.0.1"
    assert np.array_equal(made["y"], compute_relu(region, draw(region)))
    assert made["y"].dtype == region.outputs[0].type.dtype
    assert codegen.compatible(region, artifact)
    assert not codegen.compatible(region, Artifact(artifact.files, {"toolkit": "9"}))


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (FLOATS, "flat", ""),
        (FLOATS, "other_size", "float32[2, 2, 4, 5], but it is declared float32[2, 3, 4, 5]"),
        (FLOATS, "flat_other_size", "float32[80], but it is declared float32[2, 3, 4, 5]"),
        (OPEN, "r", ""),
        (OPEN, "other_size", ""),  # any extents are right, and byoc compares the numbers
        (OPEN, "flat", "float32[120], but it is declared float32[i, j, k, l]"),
    ],
)
def test_an_output_has_the_regions_shape_or_byoc_says_which_it_has(
    text: str, name: str, said: str, toolkit: Path, tmp_path: Path
) -> None:
    region = write_region(text, tmp_path, name)
    run = load_executor(RKNN(), "rknn", region, RKNN().compile(region, RKNNOptions()))
    inputs = {"x": draw(region), "a": np.array([1], np.int64)}
    given = {each.name: inputs[each.name] for each in region.inputs}

    if said:
        with pytest.raises(InputError, match=re.escape(f"gave output 'y' as {said}")):
            run(given)
    else:
        expected = compute_relu(region, inputs["x"])
        expected = expected[:, 1:] if "other_size" in name else expected
        assert np.array_equal(run(given)["y"], expected)


def test_layers_without_a_count_take_what_their_bytes_take(toolkit: Path, tmp_path: Path) -> None:
    region = write_region(FLOATS, tmp_path)
    artifact = RKNN().compile(region, RKNNOptions())

    # Both layers move the same bytes: 100 cycles in the one that is counted, which takes 700 in all.
    assert RKNN().estimate(region, RKNNOptions(), artifact) == Cycles(800.0, 1e9)


def test_what_the_chips_cpu_computes_is_said_and_not_estimated(toolkit: Path, tmp_path: Path) -> None:
    region = write_region(FLOATS, tmp_path, "slow")
    options = RKNNOptions()

    assert list(RKNN().check(region.load(), options)) == [ON_OWN_CPU]
    assert list(RKNN().check(write_region(FLOATS, tmp_path).load(), options)) == [YES]
    with pytest.raises(CompileError, match="no cycles of what the chip's CPU computes: ConvRelu"):
        RKNN().estimate(region, options, RKNN().compile(region, options))


@pytest.mark.parametrize(
    ("name", "why", "lasting"),
    [
        ("refused", "it is one of those that are refused", True),
        ("crashes", "rknn-toolkit2 crashes: its process was killed by signal 6", False),
        ("hangs", "rknn-toolkit2 took longer than 2 s for building and was stopped", False),
    ],
)
def test_what_is_not_built_is_a_sentence_and_the_next_is_built(
    name: str, why: str, lasting: bool, toolkit: Path, tmp_path: Path
) -> None:
    region = write_region(FLOATS, tmp_path, name)
    options = RKNNOptions(timeout=2.0 if name == "hangs" else 60.0)

    with pytest.raises(CompileError, match=why) as caught:
        RKNN().compile(region, options)

    assert caught.value.lasting is lasting
    assert RKNN().compile(write_region(FLOATS, tmp_path), RKNNOptions()).files


@pytest.mark.parametrize(
    ("name", "shown"), [("r", {"q", "y"}), ("other_scale", {"y"}), ("silent", {"y"})]
)
def test_the_integers_that_the_simulator_computes_are_shown_where_they_are_the_regions(
    name: str, shown: set[str], toolkit: Path, tmp_path: Path
) -> None:
    region = write_region(LAYERS, tmp_path, name)
    codegen = RKNN()
    artifact = codegen.compile(region, RKNNOptions())

    for seed in (0, 1):
        x = draw(region, seed)
        made = codegen.trace(region, artifact, {"x": x})
        assert made.keys() == shown
        for each in made.values():
            assert each.dtype == np.int8
            assert np.array_equal(each, compute_relu(region, x))


def test_a_toolkit_whose_simulator_cannot_be_looked_at_is_a_sentence(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "older"
    shutil.copytree(STAND_IN / "toolkit", copied)
    api = copied / "rknn" / "api.py"
    api.write_text(api.read_text(encoding="utf-8").replace("_infer_by_sess", "infer"), encoding="utf-8")
    python = tmp_path / "older_python"
    python.write_text(
        toolkit.read_text(encoding="utf-8").replace(str(STAND_IN / "toolkit"), str(copied)), "utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setenv("BYOC_RKNN_PYTHON", str(python))
    region = write_region(LAYERS, tmp_path)
    artifact = RKNN().compile(region, RKNNOptions())

    with pytest.raises(CompileError, match="does not show what its simulator computes"):
        RKNN().trace(region, artifact, {"x": draw(region)})


def test_a_process_that_dies_in_a_run_is_an_error_and_loading_again_works(
    toolkit: Path, tmp_path: Path
) -> None:
    lost, kept = (write_region(FLOATS, tmp_path, name) for name in ("lost", "kept"))
    codegen = RKNN()
    run = codegen.load(kept, codegen.compile(kept, RKNNOptions()))
    other = codegen.load(lost, codegen.compile(lost, RKNNOptions()))

    with pytest.raises(CompileError, match="rknn-toolkit2 crashes"):
        other({"x": draw(lost)})

    assert np.array_equal(run({"x": draw(kept)})["y"], compute_relu(kept, draw(kept)))


def test_a_network_is_built_again_where_its_process_dies_while_a_call_waits(
    toolkit: Path, tmp_path: Path
) -> None:
    lost, kept = (write_region(FLOATS, tmp_path, name) for name in ("lost_late", "kept"))
    codegen = RKNN()
    run = codegen.load(kept, codegen.compile(kept, RKNNOptions()))
    other = codegen.load(lost, codegen.compile(lost, RKNNOptions()))

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(other, {"x": draw(lost)})
        time.sleep(0.3)  # the call below waits for the one above, which ends the process
        made = run({"x": draw(kept)})

    assert np.array_equal(made["y"], compute_relu(kept, draw(kept)))
    with pytest.raises(CompileError, match="rknn-toolkit2 crashes"):
        ended.result()


def test_another_network_than_the_artifacts_is_not_run(toolkit: Path, tmp_path: Path) -> None:
    region = write_region(FLOATS, tmp_path)
    artifact = RKNN().compile(region, RKNNOptions())
    other = Artifact(artifact.files, {**artifact.metadata, "cycles": "7"})

    with pytest.raises(CompileError, match="another network than the artifact: cycles are 800, and"):
        RKNN().load(region, other)


def test_without_the_toolkit_a_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = write_region(FLOATS, tmp_path)
    monkeypatch.delenv("BYOC_RKNN_PYTHON", raising=False)
    with pytest.raises(MissingRuntimeError, match="name its interpreter in BYOC_RKNN_PYTHON"):
        RKNN().compile(region, RKNNOptions())
    with pytest.raises(NotHereError, match="name its interpreter in BYOC_RKNN_PYTHON"):
        RKNN().load(region, Artifact({}, format_options(RKNNOptions())))

    monkeypatch.setenv("BYOC_RKNN_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(MissingRuntimeError, match="nothing' lacks it"):
        RKNN().check(region.load(), RKNNOptions())
    with pytest.raises(ValueError, match="timeout is 0 s, but must be more than 0"):
        RKNNOptions(timeout=0.0)


@pytest.mark.parametrize("text", [FLOATS, INTEGERS])
def test_the_driver_runs_an_artifact_by_the_runtime(
    text: str, toolkit: Path, runtime: str, tmp_path: Path
) -> None:
    region = write_region(text, tmp_path)
    artifact = RKNN().compile(region, RKNNOptions(cores="0_1"))
    library = DriverLibrary(build_driver(RKNN().driver(), tmp_path / "driver.so"))

    run = library.open_region(region, artifact)

    assert library.name == "rknn"
    for seed in (0, 1):
        x = draw(region, seed)
        assert np.array_equal(run({"x": x})["y"], compute_relu(region, x))


def test_what_the_runtime_refuses_is_an_error_of_the_driver(
    toolkit: Path, runtime: str, tmp_path: Path
) -> None:
    region = write_region(FLOATS, tmp_path)
    artifact = RKNN().compile(region, RKNNOptions())
    library = DriverLibrary(build_driver(RKNN().driver(), tmp_path / "driver.so"))
    other = write_region(FLOATS.replace("4,5", "4,7"), tmp_path, "other")
    code = artifact.files["region.rknn"]

    def open_with(content: bytes, **metadata: str) -> None:
        library.open_region(
            region, Artifact({"region.rknn": content}, {**artifact.metadata, **metadata})
        )

    with pytest.raises(DriverError, match=r"no region\.rknn that is an RKNN file"):
        open_with(b"nothing")
    with pytest.raises(DriverError, match="rknn_init fails: -6"):
        open_with(code[:-1])
    with pytest.raises(DriverError, match="rknn_set_core_mask fails: -1"):
        open_with(code, cores="2")
    with pytest.raises(DriverError, match="is of another region: elements of a tensor: 120"):
        library.open_region(other, artifact)
    with pytest.raises(DriverError, match="rknn_run fails: -1"):
        library.open_region(region, artifact)({"x": np.full((2, 3, 4, 5), 666, np.float32)})


def test_a_bundle_ships_without_the_toolkit(
    toolkit: Path, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle's driver, its program in C and onnxruntime's provider need the runtime alone."""
    path = tmp_path / "relu.onnx"
    onnx.save(parse(FLOATS.format(name="r"), 8, 17), path)
    done = byoc.partition(path, "rknn-rk3588", output=tmp_path / "b.byoc", strategy="all-supported")
    assert done.report.verification is not None
    assert done.report.verification.passed
    monkeypatch.delenv("BYOC_RKNN_PYTHON")

    library = byoc.make_driver(tmp_path / "b.byoc", tmp_path / "librknn.so")
    byoc.export_c(tmp_path / "b.byoc", output=tmp_path / "out")

    assert (tmp_path / "librknn.so").exists(), library
    assert {each.name for each in (tmp_path / "out").rglob("*.c")} >= {"rknn_driver.c"}
