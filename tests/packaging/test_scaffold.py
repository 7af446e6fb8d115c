"""`byoc new-codegen` in the environment of the wheel: it installs, passes its tests, and cuts."""

import subprocess
import sys
from pathlib import Path

import pytest
from packages import ROOT, run

pytestmark = pytest.mark.packaging


def change(environment: Path, *words: str, folder: Path = ROOT) -> None:
    """Install or uninstall packages in an environment, as pip would."""
    command = [sys.executable, "-m", "uv", "pip", words[0], "-q", "--python", environment / "python"]
    subprocess.run([*command, *words[1:]], cwd=folder, check=True, timeout=600)


@pytest.mark.parametrize(
    ("name", "folder", "chosen"),
    [
        ("acme", "acme", ""),
        # The same code by another name: what its name is in.
        ("my-npu", "npu", " -k 'test_artifact or test_refusal or test_fresh_process or test_options'"),
    ],
)
def test_a_new_codegen_works_at_once(
    name: str, folder: str, chosen: str, environment: Path, tmp_path: Path
) -> None:
    # The example is this very package, and its tests may have installed it.
    change(environment, "uninstall", f"byoc-{name}")
    into = "" if folder == name else f" --into {folder}"

    written = run(f"byoc new-codegen {name}{into}", environment, tmp_path)
    assert written.returncode == 0, written.stderr
    install, test, cut = (line.strip() for line in written.stdout.splitlines()[-3:])
    assert install == f"pip install -e './{folder}[test]'"
    change(environment, "install", "-e", f"./{folder}[test]", folder=tmp_path)

    done = run(cut, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f" on {name} in " in done.stdout
    assert "verified, largest error" in done.stdout
    done = run(test + chosen, environment, tmp_path)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert run(f"byoc new-codegen {name} --into again", environment, tmp_path).returncode == 1


def test_the_example_is_installed_as_it_is(environment: Path, tmp_path: Path) -> None:
    change(environment, "uninstall", "byoc-acme")
    change(environment, "install", str(ROOT / "examples" / "acme"))

    done = run("byoc partition zoo:squeezenet --rules acme -o squeezenet.byoc", environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "verified, largest error" in done.stdout
    artifacts = sorted(path.name for path in (tmp_path / "squeezenet.byoc" / "artifacts").iterdir())
    assert artifacts[0].startswith("acme_")
    listed = run("byoc codegens && byoc rules", environment, tmp_path).stdout
    assert "byoc-acme 0.1.0" in listed
