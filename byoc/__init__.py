"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from pathlib import Path as _Path

from byoc._checkout import find_beside

find_beside(_Path(__file__).parent)

from byoc.comparison import fastest
from byoc.errors import ByocError, InputError, MissingRuntimeError
from byoc.pipeline import Result, partition, verify_against
from byoc.quantization import Budget, Precision
from byoc.runtime import Session, load
from byoc.stages import load_model

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
