"""Codegens in another Python without it: drivers in C, contexts, bound arrays, states."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.elsewhere import PLUG_IN, Configure
from helpers.support import Ran, parse

import byoc as package
from byoc.bundle import CONTEXT_MODEL_FILE, open_bundle
from byoc.codegen import (
    CodegenFailedError,
    Codegens,
    Isolation,
    compile_region,
    find_codegen,
    load_region,
    read_region,
)
from byoc.errors import InputError
from byoc.onnxrt import open_provider_session
from byoc.runtime import load_with_provider
from byoc.standalone import export_c, make_driver, verify_program

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform == "win32", reason="drivers are built for POSIX"),
]
NAME = "doubling-elsewhere"
RULES = PLUG_IN / "doubling-elsewhere.yaml"
SOURCE = PLUG_IN / "driver" / "doubling_elsewhere.c"
MODEL = "g (float[1, 4] x) => (float[1, 4] y) { s = Relu(x) y = Add(s, s) }"
X = np.array([[1, -2, 3, 4]], np.float32)
STRICT = "cc -std=c99 -pedantic -Wall -Wextra -Werror -O1"
VENDOR = Path(__file__).parents[2] / "codegens" / "rknn" / "driver" / "rknn_driver.c"
STAND_IN = Path(__file__).parents[1] / "codegens" / "rknn_stand_in"  # of the vendor's runtime
IN_SETTINGS = {"driver": {"sources": [str(SOURCE)], "libraries": ["m"]}}


@pytest.fixture
def emit(configure: Configure, tmp_path: Path) -> Callable[..., Path]:
    """Return what partitions the model for a class in another Python, and returns the bundle."""
    pytest.importorskip("onnxruntime")

    def partition(kind: str = "Doubling", **more: Any) -> Path:
        configure(NAME, kind, **more)
        package.partition(
            parse(MODEL), RULES, output=tmp_path / "b", strategy="all-supported", emit="epcontext"
        )
        return tmp_path / "b"

    return partition


def test_it_is_found_by_its_name_alone(configure: Configure) -> None:
    configure(NAME, "Doubling")
    with closing(find_codegen(NAME)) as found:  # type: ignore[type-var]
        assert found.driver().files == (SOURCE,)  # type: ignore[attr-defined]


def test_its_regions_run_in_c_by_its_driver(
    emit: Callable[..., Path], old_python: str, tmp_path: Path
) -> None:
    bundle = emit(python=old_python)
    export_c(bundle, output=tmp_path / "program")
    found = verify_program(tmp_path / "program", STRICT)
    assert (found.problem, [each.error for each in found.outputs]) == ("", [0.0])
    library = tmp_path / "driver.so"
    assert make_driver(bundle, library) == NAME
    session = open_provider_session(bundle / CONTEXT_MODEL_FILE, {NAME: library})
    assert np.array_equal(session.run(None, {"x": X})[0], 2 * np.maximum(X, 0))


def test_the_command_line_makes_and_uses_it(
    emit: Callable[..., Path], tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    bundle = emit()
    assert byoc("make-driver", bundle, "-o", tmp_path / "driver.so").code == 0
    assert byoc("export-c", bundle, "-o", tmp_path / "program").code == 0
    assert byoc("verify", bundle, "--runtime", "ort-plugin").code == 0
    assert "driver" in byoc("codegens", NAME).out


def test_a_driver_that_the_settings_name_needs_no_interpreter(
    emit: Callable[..., Path], configure: Configure, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    bundle = emit("Doubling", does="driver raise", **IN_SETTINGS)  # its own is not asked
    configure(NAME, "Doubling", python="/nowhere/python", **IN_SETTINGS)
    export_c(bundle, output=tmp_path / "program")
    assert verify_program(tmp_path / "program", STRICT).problem == ""
    assert make_driver(bundle, tmp_path / "driver.so") == NAME
    session = load_with_provider(open_bundle(bundle, None))
    assert np.array_equal(session({"x": X})["y"], 2 * np.maximum(X, 0))
    done = byoc("run", bundle, "--inputs", "random", "--runtime", "ort-plugin", "-o", tmp_path / "y.npz")
    assert done.code == 0
    assert byoc("verify", bundle, "--runtime", "ort-plugin").code == 0
    assert "there is no such file" in byoc("verify", bundle).err


@pytest.mark.parametrize("shape", [[1, 4], [1, 2, 3, 4]])
def test_a_driver_that_needs_its_vendors_runtime_runs_in_c_and_in_the_provider(
    shape: list[int], configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    built = f"cc -std=c99 -shared -fPIC -I{STAND_IN} {STAND_IN}/rknnrt.c -o {tmp_path}/librknnrt.so -lm"
    subprocess.run(built.split(), check=True)
    linked = f"-I{STAND_IN} -L{tmp_path} -Wl,-rpath,{tmp_path}"
    monkeypatch.setenv("BYOC_CC", f"cc {linked}")
    name, driver = "rockchip", tmp_path / "driver.c"
    text = VENDOR.read_text().replace('"rknn"', f'"{name}"')
    driver.write_text(text.replace("byoc_driver_rknn", f"byoc_driver_{name}"))
    settings = {"sources": [str(driver)], "libraries": ["rknnrt"]}
    configure(name, "Rockchip", driver=settings)
    model = parse(f"g (float{shape} x) => (float{shape} y) {{ y = Relu(x) }}")
    bundle, asked = tmp_path / "b", {"strategy": "all-supported", "emit": "epcontext"}
    package.partition(model, "rknn-rk3588", output=bundle, codegen=name, **asked)

    configure(name, "Rockchip", python="/nowhere/python", driver=settings)
    export_c(bundle, output=tmp_path / "program")
    assert verify_program(tmp_path / "program", f"{STRICT} {linked}").problem == ""
    assert make_driver(bundle, tmp_path / "driver.so") == name
    session = open_provider_session(bundle / CONTEXT_MODEL_FILE, {name: tmp_path / "driver.so"})
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert np.array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))


def test_a_context_of_its_vendor_stands_in_the_model(emit: Callable[..., Path]) -> None:
    model = onnx.load(emit("DoublingByContext") / CONTEXT_MODEL_FILE)
    (node,) = (each for each in model.graph.node if each.op_type == "EPContext")
    found = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert (found["source"], found["ep_sdk_version"], found["priority"]) == (b"vendor", b"7", 3)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("DriverOfAnother", "its driver calls itself 'another': rename either"),
        ("DriverWithoutSources", "its driver's source /nowhere/driver.c: there is no such file"),
        ("NoDriverSources", "driver gave str, not DriverSources"),
    ],
)
def test_wrong_sources_are_one_sentence(configure: Configure, kind: str, said: str) -> None:
    configure(NAME, kind)
    with closing(Codegens()) as codegens, pytest.raises(InputError) as raised:
        codegens.find_driver(NAME)
    assert str(raised.value) == f"codegen {NAME}: {said}"


def test_arrays_of_the_caller_are_bound(emit: Callable[..., Path]) -> None:
    given, made = X.copy(), np.zeros_like(X)
    bound = package.bind_tensors(package.load(emit()), {"x": given}, {"y": made})
    for factor in (1, 3):
        given[...] = factor * X
        bound()
        assert np.array_equal(made, 2 * factor * np.maximum(X, 0))


@pytest.fixture
def executor(configure: Configure, tmp_path: Path) -> Any:
    """Return a loaded region `y = 2 s` in another Python, and its codegen."""
    onnx.save(parse("g (float[1, 4] s) => (float[1, 4] y) { y = Add(s, s) }"), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "r", NAME)
    configure(NAME, "Doubling")
    with closing(Codegens(Isolation())) as codegens:
        codegen: Any = codegens.find(NAME)
        yield load_region(codegen, region, compile_region(codegen, region, {})), codegen


def test_an_executor_there_is_bound_also_after_its_process_ended(executor: Any) -> None:
    run, codegen = executor
    state = X.copy()
    bound = run.bind({"s": state}, {"y": state})
    for factor in (2, 4):
        assert bound({"s": state})["y"] is state
        assert np.array_equal(state, factor * X)
    codegen.close()
    bound({"s": state})
    assert np.array_equal(state, 8 * X)
    assert run.bind({"s": state}, {}) is None
    assert run.bind({"s": state[:, :2]}, {"y": state[:, 1:3]}) is None  # they overlap otherwise


def test_states_stay_there_and_are_lost_with_the_process(executor: Any) -> None:
    run, codegen = executor
    one, other = run.allocate({"s": "y"}), run.allocate({"s": "y"})
    one.reset({"s": X})
    other.reset({"s": -X})
    assert (one.step({}), one.step({}), other.step({})) == ({}, {}, {})
    assert np.array_equal(one.read()["s"], 4 * X)
    assert np.array_equal(other.read()["s"], -2 * X)
    assert run.allocate({"s": "z"}) is None
    codegen.close()
    with pytest.raises(CodegenFailedError, match="the states that it kept are lost"):
        one.step({})
    again = run.allocate({"s": "y"})
    again.reset({"s": X})
    assert np.array_equal(again.read()["s"], X)
