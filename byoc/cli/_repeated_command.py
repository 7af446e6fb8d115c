"""A command that was run before, on the same files: what it wrote and printed is in the cache.

The first run notes what it reads, as it reads it: Python tells who asks (`sys.addaudithook`) of each
file that is opened and each folder that is listed. The next run of the same command compares all of
that by content before it imports what partitions. Where anything else counts, nothing is taken:

- the command is the same: its words, folder, environment, user, terminal, Python, processors;
- files and folders that its words name are as they were, or are still missing;
- files that were read have the same content, folders that were listed have the same names, among them
  those of installed distributions, whose names say their versions; so do files that were looked for, and
  links that lead to files;
- modules, and all sources of byoc and of packages outside of site-packages, have the same size and time
  of change, by which Python itself knows them again;
- what a codegen says that its artifacts depend on (`cache_key`) is nothing but environment variables;
- files that were read are older than the run, so that none changed while it ran.

A run that failed, wrote files that its words name besides the bundle, measured, asked the network or
had anything to say on standard error is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from byoc._dataclasses import dataclass, field
from byoc.console import print_errors
from byoc.errors import InputError
from byoc.support import find_user_folder, open_workspace, remove_leftovers, replace_path
from byoc.support.cache import Cache, CacheEntry, open_cache, open_user_cache

KIND = "command"
"""The name of these entries where others name their codegen, as `byoc cache` lists them."""

_TAKEN = "the same command on the same files: its outcome is taken from the cache (--no-cache runs it)"
_VERB = "partition"
_PLANNER = "byoc.pipeline"  # which whoever reads models and rule files imports
_WITHOUT = ("--no-cache", "--measure", "--print-after", "--help")  # whose runs are not repeated
_MOST_OF_FILE = 1 << 30  # bytes of a file of the bundle, which is held in memory as it is kept
_CLOCK_NANOSECONDS = 20_000_000  # by which a file system's clock is behind
# What shells and terminals change by themselves, and nothing here reads.
_VOLATILE = {"_", "SHLVL", "OLDPWD", "WINDOWID", "COLUMNS", "LINES"}
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_CODE = (".py", ".so", ".pyd", ".dll", ".dylib")
_MODULES = ("", ".py", ".so", ".pyd", ".dist-info", ".egg-info")  # what imports look for in a folder
_FOREIGN_EVENTS = {"socket.connect", "socket.getaddrinfo", "byoc.asked_elsewhere"}
_LEFTOVERS = remove_leftovers.__code__.co_filename  # which looks for its own folders beside an output
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@contextmanager
def repeating(arguments: Sequence[str]) -> Iterator[bool]:
    """Give whether the outcome of this command was taken from the cache; else keep it afterwards.

    `arguments` are the words of the command line. A run is kept where the block ends without an error,
    or by SystemExit with 0.
    """
    # What this process read before, and keeps in memory, would not be noted.
    cache = None if _PLANNER in sys.modules else _find_cache(arguments)
    if cache is None:
        yield False
        return
    key = make_key(arguments)
    if take_outcome(cache, key):
        yield True
        return
    watch = _CommandWatch()
    try:
        with watch.noting():
            yield False
    except SystemExit as end:
        if end.code in {0, None}:
            _keep_quietly(cache, key, watch, arguments)
        raise
    _keep_quietly(cache, key, watch, arguments)


def _find_cache(arguments: Sequence[str]) -> Cache | None:
    """Return the cache of a command that can be repeated, None for others."""
    words = [word.partition("=")[0] for word in arguments]
    if words[:1] != [_VERB] or any(word in _WITHOUT for word in words):
        return None
    if not any(word == "--output" or word.startswith("-o") for word in words):
        return None
    named = _find_value(arguments, "--cache-dir")
    try:
        return open_user_cache() if named is None else open_cache(named)
    except InputError:
        return None  # the verb says what is wrong with it


def _find_value(arguments: Sequence[str], *flags: str) -> str | None:
    """Return the last value of an option, None where it is not given."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in flags:
            found = value if equals else following
    return found


def make_key(arguments: Sequence[str]) -> str:
    """Return the SHA-256 of what tells commands apart before any file is looked at."""
    stated = {
        "kind": KIND,
        "words": list(arguments),
        "folder": str(Path.cwd()),
        "environment": sorted((k, v) for k, v in os.environ.items() if k not in _VOLATILE),
        "user": os.geteuid() if hasattr(os, "geteuid") else "",
        "umask": _get_umask(),  # by which files of the bundle are for others to read
        "terminal": [sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.encoding],
        "width": list(shutil.get_terminal_size()),
        "python": [sys.version, sys.executable, list(sys.path), sys.flags.optimize],
        "machine": [*platform.uname()[:3], platform.machine(), *_describe_processors()],
    }
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode("utf-8", "replace")).hexdigest()


