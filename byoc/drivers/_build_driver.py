"""Building a codegen's driver from its C sources, as a shared library."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.codegen import DriverSources
from byoc.errors import InputError, MissingRuntimeError

COMPILER_VARIABLE = "BYOC_CC"
_FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared", "-fvisibility=default")
_MOST_CHARACTERS = 2000


def get_include_folder() -> Path:
    """Return the folder that holds `byoc_driver.h`."""
    return Path(str(files("byoc.drivers"))) / "include"


def build_driver(
    sources: DriverSources, library: Path, compiler: str | None = None, flags: Sequence[str] = ()
) -> Path:
    """Build a driver as the shared library `library`, and return that path.

    `compiler` is a command, by default that in the environment variable BYOC_CC, or `cc`; `flags` follow
    byoc's own. The library is put in place whole or not at all. Raises MissingRuntimeError without a
    compiler, and InputError with the compiler's messages where it fails.
    """
    command = shlex.split(compiler or os.environ.get(COMPILER_VARIABLE) or "cc")
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        arguments = [*command, *_FLAGS, *flags, f"-I{get_include_folder()}"]
        arguments += [*map(str, sources.files), "-o", str(made)]
        arguments += [f"-l{name}" for name in sources.libraries]
        try:
            ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MissingRuntimeError(
                f"driver {sources.name}: no C compiler: {command[0]}: {reason} (set {COMPILER_VARIABLE})"
            ) from None
        if ran.returncode:
            messages = ran.stderr.strip()[:_MOST_CHARACTERS]
            raise InputError(f"driver {sources.name}: {command[0]} failed: {messages}")
        made.replace(library)
    return library
