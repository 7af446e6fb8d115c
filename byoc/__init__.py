"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from pathlib import Path as _Path

from byoc._checkout import find_beside

find_beside(_Path(__file__).parent)

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
