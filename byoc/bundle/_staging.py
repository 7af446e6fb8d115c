"""Atomic writing of bundles, as folders or packed files: complete, or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byoc.bundle._manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, list_files
from byoc.bundle._packing import is_packed_name, list_packed_files, pack_folder
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.support import read_limited

# Of the workspace beside the destination; short, since names have a maximal length.
_PREFIX = ".byoc-"


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
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=real.parent).cleanup()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(f"{path}: cannot be written: {reason}") from None


@contextmanager
def stage_bundle(path: Path) -> Iterator[Path]:
    """Provide a folder to write into, which becomes `path` when the block succeeds.

    Where the name of `path` ends in `.zip`, the folder is packed. It lies beside the destination, so one
    rename suffices; a link is followed. An existing bundle is moved aside first and removed last. When
    the block raises, the destination is unchanged.
    """
    real = _resolve(path)  # the block may change the working directory
    with _workspace(path) as workspace:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        if is_packed_name(path):
            files = [file.relative_to(fresh).as_posix() for file in fresh.rglob("*") if file.is_file()]
            pack_folder(fresh, files, workspace / "packed")
            fresh = workspace / "packed"
        _replace(fresh, real, workspace / "old")


@contextmanager
def stage_packed_file(path: Path) -> Iterator[Path]:
    """Provide a path to write a packed bundle to, which becomes `path`; else as `stage_bundle`."""
    with _workspace(path, packed=True) as workspace:
        yield workspace / "packed"
        _replace(workspace / "packed", _resolve(path), workspace / "old")


@contextmanager
def _workspace(path: Path, packed: bool | None = None) -> Iterator[Path]:
    check_destination(path, packed)
    workspace = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_resolve(path).parent))
    try:
        yield workspace
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _resolve(path: Path) -> Path:
    """Resolve a path; to an absolute one, since renaming a folder moves a working directory inside."""
    try:
        return path.resolve()
    except RuntimeError:
        raise InputError(f"{path}: cannot be written: it is a link to itself") from None


def _check_replaceable(path: Path, real: Path, packed: bool) -> None:
    """Raise InputError unless the existing content is exactly one bundle of byoc in the same form."""
    found = list_packed_files(real) if real.is_file() else _folder_files(real)
    known = None if found is None else list_files(found[0])
    if found is None or known is None:
        raise InputError(f"{path}: exists and is not a bundle, so it is not replaced")
    foreign = sorted(found[1] - known - {MANIFEST_FILE})
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


def _replace(fresh: Path, path: Path, aside: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    try:
        path.rename(aside)
        fresh.rename(path)
    except BaseException:  # restore the old bundle, even after an interrupt
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise
