"""The wheel holds all it needs: the README's first command, run from an empty directory."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packages import ROOT, install, run

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


def test_what_would_be_published_is_well_formed(published: Path, tmp_path: Path) -> None:
    """Wheel and source, as `python -m build` makes them, in the eyes of two tools of the index."""
    tools = install(tmp_path / "venv", "twine", "check-wheel-contents")

    checked = run(f"twine check --strict {published}/*", tools, tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2
    settings = ROOT / "pyproject.toml"
    contents = run(f"check-wheel-contents --config {settings} {published}/*.whl", tools, tmp_path)
    assert contents.returncode == 0, contents.stdout


def test_versions_are_the_same_everywhere() -> None:
    """The version of the distribution is that of the citation, and of the entry of the changelog."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.escape(project["version"])
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert re.search(rf"^## {version}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_wheel_holds_the_package_alone(published: Path) -> None:
    (wheel,) = published.glob("*.whl")
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]

    assert {name.parts[0].partition("-")[0] for name in names} == {"byoc", "onnx_byoc"}
    code = [name for name in names if name.suffix == ".py"]  # the scaffold's templates are .py.tmpl
    assert not [name for name in code if {"tests", "checkers", "benchmarks", "tools"} & {*name.parts}]
    assert not [name for name in code if name.name.startswith(("test_", "conftest"))]
