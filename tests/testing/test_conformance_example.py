"""The tests of the packages that `byoc new-codegen` writes, without installing them."""

import os
import sys
from pathlib import Path

import pytest
from helpers.elsewhere import write_settings
from helpers.installing import install
from helpers.warm_processes import WarmProcesses

from byoc.codegen.scaffold import Style, new_codegen
from byoc.support import CODEGENS, list_installed


@pytest.mark.skipif("acme" in list_installed(CODEGENS), reason="the example is installed")
@pytest.mark.parametrize(
    ("style", "chosen"),
    [
        ("emitter", ""),
        # Its compiler is a program, which is started for each case: what is said of that in a few.
        ("tool", "test_artifact or test_refusal or test_fresh_process or test_options"),
        pytest.param("tool", "", marks=pytest.mark.thorough),
        ("library", ""),
    ],
)
def test_a_new_package_passes_its_own_tests(
    style: Style, chosen: str, tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    package = tmp_path / "acme"
    new_codegen("acme", package, style=style)
    install(package, tmp_path)
    _run_tests(package, chosen, tmp_path, warm_processes)


@pytest.mark.skipif("acme" in list_installed(CODEGENS), reason="the example is installed")
def test_a_new_package_for_another_python_passes_its_own_tests(
    old_python: str, tmp_path: Path, warm_processes: WarmProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme"
    new_codegen("acme", package, style="library", other_python=True)
    install(package, tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = (package / "settings.yaml").read_text()
    settings = settings.replace("/opt/acme/venv/bin/python", old_python)
    write_settings(settings)
    _run_tests(package, "", tmp_path, warm_processes)


def _run_tests(package: Path, chosen: str, tmp_path: Path, warm_processes: WarmProcesses) -> None:
    done = warm_processes.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            "-k",
            chosen,
            package,
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{package}{os.pathsep}{tmp_path}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "BYOC_CONFORMANCE": "fast",
        },
        timeout=600,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
