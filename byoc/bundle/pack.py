"""A bundle as one file: a zip whose bytes depend on its contents and names only.

Entries are not compressed, since weights hardly shrink and compressors differ between versions; they
are sorted by name and have equal times and permissions.
"""

import shutil
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

from byoc.bundle.manifest import MANIFEST_FILE
from byoc.bundle.names import quote_name
from byoc.errors import InputError

PACKED_SUFFIX = ".zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_UNIX = 3
_PERMISSIONS = stat.S_IFREG | 0o644


def is_packed_name(path: Path) -> bool:
    """Return whether a path's name, such as `m.byoc.zip`, asks for a packed bundle."""
    return path.suffix.lower() == PACKED_SUFFIX


def pack_folder(folder: Path, files: Iterable[str], path: Path) -> None:
    """Write a zip of a folder's manifest and the given files.

    Raises InputError when the folder cannot be read, and OSError when the zip cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted({MANIFEST_FILE, *files}):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = _UNIX
            info.external_attr = _PERMISSIONS << 16
            try:
                source = (folder / name).open("rb")
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{folder}: the file {quote_name(name)} cannot be read: {reason}") from None
            with source:
                info.file_size = (folder / name).stat().st_size  # selects Zip64 for sizes over 2 GiB
                with archive.open(info, "w") as entry:
                    shutil.copyfileobj(source, entry, 1 << 20)
