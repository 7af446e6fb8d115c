"""Atomic writing of bundles, as folders or packed files: complete, or not at all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byoc.bundle._manifest import MANIFEST_FILE
from byoc.bundle._manifest_reading import MAX_MANIFEST_BYTES, list_files
from byoc.bundle._packing import check_packed_files, is_packed_name, list_packed_files, pack_folder
from byoc.bundle._reading import open_staged_bundle
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.support import collect_rarely, open_workspace, read_limited, replace_path, resolve_path
from byoc.trust import SIGNATURE_FILE


def check_destination(path: Path, packed: bool | None = None) -> None:
    """Raise InputError when a bundle cannot be written to a path; leaves nothing behind.

    `packed` is by default derived from the path's name.
    """
    try:
        real = _resolve(path)
        if real.exists():
            _check_replaceable(path, real, is_packed_name(path) if packed is None else packed)
        elif path.is_symlink():
            raise InputError(f"{path}: cannot be written: it is a link to nothing")
        elif not real.parent.is_dir():
            raise InputError(f"{path}: cannot be written: there is no folder '{path.parent}'")
        _check_text(path, real)
        tempfile.TemporaryDirectory(prefix=".byoc-", dir=real.parent).cleanup()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(f"{path}: cannot be written: {reason}") from None


@contextmanager
def stage_bundle(path: Path) -> Iterator[Path]:
    """Provide a folder to write into, which becomes `path` when the block succeeds.

    Where the name of `path` ends in `.zip`, the folder is packed. It is read back, and is on the disk,
    before it takes the place of an existing bundle in one step (`replace_path`). It lies beside the
    destination; a link is followed. When the block raises, the destination is unchanged.
    """
    real = _resolve(path)  # the block may change the working directory
    with _workspace(path) as workspace:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        with _reading_back(fresh, path), collect_rarely():
            written = open_staged_bundle(fresh, real)
            written.check_regions()
        if is_packed_name(path):
            pack_folder(fresh, written.manifest.files, workspace / "packed")
            fresh = workspace / "packed"
        _replace(fresh, real, path)


@contextmanager
def stage_packed_file(path: Path) -> Iterator[Path]:
    """Provide a path to write a packed bundle to, which becomes `path`; else as `stage_bundle`."""
    real = _resolve(path)
    with _workspace(path, packed=True) as workspace:
        yield workspace / "packed"
        _replace(workspace / "packed", real, path)


@contextmanager
def _workspace(path: Path, packed: bool | None = None) -> Iterator[Path]:
    check_destination(path, packed)
    try:
        with open_workspace(_resolve(path).parent) as workspace:
            yield workspace
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _reading_back(fresh: Path, path: Path) -> Iterator[None]:
    """Name the destination when what was written for it cannot be opened, or differs."""
    try:
        yield
    except InputError as error:
        reason = str(error).replace(str(fresh), path.name)
        raise InputError(f"{path}: was not written: what was read back is wrong: {reason}") from None


def _replace(fresh: Path, real: Path, path: Path) -> None:
    """Replace the existing bundle, unless something else lies there by now."""
    if fresh.is_file():
        with _reading_back(fresh, path):
            check_packed_files(fresh)
    if real.exists():
        _check_replaceable(path, real, fresh.is_file())
    replace_path(fresh, real)


def _resolve(path: Path) -> Path:
    """Resolve a path; to an absolute one, since renaming a folder moves a working directory inside."""
    try:
        return resolve_path(path)
    except OSError:
        raise InputError(f"{path}: cannot be written: it is a link to itself") from None


def _check_text(path: Path, real: Path) -> None:
    """Raise InputError for a path that is not text: ONNX and onnxruntime open no other ones."""
    try:
        str(real).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: cannot be written: '{real}' is not UTF-8, and onnxruntime opens no other paths"
        ) from None


def _check_replaceable(path: Path, real: Path, packed: bool) -> None:
    """Raise InputError unless the existing content is exactly one bundle of byoc in the same form."""
    found = list_packed_files(real) if real.is_file() else _folder_files(real)
    known = None if found is None else list_files(found[0])
    if found is None or known is None:
        raise InputError(f"{path}: exists and is not a bundle, so it is not replaced")
    foreign = sorted(found[1] - known - {MANIFEST_FILE, SIGNATURE_FILE})
    if foreign:
        raise InputError(
            f"{path}: is a bundle, but {quote_name(foreign[0])} is not part of it, so it is not replaced"
        )
    if packed != real.is_file():
        forms = ("a folder", "a packed one") if packed else ("packed", "a folder")
        raise InputError(f"{path}: is a bundle, but {forms[0]}, so {forms[1]} does not replace it")


def _folder_files(folder: Path) -> tuple[bytes, set[str]] | None:
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            content = read_limited(file, MAX_MANIFEST_BYTES)
    except OSError:
        return None
    there = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir())
    return content, set(there)
