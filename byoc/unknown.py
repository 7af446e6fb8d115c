"""What an expression could not be worked out for: the part of it that is not known, as a sentence."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")
_HAS = re.compile(r"\bhas\s*\([^)]*\)")
_PATH = re.compile(r"(?<![\w.\])])([A-Za-z_]\w*)((?:\s*\.\s*[A-Za-z_]\w*(?!\w|\s*\()|\[\s*-?\d+\s*\])*)")
_STEP = re.compile(r"\.\s*([A-Za-z_]\w*)|\[\s*(-?\d+)\s*\]")


def unknown_part(source: str, names: Collection[str], facts: Mapping[str, Any], error: Exception) -> str:
    """Return what of an expression is not known, empty where it is something else that failed.

    `names` are the facts that it reads, `error` what was raised. Where several parts are not known the
    first is named, whether or not CEL would have come to it.
    """
    text = _HAS.sub("true", _TEXT.sub("''", source))
    for found in _PATH.finditer(text):
        name = found[1]
        if name not in names:
            continue
        for kind, said in _gaps(name, found[2], facts):
            guarded = re.search(rf"\b{name}\s*\.\s*given\b", text)
            if isinstance(error, kind) and not (guarded and said.endswith("not given")):
                return said
    return ""


def _gaps(name: str, steps: str, facts: Mapping[str, Any]) -> Iterator[tuple[type[Exception], str]]:
    """Yield where a path into the facts ends too early: the error that it makes, and a sentence."""
    if name not in facts:
        yield RuntimeError, f"{name} is not known"
        return
    path, value = name, facts[name]
    for key, position in _STEP.findall(steps):
        if key and isinstance(value, Mapping):
            if key not in value:
                yield KeyError, _missing(path, key, value)
                return
            path, value = f"{path}.{key}", value[key]
        elif position and isinstance(value, list):
            number = int(position)
            if number < 0:
                yield IndexError, f"{path}[{number}] is not there: elements are counted from 0"
                return
            if number >= len(value):
                yield IndexError, f"{path}[{number}] is not there: {path} has {len(value)} elements"
                return
            path, value = f"{path}[{number}]", value[number]
        else:
            return
    yield from _within(path, value)


def _within(path: str, value: Any) -> Iterator[tuple[type[Exception], str]]:
    """Yield what is not known of what a path leads to."""
    if value is None:
        yield TypeError, f"{path} is not fixed"
    elif isinstance(value, list) and None in value:
        yield TypeError, f"{path}[{value.index(None)}] is not fixed"
    elif isinstance(value, list):
        for number, part in enumerate(value):
            if isinstance(part, Mapping):
                yield from _of_part(f"{path}[{number}]", part)


def _of_part(path: str, facts: Mapping[str, Any]) -> Iterator[tuple[type[Exception], str]]:
    """Yield what is not known of the shape of one of several tensors."""
    shape = facts.get("shape")
    if shape is None:
        yield KeyError, f"{path}.shape is not known"
    elif None in shape:
        for kind in (TypeError, KeyError):  # without an extent, `elements` and `bytes` are not there
            yield kind, f"{path}.shape[{shape.index(None)}] is not fixed"


def _missing(path: str, key: str, facts: Mapping[str, Any]) -> str:
    if facts.get("given") is False:
        return f"{path} is not given"
    if key in ("elements", "bytes") and None in facts.get("shape", ()):
        return f"{path}.shape[{facts['shape'].index(None)}] is not fixed"
    return f"{path}.{key} is not known"
