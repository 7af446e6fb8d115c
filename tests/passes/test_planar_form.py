"""1-D operators as 2-D ones on images of one row compute the same, whatever their attributes."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse, sample_cases
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from byoc.model import build_node, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import clean_model, count_operators, load_pass

LENGTH, CHANNELS = 11, 4
Case = tuple[str, Mapping[str, Any]]


def planar(model: onnx.ModelProto) -> onnx.ModelProto:
    form = load_pass("planar-form").implementation
    return clean_model(prepare_model(model, "m"), [form]).model.proto  # type: ignore[list-item]


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def check(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """Check that a model computes the same in the form, in onnxruntime and by ONNX's reference."""
    made = planar(model)
    onnx.checker.check_model(made, full_check=True)
    assert list(made.graph.output) == list(model.graph.output)
    wanted, got = run(model, inputs), run(made, inputs)
    for name, value in wanted.items():
        assert np.asarray(got[name]).dtype == np.asarray(value).dtype
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
    reference = ReferenceEvaluator(made).run(list(wanted), dict(inputs))
    for value, other in zip(wanted.values(), reference, strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-4, atol=1e-4)
    return made


def model_of(
    node: onnx.NodeProto, opset: int, *stored: onnx.TensorProto, dtypes: tuple[int, ...] = (1, 1, 1)
) -> onnx.ModelProto:
    """Return a model of a node that reads `x`; the dtypes are those of `x` and of what it makes."""
    given = [helper.make_tensor_value_info("x", dtypes[0], (2, CHANNELS, LENGTH))]
    made = [
        helper.make_tensor_value_info(name, dtype, None)
        for name, dtype in zip(node.output, dtypes[1:], strict=False)
    ]
    graph = helper.make_graph([node], "g", given, made, list(stored))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def image(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(2, CHANNELS, LENGTH)).astype(np.float32)


