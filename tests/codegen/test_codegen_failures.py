"""What a codegen's exception is told as: with the file and line of the vendor's own code."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import UNLIKE, cut
from helpers.installing import register
from helpers.support import parse

from byoc.codegen import CodegenFailedError, Codegens, Isolation, compile_region, read_region
from byoc.errors import InputError
from byoc.runtime import load_executor
from byoc.support import locate_error

LINES = """
import json
import numpy as np
from byoc.codegen import Artifact

class Acme:
    name = "acme"
    def compile(self, region, options):
        return Artifact({}, {"fault": lower(options.get("fault", ""))})
    def load(self, region, artifact):
        return lambda inputs: np.reshape(inputs["x"], (7, 7))

def lower(fault):
    if fault == "own":
        return {}["scale"]
    if fault == "standard library":
        return json.loads("no JSON")
    if fault == "library":
        return np.reshape(np.zeros(4), (7, 7))
    return "none"
"""
WHERE = {
    "own": ("failed with KeyError: 'scale'", "return {}["),
    "standard library": ("failed with JSONDecodeError: ", "return json.loads"),
    "library": ("failed with ValueError: cannot reshape array", "return np.reshape(np"),
}


def _line_of(text: str) -> str:
    (number,) = [n for n, line in enumerate(LINES.splitlines(), 1) if text in line]
    return f"(acme_tools/lowering.py:{number})"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a codegen as a package; return the folder."""
    register(tmp_path, "acme", "1.0", {"byoc.codegens": {"acme": "acme_tools.lowering:Acme"}})
    (tmp_path / "acme_tools").mkdir()
    (tmp_path / "acme_tools" / "lowering.py").write_text(LINES)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("acme_tools")]:
        del sys.modules[name]


@pytest.mark.parametrize("isolation", [None, Isolation()])
def test_failures_name_the_vendors_file_and_line(
    isolation: Isolation | None, acme: Path, tmp_path: Path
) -> None:
    onnx.save(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "acme_0", "acme")
    with closing(Codegens(isolation)) as codegens:
        codegen: Any = codegens.find("acme")
        for fault, (text, line) in WHERE.items():
            with pytest.raises(CodegenFailedError) as caught:
                compile_region(codegen, region, {"fault": fault})
            assert str(caught.value).startswith(text)
            assert str(caught.value).endswith(_line_of(line))
        run = load_executor(codegen, "acme", region, compile_region(codegen, region, {}))
        with pytest.raises(InputError) as failed:
            run({"x": onnx.numpy_helper.to_array(onnx.helper.make_tensor("x", 1, [4], [0.0] * 4))})
        assert str(failed.value).endswith(_line_of('inputs["x"], (7, 7)'))


def test_the_line_is_in_the_report_and_not_the_folder(acme: Path, tmp_path: Path) -> None:
    result = cut(
        parse(UNLIKE), tmp_path / "b", strict=False, codegen="acme", codegen_options={"fault": "own"}
    )
    reasons = {refusal.reason for refusal in result.report.refusals}
    assert reasons == {f"failed with KeyError: 'scale' {_line_of('return {}[')}"}
    assert str(tmp_path) not in json.dumps(result.report.to_json()["refusals"])


def test_a_package_that_cannot_be_imported_names_its_line(acme: Path) -> None:
    (acme / "acme_tools" / "lowering.py").write_text("import json\n\njson.loads('')\n")
    with pytest.raises(InputError, match=r"cannot be loaded: JSON.* \(acme_tools/lowering\.py:3\)$"):
        Codegens().find("acme")


def test_frames_of_byoc_and_of_the_standard_library_are_nobodys() -> None:
    assert locate_error(KeyError("never raised")) == ""
    try:
        json.loads("")
    except ValueError as error:
        assert locate_error(error).endswith(f"{Path(__file__).name}:{error.__traceback__.tb_lineno}")  # type: ignore[union-attr]
