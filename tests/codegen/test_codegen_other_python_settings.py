"""Settings that name another Python, and what is said where that one cannot run a codegen."""

import json
import select
import socket
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.elsewhere import PLUG_IN, Configure, write_settings
from helpers.installing import register
from helpers.support import Ran, parse

import byoc
from byoc.codegen import Codegens, describe_codegens
from byoc.codegen.byoc_worker.link import send_frame
from byoc.codegen.scaffold import render_package
from byoc.errors import InputError
from byoc.support import CODEGENS

MODEL = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
RULES = PLUG_IN / "acme-elsewhere.yaml"
NAME = "acme-elsewhere"


def _describe_problem(name: str = NAME) -> str:
    found = describe_codegens([name])[name]
    assert isinstance(found, InputError)
    return str(found)


def test_an_interpreter_that_is_none(configure: Configure, tmp_path: Path) -> None:
    settings = tmp_path / "config" / "byoc" / "settings.yaml"
    configure(python="/opt/no/python")
    start = f"{settings}: codegens.{NAME}.python: "
    assert _describe_problem() == f"{start}/opt/no/python: there is no such file"
    text = tmp_path / "text"
    text.write_text("no program")
    configure(python=str(text))
    assert _describe_problem() == f"{start}{text}: cannot be executed"
    text.chmod(0o755)
    configure(python=str(text))
    assert "no process can be started for a codegen: [Errno 8] Exec format error" in _describe_problem()
    configure(python="/bin/true")
    begin = f"codegen {NAME} cannot be loaded (acme_elsewhere:Acme in /bin/true): "
    assert _describe_problem() == f"{begin}its process ended with exit code 0 in import"


def test_one_that_cannot_be_loaded_is_listed_with_its_problem(
    configure: Configure, byoc: Callable[..., Ran]
) -> None:
    configure(module="no_such:Acme")
    done = byoc("codegens", "--format", "json")
    problems = {row["name"]: row["problem"] for row in json.loads(done.out)}
    assert (done.code, problems["dla"]) == (0, "")
    assert problems[NAME].endswith("ModuleNotFoundError: No module named 'no_such'")


def test_an_interpreter_without_numpy(configure: Configure, tmp_path: Path) -> None:
    import venv  # noqa: PLC0415

    venv.create(tmp_path / "bare", with_pip=False)
    configure(python=str(tmp_path / "bare" / "bin" / "python"))
    found = _describe_problem()
    assert found.endswith("bare/bin/python): numpy cannot be imported there: No module named 'numpy'")


def _send_to_ended(link: socket.socket, content: bytes) -> None:
    """Send a frame once the process at the other end has ended."""
    ended = select.poll()
    ended.register(link, select.POLLHUP)
    assert ended.poll(60_000)
    send_frame(link, content)


