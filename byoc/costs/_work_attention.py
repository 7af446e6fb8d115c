"""Formulas for the operations of attention, and the bytes that a node reads and writes.

All of them count the pairs of a query and a key that see each other. For each pair and head: a product
and a sum for each component of the key and of the value, the scale, a softmax, one operation each for a
mask and for a bias, three for `softcap`. A causal query sees no later key, a window no earlier one than
its size says; what a mask hides is data, so it counts.
"""

from collections.abc import Callable, Mapping
from math import prod

from byoc._dataclasses import dataclass
from byoc.costs._work_formulas import DEQUANTIZE, QUANTIZE, SOFTMAX
from byoc.costs._work_node import CountedNode, get_axis
from byoc.model import get_operator_name

_RANK_WITH_HEADS = 4  # (batch, heads, length, size)
_PACKED_RANK = 5  # (batch, length, heads, 2 or 3, size)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of an attention: `size` and `value_size` are those of a head's keys and values.

    `keys` are all that there are, those of the past included; `new_keys` those that this call brings.
    `before` are the keys before the first query.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    new_keys: int
    size: int
    value_size: int
    before: int
    causal: bool = False
    left: int = -1
    right: int = -1

    @property
    def pairs(self) -> int:
        """The pairs of a query and a key that see each other, of one head and sequence."""
        right = 0 if self.causal else self.right
        if right < 0 and self.left < 0:
            return self.queries * self.keys
        return _count_seen(self.queries, self.keys, self.before, self.left, right)

    def count(self, for_each: int = SOFTMAX + 1) -> int:
        """Return the operations: `for_each` of each pair, and the products with keys and values."""
        pair = 2 * self.size + 2 * self.value_size + for_each
        return self.batch * self.heads * self.pairs * pair


def _count_seen(queries: int, keys: int, before: int, left: int, right: int) -> int:
    """Return the sum of the lengths of the windows of all queries; a negative side is open."""
    up_to = keys * queries if right < 0 else _sum_clipped(queries, before + right + 1, keys)
    return up_to - (0 if left < 0 else _sum_clipped(queries, before - left, keys))


def _sum_clipped(count: int, start: int, most: int) -> int:
    """Return the sum of min(max(start + i, 0), most) for i from 0 to count - 1."""
    low = min(max(-start, 0), count)  # these are 0
    high = min(max(most - start, low), count)  # from here on they are `most`
    rising = high - low
    return rising * (start + low) + rising * (rising - 1) // 2 + (count - high) * most


def count_attention(node: CountedNode) -> int:
    """Count ONNX's Attention, and its preview FlexAttention without the graphs that modify scores."""
    shape = read_attention(node)
    more = 1 + SOFTMAX + node.has_input(3) + 3 * (node.get_float("softcap", 0.0) != 0)
    return shape.count(more)


def read_attention(node: CountedNode) -> AttentionShape:
    """Return the sizes of ONNX's Attention: Q, K, V of rank 3 or 4, a past as inputs 4 and 5."""
    query, key, value = map(node.get_shape, range(3))
    split = len(query) != _RANK_WITH_HEADS
    heads = node.get_number("q_num_heads", 1) if split else get_axis(query, 1)
    kv_heads = node.get_number("kv_num_heads", heads) if split else get_axis(key, 1)
    new, past = get_axis(key, -2), node.get_extent(4, -2, 0)
    outer_cache = new - get_axis(query, -2) if node.has_input(6) else 0
    return AttentionShape(
        batch=get_axis(query, 0),
        heads=heads,
        kv_heads=kv_heads,
        queries=get_axis(query, -2),
        keys=new + past,
        new_keys=new,
        size=get_axis(query, -1) // max(heads if split else 1, 1),
        value_size=get_axis(value, -1) // max(kv_heads if split else 1, 1),
        before=past or outer_cache,
        causal=bool(node.get_number("is_causal", 0)),
        left=node.get_number("left_window_size", -1),
        right=node.get_number("right_window_size", -1),
    )


