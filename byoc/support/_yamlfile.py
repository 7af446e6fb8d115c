"""YAML files checked by pydantic types, with all mistakes at once, each with its location.

All YAML of byoc is read here: safe loading, no duplicate keys, then validation.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from byoc.errors import InputError
from byoc.support._input import read_text
from byoc.support._strict_model import MAX_PROBLEMS, ModelT, format_short, validate_content

# Enough for sharing parts of a file; aliases of aliases can stand for gigabytes.
_MAX_ALIASES = 50
_MAX_KEYS = 10_000
_MAX_PARTS = 1 << 20
_MAX_DIGITS = 4_300  # as Python has it for numbers in decimal digits
_MAX_READ_TWICE = 1 << 18  # characters
MAX_YAML_BYTES = 1 << 24
"""The most bytes of a YAML file."""
_MAX_CHARACTERS = 1_000


class _Loader(yaml.SafeLoader):
    """The safe loader, with an error for duplicate keys, for which YAML lets the last one win."""

    aliases = 0
    parts = 0  # of the file with its aliases written out

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, and limit the number of aliases, and of parts if these are written out."""
        is_alias = self.check_event(yaml.AliasEvent)
        if is_alias:
            self.aliases += 1
            if self.aliases > _MAX_ALIASES:
                raise self.make_error(f"more than {_MAX_ALIASES} aliases")
        before = self.parts
        self.parts += 1
        node = super().compose_node(parent, index)
        if is_alias:
            self.parts += self.parts_of.get(id(node), 0)
        else:
            self.parts_of[id(node)] = self.parts - before
        if self.parts > _MAX_PARTS:
            raise self.make_error(f"more than {_MAX_PARTS} parts, aliases written out")
        return node

    def make_error(self, problem: str) -> yaml.MarkedYAMLError:
        """Make the error for a problem at the place that is read."""
        return yaml.constructor.ConstructorError(None, None, problem, self.get_mark())

    @cached_property
    def parts_of(self) -> dict[int, int]:
        """The number of parts of each node, by the identity of the node."""
        return {}

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings that `<<` names, and limit the number of keys."""
        written = len(node.value)
        super().flatten_mapping(node)
        if len(node.value) > max(written, _MAX_KEYS):
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {_MAX_KEYS} keys in one mapping", node.start_mark
            )


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[object] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a single word", key.start_mark
            )
        # 2 and 0x2 are one key
        value = loader.construct_object(key) if key.tag.endswith(":int") else key.value
        if not seen.isdisjoint({key.value, value}):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{format_short(key.value)}' stands twice", key.start_mark
            )
        seen |= {key.value, value}
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def _construct_number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    """Construct a number of limited length: one in base 60, such as 1:30, takes quadratic time."""
    if len(node.value) > _MAX_DIGITS:
        raise yaml.constructor.ConstructorError(
            None, None, f"a number of more than {_MAX_DIGITS} digits", node.start_mark
        )
    if node.tag.endswith(":int"):
        return int(loader.construct_yaml_int(node))
    return float(loader.construct_yaml_float(node))


def _construct_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    """Construct a text that can be written: YAML lets an escape stand for half of a character."""
    text = str(loader.construct_yaml_str(node))
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        raise yaml.constructor.ConstructorError(
            None, None, "half of a character, a surrogate, which is no text", node.start_mark
        )
    return text


_Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct_number)
# PyYAML follows YAML 1.1, in which 1e-5 is text; in YAML 1.2 it is a number.
_FLOAT_TAG, _FLOAT_START = "tag:yaml.org,2002:float", list("-+.0123456789")
_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _FLOAT_START)


def _choose_loader() -> type[_Loader]:
    """Return the loader with libyaml's parser, several times as fast, where there is libyaml."""
    if not yaml.__with_libyaml__:
        return _Loader

    class FastLoader(yaml.cyaml.CParser, _Loader):  # type: ignore[misc, name-defined]
        def __init__(self, text: str) -> None:
            super().__init__(text)
            yaml.composer.Composer.__init__(self)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

        # Composes by `compose_node`, of which libyaml knows nothing.
        get_single_node = yaml.composer.Composer.get_single_node

        def get_mark(self) -> Any:
            return self.peek_event().start_mark  # type: ignore[no-untyped-call]

    return FastLoader


_FAST_LOADER = _choose_loader()


def read_yaml(path: Path, kind: type[ModelT]) -> ModelT:
    """Read a file as a `kind`.

    Raises InputError with a line for each mistake in the file (`dla.yaml: ops[3].opp: ...`).
    """
    result, problems = validate_content(read_mapping(path), kind)
    if result is None:
        raise make_file_error(path, problems)
    return result


def make_file_error(path: Path, problems: Sequence[str]) -> InputError:
    """Make the error for a file with problems: a line for each, up to a limit."""
    lines = [f"{path}: {_cut_line(problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{path}: and {len(problems) - MAX_PROBLEMS} more")
    return InputError(*lines)


def _cut_line(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def read_mapping(path: Path) -> dict[Any, Any]:
    """Read the mapping that a file contains, with any keys.

    Raises InputError when the file cannot be read or is not YAML.
    """
    text = read_text(path, MAX_YAML_BYTES)
    try:
        content = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(f"{path}{position}: not valid YAML: {error.problem}") from None
    except Exception as error:  # PyYAML's constructors raise various errors, as on `!!int ''`
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of keys at the top")
    return content


def _load(text: str) -> Any:
    """Load YAML. PyYAML's own parser, which says better what is wrong, reads what libyaml refuses.

    It takes several times as long, and so reads no large text.
    """
    try:
        return yaml.load(text, _FAST_LOADER)
    except Exception:
        if len(text) > _MAX_READ_TWICE:
            raise
        return yaml.load(text, _Loader)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that byoc's reader takes for a number, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _FLOAT_START)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return a text as YAML, in double quotes if it has line breaks, which no other style preserves."""
    style = '"' if text.splitlines() != [text] else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(content: object, flow: bool | None = False) -> str:
    """Return YAML in lines (`flow` False), or with the innermost collections in braces (None)."""
    style: dict[str, Any] = {"default_flow_style": flow, "sort_keys": False, "allow_unicode": True}
    return str(yaml.dump(content, Dumper=_Dumper, width=2**30, **style))
