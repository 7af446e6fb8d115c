"""Fresh environments, and running commands in them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(environment: Path, *packages: str) -> Path:
    """Make an environment with packages, and return its bin folder; pip would take longer than uv."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--seed", "--python", sys.executable, environment], check=True)
    target = ["--python", environment]
    subprocess.run([*uv, "pip", "install", "-q", *target, *packages], check=True, timeout=600)
    return environment / "bin"


def run(command: str, environment: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