def count_projected_attention(node: CountedNode) -> int:
    """Count com.microsoft's Attention and its relatives: projection of the input, then attention.

    The relatives are QAttention, PackedAttention, QOrderedAttention, DecoderMaskedSelfAttention and
    LongformerAttention, whose queries see `window` keys on each side.
    """
    op, given = node.proto.op_type, node.get_shape(0)
    packed = op == "PackedAttention"
    tokens = prod(given[:-1])
    batch, queries = node.get_shape(3)[:2] if packed and len(node.get_shape(3)) > 1 else _batch(given)
    if op == "QOrderedAttention":
        widths = [node.get_extent(i, -1) for i in (5, 6, 7)]
    else:
        width = node.get_extent(1, -1)
        stated = node.get_numbers("qkv_hidden_sizes")
        widths = list(stated) if len(stated) == 3 else [width // 3] * 3
    heads = max(node.get_number("num_heads", 1), 1)
    past = {"Attention": 4, "QAttention": 8, "QOrderedAttention": 18}.get(op, 4)
    window = node.get_number("window", -1) if op == "LongformerAttention" else -1
    keys = queries if window >= 0 else _count_keys(node, queries, past, 1)
    shape = AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        queries=queries,
        keys=keys,
        new_keys=queries,
        size=widths[0] // heads,
        value_size=widths[2] // heads,
        before=keys - queries,
        causal=bool(node.get_number("unidirectional", 0)),
        left=window,
        right=window,
    )
    projection = tokens * sum(widths) * (2 * get_axis(given, -1) + 1)
    quantized = tokens * sum(widths) * DEQUANTIZE if op == "QAttention" else 0
    if op == "QOrderedAttention":
        quantized = tokens * sum(widths) * (DEQUANTIZE + QUANTIZE)
    bias = {"Attention": 5, "PackedAttention": 5, "DecoderMaskedSelfAttention": 5}.get(op, 99)
    mask = {"QAttention": 5, "QOrderedAttention": 17, "PackedAttention": 99}.get(op, 3)
    each = 1 + SOFTMAX + node.has_input(bias) + node.has_input(mask)
    return projection + quantized + shape.count(each) + _count_rotation(node, tokens, sum(widths[:2]))


def _batch(shape: tuple[int, ...]) -> tuple[int, int]:
    return get_axis(shape, 0), get_axis(shape, 1)


def _count_keys(node: CountedNode, new: int, past: int, present: int) -> int:
    """Return the number of keys: those of the past and the new ones, or a shared buffer's extent."""
    before = node.get_extent(past, -2, 0)
    shared = before and before == get_axis(node.get_output_shape(present), -2, 0)
    return before if shared else before + new


def count_multi_head_attention(node: CountedNode) -> int:
    """Count MultiHeadAttention and its relatives for decoders and packed batches."""
    shape = read_multi_head_attention(node)
    op = node.proto.op_type
    masked = op == "DecoderMaskedMultiHeadAttention"
    bias, mask, added = (10, 3, 4) if masked else (3, 99, 6) if op[0] == "P" else (3, 4, 5)
    width = shape.heads * (shape.queries * shape.size + shape.new_keys * (shape.size + shape.value_size))
    biases = shape.batch * width if node.has_input(bias) else 0
    return shape.count(1 + SOFTMAX + node.has_input(mask) + node.has_input(added)) + biases


