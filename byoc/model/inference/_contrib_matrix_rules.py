"""Rules that type onnxruntime's products of matrices, convolutions and pools, quantized and not."""

from collections.abc import Mapping, Sequence

from byoc.model._tensor_types import Dim
from byoc.model.inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_shapes,
    make_type,
    read_dtype,
)
from byoc.model.inference._extents import add_dims, multiply_dims, subtract_dims
from byoc.model.inference._known_node import KnownNode, Rule
from byoc.model.inference._matrix_shapes import multiply_shapes
from byoc.model.inference._moved_values import list_elements
from byoc.model.inference._window_shapes import count_windows


def _multiply_at(
    a: int, b: int, *, dtype_of: int | None = None, dtype: str | None = None, fused: bool = False
) -> Rule:
    """Return the rule of a matrix product of the inputs `a` and `b`.

    The dtype is `dtype`, or that of the input `dtype_of`, of `a` unless given. `fused` tells that
    attributes transpose the operands first.
    """

    def rule(node: KnownNode) -> Types:
        left, right = node.get_shape(a), node.get_shape(b)
        if fused:
            left, right = _transpose(node, left, "A"), _transpose(node, right, "B")
        kind = dtype or node.get_dtype(a if dtype_of is None else dtype_of)
        return [make_type(kind, multiply_shapes(left, right))]

    return rule


