"""What would be published, built once, and a fresh environment with it."""

import subprocess
import sys
from pathlib import Path

import pytest
from packages import ROOT, install


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that is built of it."""
    folder = tmp_path_factory.mktemp("published")
    build = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, timeout=600)
    return folder


@pytest.fixture(scope="session")
def environment(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a fresh environment in which the built wheel is installed."""
    (wheel,) = published.glob("*.whl")
    return install(tmp_path_factory.mktemp("wheel") / "venv", f"{wheel}[run]")
