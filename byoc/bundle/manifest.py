"""The manifest of a bundle: what was asked, what was decided and why, and every file's hash.

It is JSON, `manifest.json` in the bundle's folder. Paths in it are relative to that folder and never
lead out of it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import Field, ValidationError

from byoc.bundle.contracts import ContractEntry
from byoc.bundle.names import is_plain, one_line, quoted, wrong_path
from byoc.bundle.strict import read_json
from byoc.errors import InputError
from byoc.yamlfile import Strict

FORMAT = 3
NAME = "manifest.json"
MOST_BYTES = 1 << 28
"""The largest manifest that is read; one of 10,000 regions has about a tenth of it."""
_LARGEST = 2**63 - 1
_BLOCK = 1 << 20


class FileEntry(Strict):
    """A file of the bundle."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(description="Of its bytes, in hex.")
    bytes: Annotated[int, Field(ge=0, le=_LARGEST)] = Field(description="Its size.")


class RegionEntry(Strict):
    """A region: its model, what crosses its border, and what the codegen made of it."""

    name: str = Field(description="Also the name of its function in the partitioned model.")
    target: str = Field(description="The accelerator.")
    model: str = Field(description="The file with the region as a model of its own.")
    codegen: str = Field(description="The codegen that compiled it, and loads it.")
    composites: tuple[str, ...] = Field(description="The composites in it, in order of execution.")
    inputs: tuple[ContractEntry, ...] = Field(description="What it reads, in order.")
    outputs: tuple[ContractEntry, ...] = Field(description="What it gives out, in order.")
    constants: tuple[ContractEntry, ...] = Field(description="What is stored in it.")
    codegen_options: dict[str, str] = Field(
        default_factory=dict,
        description="The options that the codegen was given, those of the rule file among them.",
    )
    same_as: str = Field(
        default="",
        description=(
            "The earlier region whose artifact serves this one too, its tensors by position; else empty."
        ),
    )
    artifact_files: dict[str, str] = Field(
        description="The name that the codegen gave a file, to the file in the bundle."
    )
    artifact_metadata: dict[str, str] = Field(description="What the codegen noted for its loading.")


class Manifest(Strict):
    """What a bundle of byoc holds. Every path is relative to the bundle's folder, with `/`."""

    format: int = Field(description="The version of this format.")
    versions: dict[str, str] = Field(description="Of the packages that it was made with.")
    asked: dict[str, Any] = Field(description="The arguments of the partition.")
    targets: tuple[str, ...] = Field(description="The accelerators, in the order asked.")
    model: str = Field(description="The file with the partitioned model.")
    regions: tuple[RegionEntry, ...] = Field(description="The regions, in order of execution.")
    report: dict[str, Any] = Field(description="What `byoc partition --format json` printed.")
    files: dict[str, FileEntry] = Field(description="Every other file of the bundle, by path.")


def listed_files(content: bytes) -> set[str] | None:
    """Return the files that a manifest lists, whatever its format; None when it is not one of byoc's.

    Many tools write a manifest.json: only one that names byoc's version and lists files is ours.
    """
    try:
        read = json.loads(content)
        return set(read["files"]) if isinstance(read["versions"]["byoc"], str) else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def read_manifest(folder: Path, place: Path | None = None) -> Manifest:
    """Return a bundle's manifest after checking every file it names.

    `place` is what sentences call the bundle, `folder` by default. Raises InputError: not a bundle,
    another format, a file missing, changed, or outside the folder.
    """
    place = place or folder
    path = folder / NAME
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{place}: not a bundle: it holds no {NAME}")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{place / NAME}: cannot be read: {error.strerror or error}") from None
    manifest = parse_manifest(content, place / NAME)
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry, place)
    return manifest


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """Return the manifest that bytes hold, its names checked but none of its files looked at.

    `path` is what sentences call it. Raises InputError in one sentence.
    """
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: not a manifest: it has more than {MOST_BYTES} bytes")
    try:
        read = read_json(content)
        found = read.get("format") if isinstance(read, dict) else None
        if type(found) is not int or found != FORMAT:
            raise InputError(f"{path}: {_other_format(found)}")
        # pydantic's own reader is the one that takes a list for a tuple but no "1" for a 1.
        manifest = Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = [one_line(".".join(map(str, first["loc"])))] if first["loc"] else []
        raise InputError(": ".join([f"{path}: not a manifest", *where, first["msg"]])) from None
    except ValueError as error:
        raise InputError(f"{path}: not a manifest: {error}") from None
    _check_names(manifest, path)
    return manifest


