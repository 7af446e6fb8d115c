"""3-D operators as 2-D ones compute the same, whatever their attributes, on frames and flat images."""

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

CHANNELS, DEPTH, ROWS, COLUMNS = 4, 7, 6, 5
FORMS = ("frame-form", "flat-form")
WINDOWED = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "AveragePool", "LpPool")


def change(model: onnx.ModelProto, split: bool, names: tuple[str, ...] = FORMS) -> onnx.ModelProto:
    options = {"frame-form": {"split": str(split).lower()}}
    prepared = prepare_model(model, "m")
    for name in names:
        form = load_pass(name, options.get(name)).implementation
        prepared = clean_model(prepared, [form]).model  # type: ignore[list-item]
    return prepared.proto


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def check(
    model: onnx.ModelProto,
    inputs: Mapping[str, Any],
    *,
    changed: bool = True,
    exact: bool = False,
    reference: bool = False,
) -> onnx.ModelProto:
    """Check that a model computes the same in both forms, with frames cut by Slice and by Split."""
    wanted = run(model, inputs)
    for split in (False, True):
        made = change(model, split)
        onnx.checker.check_model(made, full_check=True)
        if changed:
            assert_planar(made)
        assert list(made.graph.output) == list(model.graph.output)
        got = run(made, inputs)
        for name, value in wanted.items():
            assert np.asarray(got[name]).dtype == np.asarray(value).dtype
            bound = 0 if exact else 2e-5
            np.testing.assert_allclose(got[name], value, rtol=bound, atol=bound)
        if reference:
            other = ReferenceEvaluator(made).run(list(wanted), dict(inputs))
            for value, own in zip(wanted.values(), other, strict=True):
                np.testing.assert_allclose(own, value, rtol=1e-4, atol=1e-4)
    return made


