"""The conformance kit for codegens: `CodegenConformance`, which a vendor subclasses in three lines.

It needs pytest and onnxruntime, which byoc itself does not require. The names are imported when they are
first used: a worker process that runs a check of an executor needs neither pytest nor the cases.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from byoc.testing._conformance import CodegenConformance as CodegenConformance
    from byoc.testing._conformance_kit import Claims as Claims

if _find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "byoc.testing needs pytest, which is not installed (pip install pytest)"
    ) from None

_MODULES = {"Claims": "_conformance_kit", "CodegenConformance": "_conformance"}

__all__ = ["Claims", "CodegenConformance"]


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'byoc.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(f"byoc.testing.{_MODULES[name]}"), name)
    return value
