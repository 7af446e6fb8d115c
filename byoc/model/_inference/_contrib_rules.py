"""Rules that type operators that ONNX does not define: those of onnxruntime, and any by its schema.

The shapes are those of onnxruntime's documentation (docs/ContribOperators.md) and of its kernels.
"""

from collections.abc import Mapping

from byoc.model._inference._contrib_attention_rules import ATTENTION_RULES, MATRIX_RULES
from byoc.model._inference._elementwise_shapes import (
    Shape,
    Types,
    broadcast_shapes,
    keep_type,
    make_type,
)
from byoc.model._inference._extents import (
    add_dims,
    ceil_divide_dims,
    floor_divide_dims,
    multiply_dims,
    subtract_dims,
)
from byoc.model._inference._moved_values import KnownNode, Rule, list_elements
from byoc.model._tensor_data import DTYPES, Dim, TensorType
from byoc.model.schemas import get_schema, make_operator_name

# Rules that type onnxruntime's operators that move data: gathers, crops, pads; and transforms.


def _gather_blocks(node: KnownNode) -> Types:
    """Return the type of GatherBlockQuantized; a byte holds two elements of 4 bits."""
    data, indices, dtype = node.get_shape(0), node.get_shape(1), node.get_dtype(2)
    kind = node.get_dtype(0)
    if data is None or indices is None or not data or kind is None:
        return [make_type(dtype, None)]
    axis = node.attributes.get("gather_axis", 0) % len(data)
    packed = 8 // node.attributes.get("bits", 4) if kind == "uint8" else 1
    dims = [*data[:-1], multiply_dims(data[-1], packed)]
    return [make_type(dtype, [*dims[:axis], *indices, *dims[axis + 1 :]])]


def _gather_elements(node: KnownNode) -> Types:
    """Return the type of GatherND: data, and indices whose last axis addresses leading axes."""
    data, indices = node.get_shape(0), node.get_shape(1)
    depth = indices[-1] if indices else None
    if data is None or not indices or not isinstance(depth, int):
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*indices[:-1], *data[depth:]])]


def _embed_rows(node: KnownNode) -> Types:
    """Return the type of TorchEmbedding: rows of a table."""
    table, indices = node.get_shape(0), node.get_shape(1)
    known = table is not None and indices is not None and len(table) == 2
    return [make_type(node.get_dtype(0), [*(indices or ()), (table or (None,))[-1]] if known else None)]


def _sample_grid(node: KnownNode) -> Types:
    """Return the type of GridSample: images [N, C, ...], a grid [N, ..., axes]."""
    images, grid = node.get_shape(0), node.get_shape(1)
    if images is None or grid is None or len(images) < 3:
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*images[:2], *grid[1:-1]])]


def _crop(node: KnownNode) -> Types:
    """Return the type of CropAndResize: images [N, C, H, W], boxes [R, 4], a size of value [h, w]."""
    images, boxes = node.get_shape(0), node.get_shape(1)
    size = list_elements(node.get_value(3))
    channels = images[1] if images is not None and len(images) == 4 else None
    height, width = size if size is not None and len(size) == 2 else (None, None)
    return [make_type(node.get_dtype(0), [boxes[0] if boxes else None, channels, height, width])]


def _insert_axis(node: KnownNode) -> Types:
    """Return the type of ExpandDims, whose second input has the value of the axis."""
    shape, known = node.get_shape(0), list_elements(node.get_value(1))
    if shape is None or not known or not isinstance(known[0], int):
        return [make_type(node.get_dtype(0), None)]
    axis = known[0] + len(shape) + 1 if known[0] < 0 else known[0]
    return [make_type(node.get_dtype(0), [*shape[:axis], 1, *shape[axis:]])]


def _pad(node: KnownNode) -> Types:
    shape, pads = node.get_shape(0), list_elements(node.get_value(1))
    if shape is None:
        return [make_type(node.get_dtype(0), None)]
    if pads is None or len(pads) != 2 * len(shape):
        return [make_type(node.get_dtype(0), [None] * len(shape))]
    dims = [add_dims(dim, pads[i], pads[i + len(shape)]) for i, dim in enumerate(shape)]
    return [make_type(node.get_dtype(0), dims)]


