"""Products of small integers on onnxruntime, against exact arithmetic, whatever kernels there are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper
from onnx.parser import parse_model

from byoc.errors import InputError
from byoc.onnxrt import (
    SessionMode,
    find_inexact_kernels,
    is_exact,
    open_session,
    run_session,
    use_equal_types,
    use_exact_products,
    with_session_mode,
)

pytestmark = pytest.mark.processor
KERNELS = "byoc.onnxrt._exact_products.is_exact"
MODES: tuple[SessionMode, ...] = ("definition", "exact", "fast")
TYPES = ("uint8", "int8")
DEPTH = 96  # several vectors of the widest instructions
ROWS, COLUMNS = 5, 7
ONE = np.float32(1)
Array = NDArray[Any]


@pytest.fixture(params=["kernels of this machine", "mixed types are wrong"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels as they are, and as if none were right for operands of two types."""
    if request.param != "kernels of this machine":
        monkeypatch.setattr(KERNELS, lambda op, first, other: first == other)


def reach(dtype: str, shape: Sequence[int], seed: int) -> Array:
    """Return integers, half of them at the ends of their type, the first row all at the upper one."""
    limits, generator = np.iinfo(dtype), np.random.default_rng(seed)
    values = generator.integers(limits.min, limits.max + 1, shape)
    ends = np.where(generator.random(shape) < 0.5, limits.max, limits.min)
    values = np.where(generator.random(shape) < 0.5, ends, values)
    values[:1] = limits.max
    return values.astype(dtype)


def make_model(
    op: str, inputs: Sequence[Array | None], stored: bool, domain: str = "", **attributes: Any
) -> tuple[ModelProto, dict[str, Array]]:
    """Return a model of one operator; its first input is given, and the weights unless stored."""
    arrays = {f"i{i}": np.asarray(each) for i, each in enumerate(inputs) if each is not None}
    names = [f"i{i}" if f"i{i}" in arrays else "" for i in range(len(inputs))]
    heavy = [name for name, array in arrays.items() if array.size > 8]
    given = {"i0": arrays["i0"]} if stored else {name: arrays[name] for name in heavy}
    node = helper.make_node(op, names, ["made"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
        ],
        [helper.make_empty_tensor_value_info("made")],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in given],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), given


def run_all(model: ModelProto, given: dict[str, Array], folder: Path | None = None) -> Iterator[Array]:
    for mode in MODES:
        with with_session_mode(mode):
            yield run_session(open_session(model, folder), given)["made"]


def round_to(exact: Array, scale: np.float32, point: int, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(exact / scale) + point, limits.min, limits.max).astype(np.int64)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("other", TYPES)
@pytest.mark.parametrize("first", TYPES)
def test_products_are_exact(first: str, other: str, stored: bool) -> None:
    a, b = reach(first, (ROWS, DEPTH), 1), reach(other, (DEPTH, COLUMNS), 2).copy()
    b[:, 0] = np.iinfo(other).max
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    for points in ((), (3,), (3, 5), (None, 5)):
        zeros = [
            None if p is None else np.array(p, d) for p, d in zip(points, (first, other), strict=False)
        ]
        zero_a, zero_b = (*(p or 0 for p in points), 0, 0)[:2]
        model, given = make_model("MatMulInteger", [a, b, *zeros], stored)
        exact = (wide_a - zero_a) @ (wide_b - zero_b)
        for made in run_all(model, given):
            assert made.dtype == np.int32
            np.testing.assert_array_equal(made, exact)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("other", TYPES)
@pytest.mark.parametrize("first", TYPES)
def test_convolutions_are_exact(first: str, other: str, stored: bool) -> None:
    x, w = reach(first, (1, DEPTH, 4, 4), 3), reach(other, (COLUMNS, DEPTH, 1, 1), 4)
    x[..., 0, 0] = np.iinfo(first).max
    exact = np.einsum("nchw,oc->nohw", x.astype(np.int64) - 3, w[..., 0, 0].astype(np.int64) - 2)
    model, given = make_model("ConvInteger", [x, w, np.array(3, first), np.array(2, other)], stored)
    for made in run_all(model, given):
        np.testing.assert_array_equal(made, exact)