def _get_umask() -> int:
    os.umask(found := os.umask(0o077))
    return found


def _describe_processors() -> list[str]:
    """Return the processors that this process may use, and what they can do."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
    return [str(usable), *sorted({line for line in lines if line.startswith(kept)})]


class _CommandWatch:
    """Notes what this process reads, writes and prints."""

    def __init__(self) -> None:
        self.began = time.time_ns()
        self.opened: set[str] = set()
        self.looked_for: set[str] = set()
        self.listed: set[str] = set()
        self.searched: set[str] = set()  # for modules and distributions
        self.written: set[str] = set()
        self.foreign: set[str] = set()
        self.printed: list[str] = []
        self.put_at: dict[str, int] = {}  # numbers of files and folders, by the paths they were put at
        self.complained = False
        self._active = False

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note all that happens inside; a hook cannot be removed, and does nothing afterwards."""
        self._active = True
        sys.addaudithook(self._hear)
        try:
            with (
                _hearing(sys.stdout, self.printed.append),
                _hearing(sys.stderr, self._hear_error),
            ):
                yield
        finally:
            self._active = False

    def _hear_error(self, text: str) -> None:
        # A bar of progress is drawn by escape sequences, which messages never have.
        self.complained |= bool(text.strip()) and "\x1b" not in text

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = given
            writes = isinstance(flags, int) and bool(flags & _WRITING)
            _note(self.written if writes else self.opened, path)
        elif event in {"os.listdir", "os.scandir"}:
            asking = sys._getframe(1).f_code.co_filename
            if asking != _LEFTOVERS:
                imports = "importlib" in asking
                _note(self.searched if imports else self.listed, "." if given[0] is None else given[0])
        elif event == "byoc.replaced":
            path, number = given
            self.put_at[os.path.abspath(path)] = number  # noqa: PTH100 - as in `_note`
        elif event == "byoc.looked_for":
            _note(self.looked_for, given[0])
        elif event == "os.rename":
            _note(self.written, given[1])
        elif event in _FOREIGN_EVENTS:
            self.foreign.add(event)


