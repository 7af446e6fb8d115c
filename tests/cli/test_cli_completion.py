"""Completion in bash, zsh and fish: verbs, options, choices, and names of what is installed."""

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
from helpers.support import Ran

from byoc.cli import answer_shell

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from completion_data import FILE, format_data, make_data

Ask = Callable[..., list[str]]
DATA = make_data()
COMMANDS = DATA["commands"]

# Lines in a folder with net.onnx, mine.yaml and "a b.onnx", and what the key Tab makes of them.
LINES = {
    "byoc parti": "byoc partition",
    "byoc rules ch": "byoc rules check",
    "byoc run m.byoc --fallb": "byoc run m.byoc --fallback",
    "byoc run m.byoc --fallback h": "byoc run m.byoc --fallback host",
    "byoc partition net.onnx --rules openvino-c": "byoc partition net.onnx --rules openvino-cpu",
    "byoc partition --rules=mi": "byoc partition --rules=mine.yaml",
    "byoc partition --rules ethos-u55:u55-1": "byoc partition --rules ethos-u55:u55-128",
    "byoc rules check openvino-cpu.y": "byoc rules check openvino-cpu.yaml",
    "byoc partition zoo:squee": "byoc partition zoo:squeezenet",
    "byoc partition ne": "byoc partition net.onnx",
    "byoc partition a": "byoc partition a b.onnx",
    "byoc zoo fetch yun": "byoc zoo fetch yunet",
    "byoc package net.onnx --for pc=openv": "byoc package net.onnx --for pc=openvino-cpu",
    "byoc partition m --variant pc:rules=openv": "byoc partition m --variant pc:rules=openvino-cpu",
    "byoc partition m --strategy launch": "byoc partition m --strategy launch-aware",
    "byoc compare m --strategies exact,tree": "byoc compare m --strategies exact,tree-dp",
    "byoc codegens ethos": "byoc codegens ethos_u",
    "byoc passes drop-id": "byoc passes drop-identity",
    "byoc study plot r.csv --wi": "byoc study plot r.csv --width",
    "byoc verify -- ne": "byoc verify -- net.onnx",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with files in it, and `byoc` among the programs."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("net.onnx", "mine.yaml", "a b.onnx"):
        (folder / name).touch()
    (folder / "mine.yaml").write_text(
        "generations:\n  small:\n    cost_model: a\n  large: {}\ntarget: t\n"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "byoc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m byoc "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    return folder


SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}


class Terminal:
    """A shell at a terminal, to which keys are sent."""

    def __init__(self, shell: str) -> None:
        self.process, self.link = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "dumb"
            os.execvp(shell, SHELLS[shell])

    def send(self, keys: str, wait_for: Path, timeout: float = 120) -> str:
        """Send keys, and return the text of a file that they make."""
        os.write(self.link, keys.encode())
        end = monotonic() + timeout
        while monotonic() < end and not (wait_for.exists() and wait_for.read_text().endswith("\n")):
            if select.select([self.link], [], [], 0.05)[0]:
                os.read(self.link, 65536)
        return wait_for.read_text()

    def close(self) -> None:
        """End the shell."""
        os.close(self.link)
        os.waitpid(self.process, 0)


@pytest.fixture
def terminal(here: Path, shell: str) -> Iterator[Terminal]:
    """A shell that completes the lines of byoc."""
    _ = here
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    opened = Terminal(shell)
    load = "byoc completion fish | source" if shell == "fish" else f'eval "$(byoc completion {shell})"'
    opened.send(f"{load}; echo > ready\n", here / "ready")
    yield opened
    opened.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_lines(here: Path, terminal: Terminal) -> None:
    completed = {}
    for number, line in enumerate(LINES):
        file = here / f"line{number}"
        # Ctrl-A goes to the beginning of the line, Ctrl-E to its end.
        completed[line] = terminal.send(f"{line}\t\x01echo \x05 > {file.name}\n", file).strip()
    assert completed == LINES


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """A function that asks as zsh does, and returns the values of the replies."""

    def find(*words: str) -> list[str]:
        answer_shell("zsh", words)
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]

    return find


def test_the_declarations_are_those_of_the_verbs() -> None:
    assert FILE.read_text(encoding="utf-8") == format_data(DATA), "run tools/completion_data.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_completed(command: str, ask: Ask) -> None:
    words = command.split()
    assert set(ask(*words, "-")) == set(COMMANDS[command]["options"])
    inner = {each for each in COMMANDS if each and each.rpartition(" ")[0] == command}
    assert {each.rpartition(" ")[2] for each in inner} <= set(ask(*words, ""))
    for option, said in COMMANDS[command]["options"].items():
        fixed = [value for value in said.get("values", ()) if value[0] != "@"]
        if "head" not in said:
            assert set(fixed) <= set(ask(*words, option, ""))
            assert {f"{option}={value}" for value in fixed} <= set(ask(*words, f"{option}="))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["partition", "--rules", "mine.yaml:"], ["mine.yaml:small", "mine.yaml:large"]),
        (["partition", "--rules", "no.yaml:"], []),
        (["partition", "./no-such-fi"], []),
        (["partition", "no/such/"], []),
        (["no-such-verb", "x"], []),
        (
            ["partition", "net.onnx", "--rules", "dla", "--verbose", "-"],
            sorted(COMMANDS["partition"]["options"]),
        ),
        (["explain", "net.onnx", ""], []),
        (["diff", "dla", "ethos-u8"], ["ethos-u85"]),
        (["diff", "dla", "dla", ""], []),
        ([], sorted(name for name in COMMANDS if name and " " not in name)),
    ],
)
def test_replies(here: Path, words: list[str], expected: list[str], ask: Ask) -> None:
    assert sorted(ask(*words)) == sorted(expected)


def test_names_that_a_terminal_cannot_show_are_left_out(here: Path, ask: Ask) -> None:
    (here / "n\nb.onnx").touch()
    assert ask("partition", "n") == ["net.onnx"]


def test_no_parser_and_no_model_is_imported_for_an_answer(here: Path) -> None:
    heavy = "{'typer', 'rich', 'onnx', 'numpy', 'pydantic', 'yaml'}"
    code = (
        "import sys, byoc.cli; sys.argv = ['byoc', *sys.argv[1:]]; byoc.cli.main(); "
        f"print('#', sorted({heavy} & set(sys.modules)))"
    )
    for asks, *words in (
        ["fish", "partition", "--rules", "d"],
        ["fish", "passes", "d"],
        ["fish", "partition", "--strategy", "e"],
        ["", "completion", "bash"],
        ["", "completion", "fish"],
    ):
        ran = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "_BYOC_COMPLETE": asks},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.splitlines()[-1] == "# []"
        assert len(ran.stdout.splitlines()) > 1


def test_another_shell_is_named() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "byoc"],
        env={**os.environ, "_BYOC_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "one of bash, zsh, fish, not to 'source_bash'" in ran.stderr


@pytest.mark.parametrize("word", ["bsh", "--format", "bash zsh"])
def test_what_no_shell_asks_for_is_a_usage_error(byoc: Callable[..., Ran], word: str) -> None:
    assert byoc("completion", *word.split()).code == 2


def test_completion_says_what_to_do(byoc: Callable[..., Ran]) -> None:
    assert "byoc completion fish | source" in byoc("completion").out
