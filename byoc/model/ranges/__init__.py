"""The ranges that values of tensors lie in, by interval arithmetic."""

from byoc.model.ranges._intervals import (
    NUMBERS,
    ZERO,
    Interval,
    TensorRange,
    absolute,
    limit_of_dtype,
    square,
)
from byoc.model.ranges._value_ranges import NodeRange, ValueRanges
