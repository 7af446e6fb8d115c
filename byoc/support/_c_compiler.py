"""Building of shared libraries from C sources."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.errors import InputError, MissingRuntimeError

COMPILER_VARIABLE = "BYOC_CC"
_FLAGS = ("-fPIC", "-shared")
_OPTIMIZED = ("-O2",)  # unless the command says otherwise
_MOST_CHARACTERS = 2000  # of a compiler's messages


def split_command(command: str) -> list[str]:
    """Return the words of a command, as a shell splits them.

    Raises InputError where quotes do not end, and for an empty one.
    """
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the command {command!r} cannot be read: {error}") from None
    if not found:
        raise InputError("the command of the compiler is empty")
    return found


def build_shared_library(  # noqa: PLR0913, PLR0917 - most have a default
    name: str,
    files: Sequence[Path],
    library: Path,
    flags: Sequence[str] = (),
    linked: Sequence[str] = (),
    compiler: str | None = None,
) -> Path:
    """Build the shared library `library` from C sources, and return that path.

    `name` begins the messages. `compiler` is a command, by default that in the environment variable
    BYOC_CC, or `cc`; `linked` are names of libraries for the linker. The library is put in place whole
    or not at all. Raises MissingRuntimeError without a compiler, InputError for an unreadable command,
    with the compiler's messages where it fails, and where it writes nothing.
    """
    given = os.environ.get(COMPILER_VARIABLE) or "cc" if compiler is None else compiler
    command = split_command(given)
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        level = () if any(part.startswith("-O") for part in command) else _OPTIMIZED
        arguments = [*command, *level, *_FLAGS, *flags, *map(str, files), "-o", str(made)]
        arguments += [f"-l{each}" for each in linked]
        try:
            ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MissingRuntimeError(
                f"{name}: no C compiler: {command[0]}: {reason} (set {COMPILER_VARIABLE})"
            ) from None
        if ran.returncode:
            messages = ran.stderr.strip()[:_MOST_CHARACTERS] or f"it says nothing ({ran.returncode})"
            raise InputError(f"{name}: {command[0]} failed: {messages}")
        if not made.is_file():
            raise InputError(f"{name}: {command[0]} ended well and wrote no library: is it a compiler?")
        made.replace(library)
    return library
