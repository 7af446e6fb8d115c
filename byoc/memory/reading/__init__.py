"""Reading of ONNX models for the memory planners, which see numbers only."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.reading._memory_model import CONVENTIONS, Convention, MemoryModel, read_memory_model
    from byoc.memory.reading._row_model import RowwiseModel, read_row_model
    from byoc.memory.reading._stages import TensorSizes, find_quantized_groups, written_outputs
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
