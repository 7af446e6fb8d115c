"""Types that a partitioned model states: those that hold at run time, whatever a caller passes."""

import numpy as np
import pytest
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper

from byoc.model import GraphCuts, OutlineGroup, RegionCut, outline, prepare_model, read_type
from byoc.onnxrt import open_session, run_session


@pytest.mark.parametrize(
    ("ir_version", "overridable", "stated"), [(8, True, "float32[?, ?]"), (3, False, "float32[2, 3]")]
)
def test_the_shape_behind_a_default_is_the_callers(
    ir_version: int, overridable: bool, stated: str
) -> None:
    proto = parse(
        "g (float[6] x, int64[2] shape) => (float y) {\n a = Reshape(x, shape)\n b = Neg(a)\n"
        " c = Abs(b)\n y = ReduceSum <keepdims = 0> (c) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "shape"))
    proto.ir_version = ir_version
    model = prepare_model(proto, "test")
    result = outline(GraphCuts(model.index, (RegionCut("r", "byoc.any", (OutlineGroup((2,)),)),)))

    types = {value.name: str(read_type(value.type)) for value in result.graph.value_info}
    assert types == {"a": stated, "b": stated, "c": stated}
    inputs = {"x": np.arange(-2, 4, dtype=np.float32)}
    if overridable:
        inputs |= {"shape": np.array([1, 6])}
    assert run_session(open_session(result), inputs)["y"] == 9


def test_extents_without_a_name_are_several() -> None:
    proto = parse(
        "g (float[n] a, float[n] b) => (float y) { c = Concat <axis = 0> (a, b)\n"
        " d = Neg(c)\n y = ReduceSum <keepdims = 0> (d) }"
    )
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "?"
    index = prepare_model(proto, "test").index
    result = outline(GraphCuts(index, (RegionCut("r", "byoc.any", (OutlineGroup((1,)),)),)))

    types = {value.name: str(read_type(value.type)) for value in result.graph.value_info}
    assert types == dict.fromkeys("cd", "float32['a[0]' + 'b[0]']")


def test_a_body_states_no_batch_of_its_export() -> None:
    proto = parse(
        "g (float[N] x, bool c) => (float[N] y) { y = If (c) <"
        "then_branch = t () => (float[N] u) { a = Neg(x)\n u = Abs(a) }, "
        "else_branch = e () => (float[N] v) { v = Abs(x) }> }"
    )
    branch = proto.graph.node[0].attribute[0].g
    branch.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1]))
    index = prepare_model(proto, "test").index
    inner = index.bodies[0][0].index
    assert inner.get_shape("a") == ("N",)

    cuts = (RegionCut("r", "byoc.any", (OutlineGroup((1,)),)),)
    others = [GraphCuts(body.index, cuts if body.index is inner else ()) for body in index.bodies[0]]
    result = outline(GraphCuts(index, (), {}, {0: others}))
    (stated,) = result.graph.node[0].attribute[0].g.value_info
    assert str(read_type(stated.type)) == "float32[N]"
    assert run_session(open_session(result), {"x": np.array([-2, 3], np.float32), "c": np.array(True)})[
        "y"
    ].tolist() == [2, 3]
