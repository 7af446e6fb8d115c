"""The example's own tests, without installing it: what `byoc new-codegen` writes, as it writes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from byoc.support import CODEGENS, list_installed

EXAMPLE = Path(__file__).parents[2] / "examples" / "acme"


@pytest.mark.skipif("acme" in list_installed(CODEGENS), reason="the example is installed")
def test_the_example_passes_its_own_tests(tmp_path: Path) -> None:
    metadata = tmp_path / "byoc_acme-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: byoc-acme\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[byoc.codegens]\nacme = acme:Acme\n"
        "[byoc.annotations]\nacme = acme.annotations\n"
        "[byoc.cost_models]\nacme = acme.cost_models\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", EXAMPLE],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{tmp_path}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
