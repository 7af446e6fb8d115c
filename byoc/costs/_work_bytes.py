"""The bytes that a node reads of its inputs and writes of its outputs."""

from collections.abc import Callable, Mapping

from byoc.costs._work_attention import (
    AttentionShape,
    read_attention,
    read_grouped_query_attention,
    read_multi_head_attention,
)
from byoc.costs._work_node import CountedNode, get_axis
from byoc.model import get_operator_name

# These operators read the shape of their input and none of its bytes.
SHAPES = frozenset({"Shape", "Size"})

# Returns the elements that a node reads of an input, which may be more than there are.
_Read = Callable[[CountedNode, int], int]

_HEADS_RANK = 4
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
