"""A folder of results that took long to make: bounded, found by key, and the user's alone.

It knows nothing of models or codegens: a result is JSON and some bytes under the SHA-256 of all that it
depends on. What was used longest ago is removed.

An entry is written beside the others and renamed, so whoever reads finds all of it or nothing, also
while others write or after a process was killed. Nothing waits for the disk: what a loss of power spoils
is recognized when it is read, and made again. The time of a file's last change is when it was last used.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.support import find_user_folder, open_workspace, remove_leftovers, report_step, write_text

# An entry of a cache as one file: a line that names the format, the length of a header (8 bytes,
# little endian), the header, its SHA-256, and the blobs. The header is JSON: the entry's key, its
# facts, the size and SHA-256 of each blob. So a byte that changed, and an entry under the name of
# another, are recognized. Who may write the folder is trusted: `open_cache` takes none that
# anybody but the user can write.

_FORMAT = b"onnx-byoc cache entry 3\n"
_LENGTH_BYTES = 8  # of the header, little endian
_DIGEST_BYTES = 32  # of SHA-256
_MAX_HEADER_BYTES = 1 << 28


class DamagedEntryError(InputError):
    """A file is not an entry, or was changed after it was written."""


@dataclass(frozen=True, eq=False)
class CacheEntry:
    """A result: facts, which are JSON, and blobs."""

    facts: Mapping[str, Any]
    blobs: Sequence[bytes] = ()


def write_entry(path: Path, key: str, entry: CacheEntry) -> int:
    """Write an entry to a new file; return the file's bytes. Raises OSError."""
    blobs = [[len(blob), hashlib.sha256(blob).hexdigest()] for blob in entry.blobs]
    described = {"key": key, "facts": dict(entry.facts), "blobs": blobs}
    header = json.dumps(described, sort_keys=True).encode()
    start = _FORMAT + len(header).to_bytes(_LENGTH_BYTES, "little") + header
    with path.open("xb") as file:
        for part in (start, hashlib.sha256(header).digest(), *entry.blobs):
            file.write(part)
        return file.tell()


def read_entry(file: IO[bytes], key: str) -> CacheEntry:
    """Read an entry from an open file. Raises DamagedEntryError unless it was written under `key`."""
    header = _read_header(file)
    if header["key"] != key:
        raise DamagedEntryError("it is the entry of another key")
    blobs = []
    for size, digest in header["blobs"]:
        blob = file.read(size)
        if hashlib.sha256(blob).hexdigest() != digest:
            raise DamagedEntryError("its content is not as it was written")
        blobs.append(blob)
    if file.read(1):
        raise DamagedEntryError("something stands behind its end")
    return CacheEntry(header["facts"], tuple(blobs))


def read_facts(file: IO[bytes]) -> Mapping[str, Any]:
    """Read the facts of an entry without its blobs. Raises DamagedEntryError."""
    facts: Mapping[str, Any] = _read_header(file)["facts"]
    return facts


def _read_header(file: IO[bytes]) -> Mapping[str, Any]:
    if file.read(len(_FORMAT)) != _FORMAT:
        raise DamagedEntryError("it is not an entry")
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    if file.read(_DIGEST_BYTES) != hashlib.sha256(header).digest():
        raise DamagedEntryError("its header is not as it was written")
    found: Mapping[str, Any] = json.loads(header)  # as `write_entry` made it
    return found


DEFAULT_LIMIT = 4 << 30
"""The most bytes of a cache whose user set no limit."""

