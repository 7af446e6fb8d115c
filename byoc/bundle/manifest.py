"""The manifest of a bundle: what was asked, what was decided and why, and every file's hash.

It is JSON, `manifest.json` in the bundle's folder. Paths in it are relative to that folder and never
lead out of it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from byoc.bundle.contracts import ContractEntry
from byoc.errors import InputError
from byoc.yamlfile import Strict

FORMAT = 3
NAME = "manifest.json"
_BLOCK = 1 << 20


class FileEntry(Strict):
    """A file of the bundle."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


class RegionEntry(Strict):
    """A region: its model, what crosses its border, and what the codegen made of it."""

    name: str
    target: str
    model: str
    codegen: str
    composites: tuple[str, ...]
    inputs: tuple[ContractEntry, ...]
    outputs: tuple[ContractEntry, ...]
    constants: tuple[ContractEntry, ...]
    same_as: str = ""
    """the earlier region whose artifact serves this one too, its tensors by position; else empty"""
    artifact_files: dict[str, str]
    """file name as the codegen gave it, to the path in the bundle"""
    artifact_metadata: dict[str, str]


class Manifest(Strict):
    """Everything that the manifest holds."""

    format: int
    versions: dict[str, str]
    asked: dict[str, Any]
    targets: tuple[str, ...]
    model: str
    regions: tuple[RegionEntry, ...]
    report: dict[str, Any]
    files: dict[str, FileEntry]


def bundle_files(folder: Path) -> set[str] | None:
    """Return the files of a bundle by its manifest, whatever its format; None when it is no bundle.

    Many tools write a manifest.json: only one that names byoc's version and lists files is ours.
    """
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return set(content["files"]) if isinstance(content["versions"]["byoc"], str) else None
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None


def read_manifest(bundle: Path) -> Manifest:
    """Return a bundle's manifest after checking every file it names.

    Raises InputError: not a bundle, another format, a file missing, changed, or outside the folder.
    """
    path = bundle / NAME
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{bundle}: not a bundle: it holds no {NAME}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise InputError(f"{path}: format {found!r}; this version of byoc reads format {FORMAT}")
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: not a manifest: {place}: {first['msg']}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a manifest: {str(error).splitlines()[0]}") from None
    for name, entry in manifest.files.items():
        _check_file(bundle, name, entry)
    for name in _named(manifest):
        if name not in manifest.files:
            raise InputError(f"{path}: the file '{name}' is named but has no hash")
    return manifest


def inside(bundle: Path, name: str) -> Path:
    """Return the path of a bundle's file. Raises InputError for one that leads out of the folder."""
    try:
        path = (bundle / name).resolve()
    except (OSError, ValueError, RuntimeError):  # not a name that a file can have; a loop of links
        path = Path()
    if not path.is_relative_to(bundle.resolve()):
        raise InputError(f"{bundle / NAME}: the file '{name}' is not inside the bundle")
    return path


def _named(manifest: Manifest) -> Iterator[str]:
    yield manifest.model
    for region in manifest.regions:
        yield region.model
        yield from region.artifact_files.values()


def describe_file(path: Path) -> FileEntry:
    """Return a file's size and hash."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return FileEntry(sha256=digest.hexdigest(), bytes=path.stat().st_size)


def _check_file(bundle: Path, name: str, entry: FileEntry) -> None:
    path = inside(bundle, name)
    if not path.is_file():
        raise InputError(f"{bundle}: the file '{name}' of the bundle is missing")
    if path.stat().st_size != entry.bytes or describe_file(path) != entry:
        raise InputError(f"{bundle}: the file '{name}' is not as it was written: its hash differs")
