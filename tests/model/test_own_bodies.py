"""The function bodies that byoc has for operators of ONNX compute the same."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, helper, numpy_helper

from byoc.model import build_node, has_function_body, list_own_bodies, make_body_model, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations

Case = tuple[onnx.NodeProto, Mapping[str, Any], Mapping[str, Any]]
"""A node, what it is given, and its constants."""

OPSETS = (11, 12, 13, 18, 20)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    values = rng().normal(size=shape).astype(dtype)
    if values.ndim > 1:
        values[0] = 0  # norms of 0, and equal numbers
    return values


def windows() -> Iterator[dict[str, Any]]:
    for kernel, stride, pads in itertools.product(([2, 3], [1, 2]), ([1, 1], [2, 1]), (0, 1)):
        ends = [min(pads, each - 1) for each in kernel]
        yield {"kernel_shape": kernel, "strides": stride, "pads": [*ends, 0, *ends[1:]]}


def list_cases(opset: int) -> Iterator[Case]:
    """Yield nodes of each operator with all kinds of attributes."""
    for dtype in (np.float32, np.float64):
        x = floats(3, 4, 5, dtype=dtype)
        for axis, p in itertools.product((-1, 0, 1), (1, 2)):
            yield build_node("LpNormalization", ["x"], ["y"], axis=axis, p=p), {"x": x}, {}
        small = np.array([[1e-30, 2e-30], [1e-22, -1e-22], [0, 0], [1e30, 1e30]], dtype)
        for p in (1, 2):
            yield build_node("LpNormalization", ["x"], ["y"], axis=1, p=p), {"x": small}, {}
    image, line = floats(2, 3, 6, 5), floats(2, 3, 7)
    yield from list_pools(image, line)
    for x, epsilon in itertools.product((image, line, floats(2, 3, 2, 3, 4)), (1e-5, 0.1)):
        given = {"x": x, "s": floats(3), "b": floats(3)}
        node = build_node("InstanceNormalization", ["x", "s", "b"], ["y"], epsilon=epsilon)
        yield node, {"x": x}, {k: v for k, v in given.items() if k != "x"}
        yield node, given, {}
    for size, beta, bias in itertools.product((1, 3, 5), (0.5, 0.75, 1.0, 0.6), (1.0, 2.0)):
        node = build_node("LRN", ["x"], ["y"], size=size, beta=beta, bias=bias, alpha=0.3)
        yield node, {"x": image}, {}
    yield from list_reductions(opset, image)
    yield from list_views(opset)
    values = np.array([1.5, -2, np.inf, -np.inf, 0.0, -0.0, 1e-30], np.float32)
    yield build_node("Reciprocal", ["x"], ["y"]), {"x": values}, {}
    for exponent in (-1.0, 1.0, 2.0, 3.0):
        yield build_node("Pow", ["x", "e"], ["y"]), {"x": image}, {"e": np.float32(exponent)}
    if opset >= 12:
        yield build_node("Pow", ["x", "e"], ["y"]), {"x": image}, {"e": np.array([2], np.int64)}
    for shapes in (((3, 4),), ((3, 4), (4,)), ((3, 4), (1, 4), (3, 1))):
        names = [f"x{i}" for i, _ in enumerate(shapes)]
        own = {name: floats(*shape) for name, shape in zip(names, shapes, strict=True)}
        yield build_node("Mean", names, ["y"]), own, {}
    for axis in (-1, 0, 1) if opset >= 13 else ():
        equal = rng().integers(0, 2, (3, 4, 5)).astype(np.float32)
        yield build_node("Hardmax", ["x"], ["y"], axis=axis), {"x": equal}, {}


def list_pools(image: Any, line: Any) -> Iterator[Case]:
    """Yield pools of windows of each kind, and of all of an image."""
    for p, window in itertools.product((1, 2, 3), windows()):
        yield build_node("LpPool", ["x"], ["y"], p=p, **window), {"x": image}, {}
        for pad in ("SAME_UPPER", "VALID"):
            stated = {k: v for k, v in window.items() if k != "pads"}
            if pad == "VALID" or stated["strides"] == [1, 1]:
                yield build_node("LpPool", ["x"], ["y"], p=p, auto_pad=pad, **stated), {"x": image}, {}
    for p, x in itertools.product((1, 2, 3), (image, line)):
        yield build_node("GlobalLpPool", ["x"], ["y"], p=p), {"x": x}, {}
    for op, x in itertools.product(("GlobalAveragePool", "GlobalMaxPool"), (image, line)):
        yield build_node(op, ["x"], ["y"]), {"x": x}, {}


def list_reductions(opset: int, image: Any) -> Iterator[Case]:
    """Yield reductions over axes, which are an attribute or an input."""
    for op, axes, keepdims in itertools.product(
        ("ReduceMean", "ReduceMax", "ReduceSum"), ([2, 3], [-1, -2], [1], [0, 3], None), (0, 1)
    ):
        images = axes is not None and {axis % 4 for axis in axes} == {2, 3}
        if op != "ReduceSum" and not images:
            continue
        as_input = opset >= (13 if op == "ReduceSum" else 18)
        if as_input and axes is not None:
            node = build_node(op, ["x", "axes"], ["y"], keepdims=keepdims)
            yield node, {"x": image}, {"axes": np.array(axes, np.int64)}
        else:
            yield build_node(op, ["x"], ["y"], axes=axes, keepdims=keepdims), {"x": image}, {}


def list_views(opset: int) -> Iterator[Case]:
    """Yield slices of any dtype and with places from either end, and axes of 1 put in or taken out."""
    ranges = [
        ([0], [1], [0]), ([1], [3], [1]), ([-2], [100], [2]), ([1, 0, -3], [4, 2, -1], [1, 0, -1]),
        ([0, 0], [9, 9], None), ([-100], [-1], [-1]),
    ]  # fmt: skip
    for x in (floats(3, 4, 5), np.arange(60).reshape(3, 4, 5)):
        for starts, ends, axes in ranges:
            stored = {"s": np.array(starts), "e": np.array(ends)}
            if axes is not None:
                stored["a"] = np.array(axes)
            yield build_node("Slice", ["x", *stored], ["y"]), {"x": x}, stored
    for op, axes, x in (
        ("Squeeze", [0, 2], floats(1, 4, 1, 5)), ("Squeeze", [2], floats(1, 4, 1)),
        ("Unsqueeze", [0, 3], floats(4, 5)), ("Unsqueeze", [1], floats(4)),
    ):  # fmt: skip
        if opset >= 13:
            yield build_node(op, ["x", "axes"], ["y"]), {"x": x}, {"axes": np.array(axes, np.int64)}
        else:
            yield build_node(op, ["x"], ["y"], axes=axes), {"x": x}, {}
    yield build_node("Squeeze", ["x"], ["y"]), {"x": floats(1, 4, 1)}, {}


def model_of(case: Case, opset: int) -> onnx.ModelProto:
    node, given, stored = case
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in given.items()
    ]
    first = values[0].type.tensor_type.elem_type
    made = [helper.make_tensor_value_info("y", first, None)]
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in stored.items()]
    graph = helper.make_graph([node], "g", values, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Any:
    with without_optimizations():
        return run_session(open_session(model), inputs)["y"]


@pytest.mark.parametrize("opset", OPSETS)
def test_bodies_compute_what_their_operators_do(opset: int) -> None:
    """In onnxruntime, over all kinds of attributes."""
    covered = set()
    for case in list_cases(opset):
        model = model_of(case, opset)
        body = make_body_model(prepare_model(model, "test").index, 0)
        assert body is not None, case[0]
        covered.add(case[0].op_type)
        assert case[0].op_type not in {node.op_type for node in body.graph.node}
        prepare_model(body, "body")
        given = {name: case[1][name] for name in (value.name for value in body.graph.input)}
        with np.errstate(all="ignore"):
            want, got = run(model, case[1]), run(body, given)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), case[0]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=str(case[0]))
    others = {"com.microsoft.QAttention", *(["Hardmax"] if opset < 13 else [])}
    assert covered == list_own_bodies() - others


def test_no_operator_is_made_of_itself() -> None:
    """Parts are taken apart again, so that a circle would never end."""
    made: dict[str, set[str]] = {}
    for opset in OPSETS:
        for case in list_cases(opset):
            body = make_body_model(prepare_model(model_of(case, opset), "test").index, 0)
            assert body is not None
            made.setdefault(case[0].op_type, set()).update(node.op_type for node in body.graph.node)
    for operator in made:
        reached, pending = set[str](), [operator]
        while pending:
            more = made.get(pending.pop(), set()) - reached
            reached |= more
            pending += more
        assert operator not in reached


@pytest.mark.parametrize(
    "text",
    [
        "m (float[N, 4, H, 6] x) => (float[N, 4, 1, 1] y) { y = GlobalAveragePool(x) }",
        "m (float[N, 4, H, 6] x) => (float[N, 4, 1, 1] y) { y = GlobalLpPool(x) }",
        "m (float[N, 4, H, 6] x) => (float[N, 4, H, 6] y) { y = LRN <size = 3> (x) }",
        "m (float[N] x) => (float[M] y) <int64[1] s = {0}, int64[1] e = {2}> { y = Slice(x, s, e) }",
        "m (float[9] x, int64[1] s) => (float[M] y) <int64[1] e = {5}> { y = Slice(x, s, e) }",
        """m (float[9] x) => (float[M] y) <int64[1] s = {0}, int64[1] e = {5}, int64[1] a = {0},
        int64[1] p = {2}> { y = Slice(x, s, e, a, p) }""",
        "m (float[9] x) => (float[0] y) <int64[1] s = {4}, int64[1] e = {4}> { y = Slice(x, s, e) }",
        "m (float[2, 3, 4, 5] x) => (float[2, 3, 4, 1] y) <int64[1] a = {3}> { y = ReduceMean(x, a) }",
        "m (float[2, 3] x, float e) => (float[2, 3] y) { y = Pow(x, e) }",
        "m (int32[2, 3] x) => (int32[2, 3] y) { y = Abs(x) }",
        "m (int32[2, 3] x) => (int32[1, 1] y) { y = ReduceSum(x) }",
        "m (float[1, 2, 5, 5] x) => (float[1, 2, 3, 3] y) "
        "{ y = LpPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }",
        "m (float[2, 3] x) => (float[2, 3] y) { y = Sinh(x) }",
    ],
)
def test_a_node_that_is_not_expressible_has_none(text: str) -> None:
    index = prepare_model(parse(text, opset=18), "m").index
    assert make_body_model(index, 0) is None


def test_an_open_batch_stays_open() -> None:
    for text in (
        "m (float[N, 4, 6, 6] x) => (float[N, 4] y) <int64[2] a = {2, 3}> "
        "{ y = ReduceMean <keepdims = 0> (x, a) }",
        "m (float[N, 4, 6, 6] x) => (float[N, 4, 6, 6] y) { y = LRN <size = 3> (x) }",
        "m (float[N, 4, 6] x) => (float[N, 2, 6] y) "
        "<int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {1}> { y = Slice(x, s, e, a) }",
        "m (float[N, 1, 6] x) => (float[N, 6] y) <int64[1] a = {1}> { y = Squeeze(x, a) }",
    ):
        model = parse(text, opset=18)
        body = make_body_model(prepare_model(model, "m").index, 0)
        assert body is not None
        for batch in (1, 3):
            shape = [each.dim_value or batch for each in model.graph.input[0].type.tensor_type.shape.dim]
            x = floats(*shape)
            np.testing.assert_allclose(run(body, {"x": x}), run(model, {"x": x}), rtol=1e-5, atol=1e-6)


def test_others_of_the_name_have_none() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    m (float[2, 3] x) => (float[2, 3] y) { y = own.Mean(x) }"""
    index = prepare_model(onnx.parser.parse_model(text), "m").index
    assert not has_function_body(index, index.nodes[0])