def weights(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    values = np.random.default_rng(7).normal(size=shape) * (1 if dtype == np.float32 else 20)
    return numpy_helper.from_array(values.astype(dtype), name)


PARTS = range(3)
"""Each window is in one part; the ordinary tests give each operator another one."""


def windows(part: int) -> Iterator[Mapping[str, Any]]:
    """Yield attributes of the windows of a part."""
    yield from itertools.islice(all_windows(), part, None, len(PARTS))


def all_windows() -> Iterator[Mapping[str, Any]]:
    """Yield attributes of windows: kernels, strides, dilations, groups, padding of each kind."""
    for kernel, stride, dilation in itertools.product((1, 3, 4), (1, 2), (1, 2)):
        for pads in ([0, 0], [1, 1], [0, 2], [2, 0]):
            if max(pads) < kernel:
                yield {
                    "kernel_shape": [kernel],
                    "strides": [stride],
                    "dilations": [dilation],
                    "pads": pads,
                }
        if dilation == 1:
            for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
                yield {"kernel_shape": [kernel], "strides": [stride], "auto_pad": auto_pad}


@pytest.mark.parametrize(
    ("group", "part"),
    sample_cases([*itertools.product([1, 2, CHANNELS], PARTS)], (1, 0), (2, 1), (CHANNELS, 2)),
)
def test_conv(group: int, part: int) -> None:
    for attributes in windows(part):
        size = attributes["kernel_shape"][0]
        for stated in (attributes, {k: v for k, v in attributes.items() if k != "kernel_shape"}):
            node = build_node("Conv", ["x", "w", "b"], ["y"], group=group, **stated)
            stored = weights("w", CHANNELS, CHANNELS // group, size), weights("b", CHANNELS)
            made = check(model_of(node, 17, *stored), {"x": image()})
            assert count_operators(made) == {"Conv": 1, "Squeeze": 1, "Unsqueeze": 1}
            (conv,) = (node for node in made.graph.node if node.op_type == "Conv")
            (weight,) = (each for each in made.graph.initializer if each.name == conv.input[1])
            assert list(weight.dims) == [CHANNELS, CHANNELS // group, 1, size]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "more",
    [{}, {"output_padding": [1]}, {"output_shape": [23]}, {"auto_pad": "SAME_UPPER"},
     {"output_shape": [24], "auto_pad": "SAME_LOWER"}],
)  # fmt: skip
def test_conv_transpose(group: int, more: Mapping[str, Any]) -> None:
    for kernel, dilation, pads in itertools.product((3, 4), (1, 2), ([0, 0], [1, 0], [1, 1])):
        attributes = {"strides": [2], "dilations": [dilation], "group": group, **more}
        if "auto_pad" not in more and "output_shape" not in more:
            attributes["pads"] = pads
        elif dilation > 1:
            continue
        node = build_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
        stored = weights("w", CHANNELS, 2, kernel), weights("b", 2 * group)
        check_in_onnxruntime(model_of(node, 17, *stored), {"x": image()})


def check_in_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """Check what ONNX's reference lacks or computes otherwise, in onnxruntime alone."""
    made = planar(model)
    onnx.checker.check_model(made, full_check=True)
    assert "Unsqueeze" in count_operators(made)
    wanted, got = run(model, inputs), run(made, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
    return made


@pytest.mark.parametrize(
    ("op", "part"),
    sample_cases(
        [*itertools.product(["MaxPool", "AveragePool", "LpPool"], PARTS)],
        *(("MaxPool", 0), ("AveragePool", 1), ("LpPool", 2)),
    ),
)
def test_pools(op: str, part: int) -> None:
    for attributes, ceil_mode, extra in itertools.product(windows(part), (0, 1), (0, 1)):
        stated: dict[str, Any] = {**attributes, "ceil_mode": ceil_mode}
        outputs = ["y"]
        if op == "MaxPool":
            stated["storage_order"] = extra
            outputs = ["y", "i"]
        elif op == "AveragePool":
            stated["count_include_pad"] = extra
        else:
            stated["p"] = extra + 1
        if "auto_pad" in stated and (ceil_mode or stated["strides"][0] > stated["kernel_shape"][0]):
            continue
        node = build_node(op, ["x"], outputs, **stated)
        model = model_of(node, 19, dtypes=(1, 1, TensorProto.INT64))
        made = check_in_onnxruntime(model, {"x": image()})
        assert count_operators(made)["Squeeze"] == len(outputs)


@pytest.mark.parametrize(
    ("node", "opset", "stored"),
    [
        (build_node("GlobalAveragePool", ["x"], ["y"]), 17, ()),
        (build_node("GlobalMaxPool", ["x"], ["y"]), 17, ()),
        (build_node("GlobalLpPool", ["x"], ["y"], p=2), 17, ()),
        (build_node("InstanceNormalization", ["x", "s", "b"], ["y"]), 17, ("s", "b")),
        (build_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"]), 17, ("s", "b", "m", "v")),
        (build_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"]), 9, ("s", "b", "m", "v")),
        (build_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2), 21, ("s", "b")),
    ],
)  # fmt: skip
def test_pools_of_all_and_normalizations(
    node: onnx.NodeProto, opset: int, stored: tuple[str, ...]
) -> None:
    values = [numpy_helper.from_array(np.array([1, 2, 0.5, 3], np.float32), name) for name in stored]
    model = model_of(node, opset, *values)
    if node.op_type == "GroupNormalization":  # ONNX infers no shape for it
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, (2, CHANNELS, LENGTH)))
    made = check_in_onnxruntime(model, {"x": image()})
    assert count_operators(made) == {node.op_type: 1, "Squeeze": 1, "Unsqueeze": 1}


BETWEEN = [
    *(f"b = {op}(a)" for op in ("Relu", "Sigmoid", "Tanh", "Elu", "Erf", "Neg", "HardSwish")),
    "b = Clip(a, zero, six)",
    "b, m = Dropout(a)",
    *(f"b = {op}(a, x)" for op in ("Add", "Sub", "Mul", "Max")),
    *(f"b = Add(a, {other})" for other in ("one", "row", "rows", "column")),
    *(f"b = PRelu(a, {other})" for other in ("one", "row", "rows", "column")),
    "c = Cast <to = 10> (a) b = Cast <to = 1> (c)",
    "g = Greater(a, x) b = Where(g, a, row)",
    *(f"b = Softmax <axis = {axis}> (a)" for axis in (-1, 1, 2, -2)),
    *(f"b = Concat <axis = {axis}> (a, x)" for axis in (0, 1, 2, -1, -2)),
    "p, q = Split <axis = 1> (a, halves) b = Add(p, q)",
    "p, q = Split <axis = -1> (a, parts) b = Concat <axis = -1> (q, p)",
    *(f'b = Pad <mode = "{mode}"> (a, pads)' for mode in ("constant", "reflect", "edge")),
    "b = Slice(a, first, last, axes)",
    "b = Slice(a, first, last, axes, steps)",
    *(f'b = Resize <mode = "{mode}"> (a, , scales)' for mode in ("nearest", "linear")),
    "b = Resize(a, , , sizes)",
    "q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z)",
    "q = QuantizeLinear <axis = 1> (a, ss, zs) b = DequantizeLinear <axis = 1> (q, ss, zs)",
    "q = QuantizeLinear <axis = -1> (a, sl, zl) b = DequantizeLinear <axis = 2> (q, sl, zl)",
]  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
def test_what_lies_between_convolutions_is_brought_along(between: str) -> None:
    model = parse(
        f"""m (float[2, 4, 11] x) => (float[N, M, K] y, float[A, B, C] b)
        <float zero = {{0.0}}, float six = {{6.0}}, float one = {{1.5}}, float s = {{0.1}},
         uint8 z = {{100}},
         float[4] ss = {{0.1, 0.2, 0.05, 0.01}}, uint8[4] zs = {{1, 2, 3, 100}},
         float[4, 1] column = {{1, 2, 3, 4}},
         int64[2] halves = {{2, 2}}, int64[2] parts = {{4, 7}},
         int64[6] pads = {{0, 0, 1, 0, 0, 2}},
         int64[2] first = {{1, 0}}, int64[2] last = {{9, 3}}, int64[2] axes = {{2, -2}},
         int64[2] steps = {{2, 1}},
         float[3] scales = {{1, 1, 2}}, int64[3] sizes = {{2, 4, 17}}> {{
          a = Conv <pads = [1, 1]> (x, w)
          {between}
          y = AveragePool <kernel_shape = [2]> (b)
        }}""",
        opset=18,
    )
    rng = np.random.default_rng(3)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w", (4, 4, 3)), ("row", (11,)), ("rows", (4, 11)))
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full(11, 0.05, np.float32), "sl"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(11, 99, np.uint8), "zl"))
    made = check_in_onnxruntime(model, {"x": image(5)})
    found = count_operators(made)
    assert found["Unsqueeze"] == 1 + found.get("rows", 0)
    assert found["Squeeze"] == 2  # the two outputs


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_convolutions_of_integers(dtype: Any) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.random.default_rng(1).integers(0, 100, (2, CHANNELS, LENGTH)).astype(dtype)
    stored = [weights("w", 3, CHANNELS, 3, dtype=np.int8)]
    stored += [numpy_helper.from_array(np.array(value, kind), name) for name, value, kind in (
        ("xs", 0.1, np.float32), ("xz", 3, dtype), ("ws", [0.1, 0.2, 0.3], np.float32),
        ("wz", [0, 0, 0], np.int8),
        ("ys", 2.0, np.float32), ("yz", 5, dtype), ("b", [1, 2, 3], np.int32), ("w0", 0, np.int8),
    )]  # fmt: skip
    reads = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    attributes = {"pads": [1, 1], "strides": [2]}
    node = build_node("QLinearConv", reads, ["y"], **attributes)
    model = model_of(node, 17, *stored, dtypes=(number, number))
    check_in_onnxruntime(model, {"x": x})
    if dtype == np.uint8:  # onnxruntime has ConvInteger for these alone
        integer = build_node("ConvInteger", ["x", "w", "xz", "w0"], ["y"], **attributes)
        model = model_of(integer, 17, *stored, dtypes=(number, TensorProto.INT32))
        check_in_onnxruntime(model, {"x": x})


