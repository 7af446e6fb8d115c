"""A fresh environment with the wheel in it, made once."""

import subprocess
import sys
from pathlib import Path

import pytest
from packages import ROOT


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a fresh environment in which the built wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], check=True, timeout=600
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    bin_folder = folder / "venv" / "bin"
    subprocess.run([bin_folder / "pip", "install", "-q", f"{wheel}[run]"], check=True, timeout=600)
    return bin_folder