def assert_planar(model: onnx.ModelProto) -> None:
    """Check that no operator of images is left on volumes, by the types that ONNX infers."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    ranks = {each.name: len(each.type.tensor_type.shape.dim) for each in values}
    for node in model.graph.node:
        if node.op_type in WINDOWED or node.op_type.startswith("Global"):
            assert ranks[node.input[0]] == 4, node.op_type


def model_of(
    node: onnx.NodeProto,
    opset: int,
    *stored: onnx.TensorProto,
    dtypes: tuple[int, ...] = (1, 1, 1),
    batch: int | str = 2,
) -> onnx.ModelProto:
    """Return a model of a node that reads `x`; the dtypes are those of `x` and of what it makes."""
    shape = (batch, CHANNELS, DEPTH, ROWS, COLUMNS)
    given = [helper.make_tensor_value_info("x", dtypes[0], shape)]
    made = [
        helper.make_tensor_value_info(name, dtype, None)
        for name, dtype in zip(node.output, dtypes[1:], strict=False)
    ]
    graph = helper.make_graph([node], "g", given, made, list(stored))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def volume(seed: int = 0, batch: int = 2) -> NDArray[np.float32]:
    shape = (batch, CHANNELS, DEPTH, ROWS, COLUMNS)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    values = np.random.default_rng(7).normal(size=shape) * (1 if dtype == np.float32 else 20)
    return numpy_helper.from_array(values.astype(dtype), name)


PARTS = range(3)
"""Each window is in one part; the ordinary tests give each operator another one."""


def windows(part: int) -> Iterator[dict[str, Any]]:
    """Yield attributes of the windows of a part."""
    yield from itertools.islice(all_windows(), part, None, len(PARTS))


def all_windows() -> Iterator[dict[str, Any]]:
    """Yield attributes of windows: kernels, strides, dilations and padding of each kind, by axis."""
    for depth, space in itertools.product((1, 2, 3), ((1, 1), (3, 2))):
        for stride, dilation, pads in itertools.product(
            (1, 2), (1, 2), ((0, 0), (1, 1), (0, 2), (2, 0))
        ):
            if max(pads) >= depth:
                continue
            rows = 1 if space == (3, 2) else 0
            yield {
                "kernel_shape": [depth, *space],
                "strides": [stride, 1 + rows, 1],
                "dilations": [dilation, 1, 1],
                "pads": [pads[0], rows, 0, pads[1], 0, rows],
            }
        for stride, auto_pad in itertools.product((1, 2), ("SAME_UPPER", "SAME_LOWER", "VALID")):
            if stride <= min(depth, *space):
                yield {
                    "kernel_shape": [depth, *space],
                    "strides": [stride] * 3,
                    "auto_pad": auto_pad,
                }


@pytest.mark.parametrize(
    ("group", "batch", "part"),
    sample_cases(
        [*itertools.product([1, 2, CHANNELS], [1, 2], PARTS)], (1, 1, 0), (2, 2, 1), (CHANNELS, 1, 2)
    ),
)
def test_conv(group: int, batch: int, part: int) -> None:
    for attributes in windows(part):
        node = build_node("Conv", ["x", "w", "b"], ["y"], group=group, **attributes)
        stored = weights("w", 8, CHANNELS // group, *attributes["kernel_shape"]), weights("b", 8)
        model = model_of(node, 17, *stored, batch=batch)
        made = check(model, {"x": volume(batch=batch)}, reference=group == 1)
        found = count_operators(made)
        kernel = attributes["kernel_shape"]
        summed = group == CHANNELS and kernel[0] > 1 and kernel[1:] != [1, 1]
        assert (found["Conv"], found.get("Add", 0)) == ((kernel[0], kernel[0] - 1) if summed else (1, 0))
        if attributes["kernel_shape"][1:] == [1, 1] and attributes["strides"][1:] == [1, 1]:
            assert found == {"Conv": 1, "Reshape": 2}


@pytest.mark.parametrize("pads", [[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 2], [1, 0, 1, 0, 1, 0]])
def test_a_window_along_the_depth_is_padded_in_space(pads: list[int]) -> None:
    node = build_node("Conv", ["x", "w", "b"], ["y"], kernel_shape=[2, 1, 1], pads=pads)
    model = model_of(node, 17, weights("w", 8, CHANNELS, 2, 1, 1), weights("b", 8), batch=2)
    check(model, {"x": volume(batch=2)}, reference=True)


@pytest.mark.parametrize(
    ("group", "part"), sample_cases([*itertools.product([1, 2], PARTS)], (1, 0), (2, 1))
)
def test_conv_transpose(group: int, part: int) -> None:
    cases = itertools.product((1, 2, 3), (1, 2), (1, 2), (0, 1), (1, 2))
    for depth, stride, dilation, out, space in itertools.islice(cases, part, None, len(PARTS)):
        if out >= stride:  # onnxruntime takes no more
            continue
        for pads in ((0, 0), (1, 0), (1, 1)):
            if max(pads) > (depth - 1) * dilation:
                continue
            node = build_node(
                "ConvTranspose", ["x", "w", "b"], ["y"],
                strides=[stride, space, 1], dilations=[dilation, 1, 1], group=group,
                output_padding=[out, space - 1, 0], pads=[pads[0], 0, 0, pads[1], 0, 0],
            )  # fmt: skip
            stored = weights("w", CHANNELS, 3, depth, space, space), weights("b", 3 * group)
            check(model_of(node, 17, *stored), {"x": volume()})


@pytest.mark.parametrize(
    ("op", "batch", "part"),
    sample_cases(
        [*itertools.product(["MaxPool", "AveragePool", "LpPool"], [1, 3], PARTS)],
        *(("MaxPool", 3, 0), ("AveragePool", 1, 1), ("LpPool", 3, 2)),
    ),
)
def test_pools(op: str, batch: int, part: int) -> None:
    for attributes, ceil_mode, extra in itertools.product(windows(part), (0, 1), (0, 1)):
        stated: dict[str, Any] = {**attributes, "ceil_mode": ceil_mode}
        if op == "AveragePool":
            stated["count_include_pad"] = extra
        elif op == "LpPool":
            stated["p"] = extra + 1
        elif extra:
            continue
        if "auto_pad" in stated and ceil_mode:
            continue
        node = build_node(op, ["x"], ["y"], **stated)
        model = model_of(node, 19, batch=batch)
        inputs = {"x": volume(batch=batch)}
        # ONNX's inference counts windows that begin behind the image; onnxruntime does not.
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", 1, run(model, inputs)["y"].shape)
        )
        check(model, inputs)


def test_pools_of_integers() -> None:
    node = build_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2, 2], pads=[1, 0, 0, 1, 1, 1])
    x = np.random.default_rng(1).integers(-128, 128, (2, CHANNELS, DEPTH, ROWS, COLUMNS)).astype(np.int8)
    check(model_of(node, 17, dtypes=(3, 3)), {"x": x}, exact=True)


def test_places_of_the_largest_are_kept_along_the_depth_alone() -> None:
    for kernel, planar in (([3, 1, 1], True), ([1, 2, 2], False), ([2, 2, 2], False)):
        node = build_node("MaxPool", ["x"], ["y", "i"], kernel_shape=kernel)
        model = model_of(node, 17, dtypes=(1, 1, TensorProto.INT64))
        made = check(model, {"x": volume()}, changed=planar, exact=True)
        assert ("Reshape" in count_operators(made)) == planar


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
@pytest.mark.parametrize("batch", [1, 2, "n"])
def test_pools_of_all_and_normalizations(
    node: onnx.NodeProto, opset: int, stored: tuple[str, ...], batch: int | str
) -> None:
    values = [numpy_helper.from_array(np.array([1, 2, 0.5, 3], np.float32), name) for name in stored]
    model = model_of(node, opset, *values, batch=batch)
    if node.op_type == "GroupNormalization":  # ONNX infers no shape for it
        shape = batch, CHANNELS, DEPTH, ROWS, COLUMNS
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, shape))
    inputs = {"x": volume(batch=batch if isinstance(batch, int) else 2)}
    made = check(model, inputs, changed=node.op_type != "GroupNormalization")
    assert count_operators(made) == {node.op_type: 1, "Reshape": 2}


BETWEEN = [
    *(f"b = {op}(a)" for op in ("Relu", "Sigmoid", "Elu", "Neg", "HardSwish")),
    "b = Clip(a, zero, six)",
    "b, m = Dropout(a)",
    *(f"b = {op}(a, x)" for op in ("Add", "Sub", "Mul", "Max")),
    *(f"b = Add(a, {other})" for other in ("one", "row", "rows", "channels", "single", "all")),
    *(f"b = PRelu(a, {other})" for other in ("one", "row", "rows", "channels")),
    "c = Cast <to = 10> (a) b = Cast <to = 1> (c)",
    "g = Greater(a, x) b = Where(g, a, row)",
    *(f"b = Softmax <axis = {axis}> (a)" for axis in (-1, 1, -2, 3)),
    *(f"b = Concat <axis = {axis}> (a, x)" for axis in (1, 2, 3, 4, -1, -3)),
    "p, q = Split <axis = 1> (a, halves) b = Add(p, q)",
    "p, q = Split <axis = -1> (a, parts) b = Concat <axis = -1> (q, p)",
    "b = BatchNormalization(a, s4, s4, s4, s4)",
    "g = GlobalAveragePool(a) h = Sigmoid(g) b = Mul(a, h)",
    "g = GlobalAveragePool(a) v = Conv(g, pointwise) h = Sigmoid(v) b = Mul(a, h)",
    "b = Conv(a, pointwise)",
    "b = Conv <pads = [1, 0, 0, 1, 0, 0]> (a, deep)",
    "b = InstanceNormalization(a, s4, s4)",
    "q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z)",
    "q = QuantizeLinear <axis = 1> (a, s4, z4) b = DequantizeLinear <axis = 1> (q, s4, z4)",
    # These have no form on frames, and are computed on volumes.
    "b = Softmax <axis = 2> (a)",
    "b = Concat <axis = 0> (a, x)",
    "p, q = Split <axis = 2> (a, halves) b = Concat <axis = 2> (q, p)",
    "b = Add(a, depths)",
    "b = Transpose <perm = [0, 1, 2, 4, 3]> (a)",
]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("between", BETWEEN)
def test_what_lies_between_convolutions(between: str, batch: int) -> None:
    model = parse(
        f"""m (float[{batch}, 4, 4, 6, 5] x) => (float[N, M, K, L, P] y, float[A, B, C, D, E] b)
        <float zero = {{0.0}}, float six = {{6.0}}, float one = {{1.5}}, float s = {{0.1}},
         uint8 z = {{100}},
         float[4] s4 = {{0.1, 0.2, 0.05, 0.01}}, uint8[4] z4 = {{1, 2, 3, 100}},
         float[4, 1, 1, 1] channels = {{1, 2, 3, 4}}, float[4, 1, 1] depths = {{1, 2, 3, 4}},
         float[1, 4, 1, 1, 1] single = {{1, 2, 3, 4}},
         int64[2] halves = {{2, 2}}, int64[2] parts = {{1, 4}}> {{
          a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w)
          {between}
          y = AveragePool <kernel_shape = [1, 2, 2]> (b)
        }}""",
        opset=18,
    )
    rng = np.random.default_rng(3)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (
            ("w", (4, 4, 3, 3, 3)), ("row", (5,)), ("rows", (6, 5)), ("all", (batch, 4, 4, 6, 5)),
            ("pointwise", (4, 4, 1, 1, 1)), ("deep", (4, 4, 3, 1, 1)),
        )
    )  # fmt: skip
    x = np.random.default_rng(5).normal(size=(batch, 4, 4, 6, 5)).astype(np.float32)
    check(model, {"x": x})


def test_a_chain_enters_and_leaves_once() -> None:
    model = parse(
        """m (float[2, 4, 4, 6, 5] x) => (float[N, M, K, L, P] y) <float[4] s = {0.1, 0.2, 0.05, 0.01}> {
          a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w)
          n = BatchNormalization(a, s, s, s, s)
          r = Relu(n)
          c = Conv <strides = [2, 2, 2], pads = [1, 1, 1, 1, 1, 1]> (r, w)
          d = Conv <strides = [2, 2, 2]> (x, v)
          e = Add(c, d)
          f = Relu(e)
          y = MaxPool <kernel_shape = [1, 2, 2]> (f)
        }"""
    )
    model.graph.initializer.extend([weights("w", 4, 4, 3, 3, 3), weights("v", 4, 4, 1, 1, 1)])
    rng = np.random.default_rng(5)
    made = check(model, {"x": rng.normal(size=(2, 4, 4, 6, 5)).astype(np.float32)})
    found = count_operators(made)
    assert found["Transpose"] == 2
    assert found["Conv"] == 3
    assert not {"Slice", "Pad"} & found.keys()  # by Split, since that was asked for


def test_an_open_batch() -> None:
    model = parse(
        """m (float[N, 4, 6, 6, 5] x) => (float[N, M, 3, L, P] y) {
          a = Conv <strides = [1, 2, 2]> (x, v)
          n = Relu(a)
          b = Conv(n, w)
          y = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 1, 1]> (a)
        }"""
    )
    model.graph.initializer.extend([weights("w", 4, 4, 3, 1, 1), weights("v", 4, 4, 1, 2, 2)])
    for batch in (1, 3):
        x = np.random.default_rng(5).normal(size=(batch, 4, 6, 6, 5)).astype(np.float32)
        check(model, {"x": x})


INTEGERS = [
    {"pads": [1, 1, 1, 1, 1, 1], "strides": [2, 1, 1]},
    {"pads": [0, 1, 1, 2, 1, 1], "dilations": [2, 1, 1]},
    {"auto_pad": "SAME_UPPER"},
]


@pytest.mark.parametrize("group", [1, 2, CHANNELS])
@pytest.mark.parametrize("attributes", INTEGERS)
@pytest.mark.parametrize("depth", [1, 3])
def test_convolutions_of_integers_are_exact(
    group: int, attributes: Mapping[str, Any], depth: int
) -> None:
    """Integers are added up in one sum, and rounded once."""
    stated = {**attributes, "group": group}
    if depth == 1 and "pads" in stated:
        stated["pads"] = [0, 1, 1, 0, 1, 1]
    x = np.random.default_rng(1).integers(0, 255, (2, CHANNELS, DEPTH, ROWS, COLUMNS)).astype(np.uint8)
    scales, zeros = [0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0]
    stored = [weights("w", 4, CHANNELS // group, depth, 3, 3, dtype=np.int8)]
    stored += [numpy_helper.from_array(np.array(value, kind), name) for name, value, kind in (
        ("xs", 0.1, np.float32), ("xz", 3, np.uint8), ("ws", scales, np.float32), ("wz", zeros, np.int8),
        ("ys", 20.0, np.float32), ("yz", 5, np.uint8), ("b", [1, 2, 3, 4], np.int32), ("w0", 0, np.int8),
    )]  # fmt: skip
    number = TensorProto.UINT8
    reads = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    linear = build_node("QLinearConv", reads, ["y"], **stated)
    check(model_of(linear, 17, *stored, dtypes=(number, number)), {"x": x}, exact=True)
    integer = build_node("ConvInteger", ["x", "w", "xz", "w0"], ["y"], **stated)
    check(model_of(integer, 17, *stored, dtypes=(number, TensorProto.INT32)), {"x": x}, exact=True)


@pytest.mark.parametrize("zero", [100, 0])
def test_quantized_convolutions_read_what_is_dequantized(zero: int) -> None:
    """What gives them frames is between DequantizeLinear and QuantizeLinear, too."""
    model = parse(
        f"""m (float[2, 4, 4, 6, 5] x) => (float[2, 4, 2, 6, 5] y)
        <float s = {{0.125}}, uint8 z = {{{zero}}}, float[4] ws = {{0.125, 0.25, 0.0625, 0.0625}},
         int8[4] wz = {{0, 0, 0, 0}}> {{
          q = QuantizeLinear(x, s, z)
          d = DequantizeLinear(q, s, z)
          v = DequantizeLinear <axis = 0> (w, ws, wz)
          a = Conv <pads = [1, 1, 1, 1, 1, 1]> (d, v)
          r = QuantizeLinear(a, s, z)
          e = DequantizeLinear(r, s, z)
          b = Conv <strides = [2, 1, 1], pads = [1, 1, 1, 1, 1, 1]> (e, v)
          t = QuantizeLinear(b, s, z)
          y = DequantizeLinear(t, s, z)
        }}"""
    )
    model.graph.initializer.append(weights("w", 4, 4, 3, 3, 3, dtype=np.int8))
    x = np.random.default_rng(5).normal(size=(2, 4, 4, 6, 5)).astype(np.float32)
    made = check(model, {"x": x}, exact=True)
    makers = {name: node for node in made.graph.node for name in node.output}
    readers = {name: node.op_type for node in made.graph.node for name in node.input}
    stored = {each.name: each for each in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type in ("Conv", "Concat", "Split"):
            assert {makers[name].op_type for name in node.input if name in makers} == {
                "DequantizeLinear"
            }
            assert {readers[name] for name in node.output if name in readers} == {"QuantizeLinear"}
        if node.op_type == "Conv":
            stored_weights = stored[makers[node.input[1]].input[0]]
            assert (stored_weights.data_type, list(stored_weights.dims)) == (
                TensorProto.INT8,
                [4, 12, 3, 3],
            )
    assert "w" not in stored


def test_weights_that_are_computed() -> None:
    model = parse(
        """m (float[2, 4, 4, 6, 5] x, float[4, 4, 3, 2, 2] w) => (float[2, 4, 2, 5, 4] y) {
          v = Neg(w)
          y = Conv(x, v)
        }"""
    )
    rng = np.random.default_rng(5)
    inputs = {"x": rng.normal(size=(2, 4, 4, 6, 5)).astype(np.float32)}
    check(model, {**inputs, "w": rng.normal(size=(4, 4, 3, 2, 2)).astype(np.float32)})


def test_old_operator_sets() -> None:
    for opset in (7, 9, 10, 11, 12, 13):
        node = build_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1, 1, 1])
        model = model_of(node, opset, weights("w", 4, 4, 3, 3, 3))
        check(model, {"x": volume()}, changed=opset >= 10)


def test_what_has_no_such_form_stays() -> None:
    for text in (
        "m (float[2, 4, 5, 6] x) => (float[2, 4, 1, 1] y) { y = GlobalAveragePool(x) }",
        "m (float[2, 4, 5, 6, 7] x) => (float[2, 4, 5, 6, 7] y) { y = Relu(x) }",
        """m (float[N, 4, 5, H, W] x) => (float[N, 4, 5, P, Q] y)
        { y = MaxPool <kernel_shape = [1, 2, 2]> (x) }""",
        """m (float[2, 4, D, 6, 7] x) => (float[2, 4, E, 5, 6] y)
        { y = MaxPool <kernel_shape = [2, 2, 2]> (x) }""",
    ):
        model = parse(text)
        for split in (False, True):
            made = change(model, split)
            assert made.SerializeToString() == prepare_model(model, "m").proto.SerializeToString()
