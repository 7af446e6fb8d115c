"""A complete package for a new codegen, written from the templates beside this module.

A template is a file of the new package, with `.tmpl` added to its name; those of `common` are in every
package, those of `other_python` in packages whose codegen lives in another interpreter, the others in
packages of one style. In paths and contents `{{name}}` stands for the codegen's name, `{{module}}` for
the Python package, `{{class}}` for its class, and `{{variable}}` for what its environment variables
begin with; the others stand for what differs in another interpreter.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Literal, get_args

from byoc.codegen import is_plain_name
from byoc.errors import InputError
from byoc.support import (
    ANNOTATIONS,
    CODEGENS,
    COST_MODELS,
    check_type,
    describe_missing_folder,
    find_files,
    get_distribution,
    list_installed,
    open_workspace,
    replace_path,
)

Style = Literal["emitter", "tool", "library"]
"""The style of a codegen: it writes code itself, drives a compiler, or calls one in Python."""

TEMPLATE = Path(__file__).parent / "template"

_SUFFIX = ".tmpl"
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_MAX_CHARACTERS = 32  # keeps all lines of the package short enough
_RESERVED = frozenset({"any", "byoc", "host", "onnx", "test", "tests"})


def new_codegen(
    name: str,
    folder: str | Path | None = None,
    *,
    style: Style = "emitter",
    other_python: bool = False,
) -> list[Path]:
    """Write a package for a new codegen.

    `name` is what users will call it. `folder`, by default `./NAME`, may exist, with files of yours in
    it. The `style` is `emitter` for a codegen that writes code itself, `tool` for one that drives a
    compiler, `library` for one whose compiler is a Python library. With `other_python`, for that style
    alone, the class lives in an interpreter of the library's, which the user's settings name.
    Returns the files, relative to the folder, in order. Raises InputError for a name that is malformed
    or taken, a style that there is not, a file that is there already, and for a folder that cannot be
    written; nothing is left behind then.
    """
    check_type("name", name, str)
    words = _check_words(name)
    if style not in get_args(Style):
        raise InputError(f"style {style!r}: it is one of {', '.join(get_args(Style))}")
    if other_python and style != "library":
        raise InputError(f"--other-python: it is for --style library, and not for {style}")
    folder = Path(folder or name)
    try:
        words["folder"] = json.dumps(str(folder.absolute()))
        return _write_package(_render(words, style, other_python), folder)
    except (OSError, ValueError) as error:  # ValueError: no folder can have this name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: cannot be written: {why}") from error


def render_package(name: str, style: Style = "emitter", other_python: bool = False) -> dict[str, str]:
    """Return the contents of a codegen's package by relative path, in order. Does not check `name`."""
    return _render(_placeholder_words(name), style, other_python)


def _write_package(contents: Mapping[str, str], folder: Path) -> list[Path]:
    """Write files into a new folder, or beside the files of one. Raises InputError, and OSError."""
    place = folder.absolute()
    if not place.parent.is_dir():
        raise InputError(f"{folder}: cannot be written: {describe_missing_folder(folder.parent)}")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is no folder, and is left as it is (--into DIR names another)")
    there = [path for path in contents if (place / path).exists() or (place / path).is_symlink()]
    if there:
        named = ", ".join(there)
        raise InputError(
            f"{folder}: has {named} already, and nothing is written (--into DIR names another folder)"
        )
    with open_workspace(place.parent) as workspace:
        fresh = workspace / "new"
        for path, content in contents.items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_text(content, encoding="utf-8")
        if place.exists():
            _move_files(fresh, place, list(contents))
        else:
            replace_path(fresh, place)  # all of it at once
    return [Path(path) for path in contents]


def _move_files(fresh: Path, place: Path, paths: list[str]) -> None:
    """Move files into a folder; where one of them cannot be moved, none stays."""
    made: list[Path] = []
    try:
        for path in paths:
            for parent in reversed(Path(path).parents[:-1]):
                if not (place / parent).exists():
                    (place / parent).mkdir()
                    made.append(place / parent)
            (place / path).hardlink_to(fresh / path)  # which never overwrites
            made.append(place / path)
    except OSError:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir() if each.is_dir() else each.unlink()
        raise


def _render(words: Mapping[str, str], style: Style, other_python: bool) -> dict[str, str]:
    found = {}
    words = {**words, **_list_interpreter_words(words, other_python)}
    folders = [TEMPLATE / "common", TEMPLATE / style]
    for folder in [*folders, TEMPLATE / "other_python"] if other_python else folders:
        for template in folder.rglob(f"*{_SUFFIX}"):
            path = template.relative_to(folder).as_posix().removesuffix(_SUFFIX)
            text = template.read_text(encoding="utf-8")
            found[_fill_template(path, words)] = _fill_template(text, words)
    return dict(sorted(found.items()))


def _list_interpreter_words(words: Mapping[str, str], other_python: bool) -> dict[str, str]:
    """Return the placeholders of what depends on the interpreter that the codegen lives in."""
    if not other_python:
        entry = f'"byoc.codegens" = {{{words["name"]} = "{words["module"]}:{words["class"]}"}}\n'
        names = ("ignored", "versions", "where")
        return {"entry_point": entry, "interface": "byoc.codegen", **dict.fromkeys(names, "")}
    return {
        "entry_point": "",
        "interface": "byoc_worker",
        # byoc puts the package there; it is not installed.
        "ignored": "  # type: ignore[import-not-found]",
        # Those of onnx 1.13, the first with a reference implementation.
        "versions": ", opset=17, ir_version=8",
        "where": " It lives in an interpreter of its own\n(for the stand-in with `onnx`): put "
        "`settings.yaml` into your settings, with its path (byoc's docs/codegen_processes.md).",
    }


def _fill_template(text: str, words: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: words[match[1]], text)


def _check_words(name: str) -> dict[str, str]:
    """Return the values of the placeholders. Raises InputError for a malformed or taken name."""
    if not _NAME.fullmatch(name) or len(name) > _MAX_CHARACTERS:
        raise InputError(
            f"{name!r}: the name of a codegen is made of lower-case letters and digits, in parts joined "
            f"by - or _, begins with a letter, and has at most {_MAX_CHARACTERS} characters: my-npu"
        )
    words = _placeholder_words(name)
    module = words["module"]
    if name in _RESERVED or iskeyword(words["class"]):
        raise InputError(f"{name}: the name is reserved: Python or byoc has a meaning for it")
    if not is_plain_name(name):
        raise InputError(f"{name}: the name is reserved: Windows has a device of this name")
    codegens = list_installed(CODEGENS)
    if name in codegens:
        there = get_distribution(codegens[name])
        raise InputError(f"{name}: {there} brings a codegen of this name; choose another")
    for group, what in ((ANNOTATIONS, "rule file"), (COST_MODELS, "cost model")):
        for file in find_files(group)[0].get(name, {}).values():
            raise InputError(
                f"{name}: {get_distribution(file.point)} brings a {what} of this name; choose another"
            )
    if find_spec(module) is not None:
        raise InputError(f"{name}: a Python package '{module}' is installed already")
    return words


def _placeholder_words(name: str) -> dict[str, str]:
    parts = re.split(r"[_-]", name)
    return {
        "name": name,
        "module": "_".join(["byoc", *parts]),
        "class": "".join(part.capitalize() for part in parts),
        "variable": "_".join(parts).upper(),
        "folder": "/path/to/this/folder",
    }
