"""Completion in shells: verbs, options, and the values of those.

A shell asks at each press of a key, so the answer takes no parser of the command line and no model: the
declarations are read from `shells/declarations.json`, which `tools/completion_data.py` writes, and names
of plug-ins from what distributions say of themselves. Where nothing fits, the shell completes paths.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from byoc._dataclasses import dataclass
from byoc.console import print_errors
from byoc.support import (
    ANNOTATIONS,
    CODEGENS,
    COST_MODELS,
    PASSES,
    STRATEGIES,
    find_file,
    find_files,
    list_installed,
)


class Shell(StrEnum):
    """A shell that completes lines by asking byoc."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


_FOLDER = Path(__file__).with_name("shells")
_MOST_FILES = 2_000  # of a folder that are looked at: a shell asks at each press of a key
_QUOTED_BY_SHELLS = re.compile(r"([^\w@%+=:,./~-])")
_GENERATIONS = re.compile(r"^generations:[^\n]*\n((?:[ #][^\n]*\n|\n)*)", re.MULTILINE)
_GENERATION = re.compile(r"^( +)([\w.-]+):", re.MULTILINE)

_NO_ARGUMENT = {"repeated": False, "values": ()}

Reply = tuple[str, str]
"""A word as it is completed, and a description of it."""


def serve_shell(shell: str | None, words: Sequence[str]) -> bool:
    """Answer a shell where it asks; return whether it did.

    It asks how to complete a line where the environment names a `shell`, and else for what it runs at
    its start, by `byoc completion NAME`. The `words` are those behind the program's name.
    """
    if shell:
        answer_shell(shell, words)
        return True
    if len(words) == 2 and words[0] == "completion" and words[1] in list(Shell):
        sys.stdout.write(read_script(words[1]))
        return True
    return False


def read_script(shell: str) -> str:
    """Return the script that a shell runs at its start, so that it asks byoc."""
    return (_FOLDER / f"byoc.{shell}").read_text(encoding="utf-8")


def answer_shell(shell: str, words: Sequence[str]) -> None:
    """Print the replies to a shell, one a line; in zsh and fish with a description behind a tab.

    Of zsh and fish the `words` are those behind the program's name, the last one to be completed. Of
    bash they are its line up to the cursor, the characters that it breaks words at, and the words that
    it made of the line; it replaces what follows the last break, and the others the whole word.
    """
    if shell not in list(Shell):
        asked = "_BYOC_COMPLETE is set by what `byoc completion` prints"
        print_errors([f"{asked}: to one of {', '.join(Shell)}, not to '{shell}'"])
        sys.exit(1)
    if shell == "bash":
        line, breaks, *parts = words
        raw = _join_words(line, parts)[1:] or [""]
        *given, word = map(_unquote, raw)
        kept = max((word.rfind(mark) for mark in "=:" if mark in breaks), default=-1) + 1
        found = [reply[kept:] for reply, _ in list_replies(given, word)]
        if raw[-1][:1] not in ("'", '"'):
            found = [_QUOTED_BY_SHELLS.sub(r"\\\1", reply) for reply in found]
    else:
        *given, word = words or [""]
        found = ["\t".join(filter(None, reply)) for reply in list_replies(given, word)]
    printable = (reply for reply in found if reply.replace("\t", "").isprintable())
    sys.stdout.write("".join(f"{reply}\n" for reply in printable))


def _join_words(line: str, parts: Sequence[str]) -> list[str]:
    """Return the words of a line's last command as they were typed; bash broke them at `:` and `=`, too.

    The `parts` end the line, the last of them as far as the cursor is.
    """
    *before, last = parts
    begun = next(last[:length] for length in range(len(last), -1, -1) if line.endswith(last[:length]))
    words, rest = [begun], line.removesuffix(begun)
    for part in reversed(before):
        stripped = rest.rstrip()
        if stripped != rest:
            words.insert(0, part)
        else:
            words[0] = part + words[0]
        rest = stripped.removesuffix(part)
    return words


def _unquote(word: str) -> str:
    """Return a word as a shell passes it on; its last quotation mark may be missing."""
    for end in ("", "'", '"'):
        with suppress(ValueError):
            return "".join(shlex.split(word + end))
    return word


def list_replies(given: Sequence[str], word: str) -> Iterator[Reply]:
    """Yield the completions of a word, each as a whole; `given` are the words behind the program's name.

    Nothing is yielded where only the name of a file of any kind fits.
    """
    data = json.loads((_FOLDER / "declarations.json").read_bytes())
    place = _find_place(given, data["commands"])
    command = data["commands"][place.command]
    if place.option is not None:
        yield from _list_values(place.option, word, data)
    elif word[:1] == "-" and not place.only_arguments:
        yield from _list_options(command["options"], word, data)
    else:
        if place.arguments == 0:
            yield from _list_commands(place.command, word, data)
        *_, last = taken = command["arguments"] or [_NO_ARGUMENT]
        if place.arguments < len(taken) or last["repeated"]:
            yield from _list_values(taken[min(place.arguments, len(taken) - 1)], word, data)