def _count_up(node: KnownNode) -> Types:
    """Return the type of Range: numbers from a start to a limit in steps."""
    values = [list_elements(node.get_value(i)) for i in range(3)]
    start, limit = (each[0] if each else None for each in values[:2])
    step = (values[2][0] if values[2] else None) if node.has_input(2) else 1
    whole = all(isinstance(value, (int, str)) for value in (start, limit, step))
    count = None
    if whole and isinstance(step, int) and step > 0:
        count = ceil_divide_dims(subtract_dims(limit, start), step)
    count = count if not isinstance(count, int) or count >= 0 else 0
    return [make_type(node.get_dtype(0), [count])]


def _find_unique(node: KnownNode) -> Types:
    """Return the types of Unique: distinct elements, the index of each element, their counts."""
    return [
        make_type(node.get_dtype(0), [None]),
        make_type("int64", node.get_shape(0)),
        make_type("int64", [None]),
    ]


def _unfold(node: KnownNode) -> Types:
    """Return the type of UnfoldTensor: slices along an axis, their elements in a new last axis."""
    shape, size = node.get_shape(0), node.attributes.get("size")
    if not shape or size is None:
        return [make_type(node.get_dtype(0), None)]
    axis, step = node.attributes.get("dim", -1) % len(shape), node.attributes.get("step", 1)
    count = add_dims(floor_divide_dims(subtract_dims(shape[axis], size), step), 1)
    return [make_type(node.get_dtype(0), [*shape[:axis], count, *shape[axis + 1 :], size])]


def _measure_distances(node: KnownNode) -> Types:
    """Return the type of CDist: distances of the rows of two matrices."""
    a, b = node.get_shape(0), node.get_shape(1)
    return [make_type(node.get_dtype(0), [a[0] if a else None, b[0] if b else None])]


def _transform(node: KnownNode) -> Types:
    """Return the type of Rfft over one axis: half the frequencies, with real and imaginary parts."""
    shape = node.get_shape(0)
    if not shape or node.attributes.get("signal_ndim", 1) != 1:
        return [make_type(node.get_dtype(0), None)]
    bins = add_dims(floor_divide_dims(shape[-1], 2), 1)
    return [make_type(node.get_dtype(0), [*shape[:-1], bins, 2])]


def _transform_back(node: KnownNode) -> Types:
    """Return the type of Irfft over one axis: [..., bins, 2] to an even number of samples."""
    shape = node.get_shape(0)
    if not shape or len(shape) < 2 or node.attributes.get("signal_ndim", 1) != 1:
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*shape[:-2], multiply_dims(2, subtract_dims(shape[-2], 1))])]


MOVEMENT_RULES: Mapping[str, Rule] = {
    "com.microsoft.CDist": _measure_distances,
    "com.microsoft.CropAndResize": _crop,
    "com.microsoft.ExpandDims": _insert_axis,
    "com.microsoft.GatherBlockQuantized": _gather_blocks,
    "com.microsoft.GatherND": _gather_elements,
    "com.microsoft.GridSample": _sample_grid,
    "com.microsoft.Irfft": _transform_back,
    "com.microsoft.Pad": _pad,
    "com.microsoft.Range": _count_up,
    "com.microsoft.Rfft": _transform,
    "com.microsoft.TorchEmbedding": _embed_rows,
    "com.microsoft.UnfoldTensor": _unfold,
    "com.microsoft.Unique": _find_unique,
}
"""Operator, as rule files spell it, to its rule."""


# Rules that type operators that ONNX does not define: those of onnxruntime, and any by its schema.

_FLOAT = "float32"


def infer_contrib_types(node: KnownNode) -> Types:
    """Return the types of a node's outputs by the rule of its operator, else by its schema.

    Nobody has checked such a node: where its attributes and ranks make no sense, no shape follows.
    """
    rule = CONTRIB_RULES.get(make_operator_name(node.proto.op_type, node.proto.domain))
    if rule is not None:
        try:
            return list(rule(node))[: len(node.proto.output)]
        except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
            pass
    return infer_by_schema(node)


