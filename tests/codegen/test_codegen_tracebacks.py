"""Tracebacks of tool chains: one line in the message, the whole in the report and for who debugs."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers import vendors
from helpers.elsewhere import Configure
from helpers.support import Ran, parse

from byoc.codegen import Codegens, CompileError, Isolation, compile_region, read_region
from byoc.errors import find_message

PLAIN = """Build failed
Traceback (most recent call last):
  File "/sdk/build.py", line 12, in build
    self.import_model(path)
  File "/sdk/importer.py", line 4, in import_model
    zero = inputs[2]
IndexError: DequantizeLinear has no zero point
"""
LOGGED = "".join(f"E build: {line}\n" for line in PLAIN.splitlines()[1:])
CHAINED = (
    PLAIN
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/sdk/api.py", line 99, in main
    raise BuildError("node conv1 is not taken") from error
sdk.BuildError: node conv1 is not taken
"""
)
SAID = {
    PLAIN: "IndexError: DequantizeLinear has no zero point",
    LOGGED: "IndexError: DequantizeLinear has no zero point",
    CHAINED: "sdk.BuildError: node conv1 is not taken",
    "no code for Sin\nnor Cos": "no code for Sin\nnor Cos",
    "Traceback (most recent call last):": "Traceback (most recent call last)",
    "it ended\nTraceback (most recent call last):\n  File a": "it ended",
}


@pytest.mark.parametrize("text", SAID)
def test_what_was_wrong_is_found(text: str) -> None:
    assert find_message(text) == SAID[text]


def test_the_error_has_both() -> None:
    error = CompileError(LOGGED, ["a"])
    assert (str(error), error.detail) == (SAID[LOGGED], LOGGED)
    assert CompileError("no code\nfor Sin").detail == ""


class Sdk:
    """Raises what its tool chain says."""

    name = "sdk"
    kind: type[Exception] = CompileError

    def compile(self, region: Any, options: Any) -> Any:
        raise self.kind(CHAINED)


@pytest.mark.parametrize("kind", [CompileError, RuntimeError])
def test_the_summary_has_one_line_and_the_report_all(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    vendors.install(monkeypatch, sdk=type("Sdk", (Sdk,), {"kind": kind}))
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    arguments = ("partition", tmp_path / "m.onnx", "--rules", "dla", "--codegen", "sdk", "--no-cache")
    placed = ("--strategy", "all-supported", "-o", tmp_path / "b")
    ran = byoc(*arguments, *placed)
    said = ran.out + ran.err
    assert "node conv1 is not taken" in said
    assert "most recent call" not in said
    monkeypatch.setenv("BYOC_DEBUG", "1")
    assert 'File "/sdk/importer.py", line 4' in byoc(*arguments, *placed).err
    monkeypatch.delenv("BYOC_DEBUG")
    report = json.loads(byoc(*arguments, *placed, "--format", "json").out)
    assert {each["detail"] for each in report["refusals"]} == {CHAINED}


def test_it_comes_from_another_python_as_well(configure: Configure, tmp_path: Path) -> None:
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "r", "t")
    configure(does="compile traceback")
    with closing(Codegens(Isolation())) as codegens, pytest.raises(CompileError) as raised:
        compile_region(codegens.find("acme-elsewhere"), region, {})
    assert str(raised.value) == "ValueError: no zero point"
    assert "importer.py" in raised.value.detail
