"""The types of what a rule file says of quantization: the scheme, and the scales of a tensor."""

from typing import Literal

from byoc.rules._schema_values import Dtypes, Integers, Operators, make_optional_field
from byoc.support import StrictModel


class QuantizedRule(StrictModel):
    """A constraint on the quantization of a tensor: its scale and zero point."""

    per_channel: bool | None = make_optional_field(
        "true: a scale for each channel; false: one for the tensor."
    )
    symmetric: bool | None = make_optional_field(
        "true: the zero points are 0; false: they are not all 0."
    )
    power_of_two: bool | None = make_optional_field(
        "true: the scales are powers of two; false: not all are."
    )
    axis: Integers | None = make_optional_field(
        "The dimension along which several scales lie, one or several (negative: from the end); one "
        "scale for the tensor always fits."
    )
    same_as: str | None = make_optional_field(
        "A tensor of this node, by its name in ONNX, that must have the same scale and zero point."
    )


class QuantizedTensors(StrictModel):
    """The quantization of one kind of tensor; rules with `quantized: true` can say more."""

    dtype: Dtypes | None = make_optional_field("The data types it may have.")
    symmetric: bool | None = make_optional_field(
        "true: the zero points must be 0; false: they need not be."
    )
    per_channel: bool | None = make_optional_field(
        "true: each channel may have a scale; false: one for all."
    )


class Quantization(StrictModel):
    """The quantization scheme of the accelerator, which applies to rules with `quantized: true`."""

    activations: QuantizedTensors | None = make_optional_field("What is computed.")
    weights: QuantizedTensors | None = make_optional_field("Constants that are no bias.")
    bias: QuantizedTensors | None = make_optional_field(
        "Constants that are int32, or of one dimension beside others."
    )
    scales: Literal["any", "power_of_two"] | None = make_optional_field("What scales may be.")
    same_scale: Operators | None = make_optional_field(
        "Operators whose inputs and output must all have one scale and zero point."
    )
    convert: Literal["host", "device", "between"] | None = make_optional_field(
        "Who quantizes and casts at the border of a region: the host, or the accelerator itself. "
        "Between: the accelerator, between operators that it takes in integers and in floating point."
    )
