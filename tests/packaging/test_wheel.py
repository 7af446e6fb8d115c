"""The wheel holds all it needs: the README's first command, run from an empty directory."""

import re
from pathlib import Path

import pytest
from packages import ROOT, run

pytestmark = pytest.mark.packaging


def readme_commands() -> list[str]:
    """Return the two commands of the README's first block of shell."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block
    return block.group(1).strip().splitlines()


def test_first_command_of_the_readme(environment: Path, tmp_path: Path) -> None:
    install, _, command = readme_commands()[0].partition(" && ")
    assert install == "pip install '.[run]'"

    done = run(command, environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "verified, largest error" in done.stdout
    assert (tmp_path / "squeezenet.byoc" / "manifest.json").is_file()
    assert run("byoc verify squeezenet.byoc", environment, tmp_path).returncode == 0


def test_a_users_own_folders_do_not_shadow_ours(environment: Path, tmp_path: Path) -> None:
    for name in ("annotations", "cost_models", "codegens"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")

    done = run("byoc rules && byoc codegens", environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "dla" in done.stdout
    assert "reference" in done.stdout


def test_types_are_there_for_users(environment: Path, tmp_path: Path) -> None:
    python = environment / "python"
    where = run(f"{python} -c 'import byoc; print(byoc.__file__)'", environment, tmp_path)

    assert Path(where.stdout.strip()).with_name("py.typed").is_file()
