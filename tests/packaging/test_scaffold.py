"""`byoc new-codegen` in the environment of the wheel: it installs, passes its tests, and cuts."""

import subprocess
from pathlib import Path

import pytest
from packages import ROOT, run

pytestmark = pytest.mark.packaging


@pytest.mark.parametrize(("name", "folder"), [("acme", "acme"), ("my-npu", "npu")])
def test_a_new_codegen_works_at_once(name: str, folder: str, environment: Path, tmp_path: Path) -> None:
    # The example is this very package, and its tests may have installed it.
    subprocess.run([environment / "pip", "uninstall", "-q", "-y", f"byoc-{name}"], check=True)
    into = "" if folder == name else f" --into {folder}"

    written = run(f"byoc new-codegen {name}{into}", environment, tmp_path)
    assert written.returncode == 0, written.stderr
    install, test, cut = (line.strip() for line in written.stdout.splitlines()[-3:])
    assert install == f"pip install -e './{folder}[test]'"
    subprocess.run(
        [environment / "pip", "install", "-q", "-e", f"./{folder}[test]"],
        cwd=tmp_path,
        check=True,
        timeout=600,
    )

    done = run(cut, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f" on {name} in " in done.stdout
    assert "verified, largest error" in done.stdout
    done = run(test, environment, tmp_path)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert run(f"byoc new-codegen {name} --into again", environment, tmp_path).returncode == 1


def test_the_example_is_installed_as_it_is(environment: Path, tmp_path: Path) -> None:
    subprocess.run([environment / "pip", "uninstall", "-q", "-y", "byoc-acme"], check=True)
    subprocess.run(
        [environment / "pip", "install", "-q", ROOT / "examples" / "acme"], check=True, timeout=600
    )

    done = run("byoc partition zoo:squeezenet --rules acme -o squeezenet.byoc", environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "verified, largest error" in done.stdout
    artifacts = sorted(path.name for path in (tmp_path / "squeezenet.byoc" / "artifacts").iterdir())
    assert artifacts[0].startswith("acme_")
    listed = run("byoc codegens && byoc rules", environment, tmp_path).stdout
    assert "byoc-acme 0.1.0" in listed
