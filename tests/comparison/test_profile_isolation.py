"""Profiling of a codegen in a worker process: it is measured there, and may crash."""

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import yaml
from helpers.support import Ran, parse
from helpers.wrecking import VARIABLE, Wreck

import byoc as library
from byoc.runtime import CheckedExecutor

Cli = Callable[..., Ran]
NET = "net (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) y = Add(a, x) }"
ASKED = ("profile", "net.onnx", "-o", "c.yaml", "--device", "wrecker", "--repeats", "2")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wreck: Wreck) -> None:
    """Work in a folder with net.onnx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), "net.onnx")


def _read_measured() -> dict[str, int]:
    content = yaml.safe_load(Path("c.yaml").read_text())
    return {entry["op"]: entry["samples"] for entry in content["entries"]}


@pytest.mark.usefixtures("net")
def test_a_codegen_is_measured_in_a_process_of_its_own(wreck: Wreck, byoc: Cli) -> None:
    for options, is_here in (((), False), (("--isolate",), False), (("--no-isolate",), True)):
        wreck("run pid")
        ran = byoc(*ASKED, *options)
        assert (ran.code, ran.err) == (0, "")
        assert (int(Path(os.environ[VARIABLE]).read_text()) == os.getpid()) is is_here
        assert _read_measured() == {"Relu": 2, "Add": 2}


@pytest.mark.usefixtures("net")
def test_no_run_that_counts_crosses_between_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    real = CheckedExecutor.__call__
    monkeypatch.setattr(
        CheckedExecutor,
        "__call__",
        lambda self, inputs: called.append(self.check.region.name) or real(self, inputs),  # type: ignore[func-returns-value]
    )
    made = library.profile("net.onnx", "c.yaml", device="wrecker", seconds=60.0, repeats=20)
    assert made.operators == 2
    # Each is called once, and then measured there: both units, and five to tell what launching takes.
    assert sorted(called) == [*5 * ["small"], "unit_0", "unit_1"]
    assert all(1 <= count <= 20 for count in _read_measured().values())


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize("method", ["import", "compile", "load", "run"])
def test_a_segmentation_fault_is_a_sentence(method: str, wreck: Wreck, byoc: Cli) -> None:
    wreck(f"{method} segv")
    ran = byoc(*ASKED)
    assert (ran.code, ran.out, Path("c.yaml").exists()) == (1, "", False)
    died = f"its process was killed by SIGSEGV in {method}"
    if method == "import":
        assert ran.err == f"byoc: codegen wrecker cannot be loaded: {died}\n"
        return
    *lines, last = (line.removeprefix("byoc: ") for line in ran.err.splitlines())
    assert last == "nothing was measured, so there is nothing to write"
    assert len(lines) == 2
    assert [line for line in lines if not line.startswith("net.onnx: not measured: ")] == []
    assert [line for line in lines if not line.endswith(died)] == []


@pytest.mark.usefixtures("net")
def test_options_of_others_do_not_take_it_to_a_process(byoc: Cli) -> None:
    ran = byoc("profile", "net.onnx", "-o", "c.yaml", "--device", "wreker")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("byoc: wreker: no such codegen (did you mean wrecker?)")
