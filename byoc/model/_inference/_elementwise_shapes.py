"""Rules that type operators whose outputs have the shape of their inputs, broadcast or reduced."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from byoc.model._inference._extents import is_cut_to, multiply_dims
from byoc.model._inference._moved_values import KnownNode, Rule, read_axes
from byoc.model._tensor_data import DTYPES, Dim, TensorType

Shape = tuple[Dim, ...] | None
Types = Sequence[TensorType | None]


def make_type(dtype: str | None, shape: Iterable[Dim] | None) -> TensorType | None:
    """Return a type, None if the dtype is not known."""
    return None if dtype is None else TensorType(dtype, None if shape is None else tuple(shape))


def merge_dims(a: Dim, b: Dim) -> Dim:
    """Merge two extents of an axis, both right: a number is preferred to a name."""
    return b if a is None or (isinstance(b, int) and not isinstance(a, int)) else a


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """Return the extent that two broadcast to; None where it depends on what is unknown."""
    if b in (a, 1):
        return a
    if a == 1:
        return b
    known = [dim for dim in (a, b) if isinstance(dim, int)]
    if len(known) == 1:
        return known[0]
    # A table that is cut to an extent meets that extent: as long, or the run has no result.
    return next((whole for cut, whole in ((a, b), (b, a)) if is_cut_to(cut, whole)), None)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that several broadcast to; None if a rank is unknown."""
    found: tuple[Dim, ...] = ()
    for shape in shapes:
        if shape is None:
            return None
        rank = max(len(found), len(shape))
        padded = [(*(1,) * (rank - len(each)), *each) for each in (found, shape)]
        found = tuple(map(broadcast_dims, *padded))
    return found


def keep_type(node: KnownNode) -> Types:
    """Return the type of the first input, for the first output."""
    return [node.get_type(0)]


def keep_dtype(node: KnownNode, position: int = 0) -> str | None:
    """Return the dtype of an input, or of the first input of known dtype."""
    dtypes = [node.get_dtype(i) for i in range(position, len(node.types))]
    return next(filter(None, dtypes), None)


def _broadcast(node: KnownNode) -> Types:
    shape = broadcast_shapes(*(node.get_shape(i) for i in range(len(node.types))))
    return [make_type(keep_dtype(node), shape)]


def _raise(node: KnownNode) -> Types:
    """Return the type of a power, whose exponent may be of another dtype."""
    return [make_type(node.get_dtype(0), broadcast_shapes(node.get_shape(0), node.get_shape(1)))]


def _compare(node: KnownNode) -> Types:
    return [make_type("bool", broadcast_shapes(node.get_shape(0), node.get_shape(1)))]


def _test(node: KnownNode) -> Types:
    return [make_type("bool", node.get_shape(0))]


def _choose(node: KnownNode) -> Types:
    shape = broadcast_shapes(*(node.get_shape(i) for i in range(3)))
    return [make_type(keep_dtype(node, 1), shape)]


def read_dtype(node: KnownNode, attribute: str, default: str | None = None) -> str | None:
    """Return the dtype that an attribute gives as ONNX's number."""
    return DTYPES.get(node.attributes.get(attribute, 0), default)


def _cast(node: KnownNode) -> Types:
    return [make_type(read_dtype(node, "to"), node.get_shape(0))]


def _cast_like(node: KnownNode) -> Types:
    return [make_type(node.get_dtype(1), node.get_shape(0))]


def _drop_out(node: KnownNode) -> Types:
    mask = node.get_dtype(0) if node.opset < 10 else "bool"
    return [node.get_type(0), make_type(mask, node.get_shape(0))]


def _draw_like(node: KnownNode) -> Types:
    return [make_type(read_dtype(node, "dtype", node.get_dtype(0)), node.get_shape(0))]


def _batch_normalize(node: KnownNode) -> Types:
    statistics = [node.get_type(3), node.get_type(4)]
    return [node.get_type(0), *statistics][: len(node.proto.output)]


def _layer_normalize(node: KnownNode) -> Types:
    """Return the type of LayerNormalization, whose mean and deviation keep the normalized axes as 1."""
    shape = node.get_shape(0)
    if shape is None or len(node.proto.output) == 1:
        return keep_type(node)
    axis = node.attributes.get("axis", -1)
    if not -len(shape) <= axis < len(shape):
        return [node.get_type(0)]
    axis %= len(shape)
    kept = make_type(
        read_dtype(node, "stash_type", "float32"), [*shape[:axis], *[1] * (len(shape) - axis)]
    )
    return [node.get_type(0), kept, kept]


