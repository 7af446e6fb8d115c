"""The ranges that values of tensors lie in, by interval arithmetic."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.model.ranges._finite_values import FiniteValues
    from byoc.model.ranges._intervals import (
        NUMBERS,
        ZERO,
        Interval,
        absolute,
        limit_of_dtype,
        square,
    )
    from byoc.model.ranges._value_ranges import NodeRange, PlainRanges, ValueRanges
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
