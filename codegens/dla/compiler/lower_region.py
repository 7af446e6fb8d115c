"""Lowering of a region to layers by the function for each operator, and a check of single nodes."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx

from byoc.codegen import (
    YES,
    CompileError,
    Region,
    Verdict,
    check_each_node,
    is_qdq_node,
    read_region,
    refuse,
)

from .layer_groups import LayerGroup, group_operations
from .layers import LayerNetwork
from .lower_arithmetic import (
    lower_div,
    lower_layer_normalization,
    lower_mean,
    lower_mul,
    lower_neg,
    lower_power,
    lower_rms_normalization,
    lower_skip_layer_normalization,
    lower_skip_rms_normalization,
    lower_softmax,
    lower_sub,
    lower_sum,
)
from .lower_cached_attention import (
    lower_contrib_rotary_embedding,
    lower_group_query_attention,
    lower_rotary_embedding,
)
from .lower_convolutions import (
    lower_batch_normalization,
    lower_conv,
    lower_gemm,
    lower_int4_product,
    lower_matmul,
)
from .lower_moves import (
    find_dynamic_product,
    lower_cast,
    lower_clamp,
    lower_concat,
    lower_conversion,
    lower_dequantize,
    lower_dynamic_product,
    lower_dynamic_quantization,
    lower_function,
    lower_gather,
    lower_global_pool,
    lower_pool,
    lower_reshape,
    lower_split,
    lower_transpose,
)
from .network_builder import NetworkBuilder
from .output_shapes import check_dtype
from .region_reading import FUNCTIONS, RegionReading

LOWERINGS: Mapping[str, Callable[[NetworkBuilder, LayerGroup], None]] = {
    "Conv": lower_conv,
    "Gemm": lower_gemm,
    "MatMul": lower_matmul,
    "BatchNormalization": lower_batch_normalization,
    "MaxPool": lower_pool,
    "AveragePool": lower_pool,
    "GlobalAveragePool": lower_global_pool,
    "Add": lower_sum,
    "Sum": lower_sum,
    "Mul": lower_mul,
    "Sub": lower_sub,
    "Neg": lower_neg,
    "Div": lower_div,
    "Pow": lower_power,
    "Relu": lower_clamp,
    "Clip": lower_clamp,
    **dict.fromkeys(FUNCTIONS, lower_function),
    "Concat": lower_concat,
    "Reshape": lower_reshape,
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), lower_reshape),
    "Dropout": lower_reshape,
    **dict.fromkeys(("Identity", "QuantizeLinear"), lower_conversion),
    "DequantizeLinear": lower_dequantize,
    "DynamicQuantizeLinear": lower_dynamic_quantization,
    "Cast": lower_cast,
    "Transpose": lower_transpose,
    "Split": lower_split,
    "Gather": lower_gather,
    "Softmax": lower_softmax,
    "ReduceMean": lower_mean,
    "LayerNormalization": lower_layer_normalization,
    "RMSNormalization": lower_rms_normalization,
    "SimplifiedLayerNormalization": lower_rms_normalization,
    "com.microsoft.SkipLayerNormalization": lower_skip_layer_normalization,
    "com.microsoft.SkipSimplifiedLayerNormalization": lower_skip_rms_normalization,
    "com.microsoft.MatMulNBits": lower_int4_product,
    "com.microsoft.GroupQueryAttention": lower_group_query_attention,
    "RotaryEmbedding": lower_rotary_embedding,
    "com.microsoft.RotaryEmbedding": lower_contrib_rotary_embedding,
}
"""By operator, named as in rule files, the function that lowers a group that begins with it."""


WIDE = "int32"
"""The type of positions, which enter a region and become floats."""

_READ_WIDE = ("Cast", "com.microsoft.GroupQueryAttention")


def lower_region(region: Region) -> LayerNetwork:
    """Lower a region to a network of layers.

    Raises CompileError for what the machine cannot do, with the nodes at fault.
    """
    reading = RegionReading(region)
    for contract in region.inputs:
        if contract.type.dtype != WIDE:
            check_dtype(contract.name, contract.type.dtype)
    for contract in region.outputs:
        check_dtype(contract.name, contract.type.dtype)
    reading.check_shapes()
    builder = NetworkBuilder(reading)
    groups = group_operations(reading)
    unknown = [group for group in groups if group.operator not in LOWERINGS]
    if unknown:
        listed = ", ".join(dict.fromkeys(group.operator for group in unknown))
        raise CompileError(f"the machine has no {listed}", [n for group in unknown for n in group.nodes])
    for group in groups:
        _check_wide_inputs(builder, group)
        product = find_dynamic_product(builder, group)
        if product is None:
            LOWERINGS[group.operator](builder, group)
        else:
            lower_dynamic_product(builder, group, product)
    outputs = [builder.add_output(contract) for contract in region.outputs]
    return LayerNetwork(builder.layers, builder.inputs, outputs, builder.constants)


def _check_wide_inputs(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Raise CompileError for a tensor of int32 where the machine has only floats and bytes."""
    for name in group.main.inputs:
        is_wide = name in builder.tensors and builder.tensors[name].dtype == WIDE
        if is_wide and group.operator not in _READ_WIDE:
            check_dtype(name, WIDE)


def check_nodes(model: onnx.ModelProto) -> Sequence[Verdict]:
    """Return for each node of a model's main graph whether it can be lowered, or why it cannot.

    If the model cannot be lowered as a whole, each node is checked alone. DequantizeLinear and
    QuantizeLinear are parts of the groups that they begin and end, and are not checked.
    """
    if _try_lowering(model):
        return [YES] * len(model.graph.node)
    return check_each_node(
        model, lambda each: YES if is_qdq_node(each.node) else _try_lowering(each.standard_model())
    )


def _try_lowering(model: onnx.ModelProto) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            lower_region(read_region(path, "dla_0", "dla"))
        except CompileError as error:
            return refuse(str(error))
    return YES