CONTRIB = "com.microsoft"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("other", TYPES)
@pytest.mark.parametrize("first", TYPES)
@pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm", "QLinearConv", "MatMulIntegerToFloat"])
def test_quantized_operators_are_within_one_unit(op: str, first: str, other: str, stored: bool) -> None:
    a, b = reach(first, (ROWS, DEPTH), 5), reach(other, (DEPTH, COLUMNS), 6)
    zero_a, zero_b = np.array(7, first), np.array(0 if other == "int8" else 128, other)
    exact = (a.astype(np.int64) - int(zero_a)) @ (b.astype(np.int64) - int(zero_b))
    scale, zero = np.float32(np.abs(exact).max() / 100), np.array(1, first)
    if op == "MatMulIntegerToFloat":
        model, given = make_model(op, [a, b, ONE, ONE, zero_a, zero_b], stored, CONTRIB)
    elif op == "QLinearConv":
        x, w = a.T[None, :, None, :], b.T[:, :, None, None]
        model, given = make_model(op, [x, ONE, zero_a, w, ONE, zero_b, scale, zero], stored)
    elif op == "QGemm":
        model, given = make_model(
            op, [a, ONE, zero_a, b, ONE, zero_b, None, scale, zero], stored, CONTRIB
        )
    else:
        model, given = make_model(op, [a, ONE, zero_a, b, ONE, zero_b, scale, zero], stored)
    try:
        found = list(run_all(model, given))
    except InputError as error:
        if "NOT_IMPLEMENTED" in str(error):
            pytest.skip("onnxruntime has no such kernel")
        raise
    wanted = exact if op == "MatMulIntegerToFloat" else round_to(exact, scale, 1, first)
    for made in found:
        flat = made[0, :, 0].T if op == "QLinearConv" else made
        allowed = 1e-6 * np.abs(exact).max() if op == "MatMulIntegerToFloat" else 1
        assert np.abs(flat.astype(np.float64) - wanted).max() <= allowed


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("other", TYPES)
def test_an_lstm_and_a_product_that_quantize_by_themselves(other: str) -> None:
    b = reach(other, (DEPTH, COLUMNS), 7)
    a = np.random.default_rng(8).uniform(0, 1, (ROWS, DEPTH)).astype(np.float32)
    a[0] = 1
    model, given = make_model("DynamicQuantizeMatMul", [a, b, ONE], True, CONTRIB)
    wanted = np.rint(a.astype(np.float64) * 255) / 255 @ b.astype(np.int64)
    for made in run_all(model, given):
        assert np.abs(made - wanted).max() < 1e-5 * np.abs(wanted).max() + 1

    size, scale = 4, np.array([1e-3], np.float32)
    point = np.array([5 if other == "int8" else 130], other)
    w, r = reach(other, (1, DEPTH, 4 * size), 9), reach(other, (1, size, 4 * size), 10)
    x = np.ones((3, 1, DEPTH), np.float32)
    names = [x, w, r, *[None] * 5, scale, point, scale, point]
    model, given = make_model("DynamicQuantizeLSTM", names, True, CONTRIB, hidden_size=size)
    real = [((e.astype(np.float32) - point[0]) * scale[0]).transpose(0, 2, 1) for e in (w, r)]
    wanted = run_session(
        open_session(make_model("LSTM", [x, *real], True, hidden_size=size)[0]), {"i0": x}
    )
    for made in run_all(model, given):
        assert np.abs(made - wanted["made"]).max() < 1e-2


QDQ = """
<ir_version: 10, opset_import: ["" : 21]>
qdq (uint8[5,96] x) => (uint8[5,7] made)
<float s = {1.0}, uint8 zx = {3}, float t = {20000.0}, uint8 zy = {128}> {
    a = DequantizeLinear(x, s, zx)
    b = DequantizeLinear(w, s)
    c = MatMul(a, b)
    made = QuantizeLinear(c, t, zy)
}"""


@pytest.mark.usefixtures("kernels")
def test_weights_behind_a_dequantize_are_exact_in_every_mode() -> None:
    weights = reach("int8", (DEPTH, COLUMNS), 11)
    model = parse_model(QDQ)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    x = reach("uint8", (ROWS, DEPTH), 12)
    exact = (x.astype(np.int64) - 3) @ weights.astype(np.int64)
    for made in run_all(model, {"x": x}):
        assert np.abs(made - round_to(exact, np.float32(20000), 128, "uint8")).max() <= 1


NEGATIVE = """
<ir_version: 10, opset_import: ["" : 21]>
negative (float[1,5] x) => (float[1,5] made) <float s = {-0.05}, int8 z = {3}, float high = {1.0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    c = Clip(d, , high)
    e = QuantizeLinear(c, s, z)
    made = DequantizeLinear(e, s, z)
}"""


