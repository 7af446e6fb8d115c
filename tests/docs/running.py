"""The blocks of a page, run in order in one folder: shell, Python, and files that the page shows.

A block of `sh` is run by bash, one of `python` in this process, where names stay from block to block.
One whose first line is `# FILE` is written to that file, and a `diff` changes one. A block without a
language right behind one that was run is what was printed. Comments above a block, which no reader sees,
say what the page leaves open, such as the page of docs/ whose folder it goes on in; the last one is for
what was printed where text stands between:

    <!-- after: tutorial.md -->
    <!-- files: model.onnx samples/ net.onnx=zoo:squeezenet mine.yaml=annotations/dla.yaml -->
    <!-- not run: it needs the SDK of Rockchip -->
    <!-- not run, lines with `qemu`: it needs a cross compiler -->
    <!-- thorough: it takes a minute -->
    <!-- exit codes: 6 5 -->
    <!-- printed -->

The programs `byoc`, `python` and `pytest` are forks of one that has imported byoc. `pip install`
registers packages of the page's folder, and does nothing else: what byoc needs is there.
"""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from helpers.warm_processes import WarmProcesses
from page_files import find_site, install_for_page, make_file
from pages import ROOT, read

_KEYS = "after|files|not run|thorough|exit codes|printed"
_BLOCK = re.compile(
    rf"((?:^<!-- (?:{_KEYS})\b[^>]*-->\n+)*)^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_NOTE = re.compile(rf"<!-- ({_KEYS})(?:, lines with `([^`]+)`)?:?\s*(.*?)\s*-->", re.DOTALL)
_FILE = re.compile(r"# (\S+\.\w+)\n")
# What differs between machines: rounding, what follows from it, and the seconds of pytest.
_VARYING = re.compile(
    r"largest error \S+|\d[\d.]*e[+-]\d+|[\d.]+ dB|(?<= in )[\d.]+s\b( \(\d+:\d\d:\d\d\))?"
)
_RUN_BYOC = "import sys; from byoc.cli import main; sys.argv[0] = 'byoc'; main()"
_CLIENT = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
request = [os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(link, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
answer = link.recv(4096).decode()
code, _, text = answer.partition(" ")
sys.stderr.write(text)
sys.exit(int(code or 1))
"""


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its text, and what the comments above say."""

    line: int
    language: str
    text: str
    is_printed: bool = False
    after: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    skipped: str | None = None
    skipped_lines: Mapping[str, str] = field(default_factory=dict)
    thorough: bool = False
    thorough_lines: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def file(self) -> str | None:
        """The file that the block shows; None where it is no file."""
        found = _FILE.match(self.text)
        return None if self.language in {"", "sh"} or found is None else found[1]

    def list_commands(self, thorough: bool) -> str:
        """Return the text without the lines that are not run."""
        lines = re.findall(r"(?:.*\\\n)*.*\n", self.text)
        left_out = (*self.skipped_lines, *(() if thorough else self.thorough_lines))
        return "".join(line for line in lines if not any(words in line for words in left_out))


def find_blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page.

    Raises AssertionError for a comment that says too little, or stands above no block.
    """
    before, behind = "", 0
    lost = set(_NOTE.findall(text)) - {
        note for found in _BLOCK.finditer(text) for note in _NOTE.findall(found[1])
    }
    assert not lost, f"not right above a block: {lost}"
    for found in _BLOCK.finditer(text):
        notes, language, content = found.groups()
        line = text.count("\n", 0, found.start(3)) + 1
        adjacent = before in {"sh", "python"} and not text[behind : found.start()].strip()
        said: dict[str, Any] = {"skipped_lines": {}, "is_printed": adjacent and not language}
        before, behind = language, found.end()
        for key, words, value in _NOTE.findall(notes):
            assert value or key == "printed", (
                f"line {line}: `{key}` says nothing: give the reason or names"
            )
            assert words in content, f"line {line}: no line has {words!r}"
            if key == "not run" and words:
                said["skipped_lines"][words] = value
            elif key == "thorough" and words:
                said["thorough_lines"] = (*said.get("thorough_lines", ()), words)
            elif key == "not run":
                said["skipped"] = value
            elif key == "printed":
                said["is_printed"] = True
            elif key == "thorough":
                said["thorough"] = True
            elif key in {"after", "files"}:
                said[key] = (*said.get(key, ()), *value.split())
            else:
                said["codes"] = tuple(map(int, value.split()))
        yield Block(line, language, content, **said)


_WAITING = re.compile(r"^byoc: waiting for .*\n", re.MULTILINE)
"""What byoc says of a call that takes long, which depends on what else the machine does."""


def fits(shown: str, printed: str) -> bool:
    """Whether a text is what a page shows: `...` stands for any text, alone in a line for any lines."""
    pattern = ""
    for line in _VARYING.sub("~", shown).strip("\n").splitlines():
        words = re.escape(line.rstrip()).replace(re.escape("..."), ".*")
        pattern += r"(?:.*\n)*" if line.strip() == "..." else words + "\n"
    lines = _VARYING.sub("~", _WAITING.sub("", printed)).strip("\n").splitlines()
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in lines)) is not None


class Programs:
    """`byoc`, `python`, `pytest` and `pip` for scripts: a folder for the path, and who answers them."""

    def __init__(self, folder: Path, processes: WarmProcesses) -> None:
        """Write the programs into a folder, and answer them until `close`."""
        self.folder = folder
        self._processes = processes
        self._link = socket.socket(socket.AF_UNIX)
        folder.mkdir()
        address = folder / "link"
        self._link.bind(str(address))
        self._link.listen()
        for name in ("byoc", "python", "pytest", "pip"):
            program = folder / name
            program.write_text(_CLIENT.format(python=sys.executable, address=str(address)))
            program.chmod(0o755)
        Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer no longer."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._link.accept()
            except OSError:
                return
            Thread(target=self._answer, args=[link], daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        content, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 3)
        while not content.endswith(b"\n"):
            content += link.recv(1 << 20)
        program, arguments, folder, environment = json.loads(content)
        try:
            answer = self._run(program, arguments, Path(folder), environment, descriptors)
        except Exception as error:  # the page's, whose test shows it
            answer = f"1 {program}: {error}\n"
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with link, contextlib.suppress(OSError):
            link.send(answer.encode()[:4096])

    def _run(
        self,
        program: str,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        streams: list[int],
    ) -> str:
        if program == "pip":
            for word in arguments:
                project = folder / word.partition("[")[0]
                if (project / "pyproject.toml").exists() and not project.is_relative_to(ROOT):
                    install_for_page(project, Path(environment["PAGE"]))
            return "0"
        words = {
            "byoc": ["-c", _RUN_BYOC, *arguments],
            "python": arguments,
            "pytest": ["-m", "pytest", "-p", "no:cacheprovider", *arguments],
        }[program]
        process = self._processes.Popen(
            [sys.executable, *words],
            env=environment,
            cwd=folder,
            **dict(zip(("stdin", "stdout", "stderr"), streams, strict=True)),
        )
        return str(process.wait(timeout=1200))


@dataclass
class PageRun:
    """A page that is run block by block in a folder; `failures` say what is not as it says."""

    folder: Path
    programs: Programs
    thorough: bool = False
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    failures: list[str] = field(default_factory=list)
    printed: str | None = None
    compared: int = 0

    def run(self, block: Block) -> None:
        """Run the pages that a block goes on from, make its files, and run it unless it says why not."""
        for page in block.after:
            for each in find_blocks(read(ROOT / "docs" / page)):
                self.run(each)
        for name in block.files:
            make_file(name, self.folder)
        if block.skipped is not None or (block.thorough and not self.thorough):
            self.printed = None
        elif block.is_printed and self.printed is not None:
            self.compared += 1
            if not fits(block.text, self.printed):
                self._fail(block, f"the page shows\n{block.text}\nand printed is\n{self.printed}")
        elif block.language == "diff":
            self._change(block)
        elif block.file is not None:
            path = self.folder / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            self.printed = self._run_shell(block)
        elif block.language == "python":
            self.printed = self._run_python(block)

    def _fail(self, block: Block, text: str) -> None:
        self.failures.append(f"line {block.line}: {text}")

    def _change(self, block: Block) -> None:
        name = block.file
        assert name is not None, f"line {block.line}: a change to no file"
        path = self.folder / name
        content = path.read_text(encoding="utf-8")
        for hunk in block.text.split("@@\n")[1:]:
            lines = hunk.splitlines()
            before, after = (
                "".join(f"{line[1:]}\n" for line in lines if line[:1] not in without) for without in "+-"
            )
            if content.count(before) != 1:
                self._fail(block, f"{name} has not one place for:\n{hunk}")
            content = content.replace(before, after)
        path.write_text(content, encoding="utf-8")

    def _run_python(self, block: Block) -> str:
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, "page", "exec")
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            try:
                exec(code, self.namespace)  # noqa: S102 - a page of ours
            except Exception as error:
                self._fail(block, f"{type(error).__name__}: {error}")
        return printed.getvalue()

    def _run_shell(self, block: Block) -> str:
        """Run a block by bash, each line whatever became of that before; return what was printed."""
        commands = block.list_commands(self.thorough)
        paths = [str(find_site(self.folder)), os.environ.get("PYTHONPATH", ""), str(ROOT)]
        environment = os.environ | {
            "PATH": f"{self.programs.folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",  # files change faster than their times
            "HOME": str(self.folder),
            "COLUMNS": "120",
            "PAGE": str(self.folder),
        }
        codes = self.folder.parent / "codes"
        codes.touch()
        script = f"trap 'echo $? >>{codes}' ERR\nset -o errtrace -o pipefail\n{commands}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1200,
        )
        found = tuple(map(int, codes.read_text().split()))
        if done.returncode and not found:  # of `exit`, or of a line that bash cannot read
            found = (done.returncode,)
        codes.unlink()
        if found != block.codes:
            expected = block.codes or "none"
            self._fail(
                block, f"exit codes {found or 'none'}, not {expected}:\n{commands}\n{done.stdout}"
            )
        return done.stdout
