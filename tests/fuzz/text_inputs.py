"""Text that is nearly right: small valid texts, changed in their words, bytes, or content as YAML."""

import copy
import random
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

_MARKS = [
    "&a ",
    "*a",
    "<<: *name",
    "!!int ",
    "!!python/name:os.system ",
    "!!binary ",
    "!!set ",
    "!!omap ",
]
_MARKS += [
    "? ",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "{" * 200,
    "[" * 2000,
    "'",
    '"',
    "|",
    ">",
    "#",
    "%YAML 9.9\n",
]
_MARKS += [
    "---\n",
    "...\n",
    "\t",
    "\n",
    "\r",
    "  ",
    "@",
    "`",
    "\u2028",
    "\ufeff",
    "\0",
    "~",
    "null",
    "yes",
]
_MARKS += [
    ".inf",
    "-.inf",
    ".nan",
    "1e999",
    "0x_",
    "0b",
    "1:60",
    "2001-01-01",
    "9" * 5000,
    "!!timestamp x",
]
_MARKS += [
    "!!float ''",
    "1_000",
    "0o8",
    "=",
    "<<",
    "!!merge a",
    "!!null x",
    "\\u0000",
    '"\\ud800"',
    "!<x>",
]
_MAX_BYTES = 1 << 14
_ALIAS = re.compile(rb"(?:^|[\s\[{,:?-])\*\w|<<")


@dataclass(frozen=True, eq=False)
class TextInputs:
    """Valid texts to begin with, and scalars that are put into them; without those they are not YAML."""

    seeds: tuple[bytes, ...]
    scalars: tuple[Any, ...] = ()

    @cached_property
    def contents(self) -> tuple[Any, ...]:
        """The seeds as YAML."""
        return tuple(yaml.safe_load(text) for text in self.seeds)

    def make(self, chance: random.Random) -> bytes:
        """Return one input: half of them changed in their text, half in what they say."""
        if not self.scalars or chance.random() < 0.5:
            return self.mutate_text(chance.choice(self.seeds), chance)
        return self._mutate_content(copy.deepcopy(chance.choice(self.contents)), chance)

    def mutate(self, data: bytes, chance: random.Random) -> bytes:
        """Return a changed input: as text, or in what it says where it is YAML.

        One with aliases is changed as text alone: PyYAML, which has no limits, may not end with it.
        """
        if self.scalars and chance.random() < 0.5 and not _ALIAS.search(data):
            try:
                content = yaml.load(data, yaml.CSafeLoader)
            except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
                return self.mutate_text(data, chance)
            return self._mutate_content(content, chance)[:_MAX_BYTES]
        return self.mutate_text(data, chance)

    def mutate_text(self, data: bytes, chance: random.Random) -> bytes:
        """Return a text changed in a few places, by lines, by words and by bytes."""
        for _ in range(1 + int(chance.expovariate(0.7))):
            data = chance.choice((_lines, self._words, _insert, _bytes))(data, chance)
        return data[:_MAX_BYTES]

    def change(self, content: Any, chance: random.Random) -> Any:
        """Return plain data with one thing in it changed, at a random depth."""
        if not isinstance(content, (dict, list)) or not content or chance.random() < 0.05:
            return self._value(chance)
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = chance.choice(keys)
        if chance.random() < 0.6:
            content[key] = self.change(content[key], chance)
            return content
        action = chance.randrange(4)
        if action == 0:
            del content[key]
        elif action == 1:
            content[key] = self._value(chance)
        elif isinstance(content, list):
            content.insert(key, copy.deepcopy(chance.choice(content)))
        elif action == 2:
            texts = (scalar for scalar in self.scalars if isinstance(scalar, str))
            content[chance.choice([*map(str, content), *texts])] = content[key]
        else:
            content[str(key) + chance.choice(("s", "", "_"))] = content.pop(key)
        return content

    def _mutate_content(self, content: Any, chance: random.Random) -> bytes:
        while True:
            content = self.change(content, chance)
            if chance.random() < 0.4:
                break
        style = chance.choice((None, True, False))
        text: str = yaml.dump(content, default_flow_style=style, allow_unicode=True)
        return text.encode("utf-8", "surrogatepass")

    def _words(self, data: bytes, chance: random.Random) -> bytes:
        words = data.split(b" ")
        donor = chance.choice(self.seeds).split()
        words[chance.randrange(len(words))] = chance.choice(donor)
        return b" ".join(words)

    def _value(self, chance: random.Random) -> Any:
        where = chance.random()
        scalars = self.scalars
        if where < 0.7:
            return chance.choice(scalars)
        if where < 0.8:
            return [chance.choice(scalars) for _ in range(chance.randrange(4))]
        if where < 0.9:
            return {
                str(chance.choice(scalars)): chance.choice(scalars) for _ in range(chance.randrange(3))
            }
        part = chance.choice(self.contents)
        for _ in range(chance.randrange(4)):
            children = list(part.values()) if isinstance(part, dict) else part
            if not isinstance(part, (dict, list)) or not children:
                break
            part = chance.choice(children)
        return copy.deepcopy(part)


def _lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    action = chance.randrange(4)
    if action == 0:
        del lines[at]
    elif action == 1:
        lines.insert(other, lines[at])
    elif action == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = b" " * chance.randrange(6) + lines[at].lstrip(b" ")
    return b"".join(lines)


def _insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_MARKS).encode() + data[at:]


def _bytes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    stop = start + int(chance.expovariate(0.2))
    middle = chance.choice((b"", data[start:stop] * 2, chance.randbytes(1), b"\xff\xfe"))
    return data[:start] + middle + data[stop:]