@pytest.mark.parametrize("ends_first", [False, True])
def test_an_interpreter_that_is_too_old(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    """One that calls itself 3.7: the check comes before anything that it could not read.

    It says so and ends, be it before the request is sent.
    """
    if ends_first:
        monkeypatch.setattr("byoc.codegen._worker.send_frame", _send_to_ended)
    fake = tmp_path / "python3.7"
    code = (
        "import sys; start = sys.argv[2]; sys.argv[1:3] = []; "
        "sys.version_info = (3, 7, 9, 0, 0); exec(start)"
    )
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    fake.chmod(0o755)
    configure(python=str(fake))
    assert _describe_problem().endswith("python3.7): it is Python 3.7, and a codegen needs 3.8 or later")


@pytest.mark.parametrize(
    ("kind", "name", "end"),
    [
        ("NotThere", NAME, "AttributeError: module 'acme_elsewhere' has no attribute 'NotThere'"),
        ("Acme", "other", "TypeError: it calls itself 'acme-elsewhere': rename either"),
        ("NoCodegen", "none", "TypeError: it needs a `name` and a method `compile(region, options)`"),
        (
            "OddOptions",
            "odd-options",
            "TypeError: its option 'table' is a <class 'dict'>, which cannot be given as text",
        ),
    ],
)
def test_a_class_that_is_no_codegen(kind: str, name: str, end: str, configure: Configure) -> None:
    configure(name, kind)
    begin = f"codegen {name} cannot be loaded (acme_elsewhere:{kind} in {sys.executable}): "
    assert _describe_problem(name) == begin + end


def test_a_module_that_is_not_there_or_wrecks_its_import(configure: Configure) -> None:
    configure(module="no_such:Acme")
    assert _describe_problem().endswith("ModuleNotFoundError: No module named 'no_such'")
    configure(does="import segv")
    assert _describe_problem().endswith("): its process was killed by SIGSEGV in import")


def test_a_package_of_new_codegen_moves_to_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the steps of docs/codegen.md: its rules are found, though nothing here can import it."""
    for path, text in render_package("moved", "tool").items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    groups = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["entry-points"]
    register(tmp_path, "byoc-moved", "0.1", {k: v for k, v in groups.items() if k != CODEGENS})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    environment = {"PYTHONPATH": str(tmp_path)}
    entry = {"python": sys.executable, "module": "byoc_moved:Moved", "environment": environment}
    write_settings({"codegens": {"moved": entry}})
    plug_in = tmp_path / "byoc_moved" / "__init__.py"
    for path in (plug_in, tmp_path / "byoc_moved" / "driver.py"):
        text = path.read_text().replace("from byoc.codegen import", "from byoc_worker import")
        path.write_text(text.replace("    split_into_nodes,\n", "").partition("    def check(")[0])

    result = byoc.partition(parse(MODEL), "moved", output=tmp_path / "b", strategy="all-supported")

    assert result.report.nodes.offloaded == 1
    assert result.verification.passed
    assert "byoc_moved" not in sys.modules


def test_a_codegen_that_imports_byoc_there_is_told_what_to_import(
    configure: Configure, tmp_path: Path
) -> None:
    (tmp_path / "mistaken.py").write_text("raise ModuleNotFoundError(\"No module named 'byoc'\")")
    configure(module="mistaken:Acme", environment={"PYTHONPATH": str(tmp_path)})
    assert _describe_problem().endswith("No module named 'byoc'; import from byoc_worker there")


def test_a_version_of_the_interface_that_there_is_not(configure: Configure) -> None:
    configure("future", "FromTheFuture")
    assert "speaks version 5 of the codegen interface and this byoc no newer one than 4" in (
        _describe_problem("future")
    )


MISTAKES = {
    "codegens: {a: {python: python3, module: 'a:A'}}": (
        "codegens.a.python: 'python3' is not an absolute path"
    ),
    "codegens: {a: {python: /p, module: a}}": (
        "codegens.a.module: 'a' does not name a class, as package.module:Class does"
    ),
    "codegens: {a: {python: /p, modul: 'a:A'}}": (
        "codegens.a.modul: no such key (did you mean module?); known: python, module, environment"
    ),
    "codegens: {a: {python: /p, module: 'a:A', environment: {'A=B': c}}}": (
        "codegens.a.environment: 'A=B' cannot be an environment variable"
    ),
    "codegen: {}": "codegen: no such key (did you mean codegens?); known: codegens",
    "codegens: {dla: {python: /p, module: 'a:A'}}": (
        "codegens.dla: a codegen of this name is installed, too: give this one another name, or "
        "take the entry point out of that package and install it again"
    ),
}


@pytest.mark.parametrize("content", MISTAKES)
def test_mistakes_in_the_settings(content: str, configure: Configure) -> None:
    path = write_settings(content)
    with pytest.raises(InputError) as caught:
        Codegens().find("dla")
    assert MISTAKES[content] in str(caught.value).replace("\n", " ")
    assert str(caught.value).startswith(f"{path}: ")


def test_settings_that_others_may_write_are_not_used(configure: Configure) -> None:
    configure()
    path = write_settings("codegens: {}")
    path.chmod(0o666)
    with pytest.raises(InputError, match=r"is not used: others may write it \(its mode is 666\)"):
        Codegens().find("dla")


def test_codegens_of_the_settings_are_listed(configure: Configure, byoc: Callable[..., Ran]) -> None:
    configure()
    rows = {row["name"]: row for row in json.loads(byoc("codegens", "--format", "json").out)}
    assert rows[NAME]["from"] == f"acme_elsewhere:Acme in {sys.executable}"
    assert rows[NAME]["executable"] is True
    shown = byoc("codegens", NAME).out
    version = ".".join(map(str, sys.version_info[:3]))
    assert f"(Python {version}, numpy {np.__version__}), interface version 2" in shown
    assert "abilities: executable, oracle, measured, estimate, stamped, keyed" in shown
    assert byoc("rules", "check", RULES).code == 0
    with pytest.raises(
        InputError, match=r"^acme-elsewhre: no such codegen \(did you mean acme-elsewhere\?\)"
    ):
        Codegens().find("acme-elsewhre")


def test_nothing_but_the_settings_names_an_interpreter(
    configure: Configure, byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    configure(name="unused")
    mark = tmp_path / "mark"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n")
    evil.chmod(0o755)
    text = RULES.read_text()
    for number, change in enumerate(
        (f"python: {evil}\n", f"codegens: {{{NAME}: {{python: {evil}}}}}\n")
    ):
        rules = tmp_path / f"{number}.yaml"
        rules.write_text(text + change)
        done = byoc("rules", "check", rules)
        assert (done.code, "no such key" in done.out + done.err) == (1, True)
    rules.write_text(text.replace("codegen: acme-elsewhere", f"codegen: {evil}"))
    onnx.save(parse(MODEL), tmp_path / "m.onnx")
    done = byoc("partition", tmp_path / "m.onnx", "--rules", rules, "-o", tmp_path / "m.byoc")
    assert (done.code, f"{evil}: no such codegen" in done.err) == (1, True)
    assert not mark.exists()


def test_variables_of_byocs_own_python_do_not_reach_it(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('of byoc')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    configure()
    with closing(Codegens()) as codegens:
        assert codegens.find(NAME).name == NAME
