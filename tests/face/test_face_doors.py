"""Doors import a name when it is first asked for, so that a command loads what it uses."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import byoc
from byoc.cli import VERBS

FOLDER = Path(byoc.__file__).parent
DOORS = [
    path
    for path in sorted(FOLDER.rglob("__init__.py"))
    if "open_door(__name__)" in path.read_text("utf-8")
]
_LOADED = """
import sys
sys.argv = ["byoc", *sys.argv[1:]]
import byoc.cli
try:
    byoc.cli.main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(*sys.modules, file=sys.stderr)
"""


def count_modules(*words: str, code: str = _LOADED) -> int:
    """Return how many modules of byoc a command, or `code`, loads, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    return sum(name == "byoc" or name.startswith("byoc.") for name in loaded)


def _name_room(path: Path) -> str:
    return ".".join(("byoc", *path.parent.relative_to(FOLDER).parts))


@pytest.mark.parametrize("path", DOORS, ids=_name_room)
def test_every_name_of_a_door_is_there(path: Path) -> None:
    room = import_module(_name_room(path))

    assert room.__all__
    for name in room.__all__:
        assert getattr(room, name) is not None


@pytest.mark.parametrize("path", DOORS, ids=_name_room)
def test_a_door_does_nothing_but_list_names(path: Path) -> None:
    """What stands beside the imports would be loaded by everybody who opens the door."""
    imports = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ImportFrom)]

    assert {node.module for node in imports} <= {"typing", "byoc._doors", "pathlib", "importlib.util"}


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        AttributeError, match=r"has no attribute 'GraphIndx' \(did you mean GraphIndex\?\)"
    ):
        import_module("byoc.model").GraphIndx  # noqa: B018


def test_checking_rules_loads_no_more_than_it_uses() -> None:
    assert count_modules("rules", "check", "dla.yaml") <= 95


def test_planning_loads_nothing_that_writes_or_verifies() -> None:
    assert count_modules("partition", "zoo:squeezenet", "--rules", "dla.yaml") <= 260


@pytest.mark.parametrize("verb", VERBS)
def test_help_loads_neither_onnx_nor_a_room_that_computes(verb: str) -> None:
    assert count_modules(verb, "--help", code=f"{_LOADED}assert 'onnx' not in sys.modules") <= 50


@pytest.mark.parametrize("name", ["load", "find_fitting"])
def test_what_opens_bundles_loads_nothing_that_plans(name: str) -> None:
    code = f"""
import sys, byoc
byoc.{name}
from byoc.codegen import Codegens
Codegens().find("dla")
rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("byoc.")}}
assert not rooms & {{"costs", "stages", "zoo", "verification", "quantization"}}, rooms
print(*sys.modules, file=sys.stderr)
"""

    assert count_modules(code=code) <= 135


BESIDE = ("benchmarks", "tools", "examples", "tests")


@pytest.mark.parametrize("folder", BESIDE)
def test_what_stands_beside_byoc_imports_what_there_is(folder: str) -> None:
    """Programs that no test runs, too: names move, and a benchmark would fail when it is needed."""
    asked = {
        (node.module, alias.name): path
        for path in (FOLDER.parent / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "byoc"
        for alias in node.names
    }
    assert asked
    missing = [
        f"{path}: {module}.{name}" for (module, name), path in asked.items() if not has(module, name)
    ]
    assert missing == []


def has(module: str, name: str) -> bool:
    """Return whether a module has a name, or would if a library of another project were installed."""
    try:
        return hasattr(import_module(module), name) or bool(import_module(f"{module}.{name}"))
    except ModuleNotFoundError as error:
        return not (error.name or "byoc").startswith("byoc")
