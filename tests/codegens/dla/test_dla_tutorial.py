"""docs/tutorial.md, from top to bottom: its files are written, its commands typed, its outputs compared.

A block whose first line is `# FILE` is that file, or a change to it where it is a diff: hunks begin with
`@@`. A block of shell is typed line by line; the block without a language behind it is what must be
printed. A line `...` there stands for any lines, and errors of rounding are not compared.
"""

import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from byoc.codegens.dla.dla_options import DLAOptions
from installing import install
from support import Ran
from warm_processes import WarmProcesses

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
MACHINE = PAGE.with_name("dla.md")
ROUNDING = re.compile(r"largest error \S+|\d+ passed.*| in [\d.]+s|[\d.]+ dB")


def blocks() -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of the page."""
    yield from re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def write(text: str, folder: Path) -> None:
    path = folder / named(text)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def named(text: str) -> str:
    """Return the file that a block is for."""
    found = re.match(r"# (\S+\.\w+)\n", text)
    assert found is not None, f"a block that is no file:\n{text}"
    return found[1]


def change(text: str, folder: Path) -> None:
    path = folder / named(text)
    content = path.read_text(encoding="utf-8")
    for hunk in text.split("@@\n")[1:]:
        lines = hunk.splitlines()
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines if line[:1] not in without) for without in "+-"
        )
        assert content.count(before) == 1, f"{path.name} has not one place for:\n{hunk}"
        content = content.replace(before, after)
    path.write_text(content, encoding="utf-8")


def type_in(
    command: str,
    byoc: Callable[..., Ran],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    warm_processes: WarmProcesses,
) -> str:
    """Return what a command prints."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "tiny"]:
        del sys.modules[name]  # it was another step's
    program, *arguments = command.split()
    if program == "byoc":
        ran = byoc(*arguments)
        assert ran.code == 0, f"{command}: {ran.err}"
        return ran.out + ran.err
    if program == "python":
        try:
            runpy.run_path(str(folder / arguments[0]))
        except Exception as error:  # the page shows it
            return f"{type(error).__module__}.{type(error).__name__}: {error}\n"
        return capsys.readouterr().out
    if program == "pytest":
        line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        environment = {
            "BYOC_CONFORMANCE": "fast",  # what the nightly run sets otherwise
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = warm_processes.run(line, env=environment)
        assert done.returncode == 0, done.stdout
        return done.stdout
    assert command == "pip install -e ."
    install(folder, folder)
    return ""


def fits(shown: str, printed: str) -> bool:
    """Whether a text is what the page shows."""
    lines = [line.rstrip() for line in ROUNDING.sub("~", shown).splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in lines)
    text = "".join(f"{line.rstrip()}\n" for line in ROUNDING.sub("~", printed).splitlines())
    return re.fullmatch(pattern, text) is not None


def test_the_page_does_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    byoc: Callable[..., Ran],
    warm_processes: WarmProcesses,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change faster than their times
    printed = ""
    compared = 0
    for language, text in blocks():
        if language == "sh":
            printed = "".join(
                type_in(line, byoc, tmp_path, capsys, warm_processes) for line in text.splitlines()
            )
        elif language == "diff":
            change(text, tmp_path)
        elif language:
            write(text, tmp_path)
        else:
            assert fits(text, printed), f"the page shows\n{text}\nand printed is\n{printed}"
            compared += 1
    assert compared > 9


def test_the_machine_s_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MACHINE.read_text(encoding="utf-8")
    listed, compared = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)

    exec(compile(compared[0], str(MACHINE), "exec"), {})  # noqa: S102 - a page of ours
    assert capsys.readouterr().out == compared[1]
    exec(compile(listed[0], str(MACHINE), "exec"), {})  # noqa: S102 - a page of ours
    printed = capsys.readouterr().out
    assert printed.startswith("arena 3928576, scratchpad 524288, weights ")
    assert set(listed[1].splitlines()) <= set(printed.splitlines())


@pytest.mark.parametrize("page", ["dla.md", "codegens.md"])
def test_the_options_are_on_the_pages(page: str) -> None:
    text = (PAGE.parent / page).read_text(encoding="utf-8")

    for option in fields(DLAOptions):
        default = re.search(rf"^\| `{option.name}` \| (\S+) \|", text, re.MULTILINE)
        assert default is not None, option.name
        assert default[1].strip("`") == str(option.default).replace("True", "true").replace(
            "False", "false"
        )
