"""The wheel holds all it needs: the README's first command, run from an empty directory."""

import re
import zipfile
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
    assert run("byoc report squeezenet.byoc -o report.html", environment, tmp_path).returncode == 0
    assert "cytoscape" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_users_own_folders_do_not_shadow_ours(environment: Path, tmp_path: Path) -> None:
    for name in ("annotations", "cost_models", "codegens"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")

    done = run("byoc rules && byoc codegens", environment, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "dla" in done.stdout
    assert "reference" in done.stdout


def test_isolated_python_imports_it_with_its_types(environment: Path, tmp_path: Path) -> None:
    imports = "import byoc.codegens.dla, byoc.annotations, byoc.cost_models; print(byoc.__file__)"
    where = run(f"{environment / 'python'} -I -c '{imports}'", environment, tmp_path)

    assert where.returncode == 0, where.stderr
    assert Path(where.stdout.strip()).with_name("py.typed").is_file()
    assert environment.parent in Path(where.stdout.strip()).parents


def test_the_wheel_holds_the_package_alone(environment: Path) -> None:
    (wheel,) = environment.parents[1].glob("*.whl")
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]

    assert {name.parts[0].partition("-")[0] for name in names} == {"byoc", "onnx_byoc"}
    code = [name for name in names if name.suffix == ".py"]  # the scaffold's templates are .py.tmpl
    assert not [name for name in code if {"tests", "checkers", "benchmarks", "tools"} & {*name.parts}]
    assert not [name for name in code if name.name.startswith(("test_", "conftest"))]
