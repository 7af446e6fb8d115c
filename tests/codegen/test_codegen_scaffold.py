"""`byoc new-codegen`: what it writes, the names that it takes, and nothing half written."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import yaml
from helpers import vendors
from helpers.cutting import files
from helpers.support import Ran, sample_cases

from byoc.codegen.scaffold import Style, render_package
from byoc.rules import load_rules
from byoc.support import CODEGENS, list_installed

ROOT = Path(__file__).parents[2]
Byoc = Callable[..., Ran]
STYLES = get_args(Style)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    if "acme" in list_installed(CODEGENS):
        pytest.skip("the example is installed")
    return tmp_path


def test_the_example_is_what_is_written(request: pytest.FixtureRequest) -> None:
    example = ROOT / "examples" / "acme"
    if request.config.getoption("--regenerate"):
        for path, content in render_package("acme").items():
            (example / path).parent.mkdir(parents=True, exist_ok=True)
            (example / path).write_text(content, encoding="utf-8")
    there = {
        name: content.decode()
        for name, content in files(example).items()
        if not re.search(r"__pycache__|_cache/|egg-info", name)
    }
    assert there == render_package("acme")


@pytest.mark.parametrize(
    ("name", "module", "cls"),
    [
        ("acme", "byoc_acme", "Acme"),
        ("my-npu", "byoc_my_npu", "MyNpu"),
        ("npu_2x-b", "byoc_npu_2x_b", "Npu2xB"),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_a_package_is_written(  # noqa: PLR0917 - what is asked for, and where
    style: Style, name: str, module: str, cls: str, byoc: Byoc, tmp_path: Path
) -> None:
    ran = byoc("new-codegen", name, *(["--style", style] if style != "emitter" else []))

    assert (ran.code, ran.err) == (0, "")
    written = files(tmp_path / name)
    assert ran.out.splitlines()[: len(written)] == [
        f"{name}/{path}" for path in render_package(name, style)
    ]
    assert f"pip install -e './{name}[test]'" in ran.out
    assert not re.search(rb"\{\{\w", b"".join(written.values()))
    project = tomllib.loads(written["pyproject.toml"].decode())["project"]
    assert project["name"] == f"byoc-{name}"
    assert project["entry-points"] == {
        "byoc.codegens": {name: f"{module}:{cls}"},
        "byoc.annotations": {name: f"{module}.annotations"},
        "byoc.cost_models": {name: f"{module}.cost_models"},
    }
    for path, content in written.items():
        if path.endswith(".py"):
            ast.parse(content, path)
    assert load_rules(str(tmp_path / name / module / "annotations" / f"{name}.yaml")).name == name
    assert (
        f'class Test{cls}(CodegenConformance):\n    codegen = "{name}"\n'
        in written["tests/test_conformance.py"].decode()
    )


def test_what_lives_in_another_python_is_named_in_the_settings(byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("new-codegen", "my-npu", "--style", "library", "--other-python")

    assert (ran.code, ran.err) == (0, "")
    assert "put ./my-npu/settings.yaml into your settings, with the path of its Python" in ran.out
    written = {path: text.decode() for path, text in files(tmp_path / "my-npu").items()}
    settings = yaml.safe_load(written["settings.yaml"])
    assert settings["codegens"]["my-npu"]["environment"] == {"PYTHONPATH": str(tmp_path / "my-npu")}
    rendered = render_package("my-npu", "library", other_python=True)
    assert written.keys() == rendered.keys()
    assert {path for path in written if written[path] != rendered[path]} == {"settings.yaml"}
    assert "byoc.codegens" not in written["pyproject.toml"]
    assert "from byoc_worker import" in written["byoc_my_npu/__init__.py"]
    assert settings["codegens"]["my-npu"]["module"] == "byoc_my_npu:MyNpu"
    _run_check(tmp_path / "my-npu", "ruff", "check")
    _run_check(tmp_path / "my-npu", "ruff", "format", "--check")


@pytest.mark.parametrize("style", ["emitter", "tool"])
def test_only_a_library_lives_in_another_python(style: str, byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("new-codegen", "acme", "--style", style, "--other-python")

    said = f"byoc: --other-python: it is for --style library, and not for {style}\n"
    assert (ran.code, ran.err, list(tmp_path.iterdir())) == (1, said, [])


@pytest.mark.parametrize("other_python", [False, True])
def test_a_library_is_called_in_few_lines(other_python: bool, request: pytest.FixtureRequest) -> None:
    package = render_package("acme", "library", other_python)
    assert sum(text.count("\n") for text in package.values()) <= 105
    golden = ROOT / "tests" / "golden" / f"scaffold_library{'_other_python' * other_python}.txt"
    text = "".join(f"==> {path} <==\n{content}" for path, content in package.items())
    if request.config.getoption("--regenerate"):
        golden.write_text(text, encoding="utf-8")
    assert golden.read_text(encoding="utf-8") == text


def test_another_folder_can_be_named(byoc: Byoc, tmp_path: Path) -> None:
    assert byoc("new-codegen", "acme", "--into", tmp_path / "here").code == 0

    assert {name: text.decode() for name, text in files(tmp_path / "here").items()} == render_package(
        "acme"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


def test_a_repository_that_is_there_is_written_into(byoc: Byoc, tmp_path: Path) -> None:
    place = tmp_path / "acme"
    (place / "tests").mkdir(parents=True)
    for mine in ("mine", "tests/test_mine.py"):
        (place / mine).write_text("kept")

    assert byoc("new-codegen", "acme").code == 0

    written = {name: text.decode() for name, text in files(place).items()}
    kept = {"mine": "kept", "tests/test_mine.py": "kept"}
    assert written == {**render_package("acme"), **kept}


def test_nothing_is_overwritten(byoc: Byoc, tmp_path: Path) -> None:
    place = tmp_path / "acme"
    (place / "byoc_acme").mkdir(parents=True)
    for mine in ("README.md", "byoc_acme/program.py"):
        (place / mine).write_text("kept")
    before = files(tmp_path)

    ran = byoc("new-codegen", "acme")

    assert (ran.code, ran.err) == (
        1,
        "byoc: acme: has README.md, byoc_acme/program.py already, and nothing is written "
        "(--into DIR names another folder)\n",
    )
    assert files(tmp_path) == before


def test_where_a_file_cannot_be_moved_none_stays(
    byoc: Byoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "mine").write_text("kept")
    kept, count = Path.hardlink_to, iter(range(99))

    def full(path: Path, target: Path) -> None:
        if next(count) == 4:
            raise OSError(28, "No space left on device")
        kept(path, target)

    monkeypatch.setattr(Path, "hardlink_to", full)

    ran = byoc("new-codegen", "acme")

    assert (ran.code, ran.err) == (1, "byoc: acme: cannot be written: No space left on device\n")
    assert files(tmp_path) == {"acme/mine": b"kept"}
    assert [path.name for path in (tmp_path / "acme").iterdir()] == ["mine"]


@pytest.mark.parametrize("there", ["file", "link"])
def test_what_is_no_folder_is_left_alone(there: str, byoc: Byoc, tmp_path: Path) -> None:
    place = tmp_path / "acme"
    if there == "file":
        place.write_text("kept")
    else:
        place.symlink_to(tmp_path / "nowhere")
    before = files(tmp_path)

    ran = byoc("new-codegen", "acme")

    assert ran.code == 1
    assert ran.err == "byoc: acme: is no folder, and is left as it is (--into DIR names another)\n"
    assert files(tmp_path) == before


def test_where_nothing_can_be_written_nothing_is(byoc: Byoc, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, told in (
        ("no/such/place", "there is no folder 'no/such'"),
        ("file/x", "cannot be written: 'file' is a file, no folder"),
    ):
        ran = byoc("new-codegen", "acme", "--into", place)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert told in ran.err
    assert list(files(tmp_path)) == ["file"]


def test_a_write_that_fails_leaves_nothing(
    byoc: Byoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Path.write_text
    count = iter(range(99))

    def full(path: Path, *given: object, **named: object) -> int:
        if next(count) == 3:
            raise OSError(28, "No space left on device")
        return kept(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)

    ran = byoc("new-codegen", "acme")

    assert (ran.code, ran.err) == (1, "byoc: acme: cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *(
            (name, "the name of a codegen is made of")
            for name in ("Acme", "1a", "a--b", "a-", "ä", "a b")
        ),
        *((name, "the name is reserved: Windows has a device") for name in ("con", "com1", "nul")),
        *((name, "the name of a codegen is made of") for name in ("../x", "", "a" * 33, "a.b")),
        *((name, "the name is reserved") for name in ("none", "host", "byoc", "tests")),
        ("reference", "reference: onnx-byoc 0.1.0 brings a codegen of this name; choose another"),
        ("dla", "dla: onnx-byoc 0.1.0 brings a codegen of this name"),
        ("ethos-u55", "ethos-u55: onnx-byoc 0.1.0 brings a rule file of this name; choose another"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, told: str, byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("new-codegen", name, "--into", "fresh")

    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert told in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_package_of_a_sdk_is_not_hidden(byoc: Byoc, tmp_path: Path) -> None:
    assert byoc("new-codegen", "numpy").code == 0
    assert (tmp_path / "numpy" / "byoc_numpy" / "__init__.py").is_file()
    assert not (tmp_path / "numpy" / "numpy").exists()


def test_a_package_of_the_name_is_refused(
    byoc: Byoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "byoc_acme").mkdir(parents=True)
    (tmp_path / "site" / "byoc_acme" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")

    ran = byoc("new-codegen", "acme")

    assert (ran.code, ran.err) == (
        1,
        "byoc: acme: a Python package 'byoc_acme' is installed already\n",
    )


def test_a_codegen_that_is_installed_is_not_written_again(
    byoc: Byoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, acme=vendors.CompileOnly)

    assert "brings a codegen of this name" in byoc("new-codegen", "acme").err


def _run_check(folder: Path, *check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *check, "."], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", sample_cases(["acme", "a" * 32], "acme"))
def test_what_is_written_is_clean(name: str, style: Style, byoc: Byoc, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    assert byoc("new-codegen", name, "--style", style).code == 0

    _run_check(tmp_path / name, "ruff", "check")
    _run_check(tmp_path / name, "ruff", "format", "--check")


@pytest.mark.thorough
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["acme", "a" * 32])
def test_what_is_written_has_strict_types(
    name: str, style: Style, byoc: Byoc, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """`.ci/run` has them checked in examples/acme, which is what is written for one style."""
    assert pytestconfig.cache is not None
    cache = str(pytestconfig.cache.mkdir("mypy"))  # byoc's own, above all
    assert byoc("new-codegen", name, "--style", style).code == 0

    _run_check(tmp_path / name, "mypy", "--cache-dir", cache)
