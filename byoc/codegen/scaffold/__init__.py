"""A complete package for a new codegen, written from the templates beside this module.

A template is a file of the new package, with `.tmpl` added to its name. In paths and contents `{{name}}`
stands for the codegen's name, `{{module}}` for the Python package, and `{{class}}` for its class.
"""

import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from byoc.codegen import is_plain_name
from byoc.errors import InputError
from byoc.support import (
    ANNOTATIONS,
    CODEGENS,
    COST_MODELS,
    find_files,
    get_distribution,
    list_installed,
    open_workspace,
    replace_path,
)

TEMPLATE = Path(__file__).parent / "template"

_SUFFIX = ".tmpl"
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_MAX_CHARACTERS = 32  # keeps all lines of the package short enough
_RESERVED = frozenset({"any", "byoc", "host", "onnx", "test", "tests"})


def new_codegen(name: str, folder: str | Path | None = None) -> list[Path]:
    """Write a package for a new codegen.

    `name` is what users will call it. `folder`, by default `./NAME`, must not exist yet. Returns the
    files, relative to the folder, in order. Raises InputError for a name that is malformed or
    taken, and for a folder that exists or cannot be written; nothing is left behind then.
    """
    words = _check_words(name)
    folder = Path(folder or name)
    try:
        if folder.exists() or folder.is_symlink():
            raise InputError(
                f"{folder}: exists already, and is left as it is (--into DIR names another)"
            )
        if not folder.parent.is_dir():
            raise InputError(f"{folder}: cannot be written: there is no folder '{folder.parent}'")
        return _write_package(words, folder)
    except (OSError, ValueError) as error:  # ValueError: no folder can have this name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: cannot be written: {why}") from error


def render_package(name: str) -> dict[str, str]:
    """Return the contents of a codegen's package by relative path, in order. Does not check `name`."""
    return _render(_placeholder_words(name))


def _write_package(words: Mapping[str, str], folder: Path) -> list[Path]:
    place = folder.absolute()
    with open_workspace(place.parent) as workspace:
        fresh = workspace / "new"
        paths = []
        for path, content in _render(words).items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_text(content, encoding="utf-8")
            paths.append(Path(path))
        replace_path(fresh, place)  # all of it at once
    return paths


def _render(words: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for template in sorted(TEMPLATE.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(TEMPLATE).as_posix().removesuffix(_SUFFIX)
        found[_fill_template(path, words)] = _fill_template(template.read_text(encoding="utf-8"), words)
    return found


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
    if name in _RESERVED or iskeyword(module) or module in sys.stdlib_module_names:
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
        "module": "_".join(parts),
        "class": "".join(part.capitalize() for part in parts),
    }
