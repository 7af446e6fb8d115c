"""Lower products by weights of four bits, which stay packed until they are loaded."""

import numpy as np

from byoc.codegen import CompileError

from ..machine import split_bytes
from .int4_weights import Int4Weights
from .layer_groups import LayerGroup
from .layer_tensors import Array, SlidingWindow
from .layers import ConvLayer
from .network_builder import NetworkBuilder
from .region_reading import Operand

_NO_MULTIPLIERS = np.zeros(0)


def lower_int4_product(builder: NetworkBuilder, group: LayerGroup) -> None:
    """Lower a MatMulNBits: x by numbers of four bits, with scales, zero points and a bias."""
    group.require_float()
    x, numbers, scales, zeros, order, bias = group.take_operands(6)
    if group.main.attributes["bits"] != 4 or order.name:
        raise CompileError("a MatMulNBits must be of 4 bits, with blocks in order", group.nodes)
    weights = _read_weights(builder, group, numbers, scales, zeros)
    outputs = weights.shape[0]
    added = _read_constant(builder, group, bias) if bias.name else np.zeros(outputs)
    given = builder.rows_tensor(group, x)
    builder.add_layer(
        ConvLayer(
            group.output,
            group.nodes,
            builder.result_tensor(group, (*given.extents[:3], outputs)),
            given,
            weights,
            added.astype(np.float32),
            _NO_MULTIPLIERS,
            SlidingWindow(),
            clamp=builder.fused_clamp(group),
        )
    )


def _read_weights(
    builder: NetworkBuilder, group: LayerGroup, numbers: Operand, scales: Operand, zeros: Operand
) -> Int4Weights:
    """Return the weights as MatMulNBits stores them: outputs x blocks x bytes of a block."""
    attributes = group.main.attributes
    inputs, outputs, block = (attributes[name] for name in ("K", "N", "block_size"))
    blocks = -(-inputs // block)
    stored = _read_constant(builder, group, numbers)
    factors = _read_constant(builder, group, scales)
    if stored.size != outputs * blocks * block // 2 or factors.size != outputs * blocks:
        raise CompileError("its weights or scales are not of N x K", group.nodes)
    return Int4Weights(
        np.ascontiguousarray(stored.reshape(outputs, -1)[:, : -(-inputs // 2)]),
        factors.reshape(outputs, blocks).astype(np.float32),
        _read_zeros(builder, group, zeros, (outputs, blocks)) if zeros.name else None,
        inputs,
        block,
    )


def _read_zeros(
    builder: NetworkBuilder, group: LayerGroup, zeros: Operand, shape: tuple[int, int]
) -> Array:
    """Return zero points, which are stored two in a byte, as uint8 [outputs, blocks]."""
    stored = _read_constant(builder, group, zeros)
    outputs, blocks = shape
    width = -(-blocks // 2)
    if stored.dtype != np.uint8 or stored.size != outputs * width:
        raise CompileError("its zero points must be of 4 bits, two in a byte", group.nodes)
    return np.ascontiguousarray(split_bytes(stored.reshape(outputs, width), blocks))


def _read_constant(builder: NetworkBuilder, group: LayerGroup, operand: Operand) -> Array:
    if not builder.reading.is_constant(operand.name):
        raise CompileError(f"'{operand.name}' must be constant", group.nodes)
    return builder.reading.stored_array(operand.name)
