"""Asking a codegen to compile, and taking what it gives: whatever else it does is a CompileError."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from byoc.codegen.api import Artifact, Codegen, CompileError, Region, ResourceError, Together
from byoc.errors import ByocError, MissingRuntimeError, described, goes_on, shortened

_MOST_CHARACTERS = 500
_SILENT = "it does not say why"


class ArtifactError(CompileError):
    """What one call made of several regions is no good for one of them, by name."""

    def __init__(self, reason: str, region: str) -> None:
        """Keep the region beside the message."""
        super().__init__(reason)
        self.region = region


def compiled(codegen: Codegen, region: Region, options: Any) -> Artifact:
    """Return the artifact of a region; its files' names are not checked.

    Raises CompileError with one sentence when the codegen refuses the region or fails in any way, and
    MissingRuntimeError where it needs what is not installed.
    """
    artifact = _asked(lambda: codegen.compile(region, options))
    _require(artifact)
    return artifact  # type: ignore[no-any-return]


def compiled_together(codegen: Together, regions: Sequence[Region], options: Any) -> dict[str, Artifact]:
    """Return the artifacts of some regions, compiled in one call, by name; raises as `compiled`."""
    given = _asked(lambda: codegen.compile_all(tuple(regions), options))
    if not isinstance(given, Mapping):
        raise CompileError(f"compile_all gave {type(given).__name__}, not artifacts by region")
    names = [region.name for region in regions]
    for name in names:
        if name not in given:
            raise ArtifactError("compile_all gave no artifact for it", name)
        try:
            _require(given[name])
        except CompileError as error:
            raise ArtifactError(str(error), name) from None
    for name in given:
        if name not in names:
            raise CompileError(f"compile_all gave an artifact for {name!r}, which it was not asked for")
    return dict(given)


def _asked(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CompileError as error:
        kind = ResourceError if isinstance(error, ResourceError) else CompileError
        raise kind(_told(error), _texts(error.nodes)) from error
    except MissingRuntimeError:
        raise
    except ByocError as error:
        raise CompileError(_told(error)) from error
    except BaseException as error:  # a plug-in can fail in any way
        if goes_on(error):
            raise
        raise CompileError(f"failed with {described(error)}") from error


def _told(error: ByocError) -> str:
    return shortened(str(error), _MOST_CHARACTERS) or _SILENT


def _texts(nodes: Any) -> list[str]:
    """Return what are names among what a codegen says are."""
    given = nodes if isinstance(nodes, (list, tuple, set, frozenset)) else ()
    return [name for name in given if isinstance(name, str) and name]


def _require(artifact: Any) -> None:
    """Raise CompileError unless what a codegen gave is an artifact of bytes and texts."""
    if not isinstance(artifact, Artifact):
        raise CompileError(f"compile gave {type(artifact).__name__}, not an Artifact")
    for what in ("files", "metadata"):
        if not isinstance(getattr(artifact, what), Mapping):
            kind = type(getattr(artifact, what)).__name__
            raise CompileError(f"the artifact's {what} are {kind}, not a mapping")
    for name, content in artifact.files.items():
        if not isinstance(name, str):
            raise CompileError(f"{name!r} is not a plain file name for an artifact")
        if not isinstance(content, bytes):
            raise CompileError(f"the content of '{name}' is {type(content).__name__}, not bytes")
    for key, value in artifact.metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CompileError(f"the metadata '{key}' is not text")
