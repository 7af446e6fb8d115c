"""Lookup of a codegen by name, with a check of its interface and version."""

import inspect
from collections.abc import Mapping
from typing import Any

from byoc.codegen.api import API_VERSION, Codegen
from byoc.codegen.options import list_options, read_options
from byoc.errors import InputError
from byoc.plugins import CODEGENS, UnsuitablePluginError, load_plugin


def find_codegen(name: str) -> Codegen:
    """Return the installed codegen of a name.

    Raises InputError when there is none, when it cannot be loaded or is not a codegen, when it
    implements an unsupported version of the interface, or when its `name` is another one.
    """
    found: Codegen = load_plugin(CODEGENS, name, lambda kind: _instantiate(kind, name))
    return found


def parse_codegen_options(codegen: Codegen, given: Mapping[str, str]) -> Any:
    """Parse options given as text; return the `options` argument of the codegen's `compile`.

    Raises InputError naming the codegen and the option when one is wrong.
    """
    options = getattr(codegen, "Options", None)
    if options is None:
        return given
    try:
        return read_options(options, given)
    except InputError as error:
        raise InputError(f"codegen {codegen.name} {error}") from None


def _instantiate(kind: Any, name: str) -> Codegen:
    """Instantiate a codegen class. Raises UnfitError with the end of a sentence."""
    _check_version(kind)
    found = kind()
    _check_version(found)
    if not isinstance(found, Codegen) or not callable(found.compile):
        raise UnsuitablePluginError("is not one: it needs a `name` and a method `compile(region, options)`")
    try:
        inspect.signature(found.compile).bind(None, None)
    except TypeError:
        raise UnsuitablePluginError("is not one: its `compile` does not take (region, options)") from None
    except ValueError:  # not written in Python, so its signature is unknown
        pass
    if getattr(found, "Options", None) is not None:
        try:
            list_options(found.Options)  # type: ignore[attr-defined]
        except TypeError as error:
            raise UnsuitablePluginError(f"cannot be used: {error}") from None
    if found.name != name:  # a bundle stores the name to find its codegen again
        raise UnsuitablePluginError(f"calls itself '{found.name}': rename either")
    return found


def _check_version(kind: Any) -> None:
    version = getattr(kind, "api", API_VERSION)
    if isinstance(version, property):  # known only from an instance
        return
    if not isinstance(version, int) or isinstance(version, bool):
        raise UnsuitablePluginError(f"is not one: its `api` is {version!r}, and not the number of a version")
    if version > API_VERSION:
        raise UnsuitablePluginError(
            f"speaks version {version} of the codegen interface and this byoc no newer one than "
            f"{API_VERSION}: install a newer onnx-byoc, or an older version of it"
        )
    if version < 1:
        raise UnsuitablePluginError(
            f"speaks version {version} of the codegen interface, which this byoc does not: the oldest "
            "is 1; install a newer version of it"
        )
