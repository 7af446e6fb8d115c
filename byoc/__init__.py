"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from pathlib import Path as _Path

# In a checkout annotations/, cost_models/ and codegens/ stand beside this package rather than in it.
if not (_Path(__file__).parent / "codegens").is_dir():
    __path__.append(str(_Path(__file__).parent.parent))

from byoc.errors import ByocError, InputError, MissingRuntimeError
from byoc.pipeline import Result, load_model, partition, verify_against
from byoc.precision.budget import Budget
from byoc.precision.conclude import Precision
from byoc.runtime.session import Session, load
from byoc.trials import fastest

__all__ = [
    "Budget",
    "ByocError",
    "InputError",
    "MissingRuntimeError",
    "Precision",
    "Result",
    "Session",
    "fastest",
    "load",
    "load_model",
    "partition",
    "verify_against",
]
