"""Another Python for tests: an environment whose numpy and onnx are older than byoc's, and settings."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byoc.support import dump_yaml

PLUG_IN = Path(__file__).parents[1] / "codegen" / "elsewhere"
MODULE = "acme_elsewhere"
OLD_PACKAGES = ("numpy<2", "onnx<1.17", "protobuf<6")  # byoc itself needs onnx 1.21

Configure = Callable[..., None]
"""Writes the user's settings: the interpreter, the class in the plug-in's module, what it does wrong."""


def find_old_interpreter() -> str:
    """Return the oldest Python from 3.8 on that this machine has, at least this one."""
    kept = Path.home() / ".pyenv" / "versions"
    for minor in range(8, sys.version_info.minor):
        name = f"python3.{minor}"
        found = [shutil.which(name), *map(str, sorted(kept.glob(f"3.{minor}.*/bin/{name}")))]
        for path in filter(None, found):
            tried = [path, "-c", "import venv, ensurepip"]
            if subprocess.run(tried, check=False, capture_output=True).returncode == 0:
                return path
    return sys.executable


def _make_environment(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Make an environment with the old packages, and return how the installer ended.

    uv takes a sixth of the time of pip, which is tried where uv fails.
    """
    interpreter, python = find_old_interpreter(), folder / "bin" / "python"
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    installers = (
        [sys.executable, "-m", "uv", "pip", "install", "--python", python],
        [sys.executable, "-m", "pip", "--python", python, "install"],
    )
    for installer in installers:
        done = subprocess.run(
            [*installer, "-q", "--only-binary", ":all:", *OLD_PACKAGES],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
    return done


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the interpreter of an environment with an older numpy and onnx, made once.

    Skips the test where the packages cannot be had.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    environment, failed = shared / "old-python", shared / "old-python-failed"
    python = environment / "bin" / "python"
    with (shared / "old-python-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not environment.exists():
            done = _make_environment(environment)
            if done.returncode:
                failed.write_text(done.stderr)
    if failed.exists():
        pytest.skip(f"no environment with {', '.join(OLD_PACKAGES)}: {failed.read_text()[-200:]}")
    return str(python)


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Give the function that writes settings with one codegen; the user has no others in this test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(
        name: str = "acme-elsewhere",
        kind: str = "Acme",
        python: str = sys.executable,
        does: str = "",
        **more: Any,
    ) -> None:
        environment = {"PYTHONPATH": str(PLUG_IN), "ACME_DOES": does}
        entry = {"python": python, "module": f"{MODULE}:{kind}", "environment": environment, **more}
        write_settings({"codegens": {name: entry}})

    return write


def write_settings(content: Any) -> Path:
    """Write the user's settings, as text or as what YAML has of it."""
    path = Path(os.environ["XDG_CONFIG_HOME"], "byoc", "settings.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else dump_yaml(content))
    path.chmod(0o644)
    return path
