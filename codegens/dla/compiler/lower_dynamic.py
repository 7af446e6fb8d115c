"""Lower tensors that are quantized as the program runs, and their products by constant integers.

A DynamicQuantizeLinear and the DequantizeLinear behind it are two layers: MINMAX reads the whole tensor,
and QUANTIZE rounds it between these limits. Where all that reads the result multiplies it by constant
integers, QUANTIZE makes integers, and a CONV multiplies them and scales its exact sums; else it makes
their real numbers, which anything reads as float32.
"""

from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError

from .layer_groups import LayerGroup
from .layer_tensors import INT16, TO_NHWC, LayerTensor, SlidingWindow
from .layers import ConvLayer, MinMaxLayer, QuantizeLayer
from .lower_moves import lower_conversion
from .network_builder import NetworkBuilder
from .output_shapes import window_of
from .region_reading import DynamicProduct, find_function, list_operands


def lower_dynamic_quantization(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a DynamicQuantizeLinear: find the limits of its input, which say scale and zero point.

    Raises CompileError where something else than a DequantizeLinear reads what it makes.
    """
    made = set(filter(None, group.main.outputs))
    readers = [each for each in builder.reading.operations if made & {*each.inputs}]
    outputs = {contract.inner for contract in builder.reading.region.outputs}
    if made & outputs or any(
        each.op != "DequantizeLinear" or each.inputs != group.main.outputs for each in readers
    ):
        what = (
            "a DequantizeLinear must read the integers, scale and zero point of a DynamicQuantizeLinear"
        )
        raise CompileError(f"{what}, and nothing else", group.nodes)
    x = builder.tensors[group.main.inputs[0]]
    name = builder.unused_name(f"{group.output}/limits")
    limits = LayerTensor(name, (1, 1, 1, 2), "float32")
    builder.limits[group.main.outputs[0]] = group.main.inputs[0], limits
    builder.add_layer(MinMaxLayer(name, group.nodes, limits, x))


def lower_dequantize(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a DequantizeLinear: of constants' integers a conversion, of those of this run a rounding."""
    integers = group.main.inputs[0]
    if integers not in builder.limits:
        lower_conversion(builder, group)
        return
    name, limits = builder.limits[integers]
    group.require_float()
    x = builder.tensors[name]
    y = replace(builder.result_tensor(group), extents=x.extents)
    if name in builder.plain:
        builder.plain.add(group.output)
    products = builder.reading.dynamic_products.values()
    if any(each.read == group.output for each in products):
        y = replace(y, dtype=INT16)
        builder.limits[group.output] = name, limits
    builder.add_layer(QuantizeLayer(group.output, group.nodes, y, x, limits))


def find_dynamic_product(builder: NetworkBuilder, group: LayerGroup) -> DynamicProduct | None:
    """Return the product of integers that a group begins with; None where it begins otherwise."""
    return builder.reading.dynamic_products.get(group.main.outputs[0])


def lower_dynamic_product(builder: NetworkBuilder, group: LayerGroup, product: DynamicProduct) -> None:
    """Lower a Conv or MatMul of rounded numbers by integers, with bias, clamp and function behind it."""
    group.require_float()
    operand, attributes = group.operands[0], group.main.attributes
    outputs, _, *kernel = product.weights.shape
    window, groups = SlidingWindow(), 1
    if group.main.op == "Conv":
        if attributes["auto_pad"] != "NOTSET":
            raise CompileError("auto_pad must be NOTSET", group.nodes)
        window, groups = window_of(attributes, kernel), attributes["group"]
        x, y = builder.operand_tensor(group, operand), builder.result_tensor(group)
    else:
        x = builder.rows_tensor(group, operand)
        y = builder.result_tensor(group, (*x.extents[:3], outputs))
    function, parameters = find_function(group.function) if group.function else (None, (0.0, 0.0))
    weights = np.ascontiguousarray(product.weights.transpose(TO_NHWC))
    _, limits = builder.limits[product.read]
    bias = _read_bias(builder, group, outputs)
    builder.add_layer(
        ConvLayer(
            group.output, group.nodes, y, x, weights, bias, product.scales,
            window, groups, None, function, parameters, limits, clamp=builder.fused_clamp(group),
        )
    )  # fmt: skip


def _read_bias(builder: NetworkBuilder, group: LayerGroup, channels: int) -> np.ndarray:
    """Return the constant that an Add of a group adds, float32 [channels]; zeros without one."""
    before, found = group.main.outputs[0], np.zeros(1, np.float32)
    for each in group.followers:
        if each.op == "Add":
            found = builder.reading.constant_array(
                next(operand for operand in list_operands(each) if operand.name != before)
            ).astype(np.float32)
    return np.array(np.broadcast_to(found.reshape(-1), channels))
