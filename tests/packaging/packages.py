"""Running commands in the environment of the wheel."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(command: str, environment: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
