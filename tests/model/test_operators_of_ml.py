"""Types behind operators of ai.onnx.ml are known, and what onnxruntime computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from model.settling import list_contradictions
from onnx import TensorProto, ValueInfoProto, helper

from byoc.model import evaluate_dim, prepare_model

FEATURES = 4
TREE = {
    **{"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0]},
    **{"nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0]},
    **{"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]},
}
LEAVES = {"class_treeids": [0, 0], "class_nodeids": [1, 2], "class_weights": [1.0, 2.0]}
TARGETS = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_weights": [1.0, 2.0]}
LINEAR = {"kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 1.0]}
INT, TEXT = np.arange(1, 13).reshape(3, 4), np.array([["a", "b", "c", "a"]] * 3, object)


def vectors(classes: int) -> dict[str, Any]:
    """Return the attributes of support vectors, one of each class."""
    pairs = classes * (classes - 1) // 2
    return {
        **{"coefficients": [1.0] * (classes * (classes - 1)), "rho": [0.0] * pairs},
        **{"support_vectors": [1.0] * (classes * FEATURES), "vectors_per_class": [1] * classes},
        **LINEAR,
    }


def probabilities(classes: int) -> dict[str, Any]:
    """Return the attributes by which support vectors give probabilities."""
    pairs = classes * (classes - 1) // 2
    return {"prob_a": [1.0] * pairs, "prob_b": [1.0] * pairs}


FLOAT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
CASES: list[tuple[str, Any, Mapping[str, Any]]] = [
    *(("Scaler", x, {"offset": [0.0], "scale": [2.0]}) for x in (FLOAT, FLOAT.astype(float), INT)),
    *(("Normalizer", x, {"norm": "L1"}) for x in (FLOAT, FLOAT.astype(float), INT)),
    ("Imputer", FLOAT, {"imputed_value_floats": [1.0]}),
    ("Imputer", INT, {"imputed_value_int64s": [1], "replaced_value_int64": 3}),
    ("Binarizer", FLOAT, {"threshold": 0.5}),
    ("LinearRegressor", FLOAT, {"coefficients": [1.0] * 8, "intercepts": [0.0] * 2, "targets": 2}),
    ("LinearRegressor", FLOAT, {"coefficients": [1.0] * 4}),
    *(
        ("LinearClassifier", FLOAT, {"coefficients": [1.0] * 12, "intercepts": [0.0] * 3, **labels})
        for labels in ({"classlabels_ints": [1, 2, 3]}, {"classlabels_strings": ["a", "b", "c"]})
    ),
    (
        "LinearClassifier",
        INT,
        {"coefficients": [1.0] * 4, "intercepts": [0.0], "classlabels_ints": [1, 2]},
    ),
    (
        "SVMRegressor",
        FLOAT,
        {
            "coefficients": [1.0] * 2,
            "support_vectors": [1.0] * 8,
            "n_supports": 2,
            "rho": [0.0],
            **LINEAR,
        },
    ),
    *(
        ("SVMClassifier", FLOAT, {"classlabels_ints": list(range(count)), **vectors(count), **more})
        for count in (2, 3, 4)
        for more in ({}, probabilities(count))
    ),
    ("SVMClassifier", FLOAT, {"classlabels_strings": ["a", "b", "c", "d"], **vectors(4)}),
    (
        "SVMClassifier",
        FLOAT,
        {"classlabels_ints": [1, 2, 3, 4], "coefficients": [1.0] * 16, "rho": [0.0], **LINEAR},
    ),
    ("OneHotEncoder", INT, {"cats_int64s": [1, 2, 3]}),
    ("OneHotEncoder", TEXT, {"cats_strings": ["a", "b"]}),
    ("CategoryMapper", INT, {"cats_int64s": [1, 2], "cats_strings": ["a", "b"]}),
    ("CategoryMapper", TEXT, {"cats_int64s": [1, 2], "cats_strings": ["a", "b"]}),
    ("LabelEncoder", INT, {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5]}),
    ("LabelEncoder", INT, {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}),
    ("LabelEncoder", TEXT, {"keys_strings": ["a", "b"], "values_int64s": [1, 2]}),
    ("TreeEnsembleRegressor", FLOAT, {"n_targets": 2, "target_ids": [0, 1], **TARGETS, **TREE}),
    *(
        ("TreeEnsembleClassifier", FLOAT, {"class_ids": ids, **labels, **LEAVES, **TREE})
        for ids, labels in (
            ([0, 1], {"classlabels_int64s": [5, 6]}),
            ([0, 0], {"classlabels_int64s": [5, 6]}),
            ([0, 2], {"classlabels_strings": ["a", "b", "c"]}),
        )
    ),
    ("FeatureVectorizer", (FLOAT, FLOAT[:, :2]), {"inputdimensions": [4, 2]}),
    ("FeatureVectorizer", (FLOAT, FLOAT), {"inputdimensions": [3, 4]}),
    ("ArrayFeatureExtractor", (FLOAT, np.array([0, 2])), {}),
    ("ArrayFeatureExtractor", (INT, np.array([[3, 1, 1]])), {}),
]
TWO = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")


@pytest.mark.parametrize("is_vector", [False, True], ids=["matrix", "vector"])
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    ("operator", "given", "attributes"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_shapes_are_known(
    operator: str, given: Any, attributes: Mapping[str, Any], is_open: bool, is_vector: bool
) -> None:
    if is_vector and operator.startswith("TreeEnsemble"):
        return  # which onnxruntime takes of unknown rank alone
    arrays = list(given) if isinstance(given, tuple) else [given]
    chosen = arrays.pop() if operator == "ArrayFeatureExtractor" else None
    arrays = [each[0] for each in arrays] if is_vector else arrays
    arrays += [] if chosen is None else [chosen]
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    names = [f"y{i}" for i in range(2 if operator in TWO else 1)]
    node = helper.make_node(operator, [*feeds], names, domain="ai.onnx.ml", **attributes)
    values = [
        helper.make_tensor_value_info(
            name,
            TensorProto.STRING
            if array.dtype == object
            else helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{axis}" if is_open else extent for axis, extent in enumerate(array.shape)],
        )
        for name, array in feeds.items()
    ]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", values, [ValueInfoProto(name=name) for name in names])
    model = prepare_model(helper.make_model(graph, opset_imports=imports, ir_version=8), "model")
    sizes = {f"{n}_{axis}": extent for n, a in feeds.items() for axis, extent in enumerate(a.shape)}
    for name in names:
        shape = model.index.get_shape(name)
        assert shape is not None
        assert None not in [evaluate_dim(dim, sizes) for dim in shape]
    assert not list_contradictions(model, feeds)


def test_every_operator_of_tensors_is_tried() -> None:
    """All but those of maps, and the one of opset 5, which onnxruntime does not have."""
    defined = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == "ai.onnx.ml"}
    others = {"CastMap", "DictVectorizer", "TreeEnsemble", "ZipMap"}
    assert defined - others == {operator for operator, _, _ in CASES}
