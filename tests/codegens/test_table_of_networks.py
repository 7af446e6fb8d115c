"""The script that makes the tables of benchmarks/RESULTS.md, and how it ends a model that takes long."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import Ran

SCRIPT = Path(__file__).parents[1] / "codegens_suite" / "run.py"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the script in this process; each model still has one of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run_script(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert isinstance(left.value.code, int)
        return Ran(left.value.code, *capsys.readouterr())

    return run_script


def test_a_row_tells_what_the_codegen_made_of_a_network(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("dla", "squeezenet", "--format", "md", "--json", str(tmp_path / "found.json"))
    assert ran.code == 0, ran.out + ran.err
    assert "| squeezenet | 64 of 65 | 100.0% | 1 |" in ran.out
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["error"] < 1e-4
    # The machine of `dla` and the cost model of the same hardware are within a few percent.
    assert abs(found["estimate"] / found["predicted"] - 1) < 0.05
    assert found["compiling"] > 0


def test_a_model_that_takes_too_long_is_ended_and_told(run: Callable[..., Ran]) -> None:
    ran = run("dla", "squeezenet", "--limit", "0.05")
    assert ran.code == 1
    assert "not done after 0.05 s" in ran.out
    assert "0 of 1 models" in ran.out


def test_a_model_of_which_nothing_is_offloaded_has_not_passed(run: Callable[..., Ran]) -> None:
    ran = run("reference", "squeezenet", "--rules", "ethos-u55")  # which takes no floats
    assert ran.code == 1
    assert "nothing was offloaded" in ran.out
    assert "0 of 1 models" in ran.out
