"""Kinds of folders that byoc writes: a bundle, a program in C, a fault of a verification.

A file at the top tells the kind. What a folder is decides what is executed, so that one with the files
of two kinds is refused: a stranger would choose by a file of theirs what a verb does with it.
"""

from pathlib import Path
from typing import Literal

from byoc.bundle._manifest import MANIFEST_FILE
from byoc.errors import InputError

PROGRAM_FILE = "program.json"
FAULT_FILE = "fault.json"
FolderKind = Literal["bundle", "program", "fault"]
KIND_FILES: dict[str, FolderKind] = {
    MANIFEST_FILE: "bundle",
    PROGRAM_FILE: "program",
    FAULT_FILE: "fault",
}
"""The files that tell kinds apart; no other file at the top of a folder has such a name."""


def find_folder_kind(path: Path) -> FolderKind | None:
    """Return the kind of a folder, None for one of no kind, and for a file.

    Raises InputError for a folder of two kinds.
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