def _quantize(node: KnownNode) -> Types:
    dtype = read_dtype(node, "output_dtype") or node.get_dtype(2)
    if dtype is None and not node.has_input(2):
        dtype = "uint8"
    return [make_type(dtype, node.get_shape(0))]


def _dequantize(node: KnownNode) -> Types:
    dtype = read_dtype(node, "output_dtype") or node.get_dtype(1)
    return [make_type(dtype, node.get_shape(0))]


def _quantize_dynamically(node: KnownNode) -> Types:
    return [
        make_type("uint8", node.get_shape(0)),
        TensorType("float32", ()),
        TensorType("uint8", ()),
    ]


def _reduce(node: KnownNode) -> Types:
    return [make_type(node.get_dtype(0), _reduce_shape(node))]


def _reduce_shape(node: KnownNode) -> Shape:
    shape = node.get_shape(0)
    if shape is None:
        return None
    axes, keep = read_axes(node), bool(node.attributes.get("keepdims", 1))
    if axes is None and node.has_input(1):
        return _reduce_somewhere(node, shape, keep)
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return shape
    if not all(-len(shape) <= axis < len(shape) for axis in axes or ()):
        return None
    gone = {axis % len(shape) for axis in axes} if axes else set(range(len(shape)))
    if keep:
        return tuple(1 if i in gone else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in gone)


def _reduce_somewhere(node: KnownNode, shape: tuple[Dim, ...], keep: bool) -> Shape:
    """Return a shape reduced along unknown axes, as far as it is known."""
    if keep:
        return tuple(1 if dim == 1 else None for dim in shape)
    count = node.get_shape(1)
    if (
        count is None
        or len(count) != 1
        or not isinstance(count[0], int)
        or not 0 < count[0] <= len(shape)
    ):
        return None
    return (None,) * (len(shape) - count[0])


