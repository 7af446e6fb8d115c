"""Writing a folder so that it is there whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byoc.bundle.manifest import NAME, bundle_files
from byoc.errors import InputError

# Beside the destination; short, so that a destination may have the longest name there is.
_PREFIX = ".byoc-"


def check_destination(path: Path) -> None:
    """Raise InputError when a bundle cannot be written to a path; looks, and leaves nothing behind."""
    try:
        real = _real(path)
        if real.exists():
            _check_replaceable(path, real)
        elif path.is_symlink():
            raise InputError(f"{path}: cannot be written: it is a link to nothing")
        elif not real.parent.is_dir():
            raise InputError(f"{path}: cannot be written: there is no folder '{path.parent}'")
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=real.parent).cleanup()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(f"{path}: cannot be written: {reason}") from None


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes `path` when the block ends well.

    The folder lies beside the destination, so that becoming it is one rename; a link is followed. A
    bundle that is there already is put aside first and removed last. When the block raises, everything
    is as before.
    """
    check_destination(path)
    real = _real(path)
    workspace = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=real.parent))
    try:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        _swap(fresh, real, workspace / "old")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _real(path: Path) -> Path:
    """Return where a path leads; absolute, since renaming a folder takes a working directory along."""
    try:
        return path.resolve()
    except RuntimeError:
        raise InputError(f"{path}: cannot be written: it is a link to itself") from None


def _check_replaceable(path: Path, real: Path) -> None:
    """Raise InputError unless everything in a folder was written by byoc as one bundle."""
    known = bundle_files(real)
    if known is None:
        raise InputError(f"{path}: exists and is not a bundle, so it is not replaced")
    there = {file.relative_to(real).as_posix() for file in real.rglob("*") if not file.is_dir()}
    foreign = sorted(there - known - {NAME})
    if foreign:
        raise InputError(
            f"{path}: is a bundle, but '{foreign[0]}' is not part of it, so it is not replaced"
        )


def _swap(fresh: Path, path: Path, aside: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    try:
        path.rename(aside)
        fresh.rename(path)
    except BaseException:  # an interrupt too must not cost the user the old bundle
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise
