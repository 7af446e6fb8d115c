"""Codegens in worker processes: what they give, and what becomes of those that wreck their process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from helpers.warm_processes import WarmProcesses
from helpers.wrecking import Wreck

from byoc.codegen import (
    Artifact,
    Codegen,
    CodegenFailedError,
    Codegens,
    Cycles,
    Isolation,
    NotHereError,
    Region,
    parse_codegen_options,
    read_region,
)
from byoc.codegen.byoc_worker.link import BrokenMessageError, SharedMemory, read_array, write_array
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, to_numpy_dtype
from byoc.onnxrt import sharing_process, without_optimizations

MODEL = "g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"
X = np.array([[-1, 2, 0, 4]], np.float32)
ARTIFACT = Artifact({"code": b"\x00\xff", "empty": b""}, {"compiler": "1"})


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """Return a region on disk."""
    onnx.save(parse(MODEL), tmp_path / "r.onnx")
    return read_region(tmp_path / "r.onnx", "dla_0", "dla")


@pytest.fixture
def codegens() -> Iterator[Codegens]:
    """Give codegens in worker processes."""
    with closing(Codegens(Isolation())) as found:
        yield found


def _call(codegen: Any, method: str, region: Region) -> Any:
    calls = {
        "compile": lambda: codegen.compile(region, {}),
        "compile_all": lambda: codegen.compile_all([region], {}),
        "load": lambda: codegen.load(region, ARTIFACT),
        "run": lambda: codegen.load(region, ARTIFACT)({"x": X}),
        "compatible": lambda: codegen.compatible(region, ARTIFACT),
        "cache_key": lambda: codegen.cache_key({}),
        "check": lambda: codegen.check(region.load()),
        "cost": lambda: codegen.cost(region),
        "estimate": lambda: codegen.estimate(region, _options(codegen), ARTIFACT),
        "context": lambda: codegen.context(ARTIFACT),
    }
    return calls[method]()


def _options(codegen: Any) -> Any:
    return parse_codegen_options(codegen, {"level": "3"})


METHODS = (
    *("compile", "compile_all", "load", "run", "compatible", "cache_key"),
    *("check", "cost", "estimate", "context"),
)


@pytest.mark.usefixtures("cold_processes")
def test_each_method_gives_what_it_gives_here(wreck: Wreck, region: Region, codegens: Codegens) -> None:
    here, there = Codegens().find("wrecker-together"), codegens.find("wrecker-together")
    assert isinstance(there, Codegen)
    for method in METHODS:
        with without_optimizations(), sharing_process(3):
            one, other = _call(here, method, region), _call(there, method, region)
        if method == "run":
            assert np.array_equal(other["y"], [[0, 4, 0, 8]])
        if method == "estimate":
            assert other == Cycles(503, 1000)
        if isinstance(one, Artifact):
            assert one.metadata == {"sessions": "('definition', 3, 0)"}
            one, other = vars(one), vars(other)
        if method == "compile_all":
            one, other = ({name: vars(made) for name, made in given.items()} for given in (one, other))
        if method == "context":
            one, other = vars(one), vars(other)
        if method == "run":
            one, other = one["y"].tolist(), other["y"].tolist()
        assert one == other or (method == "load" and callable(other)), method
    assert not hasattr(codegens.find("wrecker"), "compile_all")


def test_a_segmentation_fault_is_one_sentence_and_the_next_call_works(
    wreck: Wreck, region: Region, codegens: Codegens
) -> None:
    codegen = codegens.find("wrecker-together")
    for method in METHODS:
        wreck(f"{method} segv")
        with pytest.raises(CodegenFailedError) as caught:
            _call(codegen, method, region)
        assert str(caught.value) == f"its process was killed by SIGSEGV in {method}"
        wreck("")
        assert _call(codegen, method, region) is not None


def test_other_ends_are_one_sentence(wreck: Wreck, region: Region) -> None:
    reasons = {
        "load abort": "its process was killed by SIGABRT in load",
        "run exit": "its process ended with exit code 7 in run",
        "run leave": "its process ended with exit code 0 in run",
        "cost garbage": "its process gave an answer to cost that cannot be read",
        "compile answer": "its process gave an answer to compile that cannot be read",
        "check hang": "check took longer than 2 s and was stopped",
    }
    found = {}
    with closing(Codegens(Isolation(call_timeout=2.0))) as codegens:
        for what in reasons:
            wreck(what)
            with pytest.raises(CodegenFailedError) as caught:
                _call(codegens.find("wrecker"), what.split(maxsplit=1)[0], region)
            found[what] = str(caught.value)
    assert found == reasons


def test_a_call_that_hangs_is_stopped_also_without_a_limit_of_the_users(
    wreck: Wreck, region: Region, codegens: Codegens, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("import", "compile", "check", "run"):
        assert Isolation().find_limit(method) == 3600
    assert Isolation(compile_timeout=5).find_limit("run") == 3600
    assert Isolation(call_timeout=7200).find_limit("compile_all") == 7200
    codegen = codegens.find("wrecker")
    _call(codegen, "cost", region)
    monkeypatch.setattr("byoc.codegen._worker._DEFAULT_SECONDS", 3.0)
    for method in ("compile", "check"):
        wreck(f"{method} hang")
        with pytest.raises(CodegenFailedError) as caught:
            _call(codegen, method, region)
        stopped = f"{method} took longer than 3 s and was stopped"
        assert str(caught.value) == f"{stopped} (--call-timeout SECONDS allows more)"


@pytest.mark.usefixtures("cold_processes")
def test_a_package_that_wrecks_its_import_is_named(wreck: Wreck, codegens: Codegens) -> None:
    wreck("import segv")
    with pytest.raises(InputError) as caught:
        codegens.find("wrecker")
    assert str(caught.value) == (
        "codegen wrecker cannot be loaded: its process was killed by SIGSEGV in import"
    )
    with pytest.raises(InputError, match=r"^wreker: no such codegen \(did you mean wrecker\?\)"):
        codegens.find("wreker")


def test_an_exception_comes_with_its_type_and_its_traceback(
    wreck: Wreck, region: Region, codegens: Codegens, capfd: pytest.CaptureFixture[str]
) -> None:
    wreck("run raise")
    with pytest.raises(Exception, match="integer division or modulo by zero") as caught:
        _call(codegens.find("wrecker"), "run", region)
    assert type(caught.value).__name__ == "ZeroDivisionError"
    assert 'wrecker.py", line ' in str(caught.value.__cause__)
    assert "in _divide" in str(caught.value.__cause__)
    wreck("")
    assert _call(codegens.find("wrecker"), "cost", region) == 0.25  # it still runs
    assert capfd.readouterr() == ("", "")


def test_that_a_machine_cannot_run_an_artifact_comes_over(
    wreck: Wreck, region: Region, codegens: Codegens
) -> None:
    wreck("load elsewhere")
    with pytest.raises(NotHereError, match=r"^there is no board$"):
        _call(codegens.find("wrecker"), "load", region)
    wreck("")
    assert _call(codegens.find("wrecker"), "run", region)["y"].tolist() == [[0, 4, 0, 8]]


@pytest.mark.usefixtures("cold_processes")
def test_what_it_prints_goes_to_standard_error(
    wreck: Wreck, region: Region, codegens: Codegens, capfd: pytest.CaptureFixture[str]
) -> None:
    wreck("run print")
    assert _call(codegens.find("wrecker"), "run", region)["y"].tolist() == [[0, 4, 0, 8]]
    assert capfd.readouterr() == ("", "gar\x1b[31mbage\n")


def test_a_region_is_loaded_again_after_another_wrecked_the_process(
    wreck: Wreck, region: Region, codegens: Codegens
) -> None:
    codegen: Any = codegens.find("wrecker")
    runs = [codegen.load(region, ARTIFACT) for _ in range(2)]
    process = codegen.worker._process.pid
    os.kill(process, signal.SIGKILL)
    with pytest.raises(CodegenFailedError) as caught:
        runs[0]({"x": X})
    assert (
        str(caught.value) == "its process was killed by SIGKILL in run, as happens when memory runs out"
    )
    assert runs[1]({"x": X})["y"].tolist() == [[0, 4, 0, 8]]
    assert codegen.worker._process.pid != process


def test_executors_that_are_gone_are_released(wreck: Wreck, region: Region, codegens: Codegens) -> None:
    codegen: Any = codegens.find("wrecker")
    first, second = (codegen.load(region, ARTIFACT) for _ in range(2))
    del first
    assert codegen.worker.released == [1]
    assert second({"x": X})["y"].tolist() == [[0, 4, 0, 8]]
    assert codegen.worker.released == []


_PARENT = """
import sys
from byoc.codegen import Codegens, Isolation
codegen = Codegens(Isolation()).find("wrecker")
print(codegen.worker._process.pid, flush=True)
codegen.check(__import__("onnx").ModelProto())
"""


def test_a_process_ends_with_byoc_even_when_byoc_is_killed_and_it_hangs(
    wreck: Wreck, warm_processes: WarmProcesses
) -> None:
    wreck("check hang")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    parent = warm_processes.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=environment
    )
    worker = int(parent.stdout.readline())
    assert _runs(worker)
    parent.kill()
    parent.communicate()
    while _runs(worker):
        time.sleep(0.01)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("dtype", sorted(DTYPE_NUMBERS))
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_arrays_of_every_type_cross(dtype: str, shape: tuple[int, ...]) -> None:
    values: Any = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2
    if dtype == "string":
        array = np.array([f"ä\ud800{each}" for each in values.reshape(-1)], object).reshape(shape)
    else:
        array = values.astype(to_numpy_dtype(dtype))
    swapped = array.astype(array.dtype.newbyteorder("S"))
    memory = SharedMemory.create()
    entries = [write_array(each, memory) for each in (array, array.T, swapped)]
    one, other, native = (read_array(entry, memory) for entry in entries)
    os.close(memory.descriptor)
    assert (one.dtype, one.shape) == (array.dtype, shape)
    assert str(one.tolist()) == str(array.tolist())  # as text: one may be no number
    assert str(other.tolist()) == str(array.T.tolist())
    assert native.dtype.isnative
    assert str(native.tolist()) == str(array.tolist())


def test_what_a_process_says_of_arrays_is_not_believed() -> None:
    memory = SharedMemory.create()
    entry = write_array(np.array([1, 0, 1], np.bool_), memory)
    os.pwrite(memory.descriptor, b"\x07\x00\xff", 0)
    flags = read_array(entry, memory)
    assert flags.view(np.uint8).tolist() == [1, 0, 1]
    texts = write_array(np.array(["a", b"b"], object), memory)
    assert read_array(texts, memory).tolist() == ["a", b"b"]
    for change in (
        *({"start": 1 << 40}, {"size": 1 << 40}, {"start": -1}, {"start": True}, {"size": "3"}),
        *({"shape": [4]}, {"shape": [-3]}, {"shape": [3.0]}, {"shape": [1] * 40}, {"shape": None}),
        *({"dtype": "object"}, {"dtype": "datetime64[s]"}, {"dtype": 3}, {"dtype": "string"}),
    ):
        with pytest.raises(BrokenMessageError):
            read_array({**entry, **change}, memory)
    for content in (b'["s"', b'["a", "sb"]', b'["s\\u00e4", 3]', b'["b\\u1234", "s"]', b"[" * 100_000):
        strings = {"dtype": "string", "shape": [2], **memory.write(content)}
        with pytest.raises(BrokenMessageError):
            read_array(strings, memory)
    os.close(memory.descriptor)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e7, 1e300, float("inf"), float("nan")])
def test_a_limit_that_is_none(seconds: float) -> None:
    with pytest.raises(InputError, match=r"^call timeout .*: not a number of seconds above 0, and"):
        Isolation(call_timeout=seconds)
