"""Products of matrices."""

from dataclasses import replace

import numpy as np

from byoc.codegen import CompileError, Operation

from .constant_operands import read_bias, read_scales, real_scale
from .lowering import LOWERINGS, Lowering
from .region_values import arrange_plain, expand_rank, make_plain
from .windows import Filters, Window, convolve


@LOWERINGS.op("Gemm", "MatMul")
def lower_product(operation: Operation, lowering: Lowering) -> None:
    """CONV2D of a kernel of 1x1 where the second operand is constant, else MATMUL."""
    if lowering.is_constant(operation, 1):
        _multiply_by_weights(operation, lowering)
    elif operation.op == "Gemm":
        raise CompileError("a Gemm of two computed operands is not taken")
    else:
        _multiply_batches(operation, lowering)


def _multiply_by_weights(operation: Operation, lowering: Lowering) -> None:
    """CONV2D with the rows of the first operand as a batch of images of one element."""
    attributes = operation.attributes
    source = arrange_plain(lowering.graph, lowering.read(operation, 0))
    weights = lowering.constant(operation, 1)
    assert weights is not None
    if weights.ndim != 2 or attributes.get("transA", 0):
        raise CompileError("a product is taken with constants of rank 2, the first operand as it is")
    channels = 0 if attributes.get("transB", 0) else 1
    weights = weights.T if channels else weights
    count, depth = weights.shape
    wanted = lowering.result(operation)
    factors = real_scale(source) * read_scales(operation, channels) * float(attributes.get("alpha", 1.0))
    bias = read_bias(operation, lowering, source, factors, count) * float(attributes.get("beta", 1.0))
    filters = Filters("CONV2D", weights[:, None, None, :], np.rint(bias).astype(np.int64))
    rows = source.tensor.elements // depth
    batch = replace(source, tensor=lowering.graph.reshape(source.tensor, (rows, 1, 1, depth)))
    window = Window((rows, 1, 1, count))
    sums = convolve(lowering, batch, filters, {"shape": window.shape, **window.convolution})
    stored = lowering.narrow(sums, factors / float(wanted.scale), wanted)
    flat = lowering.graph.reshape(stored, lowering.shape(operation))
    lowering.finish(operation, make_plain(flat, wanted))


def _multiply_batches(operation: Operation, lowering: Lowering) -> None:
    """MATMUL of two computed operands, all axes but the last two as one batch."""
    graph = lowering.graph
    shape = lowering.shape(operation)
    wanted = lowering.result(operation)
    operands = [arrange_plain(graph, lowering.read(operation, position)) for position in (0, 1)]
    if any(each.rank < 2 or each.tensor.dtype != "int8" for each in operands):
        raise CompileError("a product of computed operands is taken of int8, of rank 2 and more")
    batches, points = [], []
    for each in operands:
        whole = expand_rank(graph, each, len(shape)).tensor
        pairs = zip(shape[:-2], whole.shape[:-2], strict=True)
        whole = graph.tile(whole, [*(wide // narrow for wide, narrow in pairs), 1, 1])
        count = int(np.prod(shape[:-2], dtype=np.int64))
        batches.append(graph.reshape(whole, (count, *whole.shape[-2:])))
        assert each.quantization is not None
        points.append(graph.constant(np.array([int(each.quantization.zero_point)]), "int8"))
    sums = graph.add("MATMUL", [*batches, *points], "int32", (batches[0].shape[0], *shape[-2:]))
    factor = real_scale(operands[0]) * real_scale(operands[1]) / float(wanted.scale)
    stored = lowering.narrow(sums, factor, wanted)
    lowering.finish(operation, make_plain(graph.reshape(stored, shape), wanted))
