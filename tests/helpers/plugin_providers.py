"""Libraries with plug-in providers of ONNX Runtime, for tests of the codegen `ort_ep`."""

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from byoc.errors import MissingRuntimeError
from byoc.onnxrt import get_provider_folder
from byoc.support import build_shared_library

_SOURCES = Path(__file__).parents[1] / "codegens" / "providers"


@cache
def build_small_provider() -> Path:
    """Build the provider that computes Relu and Neg; skip the tests without a C compiler."""
    return _build("small_provider")


@cache
def find_openvino_provider() -> Path:
    """Return the library of OpenVINO's provider; skip the tests where it is not installed.

    On a processor that is not Intel's it is one that makes OpenVINO's think so: that lists its device
    on Intel's alone.
    """
    package = pytest.importorskip("onnxruntime_ep_openvino")
    library = Path(package.get_library_path())
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return library
    os.environ["BYOC_TESTS_PROVIDER"] = str(library)
    return _build("intel_processor", "-D_GNU_SOURCE")


def _build(name: str, *flags: str) -> Path:
    pytest.importorskip("onnxruntime")
    folder = tempfile.TemporaryDirectory(prefix="byoc-tests-")
    atexit.register(folder.cleanup)
    library = Path(folder.name) / f"lib{name}.so"
    flags = ("-std=c11", *flags, f"-I{get_provider_folder()}")
    try:
        return build_shared_library(name, [_SOURCES / f"{name}.c"], library, flags, ("dl",))
    except MissingRuntimeError as error:
        pytest.skip(str(error), allow_module_level=True)
