"""`byoc verify` on the command line: tables, JSON, exit codes, --bisect and what it writes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import vendors
from helpers.support import Ran, parse
from interpreting import bundle_of, interpreter, only, right

pytestmark = pytest.mark.usefixtures("numbered_regions")

TWO = """
two (float[1, 4] x) => (float[1, 4] y) {
  a = Abs(x)  b = Add(a, x)  c = Tanh(b)  d = Neg(c)  y = Relu(d)
}"""
Byoc = Callable[..., Ran]


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose first region is off in its Add, by a thousandth of its range or so."""
    vendors.install(monkeypatch, wrong=interpreter(only("b", lambda v: v + np.float32(2e-3))))
    monkeypatch.chdir(tmp_path)
    return bundle_of(parse(TWO), tmp_path).folder


def test_the_tables(wrong: Path, byoc: Byoc) -> None:
    ran = byoc("verify", wrong)
    assert ran.code == 1
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[0] for row in rows if "float32" in row] == ["y", "x", "b", "c", "y", "npu_0", "npu_1"]
    (own,) = (row for row in rows if row[:1] == ["npu_0"])
    assert own[1] == "b"
    assert own[-1] == "NO"
    (other,) = (row for row in rows if row[:1] == ["npu_1"])
    assert other[-1] == "yes"
    assert ran.err.startswith("byoc: verification failed: ")
    assert "region npu_0 alone: output 'b' differs from its own ONNX on plain onnxruntime" in ran.err
    assert ran.err.count("\n") == 1


def test_what_is_right_leaves_with_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Byoc
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(right))
    ran = byoc("verify", bundle_of(parse(TWO), tmp_path).folder, "--bisect")
    assert (ran.code, ran.err) == (0, "")
    assert "There is no region to narrow: each is within its tolerance" in ran.out
    assert not [*tmp_path.glob("*.faults")]


def test_json(wrong: Path, byoc: Byoc) -> None:
    ran = byoc("verify", wrong, "--format", "json")
    assert ran.code == 1
    told = json.loads(ran.out)
    assert list(told) == [
        *("against", "passed", "largest_relative_error", "outputs", "accuracy"),
        *(
            "samples",
            "judge",
            "reach",
            "notes",
            "tie_breaks",
            "layers_not_compared",
            "cached",
            "boundary",
            "regions",
            "not_compared",
        ),
        "not_here",
    ]
    assert not told["passed"]
    first, second = told["regions"]
    assert (first["name"], first["runs"], first["within"]) == ("npu_0", 1, False)
    assert first["outputs"][0]["absolute"] == pytest.approx(2e-3, rel=1e-3)
    assert second["outputs"][0]["signal_to_noise"] is None, "infinite"
    assert second["outputs"][0]["cosine"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--threshold", "float32=0.1"], 0),
        (["--threshold", "float32=1e-5"], 1),
        (["--threshold", "float16=0.1"], 1),
        (["--snr", "20"], 0),
        (["--snr", "200"], 1),
    ],
)
def test_thresholds(options: list[str], code: int, wrong: Path, byoc: Byoc) -> None:
    assert byoc("verify", wrong, *options).code == code


def test_inputs_from_a_file_and_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Byoc
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("a", lambda v: v + v * (v > 1e8))))
    bundle = bundle_of(parse(TWO), tmp_path).folder
    np.savez(tmp_path / "large.npz", x=np.full((1, 4), 1e9, np.float32))
    np.savez(tmp_path / "other.npz", z=np.zeros(3, np.float32))
    assert byoc("verify", bundle).code == 0
    assert byoc("verify", bundle, "--inputs", tmp_path / "large.npz").code == 1
    one = json.loads(byoc("verify", bundle, "--format", "json").out)
    two = json.loads(byoc("verify", bundle, "--seed", "7", "--format", "json").out)
    assert one["passed"] and two["passed"]
    ran = byoc("verify", bundle, "--inputs", tmp_path / "other.npz")
    assert ran.code == 1
    assert "'z'" in ran.err or "'x'" in ran.err
    assert ran.err.count("\n") == 1


def test_bisect_writes_what_shows_it_again(wrong: Path, tmp_path: Path, byoc: Byoc) -> None:
    ran = byoc("verify", wrong, "--bisect")
    assert ran.code == 1
    assert "npu_0: Add 'b' is the first operation that is off: its output 'b' differs by" in ran.out
    folder = tmp_path / "b.faults" / "npu_0"
    assert f"Written to {Path('b.faults') / 'npu_0'}" in ran.out
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.txt", "actual.npz", "expected.npz", "fault.json", "inputs.npz", "model.onnx"),
    ]
    again = byoc("verify", folder, "--no-isolate")
    assert again.code == 1
    assert "Add 'b' is the first operation that is off" in again.out
    assert again.err.startswith("byoc: verification failed: region npu_0 alone: output 'b' differs ")
    told = json.loads(byoc("verify", folder, "--no-isolate", "--format", "json").out)
    assert (told["fault"]["operations"], told["now"]["within"]) == (["b"], False)


def test_once_the_codegen_is_mended(wrong: Path, monkeypatch: pytest.MonkeyPatch, byoc: Byoc) -> None:
    byoc("verify", wrong, "--bisect", "-o", "f")
    vendors.install(monkeypatch, wrong=interpreter(right))
    ran = byoc("verify", Path("f") / "npu_0", "--no-isolate")
    assert (ran.code, ran.err) == (0, "")


def test_bisect_as_json(wrong: Path, byoc: Byoc) -> None:
    told = json.loads(byoc("verify", wrong, "--bisect", "-o", "f", "--format", "json").out)
    (fault,) = told["faults"]
    assert (fault["region"], fault["op"], fault["operation"]) == ("npu_0", "Add", "b")
    assert Path(fault["folder"], "model.onnx").is_file()


def test_bisect_of_a_codegen_that_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Byoc
) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    ran = byoc("verify", bundle_of(parse(TWO), tmp_path, codegen="compileonly").folder, "--bisect")
    assert ran.code == 1
    assert re.fullmatch(r"byoc: the bundle does not run: codegen compileonly cannot run .*\n", ran.err)