def infer_by_schema(node: KnownNode) -> Types:
    """Return the dtypes of a node's outputs that follow from its schema, without shapes.

    That of an output follows from a fixed type, from an input of the same type variable, or from a
    variable that stands for one dtype alone. Without a schema nothing follows.
    """
    proto = node.proto
    schema = get_schema(proto.op_type, proto.domain, node.opset)
    if schema is None:
        return [None] * len(proto.output)
    bound: dict[str, str] = {}
    for i, formal in enumerate(schema.list_input_formals(len(proto.input))):
        dtype = node.get_dtype(i)
        if dtype is not None and formal.homogeneous:
            bound.setdefault(formal.type_str, dtype)
    return [
        make_type(
            next(iter(formal.dtypes)) if len(formal.dtypes) == 1 else bound.get(formal.type_str), None
        )
        for formal in schema.list_output_formals(len(proto.output))
    ]


def _keep_types(*positions: int) -> Rule:
    """Return the rule of an operator whose outputs have the types of the inputs at some positions."""
    return lambda node: [node.get_type(position) for position in positions]


def _keep_shape(dtype_of: int | None, default: str | None = None) -> Rule:
    """Return the rule of an operator that keeps the shape of its first input, in another dtype."""

    def rule(node: KnownNode) -> Types:
        given = dtype_of is not None and node.has_input(dtype_of)
        dtype = node.get_dtype(dtype_of) if dtype_of is not None and given else default
        return [make_type(dtype, node.get_shape(0))]

    return rule


def _broadcast(*positions: int, dtype_of: int = 0) -> Rule:
    """Return the rule of an elementwise operator on the inputs at some positions."""
    return lambda node: [
        make_type(node.get_dtype(dtype_of), broadcast_shapes(*map(node.get_shape, positions)))
    ]


def _reduce_from(shape: Shape, axis: int) -> Shape:
    """Return a shape with ones from an axis on."""
    if shape is None:
        return None
    first = axis + len(shape) if axis < 0 else axis
    return (*shape[:first], *[1] * (len(shape) - first))


def _normalize(node: KnownNode) -> Types:
    """Return the types of SimplifiedLayerNormalization: result, deviation with ones for its axes."""
    shape = node.get_shape(0)
    dtype = DTYPES.get(node.attributes.get("stash_type", 1), _FLOAT)
    return [
        make_type(node.get_dtype(1) or node.get_dtype(0), shape),
        make_type(dtype, _reduce_from(shape, node.attributes.get("axis", -1))),
    ]


def _normalize_sum(node: KnownNode) -> Types:
    """Return the types of SkipLayerNormalization: result, mean, deviation, and the sum itself."""
    first = node.get_type(0)
    statistics = make_type(_FLOAT, _reduce_from(node.get_shape(0), -1))
    return [first, statistics, statistics, first]


def _embed(table: int, dtype_of: int) -> Rule:
    """Return the rule of an EmbedLayerNormalization: tokens [B, S], table [vocabulary, hidden]."""

    def rule(node: KnownNode) -> Types:
        tokens, weights, dtype = node.get_shape(0), node.get_shape(table), node.get_dtype(dtype_of)
        hidden = weights[1] if weights is not None and len(weights) == 2 else None
        batch, length = tokens if tokens is not None and len(tokens) == 2 else (None, None)
        result = make_type(dtype, [batch, length, hidden])
        return [result, make_type("int32", [batch]), result]

    return rule


def _halve(node: KnownNode) -> Types:
    """Return the type of BiasSplitGelu and SwiGLU: half the last axis, unless a gate is given apart."""
    shape = node.get_shape(0)
    return [make_type(node.get_dtype(0), shape and (*shape[:-1], floor_divide_dims(shape[-1], 2)))]


def _gate(node: KnownNode) -> Types:
    return keep_type(node) if node.has_input(1) else _halve(node)


def _concatenate(node: KnownNode) -> Types:
    """Return the type of QLinearConcat, whose inputs come with a scale and a zero point each."""
    shapes = [node.get_shape(i) for i in range(2, len(node.types), 3)]
    axis, dtype = node.attributes.get("axis"), node.get_dtype(1)
    first = shapes[0] if shapes else None
    if first is None or axis is None or any(s is None or len(s) != len(first) for s in shapes):
        return [make_type(dtype, None)]
    dims = list(first)
    dims[axis] = add_dims(*(shape[axis] for shape in shapes if shape is not None))
    return [make_type(dtype, dims)]


def _reduce(node: KnownNode) -> Types:
    """Return the type of QLinearReduceMean."""
    shape, axes = node.get_shape(0), node.attributes.get("axes")
    if shape is None or axes is None:
        return [make_type(node.get_dtype(0), None)]
    gone = {axis % len(shape) for axis in axes}
    keeps = node.attributes.get("keepdims", 1)
    dims = [1 if i in gone else dim for i, dim in enumerate(shape) if keeps or i not in gone]
    return [make_type(node.get_dtype(0), dims)]


