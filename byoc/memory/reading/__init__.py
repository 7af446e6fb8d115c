"""Reading of ONNX models for the memory planners.

>>> from byoc.memory.reading import CONVENTIONS, memory_problem
>>> problem = memory_problem(model, CONVENTIONS["C"], alignment=64)
"""

from byoc.memory.reading._memory_model import CONVENTIONS, Convention, MemoryModel, read_memory_model
from byoc.memory.reading._row_model import RowwiseModel, read_row_model
from byoc.memory.reading._stages import find_quantized_groups