def attention(masks: tuple[int, ...], columns: bool, zero: int, **attributes: Any) -> onnx.ModelProto:
    """Return a model of a QAttention of 2 sequences of 5 with 4 heads of 8."""
    values = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, (2, 5, 16)),
        *([helper.make_tensor_value_info("m", TensorProto.INT32, masks)] if masks else []),
    ]
    scales = rng().uniform(0.01, 0.02, 96 if columns else ()).astype(np.float32)
    zeros = np.full(scales.shape, zero, np.int8)
    stored = {
        "w": rng().integers(-60, 60, (16, 96)).astype(np.int8), "b": floats(96), "xs": np.float32(0.02),
        "ws": scales, "xz": np.uint8(100), "wz": zeros,
    }  # fmt: skip
    reads = ["x", "w", "b", "xs", "ws", "m" if masks else "", "xz", "wz"]
    node = build_node("QAttention", reads, ["y"], domain="com.microsoft", num_heads=4, **attributes)
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in stored.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5, 32))]
    graph = helper.make_graph([node], "g", values, made, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("masks", [(), (2, 5), (2,)])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("columns", "zero"), [(False, 0), (True, 0), (False, 3)])
def test_attention_in_integers(masks: tuple[int, ...], causal: int, columns: bool, zero: int) -> None:
    for more in ({}, {"scale": 0.2}):
        model = attention(masks, columns, zero, unidirectional=causal, **more)
        body = make_body_model(prepare_model(model, "test").index, 0)
        assert body is not None
        x = rng().integers(0, 255, (2, 5, 16)).astype(np.uint8)
        mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]) if len(masks) == 2 else np.array([3, 5])
        given = {"x": x, **({"m": mask.astype(np.int32)} if masks else {})}
        inner = {"w": numpy_helper.to_array(model.graph.initializer[0])}  # large weights stay outside
        got = run(body, {**given, **inner})
        np.testing.assert_allclose(got, run(model, given), rtol=1e-5, atol=1e-5)


def test_attention_with_a_past_has_no_body() -> None:
    model = attention((), False, 0)
    model.graph.node[0].output.append("past")
    model.graph.output.append(helper.make_tensor_value_info("past", 1, None))
    assert make_body_model(prepare_model(model, "test").index, 0) is None