_ENTRIES, _LIMIT, _TAG = "entries", "limit", "CACHEDIR.TAG"
# The Cache Directory Tagging Specification (bford.info/cachedir): backups leave such folders out.
_TAG_TEXT = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of onnx-byoc; byoc cache clear empties it.
"""
_KEPT_SHARE = 0.9  # of the limit, when entries are removed: so that not every store removes some
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FLAGS |= getattr(os, "O_NONBLOCK", 0)  # a pipe under the name of an entry would not be opened at once
_MAX_LIMIT_BYTES = 32  # of the file that keeps the limit: a decimal number
_KEY_CHARACTERS = 64  # of a SHA-256 in hexadecimal
_PREFIX_CHARACTERS = 2  # of the key, as a folder: none holds all entries


class NoCacheFolderError(InputError):
    """A folder for a cache cannot be made, read or written."""


@dataclass(frozen=True)
class EntryInfo:
    """An entry as it lies in the folder: its file, bytes, and when it was last used (POSIX seconds)."""

    path: Path
    size: int
    used: float


@dataclass(frozen=True)
class CacheUsage:
    """The size of a cache: the number of entries, their bytes, and the most bytes allowed."""

    folder: Path
    entries: int
    size: int
    limit: int


@dataclass(frozen=True, eq=False)
class Cache:
    """A cache in a folder of the user's alone; `open_cache` makes one."""

    folder: Path
    _state: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """The most bytes that the entries may have together."""
        with (
            suppress(OSError, ValueError),
            os.fdopen(os.open(self.folder / _LIMIT, _FLAGS), "rb") as file,
        ):
            text = file.read(_MAX_LIMIT_BYTES + 1)
            found = int(text.decode("ascii")) if len(text) <= _MAX_LIMIT_BYTES else -1
            return found if found >= 0 else DEFAULT_LIMIT
        return DEFAULT_LIMIT

    def set_limit(self, limit: int) -> None:
        """Set the most bytes, for this and all later programs, and remove what is too much."""
        write_text(self.folder / _LIMIT, f"{limit}\n")
        self._trim(limit)

    def find(self, key: str) -> CacheEntry | None:
        """Return the entry of a key, None where there is none. Removes one that is damaged."""
        path = self._place(key)
        try:
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                found = read_entry(file, key)
                with suppress(OSError):
                    os.utime(file.fileno() if os.utime in os.supports_fd else path)
                return found
        except DamagedEntryError as error:
            report_step(f"cache: {path.name[:12]} is left out: {error}")
            with suppress(OSError):
                path.unlink()
        except OSError:
            pass
        return None

    def store(self, key: str, entry: CacheEntry) -> None:
        """Store an entry; one that is larger than the limit, or finds no room on the disk, is not."""
        limit = self.limit
        if sum(map(len, entry.blobs)) > limit * _KEPT_SHARE:
            return
        path = self._place(key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_workspace(self.folder) as workspace:
                size = write_entry(workspace / "new", key, entry)
                (workspace / "new").replace(path)
        except OSError as error:
            report_step(f"cache: nothing is stored: {error.strerror or error}")
            return
        if "size" in self._state:
            self._state["size"] += size
        else:
            self._state["size"] = sum(each.size for each in self.list_entries())
        if self._state["size"] > limit:
            self._trim(limit)

    def list_entries(self) -> list[EntryInfo]:
        """Return all entries, those that were used longest ago first."""
        found = []
        for path in self._walk():
            with suppress(OSError):  # another process removed it
                status = path.lstat()
                found.append(EntryInfo(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda each: (each.used, each.path.name))

    def read_facts(self, entry: EntryInfo) -> Mapping[str, Any] | None:
        """Return the facts of an entry, None for one that is damaged or gone."""
        with suppress(OSError, DamagedEntryError), os.fdopen(os.open(entry.path, _FLAGS), "rb") as file:
            return read_facts(file)
        return None

    def measure(self) -> CacheUsage:
        """Count the entries and their bytes."""
        sizes = [each.size for each in self.list_entries()]
        return CacheUsage(self.folder, len(sizes), sum(sizes), self.limit)

    def clear(self, is_chosen: Callable[[Mapping[str, Any]], bool] | None = None) -> int:
        """Remove the entries whose facts are chosen, by default all; return their number.

        What killed processes left goes as well.
        """
        chosen = [
            each
            for each in self.list_entries()
            if is_chosen is None or ((facts := self.read_facts(each)) is not None and is_chosen(facts))
        ]
        removed = sum(_remove(each.path) for each in chosen)
        remove_leftovers(self.folder)
        self._state.clear()
        return removed

    def _trim(self, limit: int) -> None:
        """Remove the entries that were used longest ago until nine tenths of the limit are left."""
        entries = self.list_entries()
        size = sum(each.size for each in entries)
        if size > limit:
            for each in entries:
                if size <= limit * _KEPT_SHARE:
                    break
                _remove(each.path)
                size -= each.size
        self._state["size"] = size

    def _place(self, key: str) -> Path:
        return self.folder / _ENTRIES / key[:_PREFIX_CHARACTERS] / key[_PREFIX_CHARACTERS:]

    def _walk(self) -> Iterator[Path]:
        """Yield the files that can be entries, by their names."""
        digits = set("0123456789abcdef")
        for first in _list_folder(self.folder / _ENTRIES):
            for second in _list_folder(first):
                name = first.name + second.name
                if len(name) == _KEY_CHARACTERS and digits.issuperset(name):
                    yield second


def find_cache_folder() -> Path:
    """Return the folder of the user's cache, `$XDG_CACHE_HOME/byoc/compiled`; it need not exist.

    Raises InputError without a home folder.
    """
    return find_user_folder("XDG_CACHE_HOME") / "compiled"


def open_cache(folder: str | Path | None = None) -> Cache:
    """Open the cache in a folder, by default the user's own; a folder that is not there is made.

    Raises InputError with a sentence for a folder that cannot be made, is no cache, belongs to another
    user, or that others may write.
    """
    place = find_cache_folder() if folder is None else Path(folder).absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        problem = _describe_problem(place)
        if not problem:
            _mark(place)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no folder can have this name"
        raise NoCacheFolderError(f"{place}: is not used as a cache: {why}") from None
    if problem:
        raise InputError(f"{place}: is not used as a cache: {problem}")
    return Cache(place)


def open_user_cache() -> Cache | None:
    """Open the user's own cache; None where there is no home folder, or it cannot be written.

    Raises InputError for a folder that is there and is not used, as `open_cache` does.
    """
    try:
        place = find_cache_folder()
    except InputError as error:
        report_step(f"no cache: {error}")
        return None
    try:
        return open_cache(place)
    except NoCacheFolderError as error:
        report_step(f"no cache: {error}")
        return None


def _describe_problem(place: Path) -> str:
    """Return why a folder is not used as a cache, as the end of a sentence; "" if it is."""
    status = place.stat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if os.name == "posix":
        if status.st_uid != os.geteuid():
            return "it belongs to another user"
        if status.st_mode & 0o022:
            mode = stat.S_IMODE(status.st_mode)
            return f"others may write it (its mode is {mode:03o}): chmod 700 {place}"
    folders = (place / _ENTRIES, *_list_folder(place / _ENTRIES))
    if link := next((path for path in folders if path.is_symlink()), None):
        return f"its folder {link.name} is a link, and would have files written elsewhere"
    names = {path.name for path in place.iterdir()}
    if names and _TAG not in names:  # the tag is the first file of a cache
        return "it holds other files, and is no cache"
    return ""


def _mark(place: Path) -> None:
    """Mark a folder as a cache."""
    with suppress(FileExistsError), (place / _TAG).open("x", encoding="ascii") as file:
        file.write(_TAG_TEXT)


def _list_folder(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.iterdir()


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError as error:
        if error.errno != errno.ENOENT:
            report_step(f"cache: {path} is not removed: {error.strerror}")
        return False
    return True
