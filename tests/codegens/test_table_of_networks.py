"""The script that makes the tables of docs/codegens.md, and how it ends a model that takes long."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "codegens_suite" / "run.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_row_tells_what_the_codegen_made_of_a_network(tmp_path: Path) -> None:
    ran = _run("dla", "squeezenet", "--format", "md", "--json", str(tmp_path / "found.json"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| squeezenet | 64 of 65 | 100.0% | 1 |" in ran.stdout
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["error"] < 1e-4
    # The machine of `dla` and the cost model of the same hardware are within a few percent.
    assert abs(found["estimate"] / found["predicted"] - 1) < 0.05
    assert found["compiling"] > 0


def test_a_model_that_takes_too_long_is_ended_and_told() -> None:
    ran = _run("dla", "squeezenet", "--limit", "0.05")
    assert ran.returncode == 1
    assert "not done after 0.05 s" in ran.stdout
    assert "0 of 1 models" in ran.stdout


def test_a_model_of_which_nothing_is_offloaded_has_not_passed() -> None:
    ran = _run("reference", "squeezenet", "--rules", "ethos-u55")  # which takes no floats
    assert ran.returncode == 1
    assert "nothing was offloaded" in ran.stdout
    assert "0 of 1 models" in ran.stdout
