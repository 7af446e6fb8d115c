"""The documentation names only what there is, and its examples run."""

import doctest
import inspect
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pages
import pytest
from installing import register
from onnx.parser import parse_model
from support import Ran

import byoc
from byoc import codegen
from byoc.cli._main import _VERBS, load_verb
from byoc.codegen._abilities import is_in_version
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
NOT_RUN = {
    "acme_compiler(": "a compiler of the reader's",
    "acme_runtime(": "a runtime of the reader's",
    "onnxruntime_qnn": "needs QNN",
    'zoo.load("yunet")': "fetches a model",
    'codegen="acme"': "needs a codegen that is wrong: tests/verification runs it",
    "*/program.bin": "prints a part of a listing",
    "byoc_worker": "runs in another Python: tests/codegen follows that section",
}


def show(path: Path) -> str:
    return str(path.relative_to(pages.ROOT))


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
        if not path.exists() or (anchor and anchor not in pages.find_anchors(pages.read(path))):
            missing.append(f"{name}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=show)
def test_python_files_that_a_page_names_exist(page: Path) -> None:
    text = pages.read(page)
    here = {Path(name).name for name in re.findall(r"^# (\S+\.py)$", text, re.MULTILINE)}
    here |= {path.name for path in pages.ROOT.rglob("*.py")}
    assert set(re.findall(r"`([a-z]\w+\.py)`", text)) - here == set()


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    text = pages.read(page)
    unknown = []
    for words in pages.find_commands(text):
        verb, *rest = words[1:]
        if verb not in _VERBS:
            unknown.append(f"byoc {verb}")
            continue
        command = load_verb(verb)
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


def _list_all_options() -> set[str]:
    commands = [load_verb(verb) for verb in _VERBS]
    commands += [each for command in commands for each in getattr(command, "commands", {}).values()]
    return {option for command in commands for each in command.params for option in _spell(each)}


def list_snippets() -> list[Any]:
    """Return the Python blocks of all pages but the tutorial, which has a test of its own."""
    return [
        pytest.param(page, code, printed, id=f"{show(page)}-{number}")
        for page in PAGES
        if page.name != "tutorial.md"
        for number, (code, printed) in enumerate(pages.find_snippets(pages.read(page)))
        if not any(mark in code for mark in NOT_RUN)
    ]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a model, a rule file and a bundle of it."""
    monkeypatch.chdir(tmp_path)
    model = parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "demo (float[1, 3, 8, 8] image) => (float[1, 3, 8, 8] y) { r = Relu(image) y = Tanh(r) }"
    )
    Path("model.onnx").write_bytes(model.SerializeToString())
    Path("my.yaml").write_text(
        "target: mine\ndtype: any\nops: [{op: Relu}]\ncost_model: dla\n", encoding="utf-8"
    )
    byoc.partition("model.onnx", "dla", output="m.byoc", strategy="all-supported")
    return tmp_path


@pytest.mark.parametrize(("page", "code", "printed"), list_snippets())
@pytest.mark.usefixtures("bundle")
def test_the_snippet_runs_and_prints_what_the_page_says(
    page: Path, code: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = {"image": np.ones((1, 3, 8, 8), np.float32), "__name__": "snippet"}
    capsys.readouterr()
    exec(compile(code, str(page), "exec"), namespace)  # noqa: S102 - a page of ours
    if printed:
        assert capsys.readouterr().out == printed


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


def test_the_table_of_abilities_is_what_the_interface_has() -> None:
    """The names, the methods with their parameters, and the version that they came with."""
    found = {
        row[0]: (row[1].partition("(")[0].strip("`"), row[1], row[2])
        for row in read_table("codegen.md", "What else a codegen can do")
    }
    assert found.keys() == codegen.ABILITIES.keys()
    for name, kind in codegen.ABILITIES.items():
        method, shown, version = found[name]
        first = min(n for n in range(1, codegen.API_VERSION + 1) if is_in_version(name, n))
        assert version == str(first), name
        if name == "recovery":
            assert method == "recovery_options`, an attribute"
            continue
        parameters = list(inspect.signature(getattr(kind, method)).parameters)[1:]
        assert shown.startswith(f"`{method}({', '.join(parameters)}) -> "), name


def test_the_table_of_class_attributes_is_what_is_read_of_a_codegen() -> None:
    rows = {row[0].strip("`") for row in read_table("codegen.md", "The class")}
    documented = set(re.findall(r"`(\w+)`", codegen.Codegen.__doc__ or ""))
    flags = {"open_shapes", "recompiles", "native", "calibrates", "model_driver", "refers_to_weights"}
    read = flags | {"Options", "concurrent", "parallel", "cached", "libraries", "recovery_options"}
    assert rows == read
    assert read - {"open_shapes", "recovery_options"} <= documented


SMALL = """<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 16, 66, 66] x) => (float[1, 32, 64, 64] y) {
    c = Conv(x, w)
    r = Relu(c)
    y = Sigmoid(r)
}"""


def make_small() -> onnx.ModelProto:
    """Return a network of a convolution, which the package takes, and of what it leaves to the host."""
    model = parse_model(SMALL)
    weights = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.fixture
def forget_acme() -> Iterator[Callable[[], None]]:
    """Return what drops the modules of the package that `byoc new-codegen` writes; so does the end."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "byoc_acme"]:
            del sys.modules[name]

    yield forget
    forget()


def test_the_first_bundle_is_made_as_the_page_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    byoc: Callable[..., Ran],
    forget_acme: Callable[[], None],
) -> None:
    """The commands of the first section, where `pip install` is an entry point on the path."""
    text = pages.read(pages.ROOT / "docs" / "codegen.md")
    block = re.search(r"^### Start here\n\n```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    monkeypatch.chdir(tmp_path)
    for line in block[1].splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "pip":
            assert words == ["pip", "install", "-e", "./acme[test]"]
            folder = tmp_path / "acme"
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            register(folder, "byoc_acme", project["version"], project["entry-points"])
            monkeypatch.syspath_prepend(folder)
            continue
        words = [word.replace("zoo:squeezenet", "net.onnx") for word in words]  # which takes minutes
        if words[1] == "partition":
            onnx.save(make_small(), tmp_path / "net.onnx")
        ran = byoc(*words[1:])
        assert ran.code == 0, ran.err
    assert (tmp_path / "report.html").stat().st_size > 1000
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "acme" for event in events)

    program = tmp_path / "acme" / "byoc_acme" / "program.py"
    right = program.read_text()
    assert "relu=True" in right
    program.write_text(right.replace("relu=True", "relu=False"))
    forget_acme()
    ran = byoc("partition", "net.onnx", "--rules", "acme.yaml", "-o", "wrong.byoc")
    assert ran.code == 5
    assert "computed wrong" in ran.out
    assert "2 nodes run on the host" in ran.out