def _recur(node: KnownNode) -> Types:
    """Return the types of DynamicQuantizeLSTM and AttnLSTM: input [S, B, size]."""
    shape, dtype = node.get_shape(0), node.get_dtype(0)
    directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
    hidden: Dim = node.attributes.get("hidden_size")
    steps, batch = shape[:2] if shape is not None and len(shape) == 3 else (None, None)
    last = make_type(dtype, [directions, batch, hidden])
    return [make_type(dtype, [steps, directions, batch, hidden]), last, last]


def _hash(node: KnownNode) -> Types:
    dtype = "uint32" if node.attributes.get("positive", 1) else "int32"
    return [make_type(dtype, node.get_shape(0))]


def _drop_out(node: KnownNode) -> Types:
    return [node.get_type(0), make_type("bool", node.get_shape(0))]


def _align(node: KnownNode) -> Types:
    """Return the type of DynamicTimeWarping: a path of pairs, as long as the data wants."""
    return [TensorType("int32", (2, None))]


def _dequantize_order(node: KnownNode) -> Types:
    return [make_type(DTYPES.get(node.attributes.get("to", 0)), node.get_shape(0))]


def _project(node: KnownNode) -> Types:
    """Return the type of QOrderedAttention: input [B, S, hidden], weight of values [hidden, width]."""
    shape, weight = node.get_shape(0), node.get_shape(7)
    return [make_type(node.get_dtype(0), shape and (*shape[:-1], weight[-1] if weight else None))]


def _search(node: KnownNode) -> Types:
    """Return the types of GreedySearch and Sampling: tokens [B, length], the length being a value."""
    shape, known = node.get_shape(0), list_elements(node.get_value(1))
    batch = shape[0] if shape else None
    return [make_type("int32", [batch, known[0] if known else None]), None]


_UNARY = """
    BiasAdd BiasGelu BiasSoftmax BranchwiseRMSNorm FastGelu GatedRMSNorm Gelu GroupNorm Inverse
    LongformerAttention MRotaryEmbedding MoE QLinearLeakyRelu QLinearSigmoid QLinearSoftmax
    QMoE QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QuickGelu RotaryEmbedding
    SampleOp ScaledSiLU Trilu
"""
_OTHERS: dict[str, Rule] = {
    "AttnLSTM": _recur,
    "BiasDropout": _drop_out,
    "BiasSplitGelu": _halve,
    "ComplexMul": _broadcast(0, 1),
    "ComplexMulConj": _broadcast(0, 1),
    "DequantizeLinear": _keep_shape(1),
    "DequantizeWithOrder": _dequantize_order,
    "DynamicQuantizeLSTM": _recur,
    "DynamicTimeWarping": _align,
    "EmbedLayerNormalization": _embed(2, 2),
    "GreedySearch": _search,
    "MurmurHash3": _hash,
    "NGramRepeatBlock": _keep_types(1),
    "QEmbedLayerNormalization": _embed(2, 8),
    "QLinearAdd": _broadcast(0, 3),
    "QLinearConcat": _concatenate,
    "QLinearMul": _broadcast(0, 3),
    "QLinearReduceMean": _reduce,
    "QLinearWhere": _broadcast(0, 1, 4, dtype_of=1),
    "QOrderedAttention": _project,
    "QuantizeLinear": _keep_shape(2, "uint8"),
    "QuantizeWithOrder": _keep_shape(None, "int8"),
    "Sampling": _search,
    "SkipGroupNorm": _keep_types(0, 0),
    "SkipLayerNormalization": _normalize_sum,
    "SkipSimplifiedLayerNormalization": _normalize_sum,
    "SwiGLU": _gate,
}

CONTRIB_RULES: Mapping[str, Rule] = {
    **{f"com.microsoft.{name}": keep_type for name in _UNARY.split()},
    **{f"com.microsoft.{name}": rule for name, rule in _OTHERS.items()},
    **ATTENTION_RULES,
    **MATRIX_RULES,
    **MOVEMENT_RULES,
    "SimplifiedLayerNormalization": _normalize,
}
"""Operator, as `get_operator_name` spells it (`com.microsoft.Gelu`), to its rule."""
