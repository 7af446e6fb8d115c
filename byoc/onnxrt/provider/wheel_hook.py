"""The step of the wheel's build that compiles the provider, and names the wheel after the platform."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "libonnx_byoc_provider.so"


class CompileProvider(BuildHookInterface):  # type: ignore[misc]
    """Compiles the C sources beside this file, with $BYOC_CC or `cc`, for the wheel.

    $BYOC_WHEEL_PLATFORM names the platform of the wheel where the compiler is for another one than this.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the library into the wheel. Raises CalledProcessError if the compiler fails."""
        folder = Path(self.root)
        library = Path(self.directory) / LIBRARY
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("BYOC_CC") or "cc")
        include = folder.parents[1] / "codegen" / "drivers" / "include"  # of byoc_driver.h
        flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{include}"]
        files = map(str, sorted(folder.glob("*.c")))
        linked = ["-ldl", "-lpthread"]
        subprocess.run([*compiler, *flags, *files, "-o", str(library), *linked], check=True)
        build_data["force_include"][str(library)] = f"onnx_byoc_provider/{LIBRARY}"
        build_data["pure_python"] = False
        platform = os.environ.get("BYOC_WHEEL_PLATFORM") or sysconfig.get_platform()
        platform = platform.replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the library, which is in the wheel now."""
        (Path(self.directory) / LIBRARY).unlink()
