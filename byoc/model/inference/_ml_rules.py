"""Rules that type the operators of ai.onnx.ml, of most of which ONNX's inference finds dtypes at best.

The shapes are those of the specification (docs/Operators-ml.md) and of onnxruntime's kernels, which take
a vector for one row. Maps and sequences have no tensor type.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from byoc.model._tensor_types import DTYPES, Dim
from byoc.model.inference._elementwise_shapes import Types, keep_type, make_type
from byoc.model.inference._extents import multiply_dims
from byoc.model.inference._known_node import KnownNode, Rule

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
