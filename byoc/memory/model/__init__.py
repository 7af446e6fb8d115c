"""Reading of ONNX models for the memory planners.

>>> from byoc.memory.model import CONVENTIONS, memory_problem
>>> problem = memory_problem(model, CONVENTIONS["C"], alignment=64)
"""

from byoc.memory.model.build import (
    CONVENTIONS,
    Convention,
    MemoryModel,
    convention_named,
    memory_problem,
    read_memory,
)
from byoc.memory.model.stages import quantized_groups

__all__ = [
    "CONVENTIONS",
    "Convention",
    "MemoryModel",
    "convention_named",
    "memory_problem",
    "quantized_groups",
    "read_memory",
]
