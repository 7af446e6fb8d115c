"""Content checked by pydantic types: all mistakes at once, each with its location."""

import re
from collections import Counter
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from byoc.errors import suggest_nearest


class StrictModel(BaseModel):
    """Base of the types that describe YAML files: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


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
    else:
        message = _MESSAGES.get(detail["type"], detail["msg"].removeprefix("Value error, "))
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
