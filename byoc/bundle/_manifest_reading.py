"""Reading the manifest of a bundle: its names are checked, and the files that it lists."""

import hashlib
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from byoc._dataclasses import dataclass
from byoc.bundle._manifest import (
    ALTERNATIVES_FORMAT,
    EARLIER_ALTERNATIVES_FORMAT,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    PACKAGE_FORMAT,
    FileEntry,
    Manifest,
    PackageManifest,
    ReferenceEntry,
    describe_file,
)
from byoc.codegen import (
    MAX_PATH,
    describe_path_problem,
    escape_line,
    find_same_paths,
    is_plain_name,
    parse_strict_json,
    quote_name,
)
from byoc.errors import InputError, suggest_nearest
from byoc.model import Variant
from byoc.support import read_limited, resolve_path
from byoc.support.trust import SIGNATURE_FILE

# The JSON Schema of manifests, for other tools, derived from the types that byoc parses.

_FORMATS = (MANIFEST_FORMAT, EARLIER_ALTERNATIVES_FORMAT, ALTERNATIVES_FORMAT)

_CONTROL = (
    r"\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\uffff"
)
_NAME_PART = rf'[^{_CONTROL}/\\:*?"<>|]*[^{_CONTROL}/\\:*?"<>|. ]'
_PORT = r"([cC][oO][mM]|[lL][pP][tT])[0-9\u00b9\u00b2\u00b3]"
_CONSOLE = r"[cC][oO][nN]([iI][nN]\$|[oO][uU][tT]\$)?|[cC][lL][oO][cC][kK]\$"
_DEVICE = rf"({_CONSOLE}|[pP][rR][nN]|[aA][uU][xX]|[nN][uU][lL]|{_PORT})"
_NO_DEVICE = rf"(?!{_DEVICE} *(\.[^/]*)?(/|$))"
_NAME = rf"^{_NO_DEVICE}{_NAME_PART}$"
_PATH = rf"^{_NO_DEVICE}{_NAME_PART}(/{_NO_DEVICE}{_NAME_PART})*$"


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the manifest that this version writes and reads.

    It describes each value and requires plain names. Opening a bundle also checks the hashes of files
    and the contracts of regions. That of a package is the definition `PackageManifest`.
    """
    schema: dict[str, Any] = _without_titles(Manifest.model_json_schema())
    schema["properties"]["format"]["enum"] = [*_FORMATS]
    schema["properties"]["files"]["propertyNames"] = {"$ref": "#/$defs/path"}
    package = _without_titles(PackageManifest.model_json_schema())
    del package["$defs"]  # those of the manifest
    schema["$defs"]["PackageManifest"] = package
    region = schema["$defs"]["RegionEntry"]["properties"]
    region["name"] = {"$ref": "#/$defs/name", "description": region["name"]["description"]}
    region["artifact_files"]["propertyNames"] = {"$ref": "#/$defs/name"}
    schema["$defs"]["name"] = {
        "description": "The name of a file, whatever the system.",
        "type": "string",
        "pattern": _NAME,
    }
    schema["$defs"]["path"] = {
        "description": "The path of a file in the bundle, but for the manifest's own.",
        "type": "string",
        "maxLength": MAX_PATH,
        "pattern": _PATH,
        "not": {"pattern": r"^[mM][aA][nN][iI][fF][eE][sS][tT]\.[jJ][sS][oO][nN]$"},
    }
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "byoc manifest"}
    return {
        **start,
        **{key: schema[key] for key in sorted(schema, key=lambda key: (key == "$defs", key))},
    }


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(part) for name, part in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }


MAX_MANIFEST_BYTES = 1 << 28
"""The size limit of a manifest; 10,000 regions take about a tenth of it."""

PROGRAM_FILE = "program.json"
FAULT_FILE = "fault.json"
FolderKind = Literal["bundle", "program", "fault"]
KIND_FILES: dict[str, FolderKind] = {
    MANIFEST_FILE: "bundle",
    PROGRAM_FILE: "program",
    FAULT_FILE: "fault",
}
"""The files that tell kinds apart; no other file at the top of a folder has such a name."""
_OWN_NAMES = {
    **{name: f"says that the folder is a {kind}" for name, kind in KIND_FILES.items()},
    MANIFEST_FILE: "is the manifest itself",
    SIGNATURE_FILE: "is the signature",
}


@dataclass(frozen=True, eq=False)
class Package:
    """The manifest of a package with those of all of its models."""

    index: PackageManifest
    models: Mapping[str, Manifest]

    @property
    def files(self) -> dict[str, FileEntry]:
        """Every file of the package but its manifest and signature, by path."""
        own = {name_manifest(name): entry for name, entry in self.index.models.items()}
        return own | {name: entry for each in self.models.values() for name, entry in each.files.items()}

    @property
    def references(self) -> dict[str, ReferenceEntry]:
        """The files outside that models refer to."""
        return {name: entry for each in self.models.values() for name, entry in each.references.items()}


def name_manifest(model: str) -> str:
    """Return the name of the file with the manifest of a model in a package."""
    return Variant(component=model).name_file(MANIFEST_FILE)


ReadFile = Callable[[str], bytes]
"""Reads a file of a folder or zip by its name, of at most the size of a manifest. Raises InputError."""


def list_files(read: ReadFile) -> set[str] | None:
    """Return the files that manifests of any format list; None when they are not byoc's.

    Many tools write a manifest.json: byoc's names the version of byoc and lists files, and that of a
    package names the manifests of its models.
    """
    try:
        found = parse_strict_json(read(MANIFEST_FILE))
        if "models" not in found:
            return set(found["files"]) if isinstance(found["versions"]["byoc"], str) else None
        names = {name_manifest(str(name)) for name in found["models"]}
        lists = [parse_strict_json(read(name)) for name in names]
        is_ours = lists and all(isinstance(each["versions"]["byoc"], str) for each in lists)
        return names.union(*(each["files"] for each in lists)) if is_ours else None
    except (InputError, ValueError, RecursionError, LookupError, TypeError):
        return None


def find_folder_kind(path: Path) -> FolderKind | None:
    """Return the kind of a folder, None for one of no kind, and for a file.

    What a folder is decides what is executed, so that one of two kinds is refused: a stranger would
    choose by a file of theirs what a verb does with it. Raises InputError for such a folder.
    """
    try:
        found = [name for name in KIND_FILES if (path / name).exists() or (path / name).is_symlink()]
    except (OSError, ValueError):  # no file can have this name
        return None
    if len(found) > 1:
        names = " and ".join(found)
        raise InputError(
            f"{path}: holds {names}, which are of two kinds of folders: what it is, is not clear"
        )
    return KIND_FILES[found[0]] if found else None


def split_path(path: Path) -> tuple[Path, str | None]:
    """Split the path of a model in a package, such as `app.byoc/detector`, into the package and a name.

    The name is None for any other path, which may be that of a whole package. What somebody put into
    the package's folder under the name of a model does not take that model's place.
    """
    try:
        parent = path.parent
        is_model = bool(path.name) and (parent / name_manifest(path.name)).is_file()  # `.` has no name
        is_inside = (is_model or not path.exists()) and (
            (parent / MANIFEST_FILE).is_file() or (parent.is_file() and zipfile.is_zipfile(parent))
        )
    except (OSError, ValueError):  # no file can have this name
        is_inside = False
    return (path.parent, path.name) if is_inside else (path, None)


def choose_model(found: Manifest | PackageManifest, path: Path, read: ReadFile) -> Manifest:
    """Return the manifest of a bundle, or of the model of a package that a path names.

    `found` is what was read of the bundle or package. Raises InputError for a package of several
    models without a name, and a name that is not there.
    """
    whole, name = split_path(path)
    if isinstance(found, Manifest):
        if name is not None:
            raise InputError(f"{path}: no such model: {whole} is a bundle, not a package")
        return found
    names = ", ".join(str(whole / each) for each in found.models)
    if name is None and len(found.models) > 1:
        raise InputError(f"{path}: is a package, and this takes one of its models: {names}")
    name = next(iter(found.models)) if name is None else name
    if name not in found.models:
        near = suggest_nearest(name, found.models)
        raise InputError(f"{path}: no such model{near}; there are {names}")
    return _read_model_manifest(found, name, whole, read)


def read_models(found: Manifest | PackageManifest, whole: Path, read: ReadFile) -> Manifest | Package:
    """Return the manifest of a bundle, or that of a package with those of all of its models.

    `found` is what was read of the folder or zip `whole`. Raises InputError where models do not agree
    on a file.
    """
    if isinstance(found, Manifest):
        return found
    models = {name: _read_model_manifest(found, name, whole, read) for name in found.models}
    files: dict[str, FileEntry] = {}
    for model, manifest in models.items():
        for name, entry in (*manifest.files.items(), *manifest.references.items()):
            if files.setdefault(name, entry) != entry:
                where = whole / name_manifest(model)
                raise InputError(f"{where}: the file {quote_name(name)} is not that of another model")
    for what, names in (("models", models), ("files", files)):
        same = find_same_paths(names)
        if same is not None:
            both = " and ".join(map(quote_name, same))
            raise InputError(f"{whole}: the {what} {both} cannot be told apart on every system")
    return Package(found, models)


def _read_model_manifest(package: PackageManifest, name: str, whole: Path, read: ReadFile) -> Manifest:
    """Return the manifest of a model of a package. Raises InputError where it is not as it was."""
    file = name_manifest(name)
    content = read(file)
    found = FileEntry(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    check_file_entry(whole, file, found, package.models[name])
    manifest = parse_manifest(content, whole / file)
    if not isinstance(manifest, Manifest):
        raise InputError(f"{whole / file}: is the manifest of a package, not of a model in one")
    manifest._digest = package.digest  # what is signed is the package
    return manifest


def read_manifest(path: Path, hash_artifacts: bool = True) -> Manifest:
    """Read the manifest of a bundle, or of a model in a package, and check every file it names.

    Artifacts may be looked at for their sizes alone, if whoever reads one checks its hash. Raises
    InputError when it is not a bundle, has another format, or a file is missing, changed or outside the
    folder, and as `choose_model`.
    """
    folder, _ = split_path(path)
    manifest = choose_model(read_manifest_alone(folder), path, FolderReader(folder))
    check_files(folder, manifest, frozenset() if hash_artifacts else list_artifacts(manifest))
    return manifest


def list_artifacts(manifest: Manifest) -> frozenset[str]:
    """Return the files of artifacts, by which nothing else is meant."""
    regions = manifest.regions
    artifacts = {path for region in regions for path in region.artifact_files.values()}
    models = {each.model for each in regions} | {each.model for each in manifest.variants}
    return frozenset(artifacts - models)


def read_whole(folder: Path) -> Manifest | Package:
    """Read a bundle or a package with all of its models, and check every file; raises as above."""
    manifest = read_models(read_manifest_alone(folder), folder, FolderReader(folder))
    check_files(folder, manifest)
    return manifest


def check_files(
    folder: Path, manifest: Manifest | Package, by_size: Collection[str] = frozenset()
) -> None:
    """Raise InputError unless every file that a manifest names is in a folder and as it says.

    Of those that are `by_size` the content is not read.
    """
    root = os.path.realpath(folder)
    known = {""}
    for name, entry in manifest.files.items():
        size = _measure_plain(root, name, known)
        path = resolve_inside(folder, name) if size is None else folder / name
        _check_file(folder, path, name, size, entry, by_hash=name not in by_size)


def _measure_plain(root: str, name: str, known: set[str]) -> int | None:
    """Return the size of a file that is reached by no link; None for all else.

    `name` has no `..`, and `known` are folders in `root` that are no links, to which others are added.
    """
    folder = name.rpartition("/")[0]
    try:
        if folder not in known:
            parts = folder.split("/")
            inside = ["/".join(parts[: count + 1]) for count in range(len(parts))]
            if not all(stat.S_ISDIR(os.lstat(f"{root}/{each}").st_mode) for each in inside):
                return None
            known.add(folder)
        found = os.lstat(f"{root}/{name}")
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read_manifest_alone(folder: Path) -> Manifest | PackageManifest:
    """Read the manifest of a bundle or package, and look at no other file; raises as `read_manifest`."""
    find_folder_kind(folder)  # refuses what is something else as well
    return parse_manifest(FolderReader(folder)(MANIFEST_FILE), folder / MANIFEST_FILE)


@dataclass(frozen=True)
class FolderReader:
    """Reads files of a folder, such as manifests, of at most the size of one."""

    folder: Path

    def __call__(self, name: str) -> bytes:
        """Return the content of a file. Raises InputError where there is none, or it is a link."""
        path = self.folder / name
        if not path.is_file() or path.is_symlink():
            what = "not a bundle: it holds no" if name == MANIFEST_FILE else "a package without its"
            raise InputError(f"{self.folder}: {what} {name}")
        try:
            with path.open("rb") as file:
                return read_limited(file, MAX_MANIFEST_BYTES)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_manifest(content: bytes, path: Path) -> Manifest | PackageManifest:
    """Parse the manifest of a bundle or package and check its names, without looking at its files.

    Errors call it `path`. Raises InputError with one sentence.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise InputError(f"{path}: not a manifest: it has more than {MAX_MANIFEST_BYTES} bytes")
    try:
        read = parse_strict_json(content)
        found = read.get("format") if isinstance(read, dict) else None
        del read  # two copies of a large manifest need not be in memory at a time
        if type(found) is not int or found not in (*_FORMATS, PACKAGE_FORMAT):
            raise InputError(f"{path}: {_describe_format(found)}")
        kind = PackageManifest if found == PACKAGE_FORMAT else Manifest
        # Only pydantic's own JSON parser accepts a list for a tuple but not "1" for 1.
        manifest: Manifest | PackageManifest = kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = [escape_line(".".join(map(str, first["loc"])))] if first["loc"] else []
        raise InputError(": ".join([f"{path}: not a manifest", *where, first["msg"]])) from None
    except ValueError as error:
        raise InputError(f"{path}: not a manifest: {error}; copy the bundle anew") from None
    if isinstance(manifest, Manifest):
        _check_names(manifest, path)
    manifest._digest = hashlib.sha256(content).digest()
    return manifest