def read_multi_head_attention(node: CountedNode) -> AttentionShape:
    """Return the sizes of MultiHeadAttention, whose inputs may be packed, and may have heads or not."""
    query, key, value = map(node.get_shape, range(3))
    heads = max(node.get_number("num_heads", 1), 1)
    packed = node.proto.op_type == "PackedMultiHeadAttention"
    batch, queries = _batch(node.get_shape(4)) if packed else _batch(query)
    size = get_axis(query, -1) if len(query) >= _RANK_WITH_HEADS else get_axis(query, -1) // heads
    value_size, new = size, queries
    if not node.has_input(1) and len(query) < _RANK_WITH_HEADS:  # packed (batch, queries, 3 * hidden)
        size = value_size = size // 3
    elif len(key) == _RANK_WITH_HEADS:  # (batch, heads, keys, size), the keys of cross attention
        new, value_size = get_axis(key, 2), get_axis(value, -1)
    elif len(key) == _PACKED_RANK:  # (batch, keys, heads, 2, size)
        new = get_axis(key, 1)
    elif node.has_input(1):
        new, value_size = queries if packed else get_axis(key, 1), get_axis(value, -1) // heads
    masked = node.proto.op_type == "DecoderMaskedMultiHeadAttention"
    keys = new if packed else _count_keys(node, new, 5 if masked else 6, 1)
    return AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        queries=queries,
        keys=keys,
        new_keys=new,
        size=size,
        value_size=value_size,
        before=keys - new,
        causal=bool(node.get_number("unidirectional", 0)),
    )


def count_grouped_query_attention(node: CountedNode) -> int:
    """Count GroupQueryAttention and SparseAttention: causal, rotated and normalized where asked for."""
    shape = read_grouped_query_attention(node)
    sparse = node.proto.op_type == "SparseAttention"
    more = 1 + SOFTMAX + 3 * (node.get_float("softcap", 0.0) != 0)
    if not sparse:
        more += node.has_input(10)
    tokens = shape.batch * shape.queries
    turned = tokens * shape.size * (shape.heads + shape.kv_heads)
    norms = 4 * turned if not sparse and node.has_input(14) else 0
    return shape.count(more) + norms + _count_rotation(node, tokens, turned // max(tokens, 1))


def read_grouped_query_attention(node: CountedNode) -> AttentionShape:
    """Return the sizes of GroupQueryAttention.

    The keys are `total_sequence_length` where that is constant, else those of the past and the new ones;
    a past with the extent of the present is one buffer, which is taken as full.
    """
    query, value = node.get_shape(0), node.get_shape(2)
    heads = max(node.get_number("num_heads", 1), 1)
    kv_heads = max(node.get_number("kv_num_heads", heads), 1)
    packed = not node.has_input(1)
    size = get_axis(query, -1) // (heads + 2 * kv_heads if packed else heads)
    batch, queries = _batch(query)
    new = queries if packed else node.get_extent(1, -2)
    sparse = node.proto.op_type == "SparseAttention"
    total = node.get_value(7 if sparse else 6)
    keys = total if total is not None and total > 0 else _count_keys(node, new, 3, 1)
    keys = max(keys, new)
    window = node.get_number("local_window_size", -1)
    return AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        new_keys=new,
        size=size,
        value_size=size if packed else get_axis(value, -1) // kv_heads,
        before=keys - queries,
        causal=bool(node.get_number("causal", 1)),
        left=window - 1 if window > 0 else -1,
    )


def _count_rotation(node: CountedNode, tokens: int, width: int) -> int:
    """Return the operations that `do_rotary` adds: 3 for each component that is turned."""
    return 3 * tokens * width if node.get_number("do_rotary", 0) else 0


def count_rotary_embedding(node: CountedNode) -> int:
    """Count 3 operations (two products and their sum) for each component that is turned."""
    shape = node.get_shape(0)
    heads = node.get_number("num_heads", 0)
    size = get_axis(shape, -1) if len(shape) == _RANK_WITH_HEADS or not heads else shape[-1] // heads
    turned = node.get_number("rotary_embedding_dim", 0) or size
    scaled = node.count_output() * min(turned, size) // max(size, 1)
    return 3 * scaled


def count_linear_attention(node: CountedNode) -> int:
    """Count the recurrence of LinearAttention by its update rule, for each token and head.

    The state has a row for each component of the key. All rules add the outer product of key and value,
    and multiply the state by the query; `gated` multiplies it by a decay, `delta` by the key before.
    """
    heads = max(node.get_number("q_num_heads", 1), 1)
    kv_heads = max(node.get_number("kv_num_heads", heads), 1)
    rule = node.get_text("update_rule", "gated_delta")
    tokens = prod(node.get_shape(0)[:2])
    size, value_size = node.get_extent(0, -1) // heads, node.get_extent(2, -1) // kv_heads
    update = (2 + ("gated" in rule) + 2 * ("delta" in rule)) * size * value_size
    update += 2 * value_size * ("delta" in rule)  # the difference, times the rate
    return tokens * (kv_heads * update + heads * value_size * (2 * size + 1))


