"""`byoc new-codegen`: what it writes, the names that it takes, and nothing half written."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import vendors
from cutting import files
from support import Ran, sample_cases

from byoc.codegen.scaffold import render_package
from byoc.rules import load_rules
from byoc.support import CODEGENS, list_installed

ROOT = Path(__file__).parents[2]
Byoc = Callable[..., Ran]


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
    [("acme", "acme", "Acme"), ("my-npu", "my_npu", "MyNpu"), ("npu_2x-b", "npu_2x_b", "Npu2xB")],
)
def test_a_package_is_written(name: str, module: str, cls: str, byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("new-codegen", name)

    assert (ran.code, ran.err) == (0, "")
    written = files(tmp_path / name)
    assert ran.out.splitlines()[: len(written)] == [f"{name}/{path}" for path in render_package(name)]
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
        len(written["tests/test_conformance.py"].decode().partition(f"class Test{cls}")[2].splitlines())
        == 4
    )


def test_another_folder_can_be_named(byoc: Byoc, tmp_path: Path) -> None:
    assert byoc("new-codegen", "acme", "--into", tmp_path / "here").code == 0

    assert {name: text.decode() for name, text in files(tmp_path / "here").items()} == render_package(
        "acme"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_is_left_alone(there: str, byoc: Byoc, tmp_path: Path) -> None:
    place = tmp_path / "acme"
    if there == "folder":
        place.mkdir()
        (place / "mine").write_text("kept")
    elif there == "file":
        place.write_text("kept")
    else:
        place.symlink_to(tmp_path / "nowhere")
    before = files(tmp_path)

    ran = byoc("new-codegen", "acme")

    assert ran.code == 1
    assert ran.err == "byoc: acme: exists already, and is left as it is (--into DIR names another)\n"
    assert files(tmp_path) == before


def test_where_nothing_can_be_written_nothing_is(byoc: Byoc, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, told in (
        ("no/such/place", "there is no folder 'no/such'"),
        ("file/x", "no folder 'file'"),
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
        *((name, "the name is reserved") for name in ("json", "class", "host", "byoc", "tests")),
        ("reference", "reference: onnx-byoc 0.1.0 brings a codegen of this name; choose another"),
        ("dla", "dla: onnx-byoc 0.1.0 brings a codegen of this name"),
        ("ethos-u55", "ethos-u55: onnx-byoc 0.1.0 brings a rule file of this name; choose another"),
        ("numpy", "numpy: a Python package 'numpy' is installed already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, told: str, byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("new-codegen", name, "--into", "fresh")

    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert told in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_codegen_that_is_installed_is_not_written_again(
    byoc: Byoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, acme=vendors.CompileOnly)

    assert "brings a codegen of this name" in byoc("new-codegen", "acme").err


@pytest.mark.parametrize("name", sample_cases(["acme", "a" * 32], "acme"))
def test_what_is_written_is_clean(
    name: str, byoc: Byoc, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    pytest.importorskip("ruff")
    assert pytestconfig.cache is not None
    types = ("mypy", "--cache-dir", str(pytestconfig.cache.mkdir("mypy")))  # byoc's own, above all
    assert byoc("new-codegen", name).code == 0

    for check in (("ruff", "check"), ("ruff", "format", "--check"), types):
        done = subprocess.run(
            [sys.executable, "-m", *check, "."],
            cwd=tmp_path / name,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