def resolve_inside(folder: Path, name: str, place: Path | None = None) -> Path:
    """Return the path of a bundle's file. Raises InputError for a path outside the folder."""
    try:
        path = resolve_path(folder / name)
    except (OSError, ValueError):  # an impossible file name; a loop of links
        path = Path()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"{(place or folder) / MANIFEST_FILE}: the file {quote_name(name)} is not inside the bundle"
        )
    return path


def check_file_entry(place: Path, name: str, found: FileEntry, entry: FileEntry) -> None:
    """Raise InputError unless a file has the size and hash that the manifest has for it."""
    for what, actual, expected in (
        ("size", found.bytes, entry.bytes),
        ("hash", found.sha256, entry.sha256),
    ):
        if actual != expected:
            raise InputError(
                f"{place}: the file {quote_name(name)} is not as it was written: its {what} differs; "
                "copy the bundle anew"
            )


def _check_file(  # noqa: PLR0913 - a file's path, its name in messages, and what is known of it
    folder: Path, path: Path, name: str, size: int | None, entry: FileEntry, *, by_hash: bool
) -> None:
    """Raise InputError unless the file at a path is as its entry says; an unknown `size` is None."""
    try:
        if size is None:
            if not path.is_file():
                raise InputError(f"{folder}: the file {quote_name(name)} of the bundle is missing")
            size = path.stat().st_size
        if by_hash and size == entry.bytes:  # otherwise there is no need to read it
            found = describe_file(path)
        else:
            found = FileEntry.model_construct(sha256=entry.sha256, bytes=size)
    except OSError as error:
        raise InputError(
            f"{folder}: the file {quote_name(name)} cannot be read: {error.strerror}"
        ) from None
    check_file_entry(folder, name, found, entry)


