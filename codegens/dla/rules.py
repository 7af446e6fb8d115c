"""What each kind of unit becomes: by operator, the function that makes layers of it."""

from . import convolutions, elementwise, pools, views
from .lower import Rule

RULES: dict[str, Rule] = {
    "Conv": convolutions.convolution,
    "Gemm": convolutions.fully_connected,
    "MatMul": convolutions.product,
    "BatchNormalization": convolutions.normalization,
    "MaxPool": pools.pool,
    "AveragePool": pools.pool,
    "GlobalAveragePool": pools.global_pool,
    "Add": elementwise.sums,
    "Sum": elementwise.sums,
    "Mul": elementwise.product,
    "Relu": elementwise.clamp,
    "Clip": elementwise.clamp,
    **dict.fromkeys(elementwise.FUNCTIONS, elementwise.function),
    "Concat": views.concat,
    "Reshape": views.reshape,
    "Flatten": views.reshape,
    "Dropout": views.reshape,
}
"""The operators of ONNX that a unit may begin with."""
