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
_MOST_CHARACTERS = 2000


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
    or not at all. Raises MissingRuntimeError without a compiler, and InputError with the compiler's
    messages where it fails.
    """
    command = shlex.split(compiler or os.environ.get(COMPILER_VARIABLE) or "cc")
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
            messages = ran.stderr.strip()[:_MOST_CHARACTERS]
            raise InputError(f"{name}: {command[0]} failed: {messages}")
        made.replace(library)
    return library