def _transpose(node: KnownNode, shape: Shape, operand: str) -> Shape:
    """Return the shape of an operand of FusedMatMul as it is multiplied."""
    if shape is None or len(shape) < 2:
        return shape
    swapped = bool(node.attributes.get(f"trans{operand}", 0))
    if node.attributes.get(f"transBatch{operand}", 0):
        return None if swapped else (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swapped else shape


def _multiply_two(a: int, b: int, output_zero_point: int | None = None) -> Rule:
    """Return the rule of a Gemm of two matrices; without a zero point QGemm's result is float32."""

    def rule(node: KnownNode) -> Types:
        rows, columns = (
            shape[axis if node.attributes.get(name, 0) else 1 - axis]
            if shape is not None and len(shape) == 2
            else None
            for shape, name, axis in ((node.get_shape(a), "transA", 1), (node.get_shape(b), "transB", 0))
        )
        dtype = node.get_dtype(a)
        if output_zero_point is not None:
            given = node.has_input(output_zero_point)
            dtype = node.get_dtype(output_zero_point) if given else "float32"
        return [make_type(dtype, [rows, columns])]

    return rule


def _multiply_float8(node: KnownNode) -> Types:
    found = _multiply_two(0, 1)(node)[0]
    return [make_type(read_dtype(node, "dtype", "float32"), found.shape if found else None)]


def _widen_to(*attributes: str) -> Rule:
    """Return the rule of a product with packed weights, whose columns an attribute gives.

    The outputs have the leading extents of the first input, and `N` columns or the like.
    """

    def rule(node: KnownNode) -> Types:
        shape, dtype = node.get_shape(0), node.get_dtype(0)
        columns = [node.attributes.get(name) for name in attributes]
        return [make_type(dtype, [*shape[:-1], n] if shape else None) for n in columns]

    return rule


def _multiply_4_bits(node: KnownNode) -> Types:
    """Return the type of MatMulBnb4, whose weight is [N, K] unless `transB` is 0."""
    return _widen_to("N" if node.attributes.get("transB", 1) else "K")(node)


def _multiply_blocks(node: KnownNode) -> Types:
    """Return the type of MatMulFpQ4, whose third input has the value [K, N]."""
    shape, known = node.get_shape(0), list_elements(node.get_value(2))
    columns = known[1] if known is not None and len(known) == 2 else None
    return [make_type(node.get_dtype(0), [*shape[:-1], columns] if shape else None)]


def _multiply_for_attention(node: KnownNode) -> Types:
    """Return the types of MatMulNBitsQkv: queries, keys, values, and the sum that was normalized."""
    return [*_widen_to("Nq", "Nkv", "Nkv")(node), node.get_type(0)]


def _multiply_for_perceptron(node: KnownNode) -> Types:
    """Return the types of MatMulNBitsMlp: the product, and the sum that was normalized."""
    return [*_widen_to("N")(node), node.get_type(0)]


def _multiply_integers(node: KnownNode) -> Types:
    """Return the type of MulInteger, an elementwise product with two zero points."""
    return [make_type("int32", broadcast_shapes(node.get_shape(0), node.get_shape(2)))]


def _get_image(node: KnownNode, channels_last: bool) -> tuple[Dim, Dim, Sequence[Dim]] | None:
    """Return batch, channels and spatial extents of the first input, None if its rank is unknown."""
    shape = node.get_shape(0)
    if shape is None or len(shape) < 3:
        return None
    return (shape[0], shape[-1], shape[1:-1]) if channels_last else (shape[0], shape[1], shape[2:])


def _arrange(batch: Dim, channels: Dim, spatial: Sequence[Dim], channels_last: bool) -> Sequence[Dim]:
    return [batch, *spatial, channels] if channels_last else [batch, channels, *spatial]


def _convolve(
    weight: int, dtype_of: int = 0, *, channels_last: bool | None = False, weight_last: bool = False
) -> Rule:
    """Return the rule of a convolution; `channels_last` None means that an attribute says it.

    With `weight_last` the weight is [M, kernel..., C] instead of [M, C, kernel...].
    """

    def rule(node: KnownNode) -> Types:
        last = bool(node.attributes.get("channels_last", 0)) if channels_last is None else channels_last
        image, filters, dtype = _get_image(node, last), node.get_shape(weight), node.get_dtype(dtype_of)
        if image is None:
            return [make_type(dtype, None)]
        batch, _, spatial = image
        kernel: Sequence[Dim] = node.attributes.get("kernel_shape") or [None] * len(spatial)
        if filters is not None and "kernel_shape" not in node.attributes:
            kernel = filters[1:-1] if weight_last else filters[2:]
        counts = count_windows(node, spatial, kernel) or [None] * len(spatial)
        channels = None if filters is None else filters[0]
        return [make_type(dtype, _arrange(batch, channels, counts, last))]

    return rule


def _pool(*, channels_last: bool | None = False) -> Rule:
    """Return the rule of a pool; `channels_last` None means that an attribute says it."""

    def rule(node: KnownNode) -> Types:
        last = bool(node.attributes.get("channels_last", 0)) if channels_last is None else channels_last
        image, kernel = _get_image(node, last), node.attributes.get("kernel_shape")
        if image is None or kernel is None:
            return [make_type(node.get_dtype(0), None)]
        batch, channels, spatial = image
        counts = count_windows(node, spatial, kernel) or [None] * len(spatial)
        return [make_type(node.get_dtype(0), _arrange(batch, channels, counts, last))]

    return rule


def _pool_globally(node: KnownNode) -> Types:
    last = bool(node.attributes.get("channels_last", 0))
    image = _get_image(node, last)
    if image is None:
        return [make_type(node.get_dtype(0), None)]
    batch, channels, spatial = image
    return [make_type(node.get_dtype(0), _arrange(batch, channels, [1] * len(spatial), last))]


def _convolve_transposed(node: KnownNode) -> Types:
    """Return the type of ConvTransposeWithDynamicPads, whose pads are the value of its third input."""
    image, filters, dtype = _get_image(node, False), node.get_shape(1), node.get_dtype(0)
    if image is None:
        return [make_type(dtype, None)]
    batch, _, spatial = image
    rank, attributes = len(spatial), node.attributes
    channels = None if filters is None else multiply_dims(filters[1], attributes.get("group", 1))
    kernel = attributes.get("kernel_shape") or (list(filters[2:]) if filters is not None else [])
    strides, dilations, extra = (
        attributes.get(name) or [default] * rank
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = list_elements(node.get_value(2)) if node.has_input(2) else [0] * (2 * rank)
    padded_by_hand = attributes.get("auto_pad", "NOTSET") == "NOTSET"
    fits = len(kernel) == len(strides) == len(dilations) == len(extra) == rank
    if not padded_by_hand or not fits or pads is None or len(pads) != 2 * rank:
        return [make_type(dtype, [batch, channels, *[None] * rank])]
    counts = [
        subtract_dims(
            add_dims(
                multiply_dims(subtract_dims(dim, 1), strides[i]),
                multiply_dims(subtract_dims(kernel[i], 1), dilations[i]),
                1,
                extra[i],
            ),
            add_dims(pads[i], pads[i + rank]),
        )
        for i, dim in enumerate(spatial)
    ]
    return [make_type(dtype, [batch, channels, *counts])]


MATRIX_RULES: Mapping[str, Rule] = {
    "com.microsoft.ConvTransposeWithDynamicPads": _convolve_transposed,
    "com.microsoft.DynamicQuantizeMatMul": _multiply_at(0, 1),
    "com.microsoft.FusedConv": _convolve(1),
    "com.microsoft.FusedGemm": _multiply_two(0, 1),
    "com.microsoft.FusedMatMul": _multiply_at(0, 1, fused=True),
    "com.microsoft.FusedMatMulActivation": _multiply_at(0, 1, fused=True),
    "com.microsoft.GemmFastGelu": _multiply_at(0, 1),
    "com.microsoft.GemmFloat8": _multiply_float8,
    "com.microsoft.MatMulBnb4": _multiply_4_bits,
    "com.microsoft.MatMulFpQ4": _multiply_blocks,
    "com.microsoft.MatMulInteger16": _multiply_at(0, 1, dtype="int32"),
    "com.microsoft.MatMulIntegerToFloat": _multiply_at(0, 1, dtype_of=2),
    "com.microsoft.MatMulNBits": _widen_to("N"),
    "com.microsoft.MatMulNBitsMlp": _multiply_for_perceptron,
    "com.microsoft.MatMulNBitsQLoRA": _widen_to("N"),
    "com.microsoft.MatMulNBitsQkv": _multiply_for_attention,
    "com.microsoft.MaxpoolWithMask": _pool(),
    "com.microsoft.MulInteger": _multiply_integers,
    "com.microsoft.NhwcConv": _convolve(1, channels_last=True, weight_last=True),
    "com.microsoft.NhwcFusedConv": _convolve(1, channels_last=True, weight_last=True),
    "com.microsoft.NhwcMaxPool": _pool(channels_last=True),
    "com.microsoft.QGemm": _multiply_two(0, 3, output_zero_point=8),
    "com.microsoft.QLinearAveragePool": _pool(channels_last=None),
    "com.microsoft.QLinearConv": _convolve(3, dtype_of=7, channels_last=None),
    "com.microsoft.QLinearGlobalAveragePool": _pool_globally,
    "com.microsoft.QOrderedMatMul": _multiply_at(0, 2),
    "com.microsoft.TransposeMatMul": _multiply_at(0, 1, fused=True),
}
"""Operator, as rule files spell it, to its rule."""