def test_quantized_weights_are_stored_as_images() -> None:
    model = parse(
        """m (float[2, 4, 11] x) => (float[2, 4, 11] y)
        <float s = {0.1}, uint8 z = {100}, float[4] ws = {0.1, 0.2, 0.05, 0.01},
         int8[4] wz = {0, 0, 0, 0}> {
          q = QuantizeLinear(x, s, z)
          d = DequantizeLinear(q, s, z)
          v = DequantizeLinear <axis = 0> (w, ws, wz)
          a = Conv <pads = [1, 1]> (d, v)
          r = QuantizeLinear(a, s, z)
          e = DequantizeLinear(r, s, z)
          b = Conv <pads = [1, 1]> (e, v)
          t = QuantizeLinear(b, s, z)
          y = DequantizeLinear(t, s, z)
        }"""
    )
    model.graph.initializer.append(weights("w", 4, 4, 3, dtype=np.int8))
    made = check_in_onnxruntime(model, {"x": image()})
    found = count_operators(made)
    assert (found["Unsqueeze"], found["Squeeze"]) == (1, 1)
    assert found["DequantizeLinear"] == 4
    (weight,) = (each for each in made.graph.initializer if len(each.dims) == 4)
    assert weight.data_type == TensorProto.INT8
    assert "w" not in {each.name for each in made.graph.initializer}


