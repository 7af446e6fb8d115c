"""Elements that numpy has no dtype for cross the border between host and region."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, helper

import byoc
from byoc.errors import InputError
from byoc.onnxrt import open_session, run_session

COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_what_numpy_cannot_name_crosses(dtype: str, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(dtype)
    model = parse(
        f"""g (float[5] x) => (float[5] y) {{
            a = Cast <to = {number}> (x)
            y = Cast <to = 1> (a)
        }}""",
        ir=11,
        opset=21,
    )
    (tmp_path / "near.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "some.yaml").write_text(
        f"target: npu\ncost_model: {tmp_path / 'near.yaml'}\ndtype: any\n"
        "ops: [{op: Cast, attributes: {to: {one_of: 1}}}]\n",
        encoding="utf-8",
    )

    byoc.partition(
        model, tmp_path / "some.yaml", strategy="all-supported", output=tmp_path / "b", verify=False
    )

    x = np.array([0, 1, 2, 5, 7] if dtype == "UINT4" else [-3, 0, 1, 2, 5], np.float32)
    got = byoc.load(tmp_path / "b")({"x": x})["y"]
    assert np.array_equal(got, x)


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
TEXTS = helper.make_tensor_type_proto(TensorProto.STRING, None)
SHORT = helper.make_tensor_type_proto(TensorProto.UINT4, None)
X = np.array([1, 2, 3], np.float32)
ODD_VALUES = [
    (TEXTS, np.array(["a", "é"], object)),
    (helper.make_sequence_type_proto(FLOATS), [X, X[:1]]),
    (helper.make_sequence_type_proto(FLOATS), []),
    (helper.make_sequence_type_proto(TEXTS), [np.array(["a"], object)]),
    (helper.make_optional_type_proto(FLOATS), X),
    (helper.make_optional_type_proto(FLOATS), None),
    (helper.make_optional_type_proto(helper.make_sequence_type_proto(FLOATS)), [X]),
]


@pytest.mark.parametrize(("kind", "value"), ODD_VALUES)
@pytest.mark.parametrize("given", ["x", "short"])
@pytest.mark.parametrize("made", ["y", "small"])
def test_text_sequences_and_optionals_go_beside_what_numpy_cannot_name(
    kind: onnx.TypeProto, value: Any, given: str, made: str
) -> None:
    """A session is given an odd value and `x` or `short`, uint4, and gives them back in either type."""
    kinds = {"x": FLOATS, "y": FLOATS, "short": SHORT, "small": SHORT, "odd": kind, "same": kind}
    nodes = [
        helper.make_node("Identity", ["odd"], ["same"]),
        helper.make_node("Cast", [given], [made], to=kinds[made].tensor_type.elem_type),
    ]
    ends = [[helper.make_value_info(n, kinds[n]) for n in ns] for ns in ((given, "odd"), ("same", made))]
    graph = helper.make_graph(nodes, "g", *ends)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    numbers = X.astype(helper.tensor_dtype_to_np_dtype(kinds[given].tensor_type.elem_type))
    session = open_session(model)
    if value is None and made == "small":
        with pytest.raises(InputError, match="'odd' has no value, beside outputs of types that numpy"):
            run_session(session, {given: numbers, "odd": value})
        return
    found = run_session(session, {given: numbers, "odd": value})
    assert found[made].dtype == helper.tensor_dtype_to_np_dtype(kinds[made].tensor_type.elem_type)
    assert found[made].astype(np.float32).tolist() == X.tolist()
    same = found["same"]
    if value is None:
        assert same is None
    elif isinstance(value, list):
        assert [each.tolist() for each in same] == [each.tolist() for each in value]
    else:
        assert same.tolist() == value.tolist()
