"""What fuzzing once found stays mended, and a short run of it finds nothing; see docs/testing.md."""

import subprocess
import sys
from pathlib import Path

import pytest
import rule_inputs
from fuzz import CORPUS
from support import sample_cases
from targets import TARGETS

KEPT = sorted(path for kind in TARGETS for path in (CORPUS / kind).glob("*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_was_found(path: Path, tmp_path: Path) -> None:
    target = TARGETS[path.parent.name](tmp_path)
    target.prepare()
    assert target(path.read_bytes())


@pytest.mark.parametrize("seed", range(len(rule_inputs.seeds())))
def test_every_seed_is_a_rule_file(seed: int, tmp_path: Path) -> None:
    target = TARGETS["rules"](tmp_path)
    assert target(rule_inputs.seeds()[seed]) == "applied"


@pytest.mark.parametrize("inputs", sample_cases([100, 2000], 100))
@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_a_short_run(kind: str, inputs: int) -> None:
    command = [sys.executable, str(CORPUS.parent / "fuzz.py"), kind, "--inputs", str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 kinds of findings" in done.stdout