def count_decoder_attention(node: CountedNode) -> int:
    """Count DecoderAttention: the projections of query and key, then attention over all keys."""
    queries, batch = _batch(node.get_shape(0))
    hidden, keys = node.get_extent(0, -1), node.get_extent(1, 0)
    heads = max(node.get_number("num_heads", 1), 1)
    size = hidden // heads
    shape = AttentionShape(batch, heads, heads, queries, keys, keys, size, size, keys - queries)
    projected = batch * (queries + 2 * keys) * hidden * (2 * hidden + 1)
    return projected + shape.count(1 + SOFTMAX + node.has_input(5))


def count_relative_position_bias(node: CountedNode) -> int:
    """Count GatedRelativePositionBias: the gates of each query, and their product with each position."""
    heads, tokens = node.get_number("num_heads", 1), prod(node.get_shape(0)[:-1])
    hidden, width = node.get_extent(0, -1), node.get_extent(3, -1)
    gates = tokens * (hidden + heads * (width * (2 * hidden // max(heads, 1) + 1) + width + 2 * 4 + 4))
    return gates + node.count_output()


# The bytes that a node reads of its inputs and writes of its outputs.

# These operators read the shape of their input and none of its bytes.
SHAPES = frozenset({"Shape", "Size"})

# Returns the elements that a node reads of an input, which may be more than there are.
_Read = Callable[[CountedNode, int], int]

_HEADS_RANK = 4  # (batch, heads, length, size)
_SAMPLES = 4  # of a bilinear interpolation


def _read_nothing(node: CountedNode, number: int) -> int:
    return 0


def _read_output(node: CountedNode, number: int) -> int:
    """Return the elements of the output, however large the table is."""
    return node.count_output()


def _read_samples(node: CountedNode, number: int) -> int:
    return _SAMPLES * node.count_output()


def _read_rotation(node: CountedNode, number: int) -> int:
    """Return a row of a cache of cosines or sines for each token of the first input."""
    shape = node.get_shape(0)
    positions = get_axis(shape, 2 if len(shape) == _HEADS_RANK else 1)
    return get_axis(shape, 0) * positions * node.get_extent(number, -1)


def _read_rows(node: CountedNode, number: int) -> int:
    """Return the elements of the rows that GatherBlockQuantized takes, packed as they are stored.

    So it is for the table, its scales and its zero points.
    """
    axis = node.get_number("gather_axis", 0)
    return node.count_input(1) * node.count_input(number) // max(node.get_extent(number, axis), 1)


def _read_experts(node: CountedNode, number: int) -> int:
    """Return the elements of the k experts that each token takes, no two tokens sharing one."""
    tokens = node.count_input() // max(node.get_extent(0, -1), 1)
    taken = tokens * node.get_number("k", 1)
    return taken * node.count_input(number) // max(node.get_extent(number, 0), 1)


_UNREAD: Mapping[int, _Read] = {0: _read_nothing}
_LOOKUP: Mapping[int, _Read] = {0: _read_output}
_SAMPLED: Mapping[int, _Read] = {0: _read_samples}
_READS: Mapping[str, Mapping[int, _Read]] = {
    **dict.fromkeys((*SHAPES, "EyeLike", "OptionalHasElement", "SequenceLength"), _UNREAD),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), _UNREAD),
    "CastLike": {1: _read_nothing},
    "MaxUnpool": {2: _read_nothing},
    **dict.fromkeys(
        ("Gather", "GatherElements", "GatherND", "Slice", "Compress", "SequenceAt"), _LOOKUP
    ),
    **dict.fromkeys(("CenterCropPad", "Crop", "DynamicSlice"), _LOOKUP),
    **dict.fromkeys(("ai.onnx.ml.ArrayFeatureExtractor", "com.microsoft.GatherND"), _LOOKUP),
    "com.microsoft.TorchEmbedding": _LOOKUP,
    **dict.fromkeys(("RoiAlign", "GridSample", "Resize", "Upsample"), _SAMPLED),
    **dict.fromkeys(("com.microsoft.CropAndResize", "com.microsoft.GridSample"), _SAMPLED),
    **dict.fromkeys(
        ("com.microsoft.EmbedLayerNormalization", "com.microsoft.QEmbedLayerNormalization"),
        dict.fromkeys((2, 3, 4), _read_output),
    ),
    "com.microsoft.GatherBlockQuantized": dict.fromkeys((0, 2, 3), _read_rows),
    "com.microsoft.MoE": dict.fromkeys(range(2, 8), _read_experts),
    "com.microsoft.QMoE": dict.fromkeys((*range(2, 14), 15, 16), _read_experts),
    "RotaryEmbedding": dict.fromkeys((1, 2), _read_rotation),
    "com.microsoft.RotaryEmbedding": dict.fromkeys((2, 3), _read_rotation),
    "com.microsoft.MRotaryEmbedding": dict.fromkeys((2, 3), _read_rotation),
    "com.microsoft.GroupQueryAttention": dict.fromkeys((7, 8), _read_rotation),
    "com.microsoft.SparseAttention": dict.fromkeys((9, 10), _read_rotation),
}
# For each attention with a cache: the function that reads its sizes, and the inputs with past keys and
# values. Outputs 1 and 2 have the present ones.
_CACHES: Mapping[str, tuple[Callable[[CountedNode], AttentionShape], tuple[int, int]]] = {
    "Attention": (read_attention, (4, 5)),
    "com.microsoft.MultiHeadAttention": (read_multi_head_attention, (6, 7)),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (read_multi_head_attention, (5, 6)),
    "com.microsoft.GroupQueryAttention": (read_grouped_query_attention, (3, 4)),
    "com.microsoft.SparseAttention": (read_grouped_query_attention, (3, 4)),
}
_SCATTER = "TensorScatter"


def count_bytes_read(node: CountedNode, number: int) -> int:
    """Return the bytes that a node reads of an input; a table counts by what is taken from it.

    A cache counts up to the keys that there are.
    """
    name, whole = get_operator_name(node.proto), node.sizes.get_bytes(node.proto.input[number])
    read = _READS.get(name, {}).get(number)
    if read is not None:
        return _scale(whole, read(node, number), node.count_input(number))
    if name == _SCATTER and number == 0 and _is_in_place(node, 0, 0):
        return 0
    if name in _CACHES and number in _CACHES[name][1]:
        shape = _CACHES[name][0](node)
        return _scale(whole, shape.keys - shape.new_keys, node.get_extent(number, -2))
    return whole


def count_bytes_written(node: CountedNode, number: int) -> int:
    """Return the bytes that a node writes of an output; of a cache that stays in place, its new part."""
    name, whole = get_operator_name(node.proto), node.sizes.get_bytes(node.proto.output[number])
    if name == _SCATTER and _is_in_place(node, 0, 0):
        return min(whole, node.sizes.get_bytes(node.proto.input[1]))
    if name in _CACHES and number in (1, 2):
        read, inputs = _CACHES[name]
        if _is_in_place(node, inputs[number - 1], number):
            return _scale(whole, read(node).new_keys, get_axis(node.get_output_shape(number), -2))
    return whole


def _scale(whole: int, taken: int, there: int) -> int:
    """Return the part of some bytes that is taken; all of them if more is."""
    return whole if taken >= there or there <= 0 else -(-whole * max(taken, 0) // there)


def _is_in_place(node: CountedNode, before: int, after: int) -> bool:
    """Return whether a cache leaves with the shape that it came with, as one buffer does."""
    return node.has_input(before) and node.get_shape(before) == node.get_output_shape(after)
