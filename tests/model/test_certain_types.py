"""Types that a partitioned model states: those that hold at run time, whatever a caller passes."""

import numpy as np
import pytest
from onnx import numpy_helper
from support import parse

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
