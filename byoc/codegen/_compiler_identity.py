"""The identity of a codegen: its description, and all that artifacts depend on but regions.

Two compiles of one region whose compilers have the same identity give the same artifact. What a codegen
reads beyond what stands here, a tool on the path or a file of its own, it says itself (`cache_key`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from byoc import onnxrt
from byoc._dataclasses import asdict, dataclass, fields, is_dataclass
from byoc.codegen._abilities import ABILITIES, Keyed, list_abilities, list_recovery_options
from byoc.codegen._calling import ask_cache_key
from byoc.codegen._interface import API_VERSION
from byoc.codegen.byoc_worker.link import BrokenMessageError
from byoc.support import (
    BYOC_DISTRIBUTION,
    CODEGENS,
    OptionDescription,
    format_options,
    get_first_sentence,
    list_installed,
    list_options,
    read_name_and_version,
    read_requirements,
)

if TYPE_CHECKING:
    from byoc.codegen._interface import Codegen


# Descriptions of codegens: abilities, options, and the class attributes that byoc reads.

_ABILITY_FLAGS = (
    "open_shapes",
    "recompiles",
    "native",
    "calibrates",
    "model_driver",
    "refers_to_weights",
)


@dataclass(frozen=True)
class CodegenDescription:
    """The description of a codegen, from its class and its documentation.

    `summary` is the first sentence of its documentation, `api` the version of the interface, `abilities`
    are keys of `ABILITIES`. `options` is None where it reads its options itself. The others are class
    attributes: `open_shapes` (executors take other extents than declared), `recompiles` (`load` itself
    handles an artifact that does not fit), `native` (`load` executes what an artifact holds),
    `calibrates` (`compile` reads `Region.samples`), `model_driver` (byoc makes a driver of models) and
    `refers_to_weights` (artifacts depend on where constants lie).
    `recovery_options` are those to compile a region with that was computed wrong, in order.
    `interpreter` is the Python that runs it where that is another one.
    """

    summary: str
    api: int
    abilities: tuple[str, ...]
    options: tuple[OptionDescription, ...] | None
    open_shapes: bool
    recompiles: bool
    native: bool
    calibrates: bool = False
    model_driver: bool = False
    refers_to_weights: bool = False
    recovery_options: tuple[dict[str, str], ...] = ()
    interpreter: str = ""

    @property
    def executing_options(self) -> list[str]:
        """The names of the options whose values are executed."""
        return [option.name for option in self.options or () if option.executes]


def describe_codegen(codegen: Codegen) -> CodegenDescription:
    """Describe a codegen of this process."""
    listed = describe_options(getattr(codegen, "Options", None))
    flags: dict[str, Any] = {name: bool(getattr(codegen, name, False)) for name in _ABILITY_FLAGS}
    return CodegenDescription(
        get_first_sentence(type(codegen)),
        int(getattr(codegen, "api", API_VERSION)),
        list_abilities(codegen),
        listed,
        recovery_options=tuple(map(dict, list_recovery_options(codegen))),
        **flags,
    )


def describe_options(options: type | None) -> tuple[OptionDescription, ...] | None:
    """Describe a codegen's dataclass of options, None where it has not got any."""
    return None if options is None else tuple(map(_without_parser, list_options(options)))


def write_description(codegen: Codegen) -> Mapping[str, Any]:
    """Describe a codegen of this process, as JSON."""
    return asdict(describe_codegen(codegen))


def read_description(content: Any) -> CodegenDescription:
    """Read what `write_description` gave in a worker process. Raises BrokenMessageError."""
    try:
        found = _get_reader().validate_json(json.dumps(content), strict=True)
    except (ValidationError, ValueError):
        raise BrokenMessageError("a description is missing") from None
    if not set(found.abilities) <= ABILITIES.keys():
        raise BrokenMessageError("it has an ability that there is not")
    return found


@cache
def _get_reader() -> TypeAdapter[CodegenDescription]:
    return TypeAdapter(CodegenDescription)


def _without_parser(option: OptionDescription) -> OptionDescription:
    names = (entry.name for entry in fields(OptionDescription))
    return OptionDescription(**{name: getattr(option, name) for name in names})