def _check_names(manifest: Manifest, path: Path) -> None:
    """Raise InputError for a name that leaves the folder, has no hash, or is ambiguous."""
    names = [*manifest.files, *manifest.references]
    for name in names:
        wrong = describe_path_problem(name) or _OWN_NAMES.get(name.casefold(), "")
        if wrong:
            raise InputError(f"{path}: the file {quote_name(name)} {wrong}")
    regions = manifest.regions
    for name in manifest.files.keys() & manifest.references.keys():
        raise InputError(f"{path}: the file {quote_name(name)} is both in the bundle and outside of it")
    for what, paths in (("files", names), ("regions", (one.name for one in regions))):
        same = find_same_paths(paths)
        if same is not None:
            both = " and ".join(map(quote_name, same))
            raise InputError(f"{path}: the {what} {both} cannot be two files on every system")
    for name in _referenced_files(manifest):
        if name not in manifest.files:
            raise InputError(f"{path}: the file {quote_name(name)} is named but has no hash")
    _check_twice(manifest, path)
    for region in regions:
        if not is_plain_name(region.name):
            raise InputError(f"{path}: the region {quote_name(region.name)} does not have a plain name")
        for name in region.artifact_files:
            if not is_plain_name(name):
                where = f"the artifact of region {quote_name(region.name)}"
                raise InputError(f"{path}: {where}: {quote_name(name)} is not a plain file name")


