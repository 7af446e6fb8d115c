"""The rule file for TVM, held to TVM: `run.py` beside this file, with a sample of its models."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import sample_cases

pytestmark = pytest.mark.tvm
pytest.importorskip("tvm")

RUN = Path(__file__).with_name("run.py")


def ask(store: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", str(RUN), str(store), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("every", sample_cases([10, 100], 100))
def test_the_rule_file_takes_nothing_that_tvm_does_not(every: int, tmp_path: Path) -> None:
    ran = ask(tmp_path / "store.jsonl", "--every", str(every))

    assert "false accepts: 0 of " in ran.stdout, ran.stdout + ran.stderr


def test_a_file_that_takes_everything_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text("target: any\ncost_model: dla\ndtype: any\nops: [{op: '*'}]\n", encoding="utf-8")

    ran = ask(
        tmp_path / "store.jsonl", "--rules", str(path), "--sources", "tests", "--operators", "Det,Relu"
    )

    assert "false accepts: 2 of 2 " in ran.stdout, ran.stdout + ran.stderr
    assert "test_det_2d (onnx): refuses: " in ran.stdout
    assert ran.returncode == 1