def _find_extreme(node: KnownNode) -> Types:
    shape, axis = node.get_shape(0), node.attributes.get("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return [make_type("int64", None)]
    axis %= len(shape)
    kept = [1] if node.attributes.get("keepdims", 1) else []
    return [make_type("int64", [*shape[:axis], *kept, *shape[axis + 1 :]])]


_SAME = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh CumProd CumSum Elu Erf Exp
    Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization LRN
    LeakyRelu Log LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Not PRelu Reciprocal
    Relu Round RMSNormalization ReverseSequence RotaryEmbedding ScatterElements ScatterND Scatter Selu
    Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh TensorScatter
    ThresholdedRelu Trilu
"""
_BROADCAST = "Add Sub Mul Div Mod And Or Xor BitShift BitwiseAnd BitwiseOr BitwiseXor Min Max Mean Sum"
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"

ELEMENTWISE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), keep_type),
    **dict.fromkeys(_BROADCAST.split(), _broadcast),
    **dict.fromkeys(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"], _compare),
    **dict.fromkeys(["IsNaN", "IsInf"], _test),
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCTIONS.split()], _reduce),
    **dict.fromkeys(["ArgMax", "ArgMin"], _find_extreme),
    **dict.fromkeys(["RandomNormalLike", "RandomUniformLike", "Bernoulli"], _draw_like),
    "BatchNormalization": _batch_normalize,
    "Cast": _cast,
    "CastLike": _cast_like,
    "DequantizeLinear": _dequantize,
    "Dropout": _drop_out,
    "DynamicQuantizeLinear": _quantize_dynamically,
    "Pow": _raise,
    "LayerNormalization": _layer_normalize,
    "QuantizeLinear": _quantize,
    "Where": _choose,
}
"""Operator of ONNX's main domain to its rule."""


# Rules that type the operators of ai.onnx.ml, of most of which ONNX's inference finds dtypes at
# best.
#
# The shapes are those of the specification (docs/Operators-ml.md) and of onnxruntime's kernels,
# which take a vector for one row. Maps and sequences have no tensor type.

_LABELS: Mapping[str, str] = {
    **dict.fromkeys(["classlabels_strings", "values_strings"], "string"),
    **dict.fromkeys(["classlabels_ints", "classlabels_int64s", "values_int64s"], "int64"),
    "values_floats": "float32",
}
"""Attributes whose values an operator gives, to their dtypes."""


def _find_labels(node: KnownNode) -> tuple[str | None, int | None]:
    """Return the dtype and the number of the labels that a node gives, None for what is not known."""
    for name, dtype in _LABELS.items():
        if node.attributes.get(name):
            return dtype, len(node.attributes[name])
    tensor = node.attributes.get("values_tensor")
    return (None if tensor is None else DTYPES.get(tensor.data_type)), None


def _count_rows(node: KnownNode) -> Dim:
    """Return the number of rows of the first input: a vector is one."""
    shape = node.get_shape(0)
    if shape is None or not 1 <= len(shape) <= 2:
        return None
    return shape[0] if len(shape) == 2 else 1


def _keep_shape(dtype: str) -> Rule:
    return lambda node: [make_type(dtype, node.get_shape(0))]


def _give_rows(attribute: str | None) -> Rule:
    """Return the rule of a regressor, which gives so many numbers of each row as an attribute says."""

    def rule(node: KnownNode) -> Types:
        width = 1 if attribute is None else node.attributes.get(attribute)
        return [make_type("float32", [_count_rows(node), width])]

    return rule


def _classify(node: KnownNode) -> Types:
    """Return the types of a classifier: a label and the scores of all of them for each row."""
    dtype, count = _find_labels(node)
    rows = _count_rows(node)
    # With one label alone its scores are one or two by what else the node says.
    width = count if count != 1 else None
    return [make_type(dtype, [rows]), make_type("float32", [rows, width])]


def _classify_by_vectors(node: KnownNode) -> Types:
    """Return the types of SVMClassifier, whose scores are of pairs of classes without probabilities."""
    labels, scores = _classify(node)
    count = _find_labels(node)[1]
    if (
        count
        and count > 2
        and node.attributes.get("vectors_per_class")
        and not node.attributes.get("prob_a")
    ):
        scores = make_type("float32", [_count_rows(node), count * (count - 1) // 2])
    return [labels, scores]


def _encode(node: KnownNode) -> Types:
    """Return the type of OneHotEncoder: an axis of the categories behind the others."""
    shape = node.get_shape(0)
    names: Sequence[Any] = (
        node.attributes.get("cats_int64s") or node.attributes.get("cats_strings") or ()
    )
    return [make_type("float32", None if shape is None else [*shape, len(names) or None])]


def _relabel(node: KnownNode) -> Types:
    """Return the type of LabelEncoder; until its version 2 it gave the index of a text, or the text."""
    dtype = _find_labels(node)[0]
    if node.attributes.get("classes_strings"):
        dtype = "int64" if node.get_dtype(0) == "string" else "string"
    return [make_type(dtype, node.get_shape(0))]


def _map_categories(node: KnownNode) -> Types:
    given = node.get_dtype(0)
    dtype = None if given is None else "int64" if given == "string" else "string"
    return [make_type(dtype, node.get_shape(0))]


def _join_features(node: KnownNode) -> Types:
    """Return the type of FeatureVectorizer: so many numbers of each input, row by row."""
    widths = node.attributes.get("inputdimensions")
    shapes = [node.get_shape(i) for i in range(len(node.proto.input))]
    if widths is None or shapes[0] is None or not shapes[0]:
        return [make_type("float32", [None, None])]
    rows: Dim = shapes[0][0] if len(shapes[0]) > 1 else 1
    return [make_type("float32", [rows, sum(widths)])]


def _extract(node: KnownNode) -> Types:
    """Return the type of ArrayFeatureExtractor: chosen numbers of the last axis."""
    shape, chosen = node.get_shape(0), node.get_shape(1)
    if shape is None or chosen is None or not shape:
        return [make_type(node.get_dtype(0), None)]
    return [make_type(node.get_dtype(0), [*(shape[:-1] or (1,)), multiply_dims(*chosen)])]


ML_RULES: Mapping[str, Rule] = {
    f"ai.onnx.ml.{name}": rule
    for name, rule in {
        "ArrayFeatureExtractor": _extract,
        "Binarizer": keep_type,
        "CategoryMapper": _map_categories,
        "FeatureVectorizer": _join_features,
        "Imputer": keep_type,
        "LabelEncoder": _relabel,
        "LinearClassifier": _classify,
        "LinearRegressor": _give_rows("targets"),
        "Normalizer": _keep_shape("float32"),
        "OneHotEncoder": _encode,
        "SVMClassifier": _classify_by_vectors,
        "SVMRegressor": _give_rows(None),
        "Scaler": _keep_shape("float32"),
        "TreeEnsembleClassifier": _classify,
        "TreeEnsembleRegressor": _give_rows("n_targets"),
    }.items()
}
"""Operator, as `get_operator_name` spells it, to its rule."""