def test_old_operator_sets_have_axes_as_attributes() -> None:
    for opset in (7, 11, 12):
        node = build_node("Conv", ["x", "w"], ["y"], pads=[1, 1])
        check_in_onnxruntime(model_of(node, opset, weights("w", 4, 4, 3)), {"x": image()})


def test_a_convolution_in_a_body() -> None:
    model = parse(
        """m (bool c, float[2, 4, 11] x) => (float[2, 4, 11] y) {
          a = Neg(x)
          y = If (c) <then_branch = t () => (float[2, 4, 11] u) { u = Conv <pads = [1, 1]> (a, w) },
                      else_branch = e () => (float[2, 4, 11] v) { v = Relu(a) }>
        }"""
    )
    model.graph.initializer.append(weights("w", 4, 4, 3))
    made = planar(model)
    for chosen in (True, False):
        inputs = {"c": np.array(chosen), "x": image()}
        np.testing.assert_allclose(run(made, inputs)["y"], run(model, inputs)["y"], rtol=1e-5, atol=1e-5)
    assert count_operators(made)["Unsqueeze"] == 1


def test_weights_that_are_computed_are_brought_along() -> None:
    model = parse(
        """m (float[2, 4, 11] x, float[4, 4, 3] w) => (float[2, 4, 9] y) {
          v = Neg(w)
          y = Conv(x, v)
        }"""
    )
    inputs = {"x": image(), "w": numpy_helper.to_array(weights("w", 4, 4, 3))}
    assert count_operators(check(model, inputs))["Unsqueeze"] == 2


def test_what_has_no_such_form_stays() -> None:
    for text in (
        "m (float[2, 4, 5, 6] x) => (float[2, 4, 1, 1] y) { y = GlobalAveragePool(x) }",
        "m (float[2, 4, 5, 6, 7] x) => (float[2, 4, 1, 1, 1] y) { y = GlobalAveragePool(x) }",
        "m (float[2, 4, 11] x) => (float[2, 4, 11] y) { y = Relu(x) }",
    ):
        model = parse(text)
        assert planar(model).SerializeToString() == prepare_model(model, "m").proto.SerializeToString()
