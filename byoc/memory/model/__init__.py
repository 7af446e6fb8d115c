"""Reading of ONNX models for the memory planners.

>>> from byoc.memory.model import CONVENTIONS, memory_problem
>>> problem = memory_problem(model, CONVENTIONS["C"], alignment=64)
"""

from byoc.memory.model.build import (
    CONVENTIONS,
    Convention,
    MemoryModel,
    get_convention,
    read_problem,
    read_memory_model,
)
from byoc.memory.model.stages import find_quantized_groups

__all__ = [
    "CONVENTIONS",
    "Convention",
    "MemoryModel",
    "get_convention",
    "read_problem",
    "find_quantized_groups",
    "read_memory_model",
]
