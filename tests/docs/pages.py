"""The pages of the documentation, taken apart: what they name, link to, type in and run."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"(?<![\w./-])byoc(?:\.[A-Za-z_]\w*)+(?![\w/])")
_IMPORT = re.compile(r"^ *(?:>>> )?from (byoc(?:\.\w+)*) import (\([^)]*\)|[^#\n]+)", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def list_pages() -> list[Path]:
    """Return every page of Markdown that is ours."""
    folders = ("docs", "codegens", "examples", "tools")
    return [
        *sorted(ROOT.glob("*.md")),
        *(page for name in folders for page in sorted(ROOT.glob(f"{name}/**/*.md"))),
    ]


def list_sources() -> list[Path]:
    """Return the files whose docstrings or comments speak of byoc: Python and YAML."""
    folders = ("byoc", "codegens", "examples", "benchmarks", "tools", "annotations", "cost_models")
    return [
        path
        for name in folders
        for pattern in ("*.py", "*.yaml")
        for path in sorted((ROOT / name).rglob(pattern))
    ]


def read(path: Path) -> str:
    """Return the text of a page; of a Python file its docstrings, of YAML its comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = (
            ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)
        )
        return "\n".join(each for each in found if each)
    if path.suffix == ".yaml":
        return "\n".join(re.findall(r"#.*", text))
    return text


def find_names(text: str) -> set[str]:
    """Return the dotted names of byoc in a text, those that it imports included."""
    names = set(_NAME.findall(text))
    for module, imported in _IMPORT.findall(text):
        names |= {f"{module}.{each.split(' as ')[0].strip(' ()')}" for each in imported.split(",")}
    return names


def find_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each fenced block."""
    yield from _BLOCK.findall(text)


def find_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every `byoc ...` in blocks of shell, indented lines and inline code."""
    lines = [
        line
        for language, block in find_blocks(text)
        if language in {"sh", ""}
        for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += [line.strip() for line in re.findall(r"^ {4}byoc .*$", text, re.MULTILINE)]
    lines += re.findall(r"`(byoc [^`\n]+)`", re.sub(_BLOCK, "", text))
    for line in lines:
        for part in re.split(r"&&|\|", line):
            if re.match(r"\s*byoc [a-z-]", part):
                yield shlex.split(part, comments=True)


def find_flags(text: str) -> set[str]:
    """Return the options that inline code names alone, such as `--gate`."""
    return set(re.findall(r"`(--[a-z][a-z-]+)[^`]*`", re.sub(_BLOCK, "", text)))


def find_files(text: str) -> set[str]:
    """Return the files and folders of the repository that inline code and commands name."""
    rooms = "byoc|codegens|tests|tools|annotations|cost_models|examples|benchmarks|docs"
    found = re.findall(rf"(?:`|python |pytest )((?:{rooms})/[\w./-]*)", text)
    return {name for name in found if "NAME" not in name}


def find_links(text: str) -> list[tuple[str, str]]:
    """Return path and anchor of every relative link; either may be empty."""
    links = re.findall(r"\]\(([^()\s#]*)#?([^()\s]*)\)", re.sub(_BLOCK, "", text))
    return [link for link in links if "://" not in link[0]]


def find_anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(_BLOCK, "", text), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
