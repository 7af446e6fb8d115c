"""The shape of whatever ONNX's tests of nodes make is known where values of data do not decide on it."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from suite import Case, collect

from byoc.model import DTYPE_NUMBERS, Model, copy_without, prepare_model

# Their extents are values of data, and those of the strings and images that they take apart.
OF_DATA = frozenset(
    [
        *("ImageDecoder", "Loop", "NonMaxSuppression", "NonZero", "StringNormalizer", "StringSplit"),
        "Unique",
    ]
)
# Inputs of so many elements that are no matrices are axes, sizes, scales and the like.
MOST = 16


def state_parameters(case: Case) -> onnx.ModelProto:
    """Return a case's model with the small vectors behind its first input stored, its outputs bare."""
    model = copy_without(case.model)
    model.ir_version = max(model.ir_version, 4)  # before, stored tensors had to be inputs
    values = case.data_sets[0][0]
    only = len(model.graph.input) == 1 or model.graph.node[0].op_type in ("Range", "MelWeightMatrix")
    for position, value in enumerate(list(model.graph.input)):
        array = values.get(value.name)
        is_small = isinstance(array, np.ndarray) and array.ndim <= 1 and array.size <= MOST
        if is_small and array.dtype != object and (position or only):
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return model


def describe_wrong(case: Case, model: Model) -> list[str]:
    """Return what is not known of the outputs of a case, or is not what ONNX expects."""
    found = []
    for name, value in case.data_sets[0][1].items():
        if not isinstance(value, np.ndarray):
            continue
        kind = model.index.types.get(name)
        number = onnx.TensorProto.STRING
        if value.dtype.kind not in "OU":
            number = helper.np_dtype_to_tensor_dtype(value.dtype)
        if kind is None or DTYPE_NUMBERS[kind.dtype] != number or kind.shape != value.shape:
            found.append(f"{case.name}: {name} is {kind}, but {value.dtype}{list(value.shape)}")
    return found


def test_shapes_of_all_operators_are_known() -> None:
    cases = [
        case
        for case in collect(costly=False)
        if case.kind == "node"
        and not case.name.endswith("_expanded")
        and OF_DATA.isdisjoint(node.op_type for node in case.model.graph.node)
    ]
    assert len(cases) > 1000
    wrong = [
        line
        for case in cases
        for line in describe_wrong(case, prepare_model(state_parameters(case), "m"))
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["test_compress_0", "test_reshape_negative_dim"])
def test_what_is_not_known_is_found(name: str) -> None:
    case = next(case for case in collect(costly=False) if case.name == name)
    model = copy_without(case.model)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert describe_wrong(case, prepare_model(model, "m"))