def test_a_clip_beside_a_negative_scale_is_kept_in_every_mode() -> None:
    x = np.array([[-2, -0.5, 0, 0.9, 3]], np.float32)
    for made in run_all(parse_model(NEGATIVE), {"x": x}):
        np.testing.assert_allclose(made, [[-2, -0.5, 0, 0.9, 1]], atol=0.051)


LOOP = """
<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
loops (uint8[5,96] x, int8[96,7] v) => (int32[5,7] made)
<int64 n = {3}, int32 zero = {0}, int64[2] shape = {5, 7}> {
    start = Expand(zero, shape)
    made = Loop(n, , start)
    <body = step (int64 i, bool more, int32[5,7] sum) => (bool going, int32[5,7] next) {
        going = Identity(more)
        one = MatMulInteger(x, w)
        two = local.product(x, v)
        three = Add(one, two)
        next = Add(sum, three)
    }>
}
<domain: "local", opset_import: ["" : 17]>
product (a, b) => (c) { c = MatMulInteger(a, b) }
"""


@pytest.mark.usefixtures("kernels")
def test_products_in_bodies_and_functions_are_exact(tmp_path: Path) -> None:
    w, v = reach("int8", (DEPTH, COLUMNS), 13), reach("int8", (DEPTH, COLUMNS), 14)
    x = reach("uint8", (ROWS, DEPTH), 15)
    model = parse_model(LOOP)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    exact = 3 * (x.astype(np.int64) @ (w.astype(np.int64) + v))
    for made in run_all(outside, {"x": x, "v": v}, tmp_path):
        np.testing.assert_array_equal(made, exact)


def test_equal_types_change_no_result_and_no_other_model() -> None:
    a, b = reach("uint8", (ROWS, DEPTH), 16), reach("int8", (DEPTH, COLUMNS), 17)
    model, given = make_model("MatMulInteger", [a, b], True)
    portable = use_equal_types(model, None)
    types = {tensor.name: tensor.data_type for tensor in portable.graph.initializer}
    assert types[portable.graph.node[0].input[1]] == onnx.TensorProto.UINT8
    made = run_session(open_session(portable), given)["made"]
    np.testing.assert_array_equal(made, a.astype(np.int64) @ b.astype(np.int64))
    same, _ = make_model("MatMulInteger", [a, b.view(np.uint8)], True)
    assert use_equal_types(same, None) is same


LEFT_OUT = """
<ir_version: 8, opset_import: ["" : 17]>
g (int8[1,1,5,96] p, float[5,96] x) => (int8[1,1,5,96] m, int32[5,7] made) <float s = {0.5}> {
    m = MaxPool <kernel_shape = [1, 1]> (p)
    q = QuantizeLinear(x, s)
    made = MatMulInteger(q, w)
}"""


def test_an_output_that_is_left_out_gives_no_type_to_a_zero_point_that_is() -> None:
    weights = reach("int8", (DEPTH, COLUMNS), 18)
    model = parse_model(LEFT_OUT)
    model.graph.node[0].output.append("")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    types = {each.name: each.data_type for each in use_equal_types(model, None).graph.initializer}
    assert onnx.TensorProto.UINT8 in types.values()  # as QuantizeLinear's result


