"""Rules that type onnxruntime's operators of attention, products, convolutions and pools.

The shapes are those of onnxruntime's documentation (docs/ContribOperators.md): B batch, S length of the
query, P of the past, T of both, N heads, H the size of one head.
"""

from collections.abc import Mapping, Sequence

from byoc.model._inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_shapes,
    make_type,
    read_dtype,
)
from byoc.model._inference._extents import (
    add_dims,
    floor_divide_dims,
    max_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model._inference._moved_values import KnownNode, Rule, list_elements
from byoc.model._inference._window_shapes import count_windows, multiply_shapes
from byoc.model._tensor_data import Dim

# Rules that type onnxruntime's products of matrices, convolutions and pools, quantized and not.


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


# Rules that type onnxruntime's operators of attention.


def _get_extents(node: KnownNode, position: int, rank: int) -> tuple[Dim, ...]:
    """Return the extents of an input of a rank, unknown ones where its shape is not known."""
    shape = node.get_shape(position)
    return shape if shape is not None and len(shape) == rank else (None,) * rank


def _get_heads(node: KnownNode, name: str = "num_heads") -> int | None:
    count = node.attributes.get(name)
    return count if isinstance(count, int) and count > 0 else None


def _get_head_size(hidden: Dim, heads: int | None) -> Dim:
    return None if heads is None else floor_divide_dims(hidden, heads)


def _shares_buffer(node: KnownNode) -> bool:
    """Return whether past and present are one buffer, which has its greatest length at once."""
    return bool(node.attributes.get("past_present_share_buffer", 0))


def _attend_to_itself(past: int, dtype: int = 0) -> Rule:
    """Return the rule of an Attention whose one weight gives queries, keys and values.

    `past` is the position of the past [2, B, N, P, H], `dtype` that of an input with the dtype of the
    outputs; input [B, S, hidden], weight [hidden, 3 * N * H].
    """

    def rule(node: KnownNode) -> Types:
        batch, length, _ = _get_extents(node, 0, 3)
        sizes = node.attributes.get("qkv_hidden_sizes")
        widths = sizes or [floor_divide_dims(_get_extents(node, 1, 2)[1], 3)] * 3
        heads, kind = _get_heads(node), node.get_dtype(dtype)
        before = _get_extents(node, past, 5)
        total = add_dims(before[3], length) if node.has_input(past) else length
        if _shares_buffer(node) and node.has_input(past):
            total = before[3]
        present = [2, batch, heads, total, _get_head_size(widths[2], heads)]
        return [make_type(kind, [batch, length, widths[2]]), make_type(kind, present)]

    return rule


def _attend_packed(node: KnownNode) -> Types:
    """Return the type of PackedAttention: input [tokens, hidden], weight [hidden, 3 * N * H]."""
    tokens, _ = _get_extents(node, 0, 2)
    sizes = node.attributes.get("qkv_hidden_sizes")
    width = sizes[2] if sizes else floor_divide_dims(_get_extents(node, 1, 2)[1], 3)
    return [make_type(node.get_dtype(0), [tokens, width])]


def _attend_packed_heads(node: KnownNode) -> Types:
    """Return the type of PackedMultiHeadAttention: query [tokens, N * H] or [tokens, N, 3, H]."""
    query = node.get_shape(0)
    if query is None or len(query) not in {2, 4}:
        return [make_type(node.get_dtype(0), None)]
    width = multiply_dims(query[1], query[3]) if len(query) == 4 else _get_extents(node, 2, 2)[1]
    return [make_type(node.get_dtype(0), [query[0], width])]


def _attend_in_heads(past: int, past_length: int) -> Rule:
    """Return the rule of MultiHeadAttention or of its decoder's form.

    Query [B, S, N * H] or, packed, [B, S, N, 3, H]; key and value [B, L, N * H], [B, N, L, H] or,
    packed, [B, L, N, 2, H]. `past` is the position of the past keys [B, N, P, H], and `past_length` that
    of a length that is given where past and present are one buffer.
    """

    def rule(node: KnownNode) -> Types:
        query, key, value = (node.get_shape(i) for i in range(3))
        heads, dtype = _get_heads(node), node.get_dtype(0)
        if query is None or len(query) not in {3, 5}:
            return [make_type(dtype, None)] * 4
        batch, length = query[:2]
        size = query[4] if len(query) == 5 else _get_head_size(query[2], heads)
        width, value_size = multiply_dims(heads, size), size
        if value is not None and len(value) in {3, 4}:
            width = value[2] if len(value) == 3 else multiply_dims(value[1], value[3])
            value_size = _get_head_size(width, heads)
        elif node.has_input(2):
            width = value_size = None
        sequence = length if not node.has_input(1) else _get_key_length(key)
        total = before = sequence
        if node.has_input(past):
            before = _get_extents(node, past, 4)[2]
            total = add_dims(before, sequence)
            if _shares_buffer(node) or node.has_input(past_length):
                known = list_elements(node.get_value(past_length))
                total = add_dims(known[0], sequence) if known else None
            else:
                before = total
        return [
            make_type(dtype, [batch, length, width]),
            make_type(dtype, [batch, heads, before, size]),
            make_type(dtype, [batch, heads, before, value_size]),
            make_type(dtype, [batch, heads, length, total]),
        ]

    return rule


def _get_key_length(key: Shape) -> Dim:
    if key is None or len(key) not in {3, 4, 5}:
        return None
    return key[2] if len(key) == 4 else key[1]


def _attend_in_groups(node: KnownNode) -> Types:
    """Return the types of GroupQueryAttention.

    Query [B, S, N * H], or [B, S, (N + 2 * M) * H] with keys and values packed in, M being
    `kv_num_heads`; past keys and values [B, M, P, H]. The present ones are as long as the longer of the
    past and of the total length, an input.
    """
    batch, length, width = _get_extents(node, 0, 3)
    heads, groups = _get_heads(node), _get_heads(node, "kv_num_heads")
    dtype, before = node.get_dtype(0), _get_extents(node, 3, 4)
    size = _get_head_size(width, heads)
    if not node.has_input(1):
        size = _get_head_size(width, None if heads is None or groups is None else heads + 2 * groups)
    known = list_elements(node.get_value(6))
    total = known[0] if known else None
    if not node.has_input(3):
        sequence = _get_extents(node, 1, 3)[1] if node.has_input(1) else length
        present, total = [batch, groups, sequence, size], sequence
    else:
        present = [batch, groups, max_dims(before[2], total), before[3]]
    cache = node.get_dtype(3) if node.has_input(3) else dtype
    return [
        make_type(dtype, [batch, length, multiply_dims(heads, size)]),
        make_type(cache, present),
        make_type(cache, present),
        make_type(dtype, [batch, heads, length, total]),
    ]


def _attend_with_cache(cache: int) -> Rule:
    """Return the rule of PagedAttention and SparseAttention, which keep the shape of their caches.

    Query [..., N * H], or [..., (N + 2 * M) * H] with keys and values packed in.
    """

    def rule(node: KnownNode) -> Types:
        shape, heads, groups = node.get_shape(0), _get_heads(node), _get_heads(node, "kv_num_heads")
        if shape and not node.has_input(1):
            parts = None if heads is None or groups is None else heads + 2 * groups
            shape = (*shape[:-1], multiply_dims(heads, _get_head_size(shape[-1], parts)))
        first = make_type(node.get_dtype(0), shape or None)
        return [first, node.get_type(cache), node.get_type(cache + 1)]

    return rule


def _bias_positions(node: KnownNode) -> Types:
    """Return the type of RelativePositionBias: a table [buckets, N], and the values of two lengths."""
    _, heads = _get_extents(node, 0, 2)
    values = [list_elements(node.get_value(i)) for i in (1, 2)]
    query, key = (each[0] if each else None for each in values)
    return [make_type(node.get_dtype(0), [1, heads, query, key])]


def _bias_positions_with_gates(node: KnownNode) -> Types:
    """Return the type of GatedRelativePositionBias: [B, N, S, S], with `token_offset` [B, S]."""
    source = _get_extents(node, 6, 2) if node.has_input(6) else _get_extents(node, 0, 3)
    batch, length = source[:2]
    return [make_type(node.get_dtype(0), [batch, _get_heads(node), length, length])]


def _rotate_gemma(node: KnownNode) -> Types:
    """Return the types of GemmaRotaryEmbedding: those of queries and keys."""
    return [node.get_type(1), node.get_type(3)]


def _remove_padding(node: KnownNode) -> Types:
    """Return the types of RemovePadding: input [B, S, hidden], of which some tokens are left."""
    batch, length, hidden = _get_extents(node, 0, 3)
    return [
        make_type(node.get_dtype(0), [None, hidden]),
        make_type("int32", [batch, length]),
        make_type("int32", [add_dims(batch, 1)]),
        make_type("int32", [1]),
    ]


def _restore_padding(node: KnownNode) -> Types:
    """Return the type of RestorePadding: input [tokens, hidden], offsets [B, S]."""
    hidden = _get_extents(node, 0, 2)[1]
    return [make_type(node.get_dtype(0), [*_get_extents(node, 1, 2), hidden])]


ATTENTION_RULES: Mapping[str, Rule] = {
    "com.microsoft.Attention": _attend_to_itself(past=4),
    "com.microsoft.DecoderMaskedMultiHeadAttention": _attend_in_heads(past=5, past_length=7),
    "com.microsoft.DecoderMaskedSelfAttention": _attend_to_itself(past=4),
    "com.microsoft.GatedRelativePositionBias": _bias_positions_with_gates,
    "com.microsoft.GemmaRotaryEmbedding": _rotate_gemma,
    "com.microsoft.GroupQueryAttention": _attend_in_groups,
    "com.microsoft.MultiHeadAttention": _attend_in_heads(past=6, past_length=8),
    "com.microsoft.PackedAttention": _attend_packed,
    "com.microsoft.PackedMultiHeadAttention": _attend_packed_heads,
    "com.microsoft.PagedAttention": _attend_with_cache(3),
    "com.microsoft.QAttention": _attend_to_itself(past=8, dtype=3),
    "com.microsoft.RelativePositionBias": _bias_positions,
    "com.microsoft.RemovePadding": _remove_padding,
    "com.microsoft.RestorePadding": _restore_padding,
    "com.microsoft.SparseAttention": _attend_with_cache(3),
    "com.microsoft.SparsePagedAttention": _attend_with_cache(3),
}
"""Operator, as rule files spell it, to its rule."""
