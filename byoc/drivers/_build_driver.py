"""Building a codegen's driver from its C sources, as a shared library."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from byoc.codegen import DriverSources
from byoc.support import build_shared_library

_FLAGS = ("-std=c99", "-fvisibility=default")


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
    return build_shared_library(
        f"driver {sources.name}",
        sources.files,
        library,
        (*_FLAGS, *flags, f"-I{get_include_folder()}"),
        sources.libraries,
        compiler,
    )
