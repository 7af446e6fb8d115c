"""Options of the codegen `ort_ep`, and the provider that they name."""

import importlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from byoc.codegen import (
    INSTALL_HINT,
    CompileError,
    Fit,
    InputError,
    MissingRuntimeError,
    describe_runtime,
    find_library,
    install_command,
    read_options,
    shorten_text,
)

from .provider_session import PluginProvider, ProviderError, find_device

LIBRARY_VARIABLE = "BYOC_ORT_EP"

_NO_LIBRARY = (
    "codegen ort_ep needs a provider's library: --codegen-option library=NAME, of an installed package "
    f"such as onnxruntime_ep_openvino or of a shared library's file, or ${LIBRARY_VARIABLE}"
)
_MAX_CHARACTERS = 300  # of a message of onnxruntime or a provider in a sentence
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_PLACE = re.compile(
    r"(?:Check '[^']*' failed at )?\S+\.(?:cc|cpp|h):\d+:?(?: [\w:<>*&, ~]+\([^)]*\)(?: const)?)?\s"
)
"""A file and line of a library's source, and the signature of the function there."""


@dataclass(frozen=True)
class OrtEpOptions:
    """Options of the codegen `ort_ep`.

    `library` is a shared library with a provider, or an installed package that has one. `provider` is
    the provider's name, `device` a type of its devices, and `settings` are its own options. With
    `context` what it compiles is stored where it writes that. `timeout` is the limit for one call of
    the provider's compiler, in seconds.
    """

    library: str = field(
        default_factory=lambda: os.environ.get(LIBRARY_VARIABLE, ""),
        metadata={
            "help": "the provider's shared library, or an installed package with one; "
            f"by default ${LIBRARY_VARIABLE}",
            "executes": True,
        },
    )
    provider: str = field(
        default="", metadata={"help": "the provider's name, where the library has several"}
    )
    device: Literal["cpu", "gpu", "npu"] | None = field(
        default=None,
        metadata={"help": "a type of devices; by default the first that the provider lists"},
    )
    settings: str = field(
        default="",
        metadata={
            "help": "the provider's own options, as NAME=VALUE NAME=VALUE ..., quoted as in a shell",
            "executes": True,  # some name libraries, such as QNN's backend_path
        },
    )
    context: bool = field(
        default=True, metadata={"help": "store what the provider compiles, where it writes that"}
    )
    timeout: float = field(
        default=600.0, metadata={"help": "seconds that a call of the provider's compiler may take"}
    )

    def __post_init__(self) -> None:
        """Raise ValueError for settings that are not NAME=VALUE, and for a timeout of 0 or less."""
        parse_settings(self.settings)
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s, but must be more than 0")


def parse_settings(text: str) -> dict[str, str]:
    """Return a provider's own options by name. Raises ValueError where one is not NAME=VALUE."""
    try:
        entries = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"settings cannot be read: {error}") from None
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise ValueError(f"settings has '{shorten_text(entry, 60)}', which is not NAME=VALUE")
        if name in found:
            raise ValueError(f"settings has {name} twice")
        found[name] = value
    return found


def find_provider(options: OrtEpOptions) -> PluginProvider:
    """Return the provider of the options.

    Raises MissingRuntimeError where there is no such library.
    """
    library, registration = _find_library(options.library)
    return PluginProvider(
        str(library),
        registration,
        options.provider,
        options.device or "",
        parse_settings(options.settings),
    )


def describe_library(name: str) -> Fit:
    """Return whether onnxruntime and a provider's library are here, without loading either."""
    if not describe_runtime():
        return Fit.without(INSTALL_HINT)
    if not name:
        return Fit.without(_NO_LIBRARY)
    unknown = "whether the provider has such a device here"
    if Path(name).expanduser().is_file():
        return Fit(f"the provider in {Path(name).name}", unknown=unknown)
    version = find_library(name, name, name.replace("_", "-")) if _is_package(name) else None
    if version is None:
        return Fit.without(f"the provider's library {name} is not there")
    return Fit(f"{name} {version}".strip(), unknown=unknown)


def _is_package(name: str) -> bool:
    return re.fullmatch(r"\w+(\.\w+)*", name) is not None


def _find_library(name: str) -> tuple[Path, str]:
    """Return a library's file, and the name to register it by."""
    if not name:
        raise MissingRuntimeError(_NO_LIBRARY)
    path = Path(name).expanduser()
    if path.is_file():
        return path.absolute(), path.name.partition(".")[0].removeprefix("lib")
    if not _is_package(name):
        raise MissingRuntimeError(f"the provider's library {name} is not there")
    try:
        package = importlib.import_module(name)
    except ImportError:
        raise MissingRuntimeError(
            f"the provider's library {name} is not there: neither a file nor an installed package"
        ) from None
    try:  # two functions that packages of providers have by convention
        return Path(package.get_library_path()).absolute(), str(package.get_ep_name())
    except Exception as error:  # whatever a package may raise, or lack
        raise MissingRuntimeError(
            f"the package {name} names no provider's library: {shorten_message(error)}"
        ) from None


def open_provider(options: OrtEpOptions) -> tuple[PluginProvider, dict[str, str]]:
    """Return the provider of the options, registered in this process, and the stamp of its device.

    Raises MissingRuntimeError where there is no such library, provider or device, with the reason.
    """
    provider = find_provider(options)
    try:
        device = find_device(provider)
    except ImportError:
        raise MissingRuntimeError(
            f"onnxruntime is not installed ({install_command('ort-ep')})"
        ) from None
    except ProviderError as error:
        raise MissingRuntimeError(shorten_message(error)) from None
    return provider, _describe_device(device)


def _describe_device(device: Any) -> dict[str, str]:
    """Return the provider's name and version, and its device: compiled code may depend on them."""
    hardware = device.device
    kind = f"{hardware.type.name} {hardware.vendor} {hardware.vendor_id:04x}:{hardware.device_id:04x}"
    return {
        "provider_name": str(device.ep_name),
        "provider_version": str(device.ep_metadata.get("version", "unknown")),
        "provider_device": kind,
    }


def read_artifact_options(metadata: Mapping[str, str]) -> OrtEpOptions:
    """Return the options that an artifact was compiled with; its library may be another one here.

    An artifact needs the library that it was made by in any case, and only bundles of makers whom the
    user trusts are loaded (`native`). The environment variable goes before what such a bundle says.
    Raises CompileError where the metadata is not this codegen's.
    """
    names = list(OrtEpOptions.__dataclass_fields__)
    try:
        given = {name: metadata[name] for name in names}
        here = os.environ.get(LIBRARY_VARIABLE)
        return read_options(OrtEpOptions, {**given, **({"library": here} if here else {})})
    except (KeyError, InputError) as error:
        raise CompileError(f"its metadata is not of codegen ort_ep: {error}") from None


def shorten_message(error: Exception | str) -> str:
    """Return a message of onnxruntime or of a provider in one line, without its place in a source."""
    text = " ".join(_PLACE.sub("", _CODE.sub("", str(error))).split())
    return shorten_text(text, _MAX_CHARACTERS)