def inside(folder: Path, name: str, place: Path | None = None) -> Path:
    """Return the path of a bundle's file. Raises InputError for one that leads out of the folder."""
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError):  # not a name that a file can have; a loop of links
        path = Path()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{(place or folder) / NAME}: the file {quoted(name)} is not inside the bundle")
    return path


def describe_file(path: Path) -> FileEntry:
    """Return a file's size and hash."""
    with path.open("rb") as file:
        return copied(file)


def copied(source: IO[bytes], target: IO[bytes] | None = None, most: int = _LARGEST) -> FileEntry:
    """Return the size and hash of what a file holds, after copying it to another, in blocks.

    Stops once more than `most` bytes were read; the size then says so.
    """
    digest, size = hashlib.sha256(), 0
    while size <= most and (block := source.read(_BLOCK)):
        digest.update(block)
        size += len(block)
        if target is not None and size <= most:
            target.write(block)
    return FileEntry(sha256=digest.hexdigest(), bytes=size)


def check_same(place: Path, name: str, found: FileEntry, entry: FileEntry) -> None:
    """Raise InputError unless a file has the size and hash that the manifest has for it."""
    for what, here, told in (
        ("size", found.bytes, entry.bytes),
        ("hash", found.sha256, entry.sha256),
    ):
        if here != told:
            raise InputError(
                f"{place}: the file {quoted(name)} is not as it was written: its {what} differs"
            )


def _check_file(folder: Path, name: str, entry: FileEntry, place: Path) -> None:
    path = inside(folder, name, place)
    try:
        if not path.is_file():
            raise InputError(f"{place}: the file {quoted(name)} of the bundle is missing")
        size = path.stat().st_size
        same = size == entry.bytes  # else there is no need to read it
        found = describe_file(path) if same else FileEntry(sha256=entry.sha256, bytes=size)
    except OSError as error:
        raise InputError(f"{place}: the file {quoted(name)} cannot be read: {error.strerror}") from None
    check_same(place, name, found, entry)


def _check_names(manifest: Manifest, path: Path) -> None:
    """Raise InputError for a name that leads elsewhere, has no hash, or stands for two things."""
    for name in manifest.files:
        wrong = wrong_path(name) or ("is the manifest itself" if name.lower() == NAME else "")
        if wrong:
            raise InputError(f"{path}: the file {quoted(name)} {wrong}")
    for name in _named(manifest):
        if name not in manifest.files:
            raise InputError(f"{path}: the file {quoted(name)} is named but has no hash")
    times = Counter(region.name for region in manifest.regions)
    for region in manifest.regions:
        if times[region.name] > 1:
            raise InputError(f"{path}: the region {quoted(region.name)} stands in it twice")
        if not is_plain(region.name):
            raise InputError(f"{path}: the region {quoted(region.name)} does not have a plain name")
        for name in region.artifact_files:
            if not is_plain(name):
                where = f"the artifact of region {quoted(region.name)}"
                raise InputError(f"{path}: {where}: {quoted(name)} is not a plain file name")


def _named(manifest: Manifest) -> Iterator[str]:
    yield manifest.model
    for region in manifest.regions:
        yield region.model
        yield from region.artifact_files.values()


def _other_format(found: object) -> str:
    told = one_line(repr(found))
    if type(found) is int and 0 < found < FORMAT:
        return f"format {told} is that of an older byoc: partition the model again"
    if type(found) is int and found > FORMAT:
        return f"format {told} is that of a newer byoc; this one reads format {FORMAT}"
    return f"format {told}; this version of byoc reads format {FORMAT}"