def _check_twice(manifest: Manifest, path: Path) -> None:
    """Raise InputError for a variant or a region that stands in a manifest twice."""
    variants = [variant.name for variant in manifest.variants]
    if len(variants) > 1 and "" in variants:
        raise InputError(f"{path}: one of {len(variants)} variants has no name")
    automatic = [variant for variant in manifest.variants if variant.automatic]
    if automatic and (
        len(automatic) != len(variants) or [bool(each.dims) for each in automatic] != [True, False]
    ):
        raise InputError(f"{path}: automatic variants are two, one with sizes, and an open one after it")
    own = next((variant.name for variant in manifest.variants if variant.rules), None)
    if own is not None and manifest.format == MANIFEST_FORMAT:
        raise InputError(
            f"{path}: the variant {quote_name(own)} has rules of its own, which format "
            f"{manifest.format} does not know"
        )
    regions = [region.name for region in manifest.regions]
    for what, names in (("variant", variants), ("region", regions)):
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"{path}: the {what} {quote_name(twice)} stands in it twice")


def _referenced_files(manifest: Manifest) -> Iterator[str]:
    yield from (variant.model for variant in manifest.variants)
    for region in manifest.regions:
        yield region.model
        yield from region.artifact_files.values()


def _describe_format(found: object) -> str:
    shown = escape_line(repr(found))
    if type(found) is int and 0 < found < MANIFEST_FORMAT:
        return f"format {shown} is that of an older byoc: partition the model again"
    known = f"{MANIFEST_FORMAT} to {ALTERNATIVES_FORMAT}"
    if type(found) is int and found > ALTERNATIVES_FORMAT:
        return f"format {shown} is that of a newer byoc; this one reads formats {known}"
    return f"format {shown}; this version of byoc reads formats {known}"