@dataclass
class _Place:
    """The place on a line: its command, how many arguments it has, an option that waits for a value."""

    command: str = ""
    arguments: int = 0
    option: Mapping[str, Any] | None = None
    only_arguments: bool = False


def _find_place(given: Sequence[str], commands: Mapping[str, Any]) -> _Place:
    """Return the place behind these words."""
    place = _Place()
    for word in given:
        if place.option is not None:
            place.option = None
        elif word == "--" and not place.only_arguments:
            place.only_arguments = True
        elif word[:1] == "-" and len(word) > 1 and not place.only_arguments:
            declared = commands[place.command]["options"].get(word, {})
            place.option = declared if "values" in declared else None
        elif place.arguments == 0 and f"{place.command} {word}".strip() in commands:
            place.command = f"{place.command} {word}".strip()
        else:
            place.arguments += 1
    return place


def _list_commands(command: str, word: str, data: Mapping[str, Any]) -> Iterator[Reply]:
    """Yield the commands inside of a command that begin with a word."""
    for path, said in data["commands"].items():
        outer, _, name = path.rpartition(" ")
        if name and outer == command and name.startswith(word):
            yield name, said["help"]


def _list_options(options: Mapping[str, Any], word: str, data: Mapping[str, Any]) -> Iterator[Reply]:
    """Yield the options that begin with a word, or after `--option=` what it takes."""
    option, equals, value = word.partition("=")
    if not equals:
        yield from ((each, said["help"]) for each, said in options.items() if each.startswith(word))
    elif "values" in options.get(option, ()):
        for reply, said in _list_values(options[option], value, data):
            yield f"{option}={reply}", said


def _list_values(declared: Mapping[str, Any], word: str, data: Mapping[str, Any]) -> Iterator[Reply]:
    """Yield the values that begin with a word; what `head` matches stays, such as `TARGET=`."""
    head = re.match(declared.get("head", ""), word)
    if head is None:
        return
    rest = word[head.end() :]
    for value in declared["values"]:
        found = _SOURCES[value[1:]](rest, data) if value[0] == "@" else (value,)
        yield from ((head[0] + each, "") for each in found if each.startswith(rest))


def _list_models(word: str, data: Mapping[str, Any]) -> Iterator[str]:
    if word.startswith("zoo:"):
        yield from (f"zoo:{name}" for name in data["zoo"])
    else:
        yield "zoo:"
        yield from _list_entries(word, (".onnx",))


def _list_rules(word: str, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield rule files by name and in the folder, or the generations of `FILE:`."""
    file, colon, _generation = word.rpartition(":")
    if colon:
        with suppress(Exception):  # no such file, or one that is no text
            text = find_file(ANNOTATIONS, file).read_text(encoding="utf-8")
            if found := _GENERATIONS.search(text):
                keys = _GENERATION.findall(found[1])
                yield from (f"{file}:{name}" for indent, name in keys if indent == keys[0][0])
    else:
        yield from _list_yaml(ANNOTATIONS, word)


def _list_yaml(group: str, word: str) -> Iterator[str]:
    suffix = ".yaml" if "." in word else ""  # both are names of an installed one
    yield from (f"{name}{suffix}" for name in find_files(group)[0])
    yield from _list_entries(word, (".yaml", ".yml"))


def _list_entries(word: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the folders, and the files with one of these endings, where a word points to."""
    folder, slash, begun = word.rpartition("/")
    with suppress(OSError, RuntimeError):  # no such folder, or one that may not be read
        found: Iterable[Path] = islice(Path(folder + slash).expanduser().iterdir(), _MOST_FILES)
        for path in sorted(found):
            if path.name.startswith(begun) and (begun or path.name[0] != "."):
                if path.is_dir():
                    yield f"{folder}{slash}{path.name}/"
                elif path.name.endswith(endings):
                    yield f"{folder}{slash}{path.name}"


_SOURCES: Mapping[str, Callable[[str, Mapping[str, Any]], Iterable[str]]] = {
    "models": _list_models,
    "rules": _list_rules,
    "costs": lambda word, _: _list_yaml(COST_MODELS, word),
    "files": lambda word, _: _list_entries(word, ("",)),
    "codegens": lambda *_: list_installed(CODEGENS),
    "passes": lambda *_: list_installed(PASSES),
    "strategies": lambda *_: list_installed(STRATEGIES),
    "trained": lambda _, data: data["trained"],
}
"""The values that have a name in `declarations.json`, each by the word that is begun."""
