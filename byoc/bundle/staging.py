"""Writing a folder so that it is there whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byoc.bundle.manifest import is_bundle
from byoc.errors import InputError


def check_destination(path: Path) -> None:
    """Raise InputError when a bundle cannot be written to a path; looks, and leaves nothing behind."""
    if path.exists() and not is_bundle(path):
        raise InputError(f"{path}: exists and is not a bundle, so it is not replaced")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written: there is no folder '{path.parent}'")
    try:
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent).cleanup()
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes `path` when the block ends well.

    The folder lies beside `path`, so that becoming it is one rename. A bundle that is there already is
    put aside first and removed last. When the block raises, everything is as before.
    """
    check_destination(path)
    workspace = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        _swap(fresh, path, workspace / "old")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


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
