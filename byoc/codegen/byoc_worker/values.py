"""Values that cross between byoc and a codegen in another Python: records of regions, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from . import Bytes, Record
from .link import read_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from .link import SharedMemory


# The check that an executor leaves its inputs alone.


class InputCheck:
    """An executor whose first call raises TypeError if it writes into its inputs.

    The host reads these tensors, too. A worker gets copies of them, so that such a region would be right
    there and wrong in this process. Later calls are not checked: a comparison costs two copies.
    """

    __slots__ = ("_is_checked", "_run")

    def __init__(self, run: Callable[[Mapping[str, Any]], Any]) -> None:
        """Check the executor at its first call."""
        self._run, self._is_checked = run, False

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run it. Raises TypeError as said."""
        if self._is_checked:
            return self._run(inputs)
        arrays = {
            name: value
            for name, value in inputs.items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }
        before = {name: array.tobytes() for name, array in arrays.items()}
        given = self._run(inputs)
        for name, content in before.items():
            if arrays[name].tobytes() != content:
                raise TypeError(f"it wrote into its input '{name}', which others read, too")
        self._is_checked = True
        return given

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        """Bind the executor to arrays; None where it has no `bind`. Nothing is checked then.

        A tensor that is an input and an output at once is written to by design.
        """
        bind = getattr(self._run, "bind", None)
        return None if bind is None else bind(inputs, outputs)

    def allocate(self, pairs: Mapping[str, str]) -> Any:
        """Make room for states on the device; None where the executor has no `allocate`."""
        allocate = getattr(self._run, "allocate", None)
        return None if allocate is None else allocate(pairs)


_TYPES = {str: "str", Path: "str", int: "int", Bytes: "bytes", float: "float", bool: "bool"}
_CHECK_OPTIONS = 3
"""The version of the codegen interface from which on `check` is handed options."""


class OptionsError(Exception):
    """The options of a codegen are refused by the class that declares them."""


def read_value(value: Any, memory: SharedMemory) -> Any:
    """Return a value of byoc's; arrays and bytes are in the memory.

    Lists, mappings and records are JSON objects of one key.
    """
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return read_array(content, memory)
    if kind == "bytes":
        return memory.read(content).tobytes()
    if kind == "map":
        return {name: read_value(each, memory) for name, each in content}
    if kind == "record":
        name, attributes = content
        return Record(name, {key: read_value(each, memory) for key, each in attributes.items()})
    items = [read_value(each, memory) for each in content]
    return tuple(items) if kind == "tuple" else items


def describe_options(kind: Any) -> list[dict[str, Any]] | None:
    """Describe the fields of a codegen's `Options`, None where it has not got any.

    Raises TypeError for what is no dataclass, and for a field that cannot be given as text.
    """
    if kind is None:
        return None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError("its `Options` is not a dataclass")
    types = get_type_hints(kind)
    return [_describe_option(each, types[each.name]) for each in fields(kind) if each.init]


def make_options(codegen: Any, given: Mapping[str, Any]) -> Any:
    """Make a codegen's options of values. Raises OptionsError where its class refuses them."""
    kind = getattr(codegen, "Options", None)
    if kind is None:
        return dict(given)
    types = get_type_hints(kind)
    try:
        return kind(**{name: _convert(value, types[name]) for name, value in given.items()})
    except Exception as error:  # the class's own checks
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise OptionsError(f"codegen {codegen.name} refuses its options: {text}") from None


def takes_check_options(codegen: Any) -> bool:
    """Return whether `check` takes options: from version 3 on, without a version by its parameters."""
    version = getattr(codegen, "api", None)
    if version is not None:
        return bool(version >= _CHECK_OPTIONS)
    try:
        signature(codegen.check).bind("what is asked about", "options")
    except (TypeError, ValueError):
        return False
    return True


def _describe_option(field: Field[Any], annotation: Any) -> dict[str, Any]:
    kind, choices, optional = _describe_type(annotation, field.name)
    required = field.default is MISSING and field.default_factory is MISSING
    default = None
    if not required:
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
    default = default.value if isinstance(default, Enum) else default
    return {
        "name": field.name,
        "type": kind,
        "choices": choices,
        "optional": optional,
        "required": required,
        "default": str(default) if isinstance(default, Path) else default,
        "help": str(field.metadata.get("help", "")),
        "executes": bool(field.metadata.get("executes")),
    }


def _describe_type(annotation: Any, name: str) -> tuple[str, list[Any], bool]:
    """Return the name of a field's type, its choices, and whether it may be None."""
    inner, optional = _split_optional(annotation)
    if get_origin(inner) is Literal:
        return "choice", list(get_args(inner)), optional
    if isinstance(inner, type) and issubclass(inner, Enum):
        return "choice", [member.value for member in inner], optional
    if inner in _TYPES:
        return _TYPES[inner], [], optional
    raise TypeError(f"its option '{name}' is a {annotation}, which cannot be given as text")


def _split_optional(annotation: Any) -> tuple[Any, bool]:
    parts = get_args(annotation)
    # `X | None` of Python 3.10 is of another class than Optional[X].
    is_union = get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"
    left = [part for part in parts if part is not type(None)]
    if is_union and len(left) == 1 and len(parts) == 2:
        return left[0], True
    return annotation, False


def _convert(value: Any, annotation: Any) -> Any:
    inner, _ = _split_optional(annotation)
    if value is not None and isinstance(inner, type) and issubclass(inner, (Enum, Path, Bytes)):
        return inner(value)
    return value
