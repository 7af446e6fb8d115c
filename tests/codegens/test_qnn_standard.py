"""What the codegen `qnn` makes of a model before it asks QNN: the same computation, nodes numbered."""

import numpy as np
import onnx
import onnx.inliner
from byoc.codegens.qnn.qnn_model import adapt_model
from compiling import with_composite
from helpers.cutting import original
from helpers.quantized import CONV, IMAGE, MODELS, feed, model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st


def replaced(proto: onnx.ModelProto, **constants: np.generic) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(np.asarray(constants[tensor.name]), tensor.name)
            )
    return proto


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@settings(max_examples=examples(40), deadline=None)
@given(
    clamp=st.sampled_from(["conv and relu", "conv and clip", "gemm and relu"]),
    scale=st.floats(2**-10, 2**-3, width=32),
    zero=st.integers(1, 255),
    bounds=st.tuples(st.floats(-3, 3, width=32), st.floats(-3, 3, width=32)).map(sorted),
    seed=st.integers(0, 99),
)
def test_a_pair_before_a_clamp_changes_no_bit(
    clamp: str, scale: float, zero: int, bounds: list[float], seed: int
) -> None:
    low, high = map(np.float32, bounds)
    proto = replaced(model(MODELS[clamp]), s=np.float32(scale), z=np.uint8(zero), low=low, high=high)
    made = adapt_model(proto, proto).proto

    assert operators(made).count("QuantizeLinear") == operators(proto).count("QuantizeLinear") + 1
    inputs = feed(proto, seed)
    np.testing.assert_array_equal(original(made, inputs)["y"], original(proto, inputs)["y"])


def test_there_is_none_where_the_zero_point_is_the_least_number() -> None:
    proto = model(MODELS["conv and relu to zero"])
    assert operators(adapt_model(proto, proto).proto) == operators(proto)


def test_there_is_none_where_something_else_reads_the_clamp() -> None:
    text = f"{IMAGE.removesuffix(')')}, float[1,4,8,8] r)"
    proto = model(f"{text} {{ {CONV} r = Relu(c) y = QuantizeLinear(r, s, z) }}")
    assert operators(adapt_model(proto, proto).proto) == operators(proto)


def test_outputs_that_nobody_reads_go_where_onnx_has_them_optional() -> None:
    proto = model("""g (float[1,2,4,4] x) => (float[1,2,2,2] y, float[1,1,4,4] a) {
      y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) a, b = Split<axis=1, num_outputs=2>(x) }""")
    pool, split = adapt_model(proto, proto).proto.graph.node

    assert list(pool.output) == ["y"]
    assert list(split.output) == ["a", "b"]  # of one part it would be another
    assert list(proto.graph.node[0].output) == ["y", "i"]


def test_nodes_are_known_by_number_even_inside_of_composites() -> None:
    proto = with_composite()
    proto.graph.node[0].name = "whole"
    inlined = onnx.inliner.inline_local_functions(proto)
    made = adapt_model(proto, inlined)

    assert [node.name for node in made.proto.graph.node] == ["n0", "n1"]
    assert [made.origin_of(name) for name in ("n0", "n1_token_7", "Transpose_token_2")] == [0, 0, None]
    assert made.display_names([0]) == ["whole"]