_OWN_PACKAGE = __name__.partition(".")[0]
# With which byoc makes what a codegen reads.
_OWN_LIBRARIES = ("onnx", "numpy", "scipy", "protobuf", BYOC_DISTRIBUTION)
_MAX_READ_BYTES = 4 << 20  # size and time stand for the content of a larger file: a shared library
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LEFT_OUT = {"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def describe_compiler(codegen: Codegen, options: Any) -> dict[str, str] | None:
    """Describe a codegen with parsed options, as far as its artifacts depend on it; None if unknown.

    Unknown is one that says `cached = False`, and one that no distribution registers.
    Raises CompileError, as `compile_region` does, when its `cache_key` fails.
    """
    point = list_installed(CODEGENS).get(codegen.name)
    if point is None or point.dist is None or not getattr(codegen, "cached", True):
        return None
    own = ask_cache_key(codegen, options) if isinstance(codegen, Keyed) else {}
    described = {
        "codegen": codegen.name,
        "class": point.value,
        "api": str(getattr(codegen, "api", API_VERSION)),
        "options": repr(sorted(_describe_options(options).items())),
        "libraries": repr(_describe_libraries(codegen, point.dist)),
        "sources": _hash_packages([_OWN_PACKAGE, point.module.partition(".")[0], point.module]),
        "environment": repr(_list_variables(codegen.name)),
        "python": f"{sys.implementation.cache_tag} {platform.machine()} {platform.system()}",
        "processors": f"{_count_processors()} {_hash_abilities()}",
        "sessions": repr(onnxrt.get_session_settings()),
    }
    return described | {f"own {name}": value for name, value in own.items()}


def describe_byoc(codegen: str) -> dict[str, str]:
    """Describe all that artifacts of another Python depend on in this one, and on this machine."""
    return {
        "codegen": codegen,
        "libraries": repr([(name, _find_version(name)) for name in _OWN_LIBRARIES]),
        "sources": _hash_packages([_OWN_PACKAGE]),
        "environment": repr(_list_variables(codegen)),
        "processors": f"{platform.machine()} {_count_processors()} {_hash_abilities()}",
    }


def _describe_options(options: Any) -> Mapping[str, str]:
    """Return options as text, those of environment variables among them."""
    return format_options(options) if is_dataclass(options) else dict(options)


def _describe_libraries(codegen: Codegen, owner: Distribution) -> list[tuple[str, str]]:
    """Return the versions of the codegen's distribution, and of what it compiles with, by name."""
    named = getattr(codegen, "libraries", None)
    names = set(_list_requirements(owner) if named is None else named).union(_OWN_LIBRARIES)
    versions = {_normalize(name): _find_version(name) for name in names}
    name, version = read_name_and_version(owner)
    return sorted({**versions, _normalize(name): version}.items())


def _list_requirements(owner: Distribution) -> set[str]:
    """Return the names of what a distribution requires, of its extras too, and of what that requires."""
    found: set[str] = set()
    waiting = [owner]
    while waiting:
        for requirement in read_requirements(waiting.pop()):
            name = _normalize(_read_name(requirement))
            if name not in found:
                found.add(name)
                try:
                    waiting.append(distribution(name))
                except (PackageNotFoundError, ValueError):
                    continue
    return found


def _read_name(requirement: str) -> str:
    found = _REQUIREMENT_NAME.match(requirement)
    return found[0] if found else requirement


def _normalize(name: str) -> str:
    """Return the name of a distribution in the one way of writing it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _find_version(name: str) -> str:
    try:
        return read_name_and_version(distribution(name))[1]
    except (PackageNotFoundError, ValueError):
        return "none"


def _hash_packages(names: Iterable[str]) -> str:
    """Return a hash of the files of packages.

    Their content counts, since a checkout changes while its version stays.
    """
    digest = hashlib.sha256()
    for name in sorted({*names}):
        for place in _find_places(name):
            for path in _walk_files(place):
                digest.update(f"{name} {path.removeprefix(place)} ".encode(errors="replace"))
                digest.update(_read_or_describe(path))
    return digest.hexdigest()


def _find_places(name: str) -> list[str]:
    """Return the folders of a package, or the file of a module, without importing it."""
    if name in sys.modules:
        module = sys.modules[name]
        found = [*getattr(module, "__path__", ())] or [getattr(module, "__file__", None)]
        return sorted(place for place in found if place)
    if "." in name:  # finding it would import its package, whose folder has it
        return []
    spec = find_spec(name)
    if spec is None:
        return []
    return sorted(spec.submodule_search_locations or [spec.origin or name])


def _walk_files(place: str) -> Iterator[str]:
    """Yield the paths of the files under a folder in a fixed order; a file yields itself."""
    if not os.path.isdir(place):  # noqa: PTH112 - of hundreds of files, each counts
        yield place
        return
    for root, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(files):
            yield f"{root}{os.sep}{name}"


def _read_or_describe(path: str) -> bytes:
    try:
        opened = os.open(path, _FLAGS)
        try:
            status = os.fstat(opened)
            if status.st_size > _MAX_READ_BYTES or not stat.S_ISREG(status.st_mode):
                return f"{status.st_size} {status.st_mtime_ns}".encode()
            return hashlib.sha256(os.read(opened, _MAX_READ_BYTES)).digest()
        finally:
            os.close(opened)
    except OSError:
        return b"unread"


def _list_variables(name: str) -> list[tuple[str, str]]:
    """Return the environment variables whose names begin with a codegen's name: `ACME_HOME`."""
    prefix = f"{re.sub('[^A-Za-z0-9]', '_', name).upper()}_"
    return sorted((key, value) for key, value in os.environ.items() if key.startswith(prefix))


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _hash_abilities() -> str:
    """Return a hash of what the first processor calls itself and can do, empty where nothing says it."""
    kept = (b"vendor_id", b"cpu family", b"model", b"stepping", b"flags", b"CPU ", b"Features")
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            lines = file.read(1 << 14).split(b"\n\n")[0].splitlines()
    except OSError:
        return ""
    told = b"\n".join(line for line in lines if line.startswith(kept))
    return hashlib.sha256(told).hexdigest()