def _note(paths: set[str], path: Any) -> None:
    """Add a path; a file that is opened by its number was noted before."""
    if isinstance(path, str | bytes | os.PathLike):
        with suppress(ValueError):
            paths.add(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - pathlib is slower


@contextmanager
def _hearing(stream: TextIO, hear: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each text that is written to a stream."""
    write = stream.write

    def write_and_tell(text: str) -> int:
        hear(text)
        return write(text)

    stream.write = write_and_tell  # type: ignore[method-assign]
    try:
        yield
    finally:
        del stream.write


@dataclass
class _Inputs:
    """The inputs of an outcome: SHA-256 of files, of names in folders, marks of code, by path.

    Of the folders `searched` for modules and distributions only names count that these can have.
    """

    files: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    code: dict[str, list[int]] = field(default_factory=dict)
    searched: dict[str, str] = field(default_factory=dict)

    def is_unchanged(self, own: Collection[str]) -> bool:
        """Return whether all is as it was but for a run's `own` places; what is cheap comes first."""
        return (
            all(_mark_code(path) == mark for path, mark in self.code.items())
            and all(_hash_names(path, own) == names for path, names in self.folders.items())
            and all(_hash_names(path, own, _MODULES) == names for path, names in self.searched.items())
            and all(_hash_file(path) == content for path, content in self.files.items())
        )


def _hash_file(path: str) -> str:
    """Return the SHA-256 of a file, "folder" for one, and "" for what is missing or no file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return hashlib.file_digest(file, "sha256").hexdigest()
    except IsADirectoryError:
        return "folder"
    except (OSError, ValueError):
        return "folder" if Path(path).is_dir() else ""


def _hash_names(path: str, own: Collection[str], endings: Sequence[str] = ()) -> str:
    """Return the SHA-256 of the names in a folder, but for what Python and this program put there.

    `own` are the paths of the bundle and of the cache; with `endings` only names that have one count.
    """
    try:
        with os.scandir(path) as entries:
            found = {entry.name for entry in entries if entry.path not in own} - {"__pycache__"}
    except (OSError, ValueError):
        return ""
    names = sorted(name for name in found if not name.startswith(".byoc-"))
    if endings:
        names = [name for name in names if os.path.splitext(name)[1] in endings]  # noqa: PTH122
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _mark_code(path: str) -> list[int]:
    """Return the size and time of change of a module's file, by which Python knows it again."""
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib is slower, and there are thousands
    except (OSError, ValueError):
        return []
    return [found.st_size, found.st_mtime_ns]


def _keep_quietly(cache: Cache, key: str, watch: _CommandWatch, arguments: Sequence[str]) -> None:
    """Keep an outcome; where that is not possible, the next run does its work again."""
    output = _find_output(arguments)
    if watch.complained or watch.foreign or output is None:
        return
    with suppress(OSError, InputError):
        inputs = _list_inputs(watch, arguments, output, cache)
        facts = None if inputs is None else _store_bundle(cache, output)
        # Another command may have put its bundle there since: that would be kept for this one.
        if inputs is None or facts is None or watch.put_at.get(str(output)) != output.stat().st_ino:
            return
        stated = {
            "printed": "".join(watch.printed),
            "json": _find_value(arguments, "--format") == "json",
            "inputs": vars(inputs),  # `asdict` copies each of thousands of entries
        }
        cache.store(key, CacheEntry({**facts, **stated}))


def _find_output(arguments: Sequence[str]) -> Path | None:
    """Return the bundle that a command writes, None where it is told in another way or is a link."""
    named = _find_value(arguments, "-o", "--output")
    output = None if named is None else Path(named).absolute()
    return None if output is None or output.is_symlink() or not output.exists() else output


def _list_inputs(
    watch: _CommandWatch, arguments: Sequence[str], output: Path, cache: Cache
) -> _Inputs | None:
    """Return the inputs of a run; None where they may have changed, or it wrote more files."""
    own, named = _Places(output, cache.folder), set(_list_named(arguments)) - {str(output)}
    if any(path in named and not own.is_of_user(path) for path in watch.written):
        return None
    code = {*_list_code(), *(path for path in watch.opened if path.endswith(_CODE))}
    # What a run writes and nobody named is a library's own, such as its counts of calls.
    read = {path for path in watch.opened - code - watch.written if not own.is_passing(path)}
    read |= named | {path for path in watch.looked_for if not own.is_own(path)}
    read |= {path for path in watch.written if own.is_of_user(path)}  # its key, made by the first run
    read = {path for path in read if not path.endswith(".pyc")}
    latest = watch.began - _CLOCK_NANOSECONDS
    if any(_is_younger(path, latest) and not own.is_of_user(path) for path in read | code):
        return None
    listed = {path for path in watch.listed if not own.is_passing_folder(path)} | own.user_folders
    searched = {path for path in watch.searched - listed if not own.is_passing(path)}
    return _Inputs(
        {path: _hash_file(path) for path in sorted(read)},
        {path: _hash_names(path, own.same) for path in sorted(listed)},
        {path: _mark_code(path) for path in sorted(code)},
        {path: _hash_names(path, own.same, _MODULES) for path in sorted(searched)},
    )


def _is_younger(path: str, moment: int) -> bool:
    """Return whether a file was changed or put there after a moment."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(found.st_mode) and max(found.st_mtime_ns, found.st_ctime_ns) > moment


class _Places:
    """Tells files that a run makes for itself from those that it reads."""

    def __init__(self, output: Path, cache: Path) -> None:
        self._inside = tuple(f"{path}{os.sep}" for path in (output, cache))
        self.same = {str(output), str(cache)}
        self.user_folders = {str(path) for path in _list_user_folders()}
        self._user = tuple(f"{path}{os.sep}" for path in self.user_folders)

    def is_passing(self, path: str) -> bool:
        """Return whether a path is of the bundle, the cache or the system, or gone by now."""
        is_temporary = path.startswith(f"{_temporary_folder()}{os.sep}")
        return self.is_own(path) or (is_temporary and not os.path.lexists(path))

    def is_own(self, path: str) -> bool:
        """Return whether a path is of the bundle, the cache or the system."""
        inside = path.startswith((*self._inside, *_SYSTEM))
        return inside or path in self.same or f"{os.sep}.byoc-" in path

    def is_passing_folder(self, path: str) -> bool:
        """Return whether the names in a folder change by the run itself."""
        return path == _temporary_folder() or self.is_passing(path)

    def is_of_user(self, path: str) -> bool:
        """Return whether a file is one of the user's settings and keys."""
        return path.startswith(self._user)


def _temporary_folder() -> str:
    import tempfile  # noqa: PLC0415

    return os.path.abspath(tempfile.gettempdir())  # noqa: PTH100


def _list_named(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the paths that the words of a command can name, and the user's settings and keys.

    A name that is no file now could be one at the next run, and be taken for what is installed now.
    """
    for word in arguments:
        parts = {word, *word.split(","), *word.split("="), word.partition(":")[2]}
        for part in {*parts, *(end for each in parts for end in each.split("="))}:
            if part and "\0" not in part and not part.startswith("-"):
                yield os.path.abspath(part)  # noqa: PTH100
    for folder in _list_user_folders():
        with suppress(OSError):
            yield from (str(path) for path in folder.iterdir())


def _list_user_folders() -> Iterator[Path]:
    """Yield the folders of the user's settings and keys."""
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        with suppress(InputError):
            yield find_user_folder(variable)


def _list_code() -> Iterator[str]:
    """Yield the files of imported modules, and all sources of packages that are not in site-packages."""
    roots = set()
    for name, module in sys.modules.copy().items():
        path = getattr(module, "__file__", None)
        if not isinstance(path, str):
            continue
        yield os.path.abspath(path)  # noqa: PTH100
        if "." not in name and path.endswith("__init__.py") and not _is_installed(path):
            roots.add(Path(path).parent)
    ours = Path(__file__).parents[1]
    for root in {ours, *roots, ours.parent / "codegens"}:
        for folder, _, names in os.walk(root):
            yield from (f"{folder}{os.sep}{name}" for name in names if name.endswith(_CODE))


def _is_installed(path: str) -> bool:
    """Return whether a module is of Python or of an installed distribution, whose version counts."""
    return any(part in path for part in ("site-packages", "dist-packages")) or path.startswith(
        (os.path.dirname(os.__file__), f"{sys.base_prefix}{os.sep}lib")  # noqa: PTH120
    )


def _store_bundle(cache: Cache, output: Path) -> dict[str, Any] | None:
    """Store each file of a bundle once, by its content; return where they are, None for huge ones."""
    files = {}
    for name, path in _list_files(output).items():
        if path.stat().st_size > _MOST_OF_FILE:
            return None
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        files[name] = [digest, stat.S_IMODE(path.stat().st_mode)]
        cache.store(_key_of_file(digest), CacheEntry({"codegen": KIND}, (content,)))
    return {"codegen": KIND, "output": str(output), "packed": output.is_file(), "files": files}


def _key_of_file(digest: str) -> str:
    return hashlib.sha256(f"{KIND} {digest}".encode()).hexdigest()


def _list_files(output: Path) -> dict[str, Path]:
    """Return the files of a bundle by name, "" for a packed one. Raises OSError for links."""
    if output.is_file():
        return {"": output}
    found = {}
    for path in sorted(output.rglob("*")):
        if path.is_symlink():
            raise OSError(f"{path} is a link")
        if path.is_file():
            found[path.relative_to(output).as_posix()] = path
    return found


def take_outcome(cache: Cache, key: str) -> bool:
    """Write the bundle of an earlier run and print what it printed; return False where it cannot."""
    entry = cache.find(key)
    if entry is None:
        return False
    facts = entry.facts
    if not _Inputs(**facts["inputs"]).is_unchanged({facts["output"], str(cache.folder)}):
        return False
    try:
        if not _write_bundle(cache, Path(facts["output"]), facts["files"], facts["packed"]):
            return False
    except OSError:
        return False  # the run says what is wrong with the place
    sys.stdout.write(_mark_verdicts(facts["printed"]) if facts["json"] else facts["printed"])
    print_errors([_TAKEN])
    return True


def _write_bundle(cache: Cache, output: Path, files: Mapping[str, Any], packed: bool) -> bool:
    """Write a bundle unless it is there as it was; return False where something else is there."""
    if os.path.lexists(output):
        is_same = (
            not output.is_symlink()
            and output.is_file() == packed
            and _is_same_bundle(_list_files(output), files)
        )
        if is_same:
            os.utime(output)  # make compares times: a bundle that holds for newer files is as new
        return is_same
    with open_workspace(output.parent) as workspace:
        fresh = workspace / "new"
        for name, (digest, mode) in files.items():
            entry = cache.find(_key_of_file(digest))
            if entry is None:
                return False
            path = fresh / name if name else fresh
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(entry.blobs[0])
            path.chmod(mode)
        replace_path(fresh, output)
    return True


def _is_same_bundle(found: Mapping[str, Path], files: Mapping[str, Any]) -> bool:
    """Return whether the files of a bundle are those of an earlier one, and no others."""
    return found.keys() == files.keys() and all(
        files[name] == [_hash_file(str(path)), stat.S_IMODE(path.stat().st_mode)]
        for name, path in found.items()
    )


def _mark_verdicts(printed: str) -> str:
    """Return printed JSON in which each verdict says that it is an earlier run's."""
    document = json.loads(printed)
    _mark(document)
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _mark(part: Any) -> None:
    if isinstance(part, dict):
        verdict = part.get("verification")
        if isinstance(verdict, dict):
            verdict["cached"] = True
        for each in part.values():
            _mark(each)
    elif isinstance(part, list):
        for each in part:
            _mark(each)