MADE_BY = """
<ir_version: 10, opset_import: ["" : 21]>
g (bool b, uint8[5,96] x, int64[2] shape, int64[5] wide, uint8[5] few) => (int32[5,7] made)
<int8 byte = {1}, float s = {1.0}, uint8 zx = {0}, int8 zy = {0}, int64 n = {1}, int8[2] ends = {0, 1}> {
    BODY
    made = MatMulInteger(u, w)
}"""
MAKERS = {  # what makes `u`, whose type no value_info states, with that type
    "If": ("u = If(b) <then_branch = t () => (uint8[5,96] p) { p = Identity(x) }, "
           "else_branch = e () => (uint8[5,96] q) { q = Identity(x) }>", "uint8"),
    "If in If": ("u = If(b) <then_branch = t () => (uint8[5,96] p) { p = If(b) <"
                 "then_branch = t2 () => (uint8[5,96] p2) { p2 = Identity(x) }, "
                 "else_branch = e2 () => (uint8[5,96] q2) { q2 = Identity(x) }> }, "
                 "else_branch = e () => (uint8[5,96] q) { q = Identity(x) }>", "uint8"),
    "Loop": ("other, u = Loop(n, , byte, x) <body = l (int64 i, bool c, int8 k, uint8[5,96] v) => "
             "(bool d, int8 k2, uint8[5,96] v2) { d = Identity(c) k2 = Identity(k) v2 = Identity(v) }>",
             "uint8"),
    "Scan": ("u = Scan <num_scan_inputs = 1, body = r (int64 i) => (uint8[96] row) "
             "{ row = Gather(x, i) }> (wide)", "uint8"),
    "SequenceAt": ("few_of = SequenceConstruct(x, x) u = SequenceAt(few_of, n)", "uint8"),
    "SequenceMap": ("few_of = SequenceConstruct(wide) rows = SequenceMap <body = m (int64[5] i) => "
                    "(uint8[5,96] row) { row = Gather(x, i) }> (few_of) u = SequenceAt(rows, n)",
                    "uint8"),
    "CastLike": ("f = Cast <to = 1> (x) u = CastLike(f, x)", "uint8"),
    "ConstantOfShape": ("u = ConstantOfShape <value = uint8[1] {3}> (shape)", "uint8"),
    "EyeLike": ("f = Cast <to = 1> (x) u = EyeLike <dtype = 2> (f)", "uint8"),
    "OneHot": ("u = OneHot(few, n, ends)", "int8"),
    "QLinearMatMul": ("u = QLinearMatMul(x, s, zx, w, s, zy, s, zy)", "int8"),
    "local": ("u = local.pick(b, x)", "uint8"),
}  # fmt: skip
PICK = """
<domain: "local", opset_import: ["" : 21]>
pick (b, x) => (y) {
    y = If(b) <then_branch = t () => (uint8[5,96] p) { p = Identity(x) },
               else_branch = e () => (uint8[5,96] q) { q = Identity(x) }>
}
"""


@pytest.mark.parametrize("maker", MAKERS)
def test_the_type_of_an_operand_is_known_whatever_makes_it(maker: str) -> None:
    body, kind = MAKERS[maker]
    text = MADE_BY.replace("BODY", body)
    if maker == "local":
        text = text.replace('"" : 21]', '"" : 21, "local" : 1]') + PICK
    model = parse_model(text)
    second = "int8" if kind == "uint8" else "uint8"
    model.graph.initializer.append(numpy_helper.from_array(reach(second, (DEPTH, COLUMNS), 20), "w"))
    made = use_equal_types(model, None)
    assert made is not model
    product = next(node for node in made.graph.node if node.op_type == "MatMulInteger")
    types = {each.name: each.data_type for each in made.graph.initializer}
    wanted = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    assert types[product.input[1]] == wanted


SCALES = ", ".join(["0.5"] * COLUMNS)


@pytest.mark.parametrize("tensor", [False, True])
def test_a_new_zero_point_has_the_shape_of_scales_in_a_constant_node(
    tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KERNELS, lambda op, first, other: first == other)
    value = f"value = float[{COLUMNS}] {{{SCALES}}}" if tensor else f"value_floats = [{SCALES}]"
    scaled = f"v = Constant <{value}> () b = DequantizeLinear <axis = 1> (w, v)"
    model = parse_model(QDQ.replace("b = DequantizeLinear(w, s)", scaled))
    weights = reach("int8", (DEPTH, COLUMNS), 11)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    made = use_exact_products(model, None, fused=True)
    (reader,) = (node for node in made.graph.node if node.output[0] == "b")
    stored = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    values, point = (stored[reader.input[i]].astype(np.int64) for i in (0, 2))
    assert point.shape == (COLUMNS,)
    np.testing.assert_array_equal(values - point, weights)


def test_where_no_kernel_is_right_a_sentence_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KERNELS, lambda op, first, other: False)
    model, _ = make_model("MatMulInteger", [reach("uint8", (2, 8), 18), reach("int8", (8, 2), 19)], True)
    with pytest.raises(InputError, match=r"^onnxruntime .* on .* computes MatMulInteger of .* wrong"):
        open_session(model)


def test_kernels_that_are_wrong_are_named_by_operator_and_types() -> None:
    for name in find_inexact_kernels():
        op, first, other = name.split()
        assert first != other  # operands of one type are right on every processor that was tried
        assert not is_exact(op, first, other)
