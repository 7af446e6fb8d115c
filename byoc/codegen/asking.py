"""Asking a codegen to compile or time, and taking what it gives: all else it does is a CompileError."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from byoc.codegen.api import (
    Artifact,
    Codegen,
    CompileError,
    Measured,
    Region,
    ResourceError,
    Together,
)
from byoc.errors import ByocError, MissingRuntimeError, described, goes_on, shortened, told

_SILENT = "it does not say why"


class ArtifactError(CompileError):
    """What one call made of several regions is no good for one of them, by name."""

    def __init__(self, reason: str, region: str) -> None:
        """Keep the region beside the message."""
        super().__init__(reason)
        self.region = region


def compiled(codegen: Codegen, region: Region, options: Any) -> Artifact:
    """Return the artifact of a region, as plain dictionaries; its files' names are not checked.

    Raises CompileError with one sentence when the codegen refuses the region or fails in any way, and
    MissingRuntimeError where it needs what is not installed.
    """
    artifact: Artifact = _asked(lambda: _taken(codegen.compile(region, options)))
    return artifact


def compiled_together(codegen: Together, regions: Sequence[Region], options: Any) -> dict[str, Artifact]:
    """Return the artifacts of some regions, compiled in one call, by name; raises as `compiled`."""
    names = [region.name for region in regions]
    given: dict[Any, Any] = _asked(lambda: _mapping(codegen.compile_all(tuple(regions), options)))
    found = {}
    for name in names:
        if name not in given:
            raise ArtifactError("compile_all gave no artifact for it", name)
        try:
            found[name] = _asked(lambda name=name: _taken(given[name]))  # type: ignore[misc]
        except CompileError as error:
            raise ArtifactError(str(error), name) from error
    for name in given:
        if name not in names:
            called = shortened(name, 100) if isinstance(name, str) else type(name).__name__
            raise CompileError(
                f"compile_all gave an artifact for '{called}', which it was not asked for"
            )
    return found


def timed(codegen: Measured, region: Region) -> float:
    """Return the seconds that a region takes on the device; raises as `compiled`."""
    seconds: float = _asked(lambda: _seconds(codegen.cost(region)))
    return seconds


def _asked(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CompileError as error:
        kind = ResourceError if isinstance(error, ResourceError) else CompileError
        raise kind(told(error) or _SILENT, _nodes(error)) from error
    except MissingRuntimeError as error:
        raise MissingRuntimeError(told(error) or _SILENT) from error
    except ByocError as error:
        raise CompileError(told(error) or _SILENT) from error
    except BaseException as error:  # a plug-in can fail in any way
        if goes_on(error):
            raise
        raise CompileError(f"failed with {described(error)}") from error


def _nodes(error: CompileError) -> list[str]:
    """Return what are names among what a codegen says are."""
    try:
        given = error.nodes if isinstance(error.nodes, (list, tuple, set, frozenset)) else ()
        return [str.__str__(name) for name in given if isinstance(name, str) and name]
    except Exception:  # the error is of the codegen's own kind
        return []


def _seconds(given: Any) -> float:
    if not isinstance(given, (int, float)) or not 0 < given < inf:
        raise CompileError(f"cost gave {shortened(repr(given), 100)}, not seconds above 0")
    return float(given)


def _mapping(given: Any) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise CompileError(f"compile_all gave {type(given).__name__}, not artifacts by region")
    return {_plain(name): artifact for name, artifact in given.items()}


def _taken(artifact: Any) -> Artifact:
    """Return what a codegen gave in types of Python's own. Raises CompileError for what is no artifact.

    A subclass may do anything when it is asked, and later on nobody would say whose it was.
    """
    if not isinstance(artifact, Artifact):
        raise CompileError(f"compile gave {type(artifact).__name__}, not an Artifact")
    given = {"files": artifact.files, "metadata": artifact.metadata}
    for what, entries in given.items():
        if not isinstance(entries, Mapping):
            raise CompileError(f"the artifact's {what} are {type(entries).__name__}, not a mapping")
    files: dict[str, bytes] = {}
    for name, content in given["files"].items():
        if not isinstance(name, str):
            raise CompileError(f"{name!r} is not a plain file name for an artifact")
        files[_stored(_plain(name), "file name")] = _content(name, content)
    metadata: dict[str, str] = {}
    for key, value in given["metadata"].items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CompileError(f"the metadata '{key}' is not text")
        for text in (key, value):
            _stored(_plain(text), "metadata")
        metadata[_plain(key)] = _plain(value)
    return Artifact(files, metadata)


def _content(name: str, content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise CompileError(f"the content of '{name}' is {type(content).__name__}, not bytes")
    return content if type(content) is bytes else bytes(memoryview(content))


def _plain(text: Any) -> Any:
    """Return a text as one of Python's own, anything else as it is."""
    return str.__str__(text) if isinstance(text, str) else text


def _stored(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise CompileError(
            f"the {what} '{shortened(text, 100)}' is not text that can be stored"
        ) from None
    return text
