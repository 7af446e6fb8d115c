"""Executors of regions: what failures say, whose fault they are, executors under other names."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, DEVICE_ONLY, cut, ramp
from helpers.support import parse, without_location
from numpy.typing import NDArray

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CodegenFailedError, CompileError, Executor, NotHereError, Region
from byoc.errors import InputError, MissingRuntimeError
from byoc.runtime import (
    RegionFailedError,
    RegionNotHereError,
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


@pytest.mark.parametrize("ask", ["measure", "examine"])
def test_what_is_asked_of_an_executor_fails_as_a_run_does(ask: str, region: Region) -> None:
    run = load_executor(Failing(ZeroDivisionError("by 0"), True), "failing", region, Artifact())
    with pytest.raises(
        RegionFailedError, match=r"^codegen failing: failed with ZeroDivisionError: by 0"
    ):
        getattr(run, ask)({region.inputs[0].name: ramp(1, 4)}, lambda *given: [given[0]({})])


def test_a_machine_that_cannot_run_a_region_is_no_failure_of_it(region: Region) -> None:
    for reason, said in (("there is no device", "there is no device"), ("", "it does not say why")):
        with pytest.raises(RegionNotHereError) as caught:
            load_executor(Failing(NotHereError(reason), False), "f", region, Artifact())
        assert str(caught.value) == f"codegen f: {region.name} cannot run on this machine: {said}"
        assert (caught.value.region, caught.value.reason) == (region.name, said)


class Adding:
    """A codegen whose executor doubles its input in any of its abilities, and counts what is asked."""

    name = "adding"

    def __init__(self, binds: Any = True) -> None:
        self.binds, self.asked = binds, list[Any]()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        (given,), (made,) = region.inputs, region.outputs
        codegen = self

        class AddingExecutor:
            def __init__(self, into: Any = None) -> None:
                self.into = into

            def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
                codegen.asked.append(inputs[given.name].copy())
                found = inputs[given.name] * 2
                if self.into is None:
                    return {made.name: found}
                self.into[...] = found
                return {made.name: self.into}

            def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
                if isinstance(codegen.binds, BaseException):
                    raise codegen.binds
                return AddingExecutor(outputs[made.name]) if codegen.binds else None

        return AddingExecutor()


def test_measured_runs_follow_a_checked_one(region: Region) -> None:
    (given,), codegen = region.inputs, Adding()
    run = load_executor(codegen, "adding", region, Artifact())
    values = {given.name: ramp(1, 4)}

    def measure(once: Any) -> list[float]:
        return [float(next(iter(once().values())).sum()) for _ in range(3)]

    assert run.measure(values, measure) == [float(ramp(1, 4).sum() * 2)] * 3
    assert len(codegen.asked) == 4
    with pytest.raises(RegionFailedError, match=r"is float32\[1, 5\], but dla_0 is compiled for"):
        run.measure({given.name: ramp(1, 5)}, measure)
    assert len(codegen.asked) == 4

    def examine(call: Any, inputs: Mapping[str, Any]) -> list[str]:
        return [str(call(inputs)[region.outputs[0].name].tolist())]

    assert run.examine(values, examine) == [str((ramp(1, 4) * 2).tolist())]


def test_an_executor_is_bound_to_arrays_or_not_at_all(region: Region) -> None:
    given, made = region.inputs[0].name, region.outputs[0].name
    buffer = np.zeros((1, 4), np.float32)
    bound = load_executor(Adding(), "adding", region, Artifact()).bind({}, {made: buffer})
    assert bound is not None
    assert bound({given: ramp(1, 4)})[made] is buffer
    np.testing.assert_array_equal(buffer, ramp(1, 4) * 2)
    assert load_executor(Adding(False), "adding", region, Artifact()).bind({}, {made: buffer}) is None
    assert load_executor(Failing(OSError(), True), "f", region, Artifact()).bind({}, {}) is None
    assert load_executor(Adding(), "adding", region, Artifact()).allocate({"a": "b"}) is None
    broken = load_executor(Adding(OSError("too far")), "adding", region, Artifact())
    with pytest.raises(
        RegionFailedError, match=r"^codegen adding: binding failed with OSError: too far"
    ):
        broken.bind({}, {made: buffer})
    with pytest.raises(RegionFailedError, match=r"is float32\[1, 5\], but dla_0 is compiled for"):
        load_executor(Adding(), "adding", region, Artifact()).bind({given: ramp(1, 5)}, {made: buffer})


@pytest.mark.parametrize("ask", ["bind", "allocate"])
def test_the_lock_of_runs_holds_for_what_else_an_executor_is_asked(ask: str, region: Region) -> None:
    lock, seen = Lock(), list[bool]()

    class Asked:
        def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            return {}

        def bind(self, inputs: Any, outputs: Any) -> None:
            seen.append(lock.locked())

        def allocate(self, pairs: Any) -> None:
            seen.append(lock.locked())

    loaded = load_executor(Adding(), "adding", region, Artifact())
    run = replace(loaded, run=Asked(), lock=lock)
    assert (run.bind({}, {}) if ask == "bind" else run.allocate({})) is None
    assert seen == [True]
    assert not lock.locked()


def test_a_renamed_executor_is_bound_by_its_own_names(region: Region) -> None:
    (given,), (made,) = region.inputs, region.outputs
    other = replace(region, inputs=(replace(given, name="in"),), outputs=(replace(made, name="out"),))
    for binds in (True, False):
        run = Adding(binds).load(region, Artifact())
        renamed = rename_executor(run, region, other)
        buffer = np.zeros((1, 4), np.float32)
        bound = renamed.bind({"in": ramp(1, 4)}, {"out": buffer})
        assert (bound is not None) == binds
        if bound is not None:
            assert bound({"in": ramp(1, 4)})["out"] is buffer
            np.testing.assert_array_equal(buffer, ramp(1, 4) * 2)
        assert renamed.allocate({"in": "out"}) is None
    assert rename_executor(lambda inputs: inputs, region, other).bind({}, {}) is None


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
