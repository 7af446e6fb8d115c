"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators.

Every name is imported when it is first used: `import byoc` loads neither scipy nor a codegen.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

from byoc._checkout import find_beside as _find_beside

_find_beside(_Path(__file__).parent)

if _TYPE_CHECKING:
    from byoc.comparison import fastest as fastest
    from byoc.errors import ByocError as ByocError
    from byoc.errors import InputError as InputError
    from byoc.errors import MissingRuntimeError as MissingRuntimeError
    from byoc.pipeline import Result as Result
    from byoc.pipeline import partition as partition
    from byoc.quantization import Budget as Budget
    from byoc.quantization import Precision as Precision
    from byoc.runtime import Session as Session
    from byoc.runtime import load as load
    from byoc.verification import verify_against as verify_against
    from byoc.zoo import load_model as load_model

_ROOMS = {
    "Budget": "quantization",
    "ByocError": "errors",
    "InputError": "errors",
    "MissingRuntimeError": "errors",
    "Precision": "quantization",
    "Result": "pipeline",
    "Session": "runtime",
    "fastest": "comparison",
    "load": "runtime",
    "load_model": "zoo",
    "partition": "pipeline",
    "verify_against": "verification",
}

__all__ = list(_ROOMS)


def __getattr__(name: str) -> object:
    """Import a public name from its room."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'byoc' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(f"byoc.{_ROOMS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
