"""The rule file for IREE, held to IREE: `run.py` beside this file, with a sample of its models.

What IREE answered stands in tests/rules_files/test_rules_files_iree.py, which asks nothing.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import byoc

pytestmark = pytest.mark.iree
pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")

RUN = Path(__file__).with_name("run.py")


def ask(store: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", str(RUN), str(store), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_the_rule_file_takes_nothing_that_iree_does_not(tmp_path: Path) -> None:
    ran = ask(tmp_path / "store.jsonl", "--rules", "iree-cpu", "--most", "3")

    assert "false accepts: 0\n" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0


@pytest.mark.thorough
def test_a_file_that_takes_everything_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text("target: any\ncost_model: dla\ndtype: any\nops: [{op: '*'}]\n", encoding="utf-8")

    ran = ask(tmp_path / "store.jsonl", "--rules", str(path), "--most", "1", "--operators", "Relu,Det")

    assert "false accepts: 1\n" in ran.stdout, ran.stdout + ran.stderr
    assert "  Det " in ran.stdout
    assert ran.returncode == 1


def test_squeezenet_runs_by_the_shipped_files(tmp_path: Path) -> None:
    done = byoc.partition(
        "zoo:squeezenet", "iree-cpu", output=tmp_path / "b.byoc", strategy="all-supported"
    )

    assert [region.device for region in done.report.regions] == ["iree-cpu"]
    assert done.report.verification is not None
    assert done.report.verification.passed
