"""Executors of regions: what failures say, whose fault they are, executors under other names."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import vendors
from cutting import CHAIN, DEVICE_ONLY, cut, ramp
from numpy.typing import NDArray
from support import parse, without_location

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CodegenFailedError, CompileError, Executor, Region
from byoc.errors import InputError, MissingRuntimeError
from byoc.runtime import (
    RegionFailedError,
    find_executable,
    load_bundle,
    load_executor,
    load_executors,
    rename_executor,
)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    ((_, found, _),) = open_bundle(tmp_path / "b").regions()
    return found


class Failing:
    """A codegen that fails when it loads or runs."""

    name = "failing"

    def __init__(self, error: BaseException, loads: bool) -> None:
        self.error, self.loads = error, loads

    def load(self, region: Region, artifact: Artifact) -> Executor:
        if not self.loads:
            raise self.error

        def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
            raise self.error

        return run


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize(
    ("error", "reason", "defect"),
    [
        (InputError("too many rows"), "too many rows", False),
        (CompileError("no such table"), "no such table", False),
        (CodegenFailedError("its process died"), "its process died", True),
        (InputError(""), "it does not say why", False),
        (ZeroDivisionError("by 0"), "failed with ZeroDivisionError: by 0", True),
        (SystemExit(3), "failed with SystemExit: 3", True),
    ],
)
def test_a_failure_names_the_region_and_whose_fault_it_is(
    error: BaseException, reason: str, defect: bool, loads: bool, region: Region
) -> None:
    with pytest.raises(RegionFailedError) as caught:
        load_executor(Failing(error, loads), "failing", region, Artifact())(
            {region.inputs[0].name: ramp(1, 4)}
        )
    if not loads:
        reason = reason.replace("failed with", "loading failed with")
    found = caught.value
    assert (found.region, without_location(found.reason), found.defect) == (region.name, reason, defect)
    where = "codegen failing" if loads else f"codegen failing: {region.name}"
    assert without_location(str(found)) == f"{where}: {reason}"
    assert found.__cause__ is error


def test_a_runtime_that_is_not_installed_is_no_failure_of_the_region(region: Region) -> None:
    with pytest.raises(MissingRuntimeError):
        load_executor(Failing(MissingRuntimeError("no driver"), False), "f", region, Artifact())


class Giving:
    """A codegen whose executor gives an array as it is, and keeps a state of the same dtype."""

    name = "giving"

    def __init__(self, made: NDArray[Any]) -> None:
        self.made = made

    def load(self, region: Region, artifact: Artifact) -> Executor:
        class GivingExecutor:
            def __call__(_, inputs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N805
                return {region.outputs[0].name: self.made}

            def allocate(_, pairs: Mapping[str, str]) -> Any:  # noqa: N805
                return SimpleNamespace(read=lambda: {"state": self.made}, step=None, reset=None)

        return GivingExecutor()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", np.dtype("f4").newbyteorder("<")])
@pytest.mark.parametrize("strided", [False, True])
def test_what_an_executor_gives_has_the_one_dtype_of_its_type(
    dtype: Any, strided: bool, region: Region
) -> None:
    values = ramp(1, 4)
    made = np.repeat(values.astype(dtype), 2, axis=1)[:, ::2] if strided else values.astype(dtype)
    run = load_executor(Giving(made), "giving", region, Artifact())

    state = run.allocate({"state": "next"})
    assert state is not None
    for found in (run({region.inputs[0].name: values})[region.outputs[0].name], state.read()["state"]):
        assert found.dtype is np.dtype(np.float32)
        assert np.array_equal(found, values)
        np.from_dlpack(found)


def test_an_executor_of_a_region_that_differs_in_names(region: Region) -> None:
    (given,), (made,) = region.inputs, region.outputs
    pairs = {
        names: replace(
            region,
            inputs=tuple(replace(given, name=name) for name in names[:2]),
            outputs=tuple(replace(made, name=name) for name in names[2:]),
        )
        for names in ("abyz", "pqrs")
    }

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"z": inputs["a"] - inputs["b"], "y": inputs["a"]}

    renamed = rename_executor(run, pairs["abyz"], pairs["pqrs"])
    assert renamed({"q": 2, "p": 7, "other": 9}) == {"r": 7, "s": 5}


def test_identical_regions_are_loaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Counting(vendors.Tables):
        name = "counting"
        loaded: ClassVar[list[str]] = []

        def load(self, region: Region, artifact: Artifact) -> Executor:
            self.loaded.append(region.name)
            return super().load(region, artifact)

    vendors.install(monkeypatch, counting=Counting)
    cut(parse(CHAIN), tmp_path / "b", codegen="counting", verify=False)
    Counting.loaded.clear()
    bundle = open_bundle(tmp_path / "b")
    runs = load_executors(bundle)
    assert sorted(runs) == ["dla_0", "dla_1"]
    assert Counting.loaded == ["dla_0"]
    for name, region, _ in bundle.regions():
        assert name == "counting"
        (made,) = runs[region.name]({region.inputs[0].name: ramp(1, 4)}).items()
        assert made[0] == region.outputs[0].name
    expected = load_bundle(bundle, runs)({"x": ramp(1, 4)})
    assert np.array_equal(load_bundle(bundle)({"x": ramp(1, 4)})["y"], expected["y"])


def test_a_codegen_that_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Compiler:
        name = "compiler"

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            return Artifact({"code": b"0"})

    vendors.install(monkeypatch, compiler=Compiler)
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="compiler", verify=False)
    codegens = open_bundle(tmp_path / "b").codegens
    with pytest.raises(InputError) as caught:
        find_executable("compiler", codegens)
    assert str(caught.value) == ("codegen compiler cannot run what it compiles here (it has no `load`)")
