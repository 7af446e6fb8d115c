"""The documentation names only what there is, and its examples run."""

import doctest
import inspect
import re
import tomllib
from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pages
import pytest
from helpers import vendors

import byoc
from byoc import codegen
from byoc.cli import VERBS, load_verb
from byoc.pipeline import PLANNING, PREPARATION, list_emission

PAGES = pages.list_pages()
NOT_PYTHON = {
    *("byoc.strategies", "byoc.checks", "byoc.operators"),  # groups of entry points
    *("byoc.NAME", "byoc.tests", "byoc.tools"),  # folders beside the package
    *(
        "byoc.composite",
        "byoc.qdq",
        "byoc.layout",
        "byoc.tensor",
        "byoc.float",
        "byoc.cleaned",
        "byoc.form",
    ),  # metadata of nodes
}
NOT_OF_BYOC = {
    "--regenerate",
    "--coverage",
    "--keep",
    "--clock",
    "--compare",
    "--backend",
    "--limit",
    "--first",
    "--sample",
    "--iree",
}  # options of pytest and of scripts
WITHOUT_COMMAND = {
    "study": "run",
    "package": "make",
}  # what a verb does that has commands, and is given none

load_command = cache(load_verb)  # typer builds a command anew each time


def show(path: Path) -> str:
    return str(path.relative_to(pages.ROOT))


@cache
def resolve(name: str) -> None:
    """Import the modules of a dotted name, and take the rest as attributes."""
    found: Any = byoc
    dotted = "byoc"
    for part in name.split(".")[1:]:
        dotted += f".{part}"
        try:
            found = getattr(found, part) if hasattr(found, part) else import_module(dotted)
        except ModuleNotFoundError as error:
            if error.name is not None and not error.name.startswith("byoc"):
                return  # the module is there, and needs a library that is not
            raise AssertionError(f"there is no {dotted}") from error


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_names_of_a_page_exist_and_are_public(page: Path) -> None:
    names = pages.find_names(pages.read(page)) - NOT_PYTHON
    for name in names:
        resolve(name)
    assert [name for name in names if "._" in name] == []


def test_names_in_docstrings_and_comments_exist() -> None:
    missing = []
    for path in pages.list_sources():
        for name in pages.find_names(pages.read(path)) - NOT_PYTHON:
            try:
                resolve(name)
            except AssertionError as error:
                missing.append(f"{show(path)}: {error}")
    assert missing == []


@cache
def list_anchors(page: Path) -> set[str]:
    return pages.find_anchors(pages.read(page))


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_files_and_links_of_a_page_exist(page: Path) -> None:
    text = pages.read(page)
    folders = (pages.ROOT, page.parent)
    missing = [
        name
        for name in pages.find_files(text)
        if not any((folder / name).exists() for folder in folders)
    ]
    for name, anchor in pages.find_links(text):
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in list_anchors(path)):
            missing.append(f"{name}#{anchor}")
    assert missing == []


@cache
def list_python_files() -> set[str]:
    return {path.name for path in pages.ROOT.rglob("*.py")}


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=show)
def test_python_files_that_a_page_names_exist(page: Path) -> None:
    text = pages.read(page)
    here = {Path(name).name for name in re.findall(r"^# (\S+\.py)$", text, re.MULTILINE)}
    assert set(re.findall(r"`([a-z]\w+\.py)`", text)) - here - list_python_files() == set()


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    text = pages.read(page)
    unknown = []
    for words in pages.find_commands(text):
        verb, *rest = words[1:]
        if verb not in VERBS:
            unknown.append(f"byoc {verb}")
            continue
        command = load_command(verb)
        if rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        elif verb in WITHOUT_COMMAND:
            command = command.commands[WITHOUT_COMMAND[verb]]
        options = {option for parameter in command.params for option in _spell(parameter)}
        unknown += [
            f"byoc {verb} {word}"
            for word in rest
            if re.match("--?[a-z]", word) and word.partition("=")[0] not in options
        ]
    assert unknown == []
    assert pages.find_flags(text) - _list_all_options() - NOT_OF_BYOC == set()


