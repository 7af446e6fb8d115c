"""Compiling the regions of a plan: what a codegen gives is held to its word, the same region once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from byoc.codegen import Artifact, Codegen, CompileError, Region, ResourceError, Together, chosen_options
from byoc.codegen.fingerprint import identical
from byoc.errors import ByocError, described

_PLAIN = re.compile(r"[^/\\\0]+")


@dataclass(frozen=True, eq=False)
class Compiler:
    """What compiles the regions of a target: a codegen and the options that the user gave it."""

    codegen: Codegen
    options: Mapping[str, str]

    @cached_property
    def chosen(self) -> Any:
        """What `compile` is handed as options. Raises InputError when one is not right."""
        return chosen_options(self.codegen, self.options)


@dataclass(frozen=True, eq=False)
class Compiled:
    """What became of a region: its artifact, which may be that of an earlier region `same_as` it."""

    artifact: Artifact
    same_as: str = ""


def compile_regions(
    regions: Sequence[Region], compiler: Compiler, progress: Callable[[str], None]
) -> dict[str, Compiled]:
    """Return what became of the regions of one target, by name.

    Of regions that are the same but for names only the first is compiled. Raises CompileError, naming
    the region, when the codegen refuses one or gives no artifact.
    """
    same = identical(regions)
    first = [region for region in regions if region.name not in same]
    if isinstance(compiler.codegen, Together):
        artifacts = _together(first, compiler, progress)
    else:
        artifacts = {}
        for region in first:
            progress(f"compile {region.name} with {compiler.codegen.name}")
            artifacts[region.name] = compile_region(region, compiler)
    return {
        region.name: Compiled(artifacts[same.get(region.name, region.name)], same.get(region.name, ""))
        for region in regions
    }


def compile_region(region: Region, compiler: Compiler) -> Artifact:
    """Return a region's artifact. Raises CompileError, naming the region."""
    artifact = _asked(
        lambda: compiler.codegen.compile(region, compiler.chosen), compiler.codegen, region.name
    )
    _check(artifact, compiler.codegen, region.name)
    return artifact  # type: ignore[no-any-return]


def _together(
    regions: Sequence[Region], compiler: Compiler, progress: Callable[[str], None]
) -> dict[str, Artifact]:
    codegen = compiler.codegen
    if not regions:
        return {}
    names = [region.name for region in regions]
    where = ", ".join(names)
    progress(f"compile {where} with {codegen.name}")
    assert isinstance(codegen, Together)
    given = _asked(lambda: codegen.compile_all(tuple(regions), compiler.chosen), codegen, where)
    if not isinstance(given, Mapping):
        what = f"compile_all gave {type(given).__name__}, not artifacts by region"
        raise CompileError(f"codegen {codegen.name}: {where}: {what}")
    for name in (*names, *given):
        if name not in given:
            raise CompileError(f"codegen {codegen.name}: {name}: compile_all gave no artifact for it")
        if name not in names:
            raise CompileError(f"codegen {codegen.name}: compile_all gave an artifact for {name!r}")
        _check(given[name], codegen, name)
    return dict(given)


def _asked(ask: Callable[[], Any], codegen: Codegen, where: str) -> Any:
    try:
        return ask()
    except CompileError as error:
        kind = ResourceError if isinstance(error, ResourceError) else CompileError
        raise kind(f"codegen {codegen.name}: {where}: {error}", error.nodes) from error
    except ByocError as error:
        raise CompileError(f"codegen {codegen.name}: {where}: {error}") from error
    except Exception as error:  # a plug-in can fail in any way; say whose fault it was
        raise CompileError(f"codegen {codegen.name}: {where}: failed with {described(error)}") from error


def _check(artifact: Any, codegen: Codegen, where: str) -> None:
    wrong = _wrong(artifact)
    if wrong:
        raise CompileError(f"codegen {codegen.name}: {where}: {wrong}")


def _wrong(artifact: Any) -> str:
    """Return what is wrong with what a codegen gave, as a sentence; empty when nothing is."""
    if not isinstance(artifact, Artifact):
        return f"compile gave {type(artifact).__name__}, not an Artifact"
    for what in ("files", "metadata"):
        if not isinstance(getattr(artifact, what), Mapping):
            return f"the artifact's {what} are {type(getattr(artifact, what)).__name__}, not a mapping"
    for name, content in artifact.files.items():
        if not isinstance(name, str) or name in (".", "..") or not _PLAIN.fullmatch(name):
            return f"{name!r} is not a plain file name for an artifact"
        if not isinstance(content, bytes):
            return f"the content of '{name}' is {type(content).__name__}, not bytes"
    for key, value in artifact.metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            return f"the metadata '{key}' is not text"
    return ""
