"""The example package does what its README says, in the environment of the wheel."""

import subprocess
from pathlib import Path

import pytest
from packages import ROOT, run

pytestmark = pytest.mark.packaging


def test_example_codegen(environment: Path, tmp_path: Path) -> None:
    subprocess.run(
        [environment / "pip", "install", "-q", ROOT / "examples" / "acme"], check=True, timeout=600
    )

    done = run("byoc partition zoo:squeezenet --rules acme -o squeezenet.byoc", environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "verified, largest error" in done.stdout
    artifacts = sorted(path.name for path in (tmp_path / "squeezenet.byoc" / "artifacts").iterdir())
    assert artifacts[0] == "acme_0"
    listed = run("byoc codegens && byoc rules", environment, tmp_path).stdout
    assert "byoc-acme 0.1.0" in listed
