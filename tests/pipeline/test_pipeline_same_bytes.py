"""One bundle made under other settings has the same bytes."""

import subprocess
import sys
from pathlib import Path

import onnx
from helpers.cutting import UNLIKE
from helpers.support import VANILLA, parse

SCRIPT = Path(__file__).parents[1] / "fault_suite/same_bytes.py"


def test_nothing_around_a_run_is_in_its_bundle(tmp_path: Path) -> None:
    """A seed of hashes, no UTF-8, another working folder and umask, `python -O`: all at once."""
    onnx.save(parse(UNLIKE), tmp_path / "m.onnx")
    options = ["--rules", VANILLA, "--codegen", "reference", "--only", "0", "20"]
    ran = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "m.onnx", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith(" same files") for line in lines)