def _spell(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


@cache
def _list_all_options() -> set[str]:
    commands = [load_command(verb) for verb in VERBS]
    commands += [each for command in commands for each in getattr(command, "commands", {}).values()]
    return {option for command in commands for each in command.params for option in _spell(each)}


def test_the_table_of_rooms_is_the_layers_that_the_linter_checks() -> None:
    rows = re.findall(
        r"^\| ((?:`byoc\.\w+`(?:, )?)+) \|",
        (pages.ROOT / "docs/architecture.md").read_text("utf-8"),
        re.MULTILINE,
    )
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text("utf-8"))
    (layers,) = [
        each["layers"]
        for each in project["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    ]
    assert [row.replace("`", "").replace(", ", " | ") for row in rows] == layers


def test_the_picture_of_the_pipeline_has_its_stages_in_order() -> None:
    picture = next(pages.find_blocks(pages.read(pages.ROOT / "docs/architecture.md")))[1]
    stages = [type(stage).__name__ for stage in (*PREPARATION, *PLANNING, *list_emission())]
    assert [word for word in re.findall(r"\w+", picture) if word in stages] == stages


def test_the_examples_in_docstrings_run() -> None:
    for path in (pages.ROOT / "byoc").rglob("*.py"):
        if ">>> " in path.read_text("utf-8"):
            module = ".".join(path.relative_to(pages.ROOT).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            assert doctest.testmod(import_module(module)).failed == 0


def read_table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table behind a heading, without its head: texts of cells."""
    text = pages.read(pages.ROOT / "docs" / page).partition(f"# {heading}\n")[2]
    table = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split(" |")] for row in table[1].splitlines()]


def describe_all_abilities(version: int, monkeypatch: pytest.MonkeyPatch) -> Collection[str]:
    """Return the abilities of a codegen that has the methods of all, in a version of the interface."""
    members: dict[str, Any] = {
        each: ()
        for kind in codegen.ABILITIES.values()
        for each in (*vars(kind), *getattr(kind, "__annotations__", {}))
        if not each.startswith("_")
    }
    vendors.forbid_processes(monkeypatch)
    vendors.install(
        monkeypatch, every=type("Every", (vendors.Tables,), {**members, "name": "every", "api": version})
    )
    described = codegen.describe_codegens(["every"])["every"]
    assert isinstance(described, codegen.CodegenDescription), described
    return described.abilities


def test_the_table_of_abilities_is_what_the_interface_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names, the methods with their parameters, and the version that they came with."""
    found = {
        row[0]: (row[1].partition("(")[0].strip("`"), row[1], row[2])
        for row in read_table("codegen.md", "What else a codegen can do")
    }
    assert found.keys() == codegen.ABILITIES.keys()
    versions = {
        version: describe_all_abilities(version, monkeypatch)
        for version in range(1, codegen.API_VERSION + 1)
    }
    for name, kind in codegen.ABILITIES.items():
        method, shown, version = found[name]
        first = min(number for number, abilities in versions.items() if name in abilities)
        assert version == str(first), name
        if name == "recovery":
            assert method == "recovery_options`, an attribute"
            continue
        parameters = list(inspect.signature(getattr(kind, method)).parameters)[1:]
        assert shown.startswith(f"`{method}({', '.join(parameters)}) -> "), name


def test_the_table_of_exit_codes_is_complete() -> None:
    rows = [int(row[0]) for row in read_table("commands.md", "Output and exit codes")]
    assert rows == list(range(7))


def test_the_page_of_commands_has_every_verb_and_its_function() -> None:
    text = pages.read(pages.ROOT / "docs" / "commands.md")
    shown = {words[1] for words in pages.find_commands(text)}
    assert shown | {"place"} == set(VERBS)  # which docs/problems.md is about
    for verb, functions in read_table("commands.md", "The same in Python"):
        assert set(re.findall(r"`([\w-]+)[^`]*`", verb)) <= set(VERBS)
        assert all(hasattr(byoc, name) for name in re.findall(r"`byoc\.(\w+)`", functions))


def test_the_table_of_class_attributes_is_what_is_read_of_a_codegen() -> None:
    rows = {row[0].strip("`") for row in read_table("codegen.md", "The class")}
    documented = set(re.findall(r"`(\w+)`", codegen.Codegen.__doc__ or ""))
    flags = {"open_shapes", "recompiles", "native", "calibrates", "model_driver", "refers_to_weights"}
    read = flags | {"Options", "concurrent", "parallel", "cached", "libraries", "recovery_options"}
    assert rows == read
    assert read - {"open_shapes", "recovery_options"} <= documented


def test_each_page_says_its_kind_and_stands_under_it() -> None:
    """A tutorial, a how-to guide, a reference or an explanation: the nav of the site has four parts."""
    nav = (pages.ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    kinds = {"Tutorials": "Tutorial", "How-to guides": "How-to"}
    found = {}
    for part in re.split(r"^  - ", nav, flags=re.MULTILINE)[1:]:
        title, _, rows = part.partition(":\n")
        found |= {
            name: kinds.get(title, title) for name in re.findall(r": (\w+)\.md$", rows, re.MULTILINE)
        }
    stated = {
        path.stem: re.findall(r"^# .*\n\n\*([\w-]+)\.\*", path.read_text("utf-8"))
        for path in (pages.ROOT / "docs").glob("*.md")
    }
    assert stated == {name: [kind] for name, kind in found.items()}


def test_no_page_is_longer_than_a_reader_takes_in() -> None:
    """4,000 words at most; `docs/json.md` is a list that a tool writes."""
    words = {
        page.name: len(page.read_text("utf-8").split()) for page in (pages.ROOT / "docs").glob("*.md")
    }
    assert {name for name, count in words.items() if count > 4000} - {"json.md"} == set()


def test_the_table_of_environment_variables_is_complete() -> None:
    """Each variable whose name stands in the code, quoted or behind a dollar sign, has a row."""
    folders = ("byoc", "codegens", "tests", "benchmarks", "tools", "examples", ".ci")
    named = re.compile(r"""["'](_?BYOC_[A-Z_]+)["'=]|\$\{?(_?BYOC_[A-Z_]+)""")
    used = {
        name
        for folder in folders
        for path in (pages.ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sh", ".c"} or path.name == "run"
        for pair in named.findall(path.read_text("utf-8"))
        for name in pair
        if name
    }
    rows = read_table("commands.md", "Environment variables")
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[0])} == used
