"""YAML files checked by pydantic types, with all mistakes at once, each with its location.

All YAML of byoc is read here: safe loading, no duplicate keys, then validation.
"""

import itertools
import marshal
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from byoc.errors import InputError, suggest_nearest
from byoc.support._workspace import read_text

# Content checked by pydantic types: all mistakes at once, each with its location.


class StrictModel(BaseModel):
    """Base of the types that describe YAML files: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, defer_build=True)


ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_PROBLEMS = 50
"""The mistakes of a file that are listed, and that get a hint at what was meant."""


def format_short(value: object) -> str:
    """Return a value as text for messages, cut if it is long."""
    try:
        text = str(value)
    except ValueError:  # Python refuses to format whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


_WITH_UNIT = re.compile(r"[-+]?\d[\d_.]{0,20}(e[-+]?\d{1,3})?\s?[a-zµμ%][a-z/%]{0,9}", re.IGNORECASE)


def has_unit(value: object) -> bool:
    """Return whether a value is the text of a number with a unit, such as `10us` and `4 GB/s`."""
    return isinstance(value, str) and _WITH_UNIT.fullmatch(value.strip()) is not None


def dump_json(content: BaseModel, indent: int | None = None) -> bytes:
    """Return content as JSON in UTF-8.

    What is not UTF-8 in the name of a file, which Python has as lone surrogates, stands as `\\udcff`.
    """
    try:
        return content.model_dump_json(indent=indent).encode()
    except PydanticSerializationError:
        return to_json(_escape_surrogates(content.model_dump()), indent=indent, inf_nan_mode="null")


def _escape_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_escape_surrogates(key): _escape_surrogates(each) for key, each in value.items()}
    return [*map(_escape_surrogates, value)] if isinstance(value, (list, tuple)) else value


def validate_content(content: object, kind: type[ModelT]) -> tuple[ModelT | None, list[str]]:
    """Validate content as a `kind`. Returns None and a sentence for each mistake if it has some."""
    try:
        return kind.model_validate(content), []
    except ValidationError as error:
        details = error.errors()
    # pydantic reports a list whose items are all wrong as too short, which it is not.
    inside = Counter(detail["loc"][:end] for detail in details for end in range(len(detail["loc"]) + 1))
    causes = [each for each in details if each["type"] != "too_short" or inside[each["loc"]] == 1]
    return None, [
        _explain_detail(detail, kind, number < MAX_PROBLEMS) for number, detail in enumerate(causes)
    ]


# Messages in terms of YAML rather than Python.
_MESSAGES = {
    "missing": "must be given",
    "string_type": "expected text",
    "string_too_short": "must not be empty",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping of keys",
    "model_type": "expected a mapping of keys",
}


_FEW_KEYS = 6  # more are listed where a key is wrong, not where a value should have been a mapping


def _explain_detail(detail: ErrorDetails, kind: type[BaseModel], has_hint: bool) -> str:
    """Return a sentence for a mistake; the hint at what was meant takes longer than all else."""
    place = _format_location(detail["loc"])
    if detail["type"] == "extra_forbidden" and not has_hint:
        return f"{place}: no such key"
    if detail["type"] == "extra_forbidden":
        fields = _list_fields(kind, detail["loc"][:-1])
        name = str(detail["loc"][-1])
        return f"{place}: no such key{suggest_nearest(name, fields)}; known: {', '.join(fields)}"
    if detail["type"] == "greater_than_equal":
        return f"{place}: must be at least {detail['ctx']['ge']:g}"
    if detail["type"] == "less_than_equal":
        return f"{place}: must be at most {detail['ctx']['le']:g}"
    if detail["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        hint = suggest_nearest(str(detail["input"])[:50], known) if has_hint else ""
        return f"{place}: expected {detail['ctx']['expected']}{hint}"
    if detail["type"] in ("too_short", "too_long"):
        message = _explain_length(detail)
    elif detail["type"] == "model_type" and has_hint:
        fields = _list_fields(kind, detail["loc"])
        few = f" ({', '.join(fields)})" if 0 < len(fields) <= _FEW_KEYS else ""
        message = f"{_MESSAGES['model_type']}{few}"
    else:
        message = _MESSAGES.get(detail["type"], detail["msg"].removeprefix("Value error, "))
        if detail["type"] in ("float_parsing", "int_parsing") and has_unit(detail["input"]):
            message += f" without a unit, not '{format_short(detail['input'])}'"
    return f"{place}: {message[:1].lower()}{message[1:]}"


def _explain_length(detail: ErrorDetails) -> str:
    """Return the sentence for a wrong number of items of a list, or of keys of a mapping."""
    context = detail["ctx"]
    if detail["type"] == "too_long":
        return f"must have at most {context['max_length']} items"
    least = context["min_length"]
    return "must not be empty" if least == 1 else f"must have at least {least} items"


def _format_location(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(("list[", "function-", "dict[")) and step not in _UNION_TAGS:
            path += f".{format_short(step)}" if path else format_short(step)
    return path or "the file"


# pydantic puts the member of a union that it tried, and a mark for keys, into the location of an error.
_UNION_TAGS = {"str", "int", "float", "bool", "[key]"}


def _list_fields(kind: Any, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at a location, according to the annotations."""
    for step in location:
        kind = _pick_union_member(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(step)) or next(
                (f for f in kind.model_fields.values() if f.alias == step), None
            )
            kind = field.annotation if field else None
        elif get_origin(kind) in (dict, tuple, list):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
    kind = _pick_union_member(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return []


def _pick_union_member(kind: Any) -> Any:
    """Return the member of a union that is a model, any other type as it is."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        models = [p for p in parts if isinstance(p, type) and issubclass(p, BaseModel)]
        return models[0] if models else parts[0]
    return kind


# Enough for sharing parts of a file. What aliases of aliases stand for is limited by _MAX_PARTS.
_MAX_ALIASES = 200
_MAX_KEYS = 10_000  # of one mapping after merges: nested ones grow exponentially
_MAX_PARTS = 1 << 20
_MAX_DIGITS = 4_300  # as Python has it for numbers in decimal digits
_MAX_READ_TWICE = 1 << 18  # characters
_MAX_KEPT = 1 << 17  # characters; the longest rule file of byoc has a half
MAX_YAML_BYTES = 1 << 24
"""The most bytes of a YAML file."""
_MAX_CHARACTERS = 1_000  # of a value in a sentence


class _Loader(yaml.SafeLoader):
    """The safe loader, with an error for duplicate keys, for which YAML lets the last one win."""

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
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

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
        raise InputError(f"{path}: expected a mapping of keys at the top, `key: value` line by line")
    return content


def find_line(path: Path, location: str) -> int | None:
    """Return the line of a part of a YAML file, `ops[3].attributes.group`, None where it is not there.

    Of a part that the file does not have the line is that of the nearest part around it.
    """
    try:
        node: Any = yaml.compose(read_text(path, MAX_YAML_BYTES), Loader=_Loader)
    except (InputError, yaml.YAMLError):
        return None
    line = None
    for name in re.findall(r"[^.\[\]]+", location):
        if isinstance(node, yaml.SequenceNode) and name.isdigit() and int(name) < len(node.value):
            node = node.value[int(name)]
        elif isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == name]
            if not found:
                break
            node = found[0][1]
            line = found[0][0].start_mark.line + 1
            continue
        else:
            break
        line = node.start_mark.line + 1
    return line


def _load(text: str) -> Any:
    """Load YAML, anew at each call, so that its caller may change it.

    A program reads the same few rule and cost files for each model. What a text says is kept as bytes,
    which take a hundredth of the time to read again; dates have none.
    """
    if len(text) <= _MAX_KEPT:
        with suppress(ValueError):  # where it is one of YAML, reading it again raises it
            return marshal.loads(_load_as_bytes(text))
    return _load_anew(text)


@lru_cache(maxsize=64)
def _load_as_bytes(text: str) -> bytes:
    return marshal.dumps(_load_anew(text))


def _load_anew(text: str) -> Any:
    """Load YAML. PyYAML's own parser, which says better what is wrong, reads what libyaml refuses.

    It takes several times as long, and so reads no large text.
    """
    try:
        return _load_with(_FAST_LOADER, text)
    except Exception:
        if len(text) > _MAX_READ_TWICE:
            raise
        return _load_with(_Loader, text)


def _load_with(kind: type[_Loader], text: str) -> Any:
    loader = kind(text)
    root = loader.get_single_node()
    if root is None:
        return None
    if "*" in text or len(text) > _MAX_PARTS:
        _count_parts(root)
    return loader.construct_document(root)


def _count_parts(root: yaml.Node) -> None:
    """Raise ConstructorError for too many aliases, or parts if these are written out."""
    sizes: dict[int, int] = {}  # by identity, which an alias shares; 0 of a part around
    aliases = 0

    def count(node: yaml.Node, around: yaml.Node) -> int:
        nonlocal aliases
        if id(node) in sizes:
            aliases += 1
            if aliases > _MAX_ALIASES:
                raise _make_error(f"more than {_MAX_ALIASES} aliases", around)
            return sizes[id(node)]
        sizes[id(node)] = size = 0 if isinstance(node, yaml.CollectionNode) else 1
        if not size:
            parts = node.value
            if isinstance(node, yaml.MappingNode):
                parts = itertools.chain.from_iterable(parts)
            size = 1 + sum([count(part, node) for part in parts])
            if size > _MAX_PARTS:
                raise _make_error(f"more than {_MAX_PARTS} parts, aliases written out", node)
            sizes[id(node)] = size
        return size

    count(root, root)


def _make_error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that byoc's reader takes for a number, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _FLOAT_START)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return a text as YAML, in double quotes if it has line breaks, which no other style preserves.

    What is not UTF-8 in the name of a file, which the reader refuses, stands as `\\udcff`.
    """
    text = text.encode(errors="backslashreplace").decode()
    style = '"' if text.splitlines() != [text] else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(content: object, flow: bool | None = False) -> str:
    """Return YAML in lines (`flow` False), or with the innermost collections in braces (None)."""
    style: dict[str, Any] = {"default_flow_style": flow, "sort_keys": False, "allow_unicode": True}
    return str(yaml.dump(content, Dumper=_Dumper, width=2**30, **style))
